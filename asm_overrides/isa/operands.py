"""Decides how a written operand is represented; does not know which instruction it belongs to."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from asm_overrides.isa import registers


@dataclass(frozen=True, slots=True)
class Register:
    """A run of registers, with the source modifiers written on it.

    Attributes:
        first: register id of the lowest dword (see registers.py).
        count: dwords.
        negate, absolute, sext: `-v0`, `|v0|`, `sext(v0)`.
    """

    first: int
    count: int
    negate: bool = False
    absolute: bool = False
    sext: bool = False

    @property
    def ids(self) -> range:
        return range(self.first, self.first + self.count)

    @property
    def is_vector(self) -> bool:
        return self.first < registers.SGPR

    @property
    def is_accumulator(self) -> bool:
        return registers.AGPR <= self.first < registers.SGPR

    def __str__(self) -> str:
        name = registers.register_name(self.first)
        if self.count > 1:
            last = registers.register_name(self.first + self.count - 1)
            name = f"{name}..{last}"
        if self.absolute:
            name = f"|{name}|"
        return f"-{name}" if self.negate else name


@dataclass(frozen=True, slots=True)
class Constant:
    """An integer or floating-point constant, inline or literal.

    `value` is an int for integer spellings (hexadecimal ones are raw bits) and a float for
    spellings such as 1.0, whose bits depend on the type of the operand (see `bits`).
    """

    value: int | float
    negate: bool = False
    absolute: bool = False

    def bits(self, kind: str) -> int:
        """Bit pattern as an operand of `kind`: b32, b16, b64 (integers, f32 bits) or f16, f64."""
        if isinstance(self.value, float):
            return _float_bits(self.value, kind)
        if kind == "f64" and not -16 <= self.value <= 64:
            return (self.value & 0xFFFFFFFF) << 32
        return self.value & (0xFFFFFFFFFFFFFFFF if kind in ("b64", "f64") else 0xFFFFFFFF)

    def __str__(self) -> str:
        return str(self.value)


def _float_bits(value: float, kind: str) -> int:
    if kind == "f64":
        return int(struct.unpack("<Q", struct.pack("<d", value))[0])
    if kind == "bf16":
        return int(struct.unpack("<I", struct.pack("<f", value))[0]) >> 16
    if kind == "f16":
        return int(struct.unpack("<H", struct.pack("<e", value))[0])
    return int(struct.unpack("<I", struct.pack("<f", value))[0])


@dataclass(frozen=True, slots=True)
class Label:
    """A branch target by name; `offset` counts bytes from it."""

    name: str
    offset: int = 0

    def __str__(self) -> str:
        return self.name if not self.offset else f"{self.name}+{self.offset}"


@dataclass(frozen=True, slots=True)
class HardwareField:
    """hwreg(name, offset, width): a bit field of a hardware register."""

    name: str
    offset: int
    width: int

    def __str__(self) -> str:
        return f"hwreg({self.name}, {self.offset}, {self.width})"


@dataclass(frozen=True, slots=True)
class Symbolic:
    """A special source or absent address by its name: off, src_shared_base, vccz, ..."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class WaitCounts:
    """Counters of s_waitcnt; None leaves a counter alone."""

    vmcnt: int | None = None
    expcnt: int | None = None
    lgkmcnt: int | None = None

    def __str__(self) -> str:
        parts = [("vmcnt", self.vmcnt), ("expcnt", self.expcnt), ("lgkmcnt", self.lgkmcnt)]
        return " ".join(f"{name}({count})" for name, count in parts if count is not None)


Operand = Register | Constant | Label | HardwareField | Symbolic | WaitCounts
