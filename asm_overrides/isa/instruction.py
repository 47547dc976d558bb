"""Decides what one decoded instruction carries; does not decode or execute it."""

from __future__ import annotations

from dataclasses import dataclass, field

from asm_overrides.isa.operands import Operand
from asm_overrides.isa.table import OpSpec

ModifierValue = int | str | tuple[int, ...]


@dataclass(slots=True, eq=False)
class Instruction:
    """One instruction of a program.

    Attributes:
        opcode: mnemonic without encoding suffix (_e32, _e64, _dpp, _sdwa).
        operands: as written, destinations first.
        modifiers: name -> value; a bare flag such as `offen` has value 1.
        spec: the table's entry.
        encoding: the suffix that was written ("e32", "e64", "dpp", "sdwa") or "".
        line: 1-based line in the text it was parsed from.
        text: the instruction as written, without comment.
        address: byte address, if a disassembler gave one.
        reads, writes: register ids, implicit ones included (vcc, exec, scc, m0, mode).
    """

    opcode: str
    operands: tuple[Operand, ...]
    modifiers: dict[str, ModifierValue]
    spec: OpSpec
    encoding: str
    line: int
    text: str
    address: int | None = None
    reads: frozenset[int] = field(default_factory=frozenset)
    writes: frozenset[int] = field(default_factory=frozenset)

    def __str__(self) -> str:
        return self.text

    def same_as(self, other: Instruction) -> bool:
        """True if both do the same, wherever and in whatever spelling they stand."""
        return (
            self.opcode == other.opcode
            and self.operands == other.operands
            and self.modifiers == other.modifiers
        )
