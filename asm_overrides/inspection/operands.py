"""Decides which vector registers an operand stands for and which of them are really read."""

from __future__ import annotations

from asm_overrides.isa.instruction import Instruction
from asm_overrides.isa.operands import Register
from asm_overrides.isa.parse import effective_roles

PACKED_F32 = frozenset(("v_pk_fma_f32", "v_pk_mul_f32", "v_pk_add_f32"))


def vector_ids(operand: object) -> range:
    """Vector registers of an operand; none for anything else."""
    if isinstance(operand, Register) and operand.is_vector:
        return operand.ids
    return range(0)


def vector_reads(instruction: Instruction) -> set[int]:
    """Vector registers whose content an instruction uses.

    Packed float32 arithmetic may take both halves from one register of a pair: op_sel names the one
    for the low half, op_sel_hi the one for the high half.
    """
    roles = effective_roles(instruction.spec, instruction.operands, instruction.modifiers)
    found: set[int] = set()
    source = 0
    for role, operand in zip(roles, instruction.operands, strict=True):
        ids = vector_ids(operand)
        if role.reads and instruction.opcode in PACKED_F32 and len(ids) == 2:
            halves = (_selected(instruction, "op_sel", source, 0),
                      _selected(instruction, "op_sel_hi", source, 1))  # fmt: skip
            found |= {ids[half] for half in halves}
        elif role.reads:
            found |= set(ids)
        source += not role.writes
    return found


def _selected(instruction: Instruction, modifier: str, source: int, default: int) -> int:
    value = instruction.modifiers.get(modifier)
    if isinstance(value, tuple) and source < len(value):
        return value[source]
    return default
