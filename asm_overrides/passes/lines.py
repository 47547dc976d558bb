"""Decides the form of a program whose registers are known: lines, each with its origin.

What the allocation pass hands on, what the wait and hazard passes add to, and what is emitted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from asm_overrides.isa import Instruction
from asm_overrides.passes.access import PSEUDO
from asm_overrides.passes.text import op_text, parse_op, parsed_label, register_text
from asm_overrides.program import LoopProgram, Op, Part


@dataclass(frozen=True)
class Line:
    """One line of the program.

    Attributes:
        op: the operation it comes from, symbolic names and recipe line included.
        stage: name of its stage.
        text: for the assembler; empty for labels and pseudo operations.
        instruction: `text` parsed; its line is the position in the program, from 1.
        added_by: pass that added it; empty for what the recipe wrote.
        note: why it was added.
    """

    op: Op
    stage: str
    text: str = ""
    instruction: Instruction | None = None
    added_by: str = ""
    note: str = ""


@dataclass(frozen=True)
class RegisterProgram:
    """A loop program with registers.

    Attributes:
        program: where it comes from.
        registers: value -> number of its first register in its file.
        lines: in program order.
    """

    program: LoopProgram
    registers: Mapping[str, int]
    lines: tuple[Line, ...]

    def with_lines(self, lines: Iterable[Line]) -> RegisterProgram:
        """The same program with other lines, numbered anew."""
        return replace(self, lines=tuple(_renumbered(lines)))

    def instructions(self) -> tuple[list[Instruction], dict[str, int], list[int]]:
        """What the static checks take: instructions, labels, and the line index of each.

        A label behind the last instruction points behind it.
        """
        found: list[Instruction] = []
        labels: dict[str, int] = {}
        places: list[int] = []
        for index, line in enumerate(self.lines):
            if line.op.label:
                labels[parsed_label(line.op.label)] = len(found)
            elif line.instruction is not None:
                found.append(line.instruction)
                places.append(index)
        return found, labels, places

    def name(self, part: Part) -> str:
        """Assembler's name of a part."""
        first = self.registers[part.value.name] + part.first
        return register_text(part.value.file, first, part.count)


def _renumbered(lines: Iterable[Line]) -> Iterable[Line]:
    for number, line in enumerate(lines, start=1):
        if line.instruction is not None and line.instruction.line != number:
            line = replace(line, instruction=replace(line.instruction, line=number))
        yield line


def number_lines(program: LoopProgram, registers: Mapping[str, int]) -> RegisterProgram:
    """Substitute registers into every operation."""
    empty = RegisterProgram(program, registers, ())
    lines = []
    for stage in program.stages:
        for op in stage.ops:
            if op.label or op.opcode in PSEUDO:
                lines.append(Line(op, stage.name))
            else:
                text = op_text(op, empty.name)
                lines.append(Line(op, stage.name, text, parse_op(text, len(lines) + 1)))
    return empty.with_lines(lines)


def added_line(text: str, stage: str, added_by: str, note: str) -> Line:
    """A line that a pass adds, such as a wait or a nop."""
    opcode, _, operands = text.partition(" ")
    op = Op(opcode, (operands,) if operands else ())
    return Line(op, stage, text, parse_op(text, 1), added_by, note)
