"""Decides how undefined bytes travel through registers; does not say where they do harm.

A program may compute with registers that nothing has written as long as the result never matters:
compilers fill one half of a register pair, or one lane of a register. So undefined bytes are
tracked per lane through moves, selections and partial writes, and everything else makes of them an
undefined result. Scalars are tracked per bit, because lane masks are combined bit by bit.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from asm_overrides.emulator.arithmetic.lanes import pack_mask, unpack_mask
from asm_overrides.emulator.state import SCALAR_POISON, Group, Workgroup
from asm_overrides.isa import registers as ids
from asm_overrides.isa.instruction import Instruction
from asm_overrides.isa.operands import Constant, Operand, Register
from asm_overrides.isa.parse import effective_roles

Bytes = NDArray[np.uint8]
"""(waves, 64): bit i is set where byte i of the register is undefined."""

Bits = NDArray[np.uint32]
"""(waves,): bits of a scalar register that are undefined."""

Lanes = NDArray[np.bool_]

ALL_BYTES = 0xF
SCRATCH = -1
"""Stands for all of scratch memory among the registers that may be undefined."""
_ALL_BITS = 0xFFFFFFFF
_SCALAR_ROWS = ids.COUNT - ids.SGPR


class Shadow:
    """Which bytes of a workgroup's registers are undefined.

    Attributes:
        maybe: registers that are undefined somewhere, and SCRATCH; all others are defined
            everywhere.
    """

    def __init__(self, workgroup: Workgroup) -> None:
        waves = workgroup.waves
        self.vector = np.full((ids.SGPR, waves, 64), ALL_BYTES, np.uint8)
        self.vector[0] = 0
        self.scalar = np.zeros((_SCALAR_ROWS, waves), np.uint32)
        unset = workgroup.scalar == SCALAR_POISON
        self.scalar[: len(unset)][unset] = _ALL_BITS
        self.scalar[ids.SCC - ids.SGPR] = _ALL_BITS
        self.scratch = np.full(workgroup.scratch.shape, ALL_BYTES, np.uint8)
        undefined = np.flatnonzero(self.scalar.any(axis=1))
        self.maybe = {SCRATCH, *range(1, ids.SGPR), *(ids.SGPR + int(row) for row in undefined)}

    def read(self, group: Group, register: int) -> Bytes:
        """Undefined bytes of a vector register."""
        found: Bytes = self.vector[register, group.first : group.end]
        return found

    def bits(self, group: Group, register: int) -> Bits:
        """Undefined bits of a scalar register."""
        found: Bits = self.scalar[register - ids.SGPR, group.first : group.end]
        return found

    def write(
        self, group: Group, register: int, undefined: Bytes | int, *, everywhere: bool = False
    ) -> None:
        """A vector register is written in the active lanes (`everywhere`: in all)."""
        target = self.vector[register, group.first : group.end]
        if everywhere or group.exec_full:
            target[...] = undefined
        else:
            np.copyto(target, np.uint8(undefined), where=group.exec_mask)
        self._note(register, self.vector[register])

    def write_bits(self, group: Group, register: int, undefined: Bits | int) -> None:
        """A scalar register is written."""
        self.scalar[register - ids.SGPR, group.first : group.end] = undefined
        self._note(register, self.scalar[register - ids.SGPR])

    def _note(self, register: int, content: NDArray[np.unsignedinteger]) -> None:
        if content.any():
            self.maybe.add(register)
        else:
            self.maybe.discard(register)

    def lanes(self, group: Group, operand: Operand, relevant: int = ALL_BYTES) -> Lanes:
        """Lanes in which a source is undefined, in any of the relevant bytes of any dword.

        (waves, 64), or (waves, 1) for scalars, or (1, 1) for constants.
        """
        if not isinstance(operand, Register):
            return np.zeros((1, 1), np.bool_)
        if operand.is_vector:
            block = self.vector[operand.first : operand.first + operand.count]
            found: Lanes = ((block[:, group.first : group.end] & relevant) != 0).any(axis=0)
            return found
        row = operand.first - ids.SGPR
        scalar = self.scalar[row : row + operand.count, group.first : group.end]
        by_wave: Lanes = (scalar != 0).any(axis=0)[:, None]
        return by_wave

    def mask_lanes(self, group: Group, first: int) -> Lanes:
        """Lanes whose bit of a lane mask (two scalar registers) is undefined."""
        row = first - ids.SGPR
        return unpack_mask(self.scalar[row : row + 2, group.first : group.end])


def _whole(lanes: Lanes) -> Bytes:
    """All bytes of the lanes chosen."""
    found: Bytes = np.where(lanes, np.uint8(ALL_BYTES), np.uint8(0))
    return found


Transfer = Callable[[Shadow, Group, Instruction], None]


def _sources(instruction: Instruction) -> list[Operand]:
    roles = effective_roles(instruction.spec, instruction.operands, instruction.modifiers)
    pairs = zip(roles, instruction.operands, strict=True)
    return [operand for role, operand in pairs if role.reads]


def _destinations(instruction: Instruction) -> list[Register]:
    roles = effective_roles(instruction.spec, instruction.operands, instruction.modifiers)
    pairs = zip(roles, instruction.operands, strict=True)
    return [each for role, each in pairs if role.writes and isinstance(each, Register)]


def relevant_bytes(instruction: Instruction, position: int) -> int:
    """Bytes of a source that a 16-bit operation looks at, all for others."""
    if instruction.spec.source_type not in ("f16", "bf16", "b16", "u16", "i16"):
        return ALL_BYTES
    if instruction.opcode.startswith(("v_pk_", "v_dot", "v_cvt_pk")):
        return ALL_BYTES
    select = instruction.modifiers.get("op_sel", ())
    high = isinstance(select, tuple) and position < len(select) and select[position]
    return 0xC if high else 0x3


def any_undefined(shadow: Shadow, group: Group, instruction: Instruction) -> Lanes:
    """Lanes in which some source is undefined, (waves, 64)."""
    found = np.zeros((group.count, 64), np.bool_)
    for position, operand in enumerate(_sources(instruction)):
        if isinstance(operand, Register):
            if not operand.is_vector and _is_lane_mask(instruction, operand):
                found |= shadow.mask_lanes(group, operand.first)
            else:
                found |= shadow.lanes(group, operand, relevant_bytes(instruction, position))
    if ids.VCC_LO in instruction.spec.reads:
        found |= shadow.mask_lanes(group, ids.VCC_LO)
    return found


def _is_lane_mask(instruction: Instruction, operand: Register) -> bool:
    """True if the operand stands where the table wants a mask of lanes."""
    pairs = zip(instruction.spec.roles, instruction.operands, strict=False)
    return any(role.kind == "m" and each is operand for role, each in pairs)


def vector_default(shadow: Shadow, group: Group, instruction: Instruction) -> None:
    """Any undefined source makes the whole result undefined."""
    lanes = any_undefined(shadow, group, instruction)
    if instruction.encoding == "dpp":
        lanes = np.broadcast_to(lanes.any(axis=1, keepdims=True), lanes.shape)
    _write_all(shadow, group, instruction, lanes)


def _write_all(shadow: Shadow, group: Group, instruction: Instruction, lanes: Lanes) -> None:
    undefined = _whole(lanes)
    for operand in _destinations(instruction):
        if operand.is_vector:
            for register in operand.ids:
                shadow.write(group, register, undefined)
        else:
            _write_mask(shadow, group, operand.first, lanes)
    for register in instruction.spec.writes & ids.EXEC:
        shadow.write_bits(group, register, 0)


def _write_mask(shadow: Shadow, group: Group, first: int, lanes: Lanes) -> None:
    """A lane mask is written: inactive lanes get zero."""
    active = lanes if group.exec_full else lanes & group.exec_mask
    words = pack_mask(active)
    for position in range(2):
        shadow.write_bits(group, first + position, words[position])


def _move(shadow: Shadow, group: Group, instruction: Instruction) -> None:
    """Each dword of the result is as defined as the dword it came from."""
    destination, source = instruction.operands[:2]
    assert isinstance(destination, Register)
    if instruction.encoding in ("dpp", "sdwa"):
        vector_default(shadow, group, instruction)
        return
    for position, register in enumerate(destination.ids):
        if isinstance(source, Register) and source.is_vector:
            undefined: Bytes | int = shadow.read(group, source.first + position)
        else:
            lanes = shadow.lanes(group, source)
            undefined = _whole(lanes)
        shadow.write(group, register, undefined)


def _swap(shadow: Shadow, group: Group, instruction: Instruction) -> None:
    first, second = (operand.ids[0] for operand in _destinations(instruction))
    one, other = shadow.read(group, first).copy(), shadow.read(group, second).copy()
    if instruction.opcode == "v_permlane32_swap_b32":
        one[:, 32:], other[:, :32] = other[:, :32].copy(), one[:, 32:].copy()
    elif instruction.opcode == "v_permlane16_swap_b32":
        for row in (16, 48):
            high, low = slice(row, row + 16), slice(row - 16, row)
            one[:, high], other[:, low] = other[:, low].copy(), one[:, high].copy()
    else:
        one, other = other, one
    shadow.write(group, first, one)
    shadow.write(group, second, other)


def _select(shadow: Shadow, group: Group, instruction: Instruction) -> None:
    """v_cndmask: only the side that is taken counts."""
    destination, no, yes, mask = instruction.operands
    assert isinstance(destination, Register) and isinstance(mask, Register)
    row = mask.first - ids.SGPR
    taken = unpack_mask(group.s[row : row + 2])
    lanes = np.where(taken, shadow.lanes(group, yes), shadow.lanes(group, no))
    lanes |= shadow.mask_lanes(group, mask.first)
    shadow.write(group, destination.first, _whole(lanes))


def _byte_source(shadow: Shadow, group: Group, operand: Operand) -> Bytes:
    """Undefined bytes of a 32-bit source, (waves, 64) or broadcastable to it."""
    if isinstance(operand, Register) and operand.is_vector:
        return shadow.read(group, operand.first)
    return _whole(shadow.lanes(group, operand))


_SIGN_OF = {8: 1, 9: 3, 10: 5, 11: 7}
"""v_perm selectors that replicate the sign of a byte."""


def _permute(shadow: Shadow, group: Group, instruction: Instruction) -> None:
    """v_perm_b32: each result byte is as defined as the byte that its selector names."""
    destination, high, low, selector = instruction.operands
    assert isinstance(destination, Register)
    if isinstance(selector, Constant):
        value = int(selector.value)
    elif isinstance(selector, Register) and not selector.is_vector:
        words = group.s[selector.first - ids.SGPR]
        if shadow.bits(group, selector.first).any() or (words != words[0]).any():
            vector_default(shadow, group, instruction)
            return
        value = int(words[0])
    else:
        vector_default(shadow, group, instruction)
        return
    sources = _byte_source(shadow, group, low), _byte_source(shadow, group, high)
    result = np.zeros((group.count, 64), np.uint8)
    for position in range(4):
        chosen = value >> 8 * position & 0xFF
        chosen = _SIGN_OF.get(chosen, chosen)
        if chosen < 8:
            bit = sources[chosen // 4] >> np.uint8(chosen % 4) & np.uint8(1)
            result |= bit << np.uint8(position)
    shadow.write(group, destination.first, result)


def _part(shadow: Shadow, group: Group, instruction: Instruction) -> None:
    """Conversions that write one half or byte of the destination and keep the rest."""
    destination = instruction.operands[0]
    assert isinstance(destination, Register)
    select = instruction.modifiers.get("op_sel", ())
    if not isinstance(select, tuple):
        select = ()
    if "_sr_" in instruction.opcode and "_pk_" not in instruction.opcode:
        low_bit, high_bit = (*select, 0, 0, 0, 0)[2:4] if len(select) >= 4 else (0, 0)
        written = 1 << (low_bit + 2 * high_bit)
    else:
        written = 0xC if len(select) >= 3 and select[-1] else 0x3
    lanes = np.zeros((group.count, 64), np.bool_)
    for operand in instruction.operands[1:]:
        lanes |= shadow.lanes(group, operand)
    kept = shadow.read(group, destination.first) & np.uint8(ALL_BYTES ^ written)
    shadow.write(group, destination.first, kept | np.where(lanes, np.uint8(written), np.uint8(0)))


def _wide_sum(shadow: Shadow, group: Group, instruction: Instruction) -> None:
    """64-bit sums and left shifts: the low dword does not depend on high dwords."""
    low = np.zeros((group.count, 64), np.bool_)
    high = low.copy()
    for operand in _sources(instruction):
        if isinstance(operand, Register) and operand.count == 2:
            low |= shadow.lanes(group, Register(operand.first, 1))
            high |= shadow.lanes(group, Register(operand.first + 1, 1))
        else:
            low |= shadow.lanes(group, operand)
    high |= low
    for operand in _destinations(instruction):
        if operand.is_vector:
            for register, lanes in zip(operand.ids, (low, high), strict=True):
                undefined = _whole(lanes)
                shadow.write(group, register, undefined)
        else:
            _write_mask(shadow, group, operand.first, high)


def _packed_float(shadow: Shadow, group: Group, instruction: Instruction) -> None:
    """v_pk_*_f32: each half of the result takes the halves that op_sel and op_sel_hi name."""
    destination = instruction.operands[0]
    assert isinstance(destination, Register)
    results = []
    for modifier, default in (("op_sel", 0), ("op_sel_hi", 1)):
        select = instruction.modifiers.get(modifier, ())
        lanes = np.zeros((group.count, 64), np.bool_)
        for position, operand in enumerate(instruction.operands[1:]):
            chosen = default
            if isinstance(select, tuple) and position < len(select):
                chosen = select[position]
            if isinstance(operand, Register):
                half = operand.first + (chosen if operand.count == 2 else 0)
                lanes |= shadow.lanes(group, Register(half, 1))
        results.append(_whole(lanes))
    for register, undefined in zip(destination.ids, results, strict=True):
        shadow.write(group, register, undefined)


def _read_lane(shadow: Shadow, group: Group, instruction: Instruction) -> None:
    """One lane becomes a scalar."""
    destination, source = instruction.operands[:2]
    assert isinstance(destination, Register) and isinstance(source, Register)
    undefined = shadow.read(group, source.first) != 0
    if instruction.opcode == "v_readfirstlane_b32":
        lane = np.where(group.exec_mask.any(axis=1), group.exec_mask.argmax(axis=1), 0)
    else:
        lane = _lane_number(group, instruction.operands[2])
    chosen = undefined[np.arange(group.count), lane]
    shadow.write_bits(
        group, destination.first, np.where(chosen, np.uint32(_ALL_BITS), np.uint32(0))
    )


def _write_lane(shadow: Shadow, group: Group, instruction: Instruction) -> None:
    """One lane is written, the others stay as they are."""
    destination, source = instruction.operands[:2]
    assert isinstance(destination, Register)
    undefined = shadow.read(group, destination.first).copy()
    lane = _lane_number(group, instruction.operands[2])
    taken = shadow.lanes(group, source)[:, 0]
    undefined[np.arange(group.count), lane] = np.where(taken, ALL_BYTES, 0)
    shadow.write(group, destination.first, undefined, everywhere=True)


def _lane_number(group: Group, operand: Operand) -> NDArray[np.int64]:
    if isinstance(operand, Register):
        numbers: NDArray[np.int64] = group.s[operand.first - ids.SGPR].astype(np.int64) & 63
        return numbers
    assert isinstance(operand, Constant)
    return np.full(group.count, int(operand.value) & 63, np.int64)


_MOVES = (
    "v_mov_b32",
    "v_mov_b64",
    "v_accvgpr_read_b32",
    "v_accvgpr_write_b32",
    "v_accvgpr_mov_b32",
)
_SWAPS = ("v_swap_b32", "v_permlane32_swap_b32", "v_permlane16_swap_b32")
_WIDE_SUMS = ("v_mad_u64_u32", "v_mad_i64_i32", "v_lshl_add_u64", "v_lshlrev_b64")
_PACKED_FLOATS = ("v_pk_mul_f32", "v_pk_add_f32", "v_pk_fma_f32", "v_pk_mov_b32")
_PARTS = (
    "v_cvt_pk_fp8_f32",
    "v_cvt_pk_bf8_f32",
    "v_cvt_sr_fp8_f32",
    "v_cvt_sr_bf8_f32",
    "v_ashr_pk_u8_i32",
    "v_ashr_pk_i8_i32",
)
_PART_PREFIXES = ("v_cvt_scalef32_pk_fp8_", "v_cvt_scalef32_pk_bf8_")

_TRANSFERS: dict[str, Transfer] = {
    **dict.fromkeys(_MOVES, _move),
    **dict.fromkeys(_SWAPS, _swap),
    **dict.fromkeys(_WIDE_SUMS, _wide_sum),
    **dict.fromkeys(_PACKED_FLOATS, _packed_float),
    **dict.fromkeys(_PARTS, _part),
    "v_cndmask_b32": _select,
    "v_perm_b32": _permute,
    "v_readlane_b32": _read_lane,
    "v_readfirstlane_b32": _read_lane,
    "v_writelane_b32": _write_lane,
}


def vector_transfer(instruction: Instruction) -> Transfer:
    """How a vector instruction passes undefined bytes on."""
    if instruction.opcode.startswith(_PART_PREFIXES):
        return _part
    return _TRANSFERS.get(instruction.opcode, vector_default)


_BITWISE = ("s_and_", "s_or_", "s_xor_", "s_andn2_", "s_orn2_", "s_xnor_", "s_nand_", "s_nor_")


def scalar_transfer(shadow: Shadow, group: Group, instruction: Instruction) -> None:
    """A scalar instruction passes undefined bits on: bitwise ones bit by bit, others as a whole."""
    opcode = instruction.opcode
    destinations = [each for each in _destinations(instruction) if not each.is_vector]
    sources = _sources(instruction)
    anything = np.zeros(group.count, np.bool_)
    for operand in sources:
        anything |= shadow.lanes(group, operand)[:, 0]
    if ids.SCC in instruction.spec.reads:
        anything |= shadow.bits(group, ids.SCC) != 0
    whole = np.where(anything, np.uint32(_ALL_BITS), np.uint32(0))
    by_bit = opcode.startswith(_BITWISE) and "saveexec" not in opcode
    moved = opcode.startswith(("s_mov_b", "s_not_b"))
    for destination in destinations:
        for position, register in enumerate(destination.ids):
            undefined = whole
            if by_bit:
                undefined = _combined(shadow, group, instruction, position)
            elif moved:
                undefined = _word(shadow, group, sources[0], position)
            shadow.write_bits(group, register, undefined)
    if ids.SCC in instruction.spec.writes:
        shadow.write_bits(group, ids.SCC, whole)


def _word(shadow: Shadow, group: Group, operand: Operand, position: int) -> Bits:
    if isinstance(operand, Register):
        bits: Bits = shadow.bits(group, operand.first + position).copy()
        return bits
    return np.zeros(group.count, np.uint32)


def _value(group: Group, operand: Operand, position: int) -> Bits:
    if isinstance(operand, Register) and operand.first < ids.SCC:
        found: Bits = group.s[operand.first - ids.SGPR + position]
        return found
    bits = operand.bits("b64") if isinstance(operand, Constant) else 0
    return np.full(group.count, bits >> 32 * position & _ALL_BITS, np.uint32)


def _combined(shadow: Shadow, group: Group, instruction: Instruction, position: int) -> Bits:
    """Undefined bits of a bitwise result: a defined 0 decides an AND, a defined 1 an OR."""
    left, right = instruction.operands[1:3]
    one, other = _word(shadow, group, left, position), _word(shadow, group, right, position)
    undefined = one | other
    opcode = instruction.opcode
    if opcode.startswith(("s_xor_", "s_xnor_")):
        return undefined
    one_value, other_value = _value(group, left, position), _value(group, right, position)
    if opcode.startswith(("s_andn2_", "s_orn2_")):
        other_value = ~other_value
    if opcode.startswith(("s_or_", "s_orn2_", "s_nor_")):
        one_value, other_value = ~one_value, ~other_value
    decided = (~one & ~one_value) | (~other & ~other_value)
    return undefined & ~decided
