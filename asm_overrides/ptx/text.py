"""How PTX is written down: lines, registers and labels under one prefix. It knows no algorithm."""

from __future__ import annotations

import struct
from collections.abc import Sequence


def hexadecimal(value: float) -> str:
    """A float32 as PTX writes it, exactly.

    Raises:
        ValueError: float32 does not hold the value.
    """
    bits = struct.pack(">f", value)
    if struct.unpack(">f", bits)[0] != value:
        raise ValueError(f"value: got {value!r}; accepted are numbers that float32 holds")
    return "0f" + bits.hex().upper()


class Text:
    """Lines of PTX in a scope of their own, with the registers that they declare.

    label: what every name begins with, so that two copies of a loop can stand in one kernel.
    """

    def __init__(self, label: str) -> None:
        self._label = label
        self._declared: list[str] = []
        self._lines: list[str] = []

    def register(self, kind: str, name: str) -> str:
        """A register of a PTX type such as "f32", "b32", "pred"."""
        full = f"{self._label}_{name}"
        self._declared.append(f".reg .{kind} {full};")
        return full

    def registers(self, kind: str, name: str, count: int) -> list[str]:
        """`count` registers, numbered."""
        full = f"{self._label}_{name}_"
        self._declared.append(f".reg .{kind} {full}<{count}>;")
        return [f"{full}{index}" for index in range(count)]

    def label(self, name: str) -> str:
        """A label's full name; `place` puts it down."""
        return f"{self._label}_{name}"

    def place(self, name: str) -> None:
        """The label stands here."""
        self._lines.append(f"{self.label(name)}:")

    def op(self, name: str, *operands: str, when: str = "") -> None:
        """One instruction. when: a predicate, "p" or "!p", under which it is executed."""
        guard = f"@{when} " if when else ""
        self._lines.append(f"{guard}{name} {', '.join(operands)};".replace(" ;", ";"))

    def keep_rolled(self) -> None:
        """ptxas unrolls nothing that jumps back to the label just placed."""
        self._lines.append('.pragma "nounroll";')

    def comment(self, text: str) -> None:
        """What the next lines do."""
        self._lines.append(f"// {text}")

    def render(self) -> str:
        """All of it."""
        return "\n".join(["{", *self._declared, *self._lines, "}"])


def vector(registers: Sequence[str]) -> str:
    """Several registers as one operand."""
    return "{" + ", ".join(registers) + "}"
