"""Decides what the hazard rules may ask about one instruction; holds no rule.

Classes and register sets follow LLVM's view of gfx950 where it differs from common sense: loads
that write LDS count as vector arithmetic too, and a packed instruction whose first source takes
its high half from the high half counts as writing a part of its destination.
"""

from __future__ import annotations

from asm_overrides.isa import registers
from asm_overrides.isa.instruction import Instruction
from asm_overrides.isa.operands import Constant, HardwareField, Register
from asm_overrides.isa.parse import effective_roles
from asm_overrides.isa.table import Role

_EMPTY: frozenset[int] = frozenset()

_MEMORY = ("buffer_", "tbuffer_", "global_", "flat_", "scratch_")
_FLAT = ("global_", "flat_", "scratch_")
_PACKED = ("v_pk_", "v_dot2_")
_PACKED_LOW = ("v_mad_mix", "v_fma_mix")
_UNPACKED = ("v_pk_fmac_f16",)
_TRANS_F64 = ("v_rcp_f64", "v_rsq_f64", "v_sqrt_f64")
_BYTE_SELECT = (
    "v_cvt_sr_fp8_f32",
    "v_cvt_sr_bf8_f32",
    "v_cvt_scalef32_sr_fp8",
    "v_cvt_scalef32_sr_bf8",
)
_FP4_PACK = ("v_cvt_scalef32_pk_fp4", "v_cvt_scalef32_sr_pk_fp4")
_ACCUMULATOR_MOVES = ("v_accvgpr_read_b32", "v_accvgpr_write_b32")
_M0_READERS = (
    "s_movrel",
    "s_sendmsg",
    "s_ttracedata",
    "ds_read_addtid",
    "ds_write_addtid",
    "ds_gws",
)


class Facts:
    """One instruction as the hazard rules see it.

    Attributes:
        instruction: what it describes.
        states: wait states it provides to others by being issued.
        classes: names of the classes it belongs to (see `_classes`).
        passes: matrix instructions: 4-cycle passes.
    """

    __slots__ = ("_sets", "classes", "instruction", "passes", "states")

    def __init__(self, instruction: Instruction) -> None:
        self.instruction = instruction
        self.states = _wait_states(instruction)
        self.classes = frozenset(_classes(instruction))
        self.passes = matrix_passes(instruction)
        self._sets: dict[str, frozenset[int]] = {}

    def registers(self, name: str) -> frozenset[int]:
        """Register set by name; see the functions called `_set_<name>`."""
        found = self._sets.get(name)
        if found is None:
            found = self._sets[name] = _SETS[name](self.instruction)
        return found

    @property
    def destination(self) -> Register | None:
        """First operand, if it is written and a register."""
        return _role_register(self.instruction, 0)

    @property
    def addend(self) -> Register | None:
        """Source C of a matrix instruction, if it is a register."""
        return _role_register(self.instruction, _addend_index(self.instruction))


def _wait_states(instruction: Instruction) -> int:
    if instruction.opcode == "s_nop":
        count = instruction.operands[0]
        return int(count.value) + 1 if isinstance(count, Constant) else 1
    return 1


def matrix_passes(instruction: Instruction) -> int:
    """4-cycle passes of a matrix instruction with its formats taken into account, 0 for others."""
    spec = instruction.spec
    if spec.matrix is None:
        return 0
    if spec.matrix.a_type == "f8f6f4":
        formats = (instruction.modifiers.get("cbsz", 0), instruction.modifiers.get("blgp", 0))
        # Formats 0 and 1 are the 8-bit ones; either operand in one of them doubles the time.
        if not any(kind in (0, 1) for kind in formats):
            return spec.passes // 2
    return spec.passes


