"""Decides how one symbolic operation is spelled for the assembler; does not choose registers."""

from __future__ import annotations

import struct
from collections.abc import Callable

from asm_overrides.isa import Instruction, parse_instruction
from asm_overrides.program import Op, Part, Special

LABEL_PREFIX = "{L}"
"""Stands for the splice's own prefix in label names."""

_PARSED_PREFIX = "L."
_INLINE_FLOATS = frozenset((0.5, 1.0, 2.0, 4.0))

Namer = Callable[[Part], str]
"""Gives the assembler's name of a part, such as "v[8:11]", without source modifiers."""


def register_text(file: str, first: int, count: int) -> str:
    """A run of registers as the assembler spells it."""
    return f"{file}{first}" if count == 1 else f"{file}[{first}:{first + count - 1}]"


def op_text(op: Op, name: Namer) -> str:
    """Assembler text of an operation that is neither a label nor a pseudo operation.

    Raises:
        ValueError: a constant that a 32-bit float does not hold.
    """
    operands = ", ".join(_argument(op, each, name) for each in op.arguments)
    return " ".join(piece for piece in (op.opcode, operands, op.modifiers) if piece)


def parse_op(text: str, line: int) -> Instruction:
    """Parsed form of `op_text`; the label prefix, which is no identifier, is replaced by one."""
    return parse_instruction(text.replace(LABEL_PREFIX, _PARSED_PREFIX), line)


def parsed_label(name: str) -> str:
    """Label as `parse_op` sees it."""
    return name.replace(LABEL_PREFIX, _PARSED_PREFIX)


def _argument(op: Op, argument: Part | Special | int | float | str, name: Namer) -> str:
    if isinstance(argument, Part):
        text = name(argument)
        text = f"|{text}|" if argument.absolute else text
        return f"-{text}" if argument.negate else text
    if isinstance(argument, float):
        return _float(op, argument)
    return str(argument)


def _float(op: Op, value: float) -> str:
    """Inline constants in decimal, others as the bits of a 32-bit float."""
    if abs(value) in _INLINE_FLOATS:
        return repr(value)
    bits = struct.pack("<f", value)
    if struct.unpack("<f", bits)[0] != value:
        raise ValueError(f"{op.source}: {op}: {value!r} is not a 32-bit float")
    if "f16" in op.opcode or op.opcode.endswith("f64"):
        raise ValueError(f"{op.source}: {op}: only inline float constants here, got {value!r}")
    return f"0x{int(struct.unpack('<I', bits)[0]):x}" if value or bits[3] else "0"
