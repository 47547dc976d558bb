"""Decides how a finished program looks as text: names and recipe lines beside the instructions.

Needs: no pseudo operation is left.
Keeps: instructions and labels, in order.
Changes: nothing; `{L}` in labels becomes the prefix asked for.
"""

from __future__ import annotations

from collections.abc import Iterator

from asm_overrides.passes.access import PSEUDO
from asm_overrides.passes.lines import Line, RegisterProgram
from asm_overrides.passes.text import LABEL_PREFIX, register_text

_COMMENT_COLUMN = 72


def emit(program: RegisterProgram, label_prefix: str = LABEL_PREFIX) -> str:
    """Assembler text, one instruction a line, ending with a newline.

    Args:
        label_prefix: put in the place of `{L}`; left as it is by default, for a splice to fill in.
    Raises:
        ValueError: a pseudo operation is left.
    """
    lines = [f"; {program.program.name}", *_legend(program)]
    stage = ""
    for line in program.lines:
        if line.op.opcode in PSEUDO:
            raise ValueError(f"{line.op.source}: `{line.op}` is left; the wait pass removes it")
        if line.stage != stage:
            stage = line.stage
            lines.append(f"; -- {stage}")
        lines.append(_line(line))
    text = "\n".join(lines) + "\n"
    return text.replace(LABEL_PREFIX, label_prefix)


def _legend(program: RegisterProgram) -> Iterator[str]:
    """Which value is where; values that are not live at once may share registers."""
    values = {value.name: value for value in program.program.values}
    for name, first in sorted(
        program.registers.items(), key=lambda item: (values[item[0]].file, item[1], item[0])
    ):
        value = values[name]
        notes = [
            note
            for note, holds in (
                ("in", name in program.program.live_in),
                ("out", name in program.program.live_out),
            )
            if holds
        ]
        where = register_text(value.file, first, value.width)
        yield f";   {where:<12} {name}{' (' + ', '.join(notes) + ')' if notes else ''}"


def _line(line: Line) -> str:
    if line.op.label:
        return f"{line.op.label}:"
    if line.added_by:
        comment = f"{line.added_by}: {line.note}" if line.note else line.added_by
    else:
        origin = f" [{line.op.source}]" if line.op.source else ""
        role = f" | {line.op.role}" if line.op.role else ""
        comment = f"{line.op}{role}{origin}"
    return f"    {line.text:<{_COMMENT_COLUMN}} ; {comment}"