def _classes(instruction: Instruction) -> set[str]:
    opcode = instruction.opcode
    spec = instruction.spec
    found = {"any"}
    lds_load = spec.port == "vmem" and _writes_lds(instruction)
    if opcode.startswith("v_") or lds_load:
        found.add("valu")
        trans = spec.port == "trans" or opcode in _TRANS_F64
        found.add("trans" if trans else "not trans")
    if opcode.startswith("v_"):
        found |= _vector_classes(instruction)
    elif opcode.startswith(_MEMORY):
        found |= {"vmem", "memory"}
        if _wide_store(instruction):
            found.add("wide store")
    elif opcode.startswith("ds_"):
        found |= {"lds", "memory"}
    elif opcode.startswith("s_getreg"):
        found |= {"getreg", "hwreg access"}
    elif opcode.startswith("s_setreg"):
        found |= {"setreg", "hwreg access"}
    if spec.port == "salu":
        found.add("salu")
    if lds_load or opcode.startswith(_M0_READERS) or "gds" in instruction.modifiers:
        found.add("m0 reader")
    if ("valu" in found and "mfma" not in found) or "memory" in found:
        found.add("not mfma")
    return found


def _vector_classes(instruction: Instruction) -> set[str]:
    opcode = instruction.opcode
    found: set[str] = set()
    if instruction.spec.matrix is not None:
        found |= {"mfma", instruction.spec.wait_class}
    elif opcode.startswith("v_dot"):
        found.add("dot")
    else:
        found.add("plain valu")
    if _writes_part(instruction):
        found.add("partial")
    if opcode.startswith("v_permlane"):
        found.add("permlane")
    if instruction.encoding == "dpp":
        found.add("dpp")
    if opcode.startswith("v_div_fmas"):
        found.add("div_fmas")
    if opcode.startswith("v_cmpx"):
        found.add("cmpx")
    if opcode in ("v_readlane_b32", "v_writelane_b32"):
        found.add("lane select")
    if opcode in ("v_readlane_b32", "v_readfirstlane_b32"):
        found.add("lane read")
    if opcode in ("v_readlane_b32", "v_readfirstlane_b32", "v_writelane_b32"):
        found.add("lane access")
    if opcode in ("v_fma_f64", "v_fmac_f64"):
        found.add("fma f64")
    return found


def _writes_lds(instruction: Instruction) -> bool:
    return "lds" in instruction.modifiers or "_load_lds_" in instruction.opcode


def _writes_part(instruction: Instruction) -> bool:
    """True if the result must be merged into the destination, which delays forwarding."""
    opcode, modifiers = instruction.opcode, instruction.modifiers
    if instruction.encoding == "sdwa":
        return modifiers.get("dst_sel", "DWORD") != "DWORD"
    if opcode.startswith(_FP4_PACK):
        return True
    if opcode.startswith((*_PACKED, *_PACKED_LOW)) and opcode not in _UNPACKED:
        default = (0,) if opcode.startswith(_PACKED_LOW) else (1,)
        high = modifiers.get("op_sel_hi", default)
        return isinstance(high, tuple) and bool(high[0])
    select = modifiers.get("op_sel")
    if not isinstance(select, tuple) or instruction.spec.matrix is not None:
        return False
    if opcode.startswith(_BYTE_SELECT):
        return any(select[-2:])
    sources = sum(role.reads and not role.writes for role in instruction.spec.roles)
    return len(select) > sources and bool(select[-1])


def _wide_store(instruction: Instruction) -> bool:
    """Stores of more than 8 bytes a lane whose data may be overwritten too early."""
    if instruction.spec.access not in ("store", "atomic") or _writes_lds(instruction):
        return False
    data = _store_data(instruction)
    if data is None or data.count <= 2:
        return False
    if instruction.opcode.startswith(_FLAT):
        return True
    return not isinstance(instruction.operands[-1], Register)


def _store_data(instruction: Instruction) -> Register | None:
    """Data operand: first of a buffer access, second of the others."""
    index = 1 if instruction.opcode.startswith(_FLAT) else 0
    if len(instruction.operands) <= index:
        return None
    operand = instruction.operands[index]
    return operand if isinstance(operand, Register) else None


def _addend_index(instruction: Instruction) -> int:
    """Place of the addend; sparse products and short dot products add to their result."""
    matrix = instruction.spec.matrix
    is_sparse = matrix is not None and matrix.sparse
    is_short_dot = instruction.opcode.startswith(("v_dot2c_", "v_dot4c_", "v_dot8c_"))
    return 0 if is_sparse or is_short_dot else 3


def _role_register(instruction: Instruction, index: int) -> Register | None:
    if index >= len(instruction.operands):
        return None
    operand = instruction.operands[index]
    return operand if isinstance(operand, Register) else None


