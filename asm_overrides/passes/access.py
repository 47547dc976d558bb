"""Decides what one symbolic operation reads and writes, dword by dword; holds no order or register.

The instruction table answers: an operation is spelled with stand-in registers, parsed, and what the
parser says about those is translated back. So implicit registers and modifiers count as they do
everywhere else.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from asm_overrides.isa import Instruction, ParseError, registers
from asm_overrides.passes.text import op_text, parse_op, register_text
from asm_overrides.program import LoopProgram, Op, Part, Value

Atom = tuple[str, int]
"""One dword: name of a value and index, or an architectural register such as ("%vcc_lo", 0)."""

PSEUDO = frozenset(("publish", "release"))
"""Operations that stand for waits: see waits.py."""

_STATE = frozenset((*registers.EXEC, registers.MODE))

_HALF_BY_OP_SEL = re.compile(
    r"v_(cvt_pk_(fp8|bf8)_f32|ashr_pk_[ui]8_i32|cvt_scalef32_pk_(fp8|bf8)_(f32|f16|bf16))$"
)
_HALF_BY_NAME = {"v_mad_mixlo_f16": 0, "v_fma_mixlo_f16": 0, "v_mad_mixhi_f16": 1,
                 "v_fma_mixhi_f16": 1}  # fmt: skip


@dataclass(frozen=True)
class Access:
    """What an operation touches.

    Attributes:
        instruction: parsed with stand-in registers; None for labels and pseudo operations.
        reads, writes: atoms. EXEC and MODE are left out: `reserved` names those written.
        half: 0 or 1 if only that half of the destination changes and the other is kept; such an
            operation also has its destination among `reads`.
        reserved: names of reserved state that it writes.
    """

    instruction: Instruction | None
    reads: frozenset[Atom] = frozenset()
    writes: frozenset[Atom] = frozenset()
    half: int | None = None
    reserved: tuple[str, ...] = ()


NOTHING = Access(None)


_KNOWN: dict[int, tuple[Op, Access]] = {}
_KNOWN_LIMIT = 65536


def access(op: Op) -> Access:
    """What `op` touches.

    Raises:
        ValueError: names the recipe's line, if the instruction table does not accept it.
    """
    # Passes ask for the same object again and again, and hashing an operation is slow.
    known = _KNOWN.get(id(op))
    if known is not None and known[0] is op:
        return known[1]
    if len(_KNOWN) >= _KNOWN_LIMIT:
        _KNOWN.clear()
    found = _access(op)
    _KNOWN[id(op)] = (op, found)
    return found


@lru_cache(maxsize=16384)
def _access(op: Op) -> Access:
    if op.label or op.opcode in PSEUDO:
        return NOTHING
    first, atoms = _stand_ins(op)

    def name(part: Part) -> str:
        return register_text(part.value.file, first[part.value.name] + part.first, part.count)

    try:
        instruction = parse_op(op_text(op, name), 1)
    except ParseError as error:
        raise ValueError(f"{op.source}: {op}: {error}") from None
    written = sorted(instruction.writes & _STATE | {
        each for each in instruction.writes
        if registers.FLAT_SCRATCH_LO <= each <= registers.XNACK_MASK_HI
    })  # fmt: skip
    return Access(
        instruction,
        _translate(instruction.reads - _STATE, atoms),
        _translate(instruction.writes - _STATE, atoms),
        _half(instruction),
        tuple(registers.register_name(each) for each in written),
    )


def _stand_ins(op: Op) -> tuple[dict[str, int], dict[int, Atom]]:
    """For each value of `op`, where its dword 0 would be; register id -> atom.

    Only the dwords between the first and the last that `op` names take room. What is odd in a
    value stays odd, so that the parser checks alignment.
    """
    hulls: dict[str, tuple[Value, int, int]] = {}
    for part in op.parts:
        value, low, high = hulls.get(part.value.name, (part.value, part.first, part.first))
        hulls[value.name] = (
            value, min(low, part.first), max(high, part.first + part.count),
        )  # fmt: skip
    free = {"v": 0, "s": 0}
    first: dict[str, int] = {}
    atoms: dict[int, Atom] = {}
    for name, (value, low, high) in hulls.items():
        base = (free[value.file] + 3) // 4 * 4 + low % 4
        free[value.file] = base + high - low
        first[name] = base - low
        for dword in range(low, high):
            number = registers.register_id(value.file, base + dword - low)
            atoms[number] = (name, dword)
    return first, atoms


def _translate(ids: frozenset[int], atoms: dict[int, Atom]) -> frozenset[Atom]:
    return frozenset(atoms.get(each) or (f"%{registers.register_name(each)}", 0) for each in ids)


def _half(instruction: Instruction) -> int | None:
    if instruction.opcode in _HALF_BY_NAME:
        return _HALF_BY_NAME[instruction.opcode]
    if not _HALF_BY_OP_SEL.match(instruction.opcode):
        return None
    select = instruction.modifiers.get("op_sel")
    if isinstance(select, tuple) and len(select) == len(instruction.operands):
        return int(bool(select[-1]))
    return 0


def undeclared(program: LoopProgram) -> list[str]:
    """Names that operations use and the program does not declare as they use them."""
    declared = {value.name: value for value in program.values}
    return sorted(
        {
            part.value.name
            for op in program.ops
            for part in op.parts
            if declared.get(part.value.name) != part.value
        }
    )