def _roles(instruction: Instruction) -> tuple[Role, ...]:
    return effective_roles(instruction.spec, instruction.operands, instruction.modifiers)


def _explicit(instruction: Instruction, *, written: bool) -> frozenset[int]:
    """Registers of the operands as written down that are written, or read.

    DPP reads its destination, which lanes without a source keep.
    """
    found: set[int] = set()
    keeps = instruction.encoding == "dpp"
    for role, operand in zip(_roles(instruction), instruction.operands, strict=True):
        if not isinstance(operand, Register):
            continue
        if role.writes if written else role.reads or (keeps and operand.is_vector):
            found.update(operand.ids)
    return frozenset(found)


def _vector(ids: frozenset[int]) -> frozenset[int]:
    return frozenset(register for register in ids if registers.is_vector(register))


def _scalar(ids: frozenset[int]) -> frozenset[int]:
    return frozenset(register for register in ids if not registers.is_vector(register))


def _set_writes(instruction: Instruction) -> frozenset[int]:
    return instruction.writes


def _set_reads(instruction: Instruction) -> frozenset[int]:
    return instruction.reads


def _set_defs(instruction: Instruction) -> frozenset[int]:
    return _explicit(instruction, written=True)


def _set_vector_defs(instruction: Instruction) -> frozenset[int]:
    return _vector(_explicit(instruction, written=True))


def _set_uses(instruction: Instruction) -> frozenset[int]:
    return _explicit(instruction, written=False)


def _set_vector_uses(instruction: Instruction) -> frozenset[int]:
    return _vector(_explicit(instruction, written=False))


def _set_scalar_uses(instruction: Instruction) -> frozenset[int]:
    """Scalar sources, an implicitly read VCC included and EXEC excluded."""
    return _scalar(_explicit(instruction, written=False)) | (instruction.reads & registers.VCC)


def _set_scalar_reads(instruction: Instruction) -> frozenset[int]:
    """Every scalar register that a memory instruction depends on, EXEC and M0 included."""
    return _scalar(instruction.reads) - {registers.MODE, registers.SCC}


def _set_touched(instruction: Instruction) -> frozenset[int]:
    return _explicit(instruction, written=True) | instruction.reads


def _set_exec(instruction: Instruction) -> frozenset[int]:
    return registers.EXEC


def _set_vcc(instruction: Instruction) -> frozenset[int]:
    return registers.VCC


def _set_m0(instruction: Instruction) -> frozenset[int]:
    return frozenset((registers.M0,))


def _set_lane_source(instruction: Instruction) -> frozenset[int]:
    source = _role_register(instruction, 1)
    return frozenset(source.ids) if source is not None else _EMPTY


def _set_lane_select(instruction: Instruction) -> frozenset[int]:
    select = _role_register(instruction, 2)
    return _scalar(frozenset(select.ids)) if select is not None else _EMPTY


def _set_store_data(instruction: Instruction) -> frozenset[int]:
    data = _store_data(instruction)
    return frozenset(data.ids) if data is not None else _EMPTY


def _set_addend(instruction: Instruction) -> frozenset[int]:
    addend = _role_register(instruction, _addend_index(instruction))
    return frozenset(addend.ids) if addend is not None else _EMPTY


def _set_factors(instruction: Instruction) -> frozenset[int]:
    """Sources of a matrix or dot instruction other than the addend: A, B, index, scales."""
    skip = _addend_index(instruction)
    found: set[int] = set()
    for index, (role, operand) in enumerate(
        zip(_roles(instruction), instruction.operands, strict=True)
    ):
        if index != skip and role.reads and isinstance(operand, Register):
            found.update(operand.ids)
    return frozenset(found)


def _set_hwreg(instruction: Instruction) -> frozenset[int]:
    """One made-up number per hardware register, below every real one."""
    for operand in instruction.operands:
        if isinstance(operand, HardwareField):
            return frozenset((-1 - sum(ord(letter) << i for i, letter in enumerate(operand.name)),))
    return _EMPTY


def _set_always(instruction: Instruction) -> frozenset[int]:
    """For rules that do not depend on any register."""
    return frozenset((-1,))


_SETS = {
    name.removeprefix("_set_"): function
    for name, function in list(globals().items())
    if name.startswith("_set_")
}
