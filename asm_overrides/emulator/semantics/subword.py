"""Decides how loads and stores of one or two bytes meet a 32-bit register; no addresses here."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from asm_overrides.isa.instruction import Instruction

Words = NDArray[np.uint32]

_SIGNED_8 = ("sbyte", "_i8")
_SIGNED_16 = ("sshort", "_i16")


def merge_loaded(instruction: Instruction) -> Callable[[Words, Words], Words]:
    """Function (loaded value zero-extended, old register) -> new register of a small load."""
    opcode = instruction.opcode
    extend = _extension(opcode)
    if opcode.endswith("_d16_hi"):
        return lambda value, old: (old & np.uint32(0xFFFF)) | extend(value) << np.uint32(16)
    if opcode.endswith("_d16"):
        return lambda value, old: (
            (old & np.uint32(0xFFFF0000)) | (extend(value) & np.uint32(0xFFFF))
        )
    return lambda value, old: extend(value)


def _extension(opcode: str) -> Callable[[Words], Words]:
    if any(name in opcode for name in _SIGNED_8):
        return lambda value: value.astype(np.uint8).view(np.int8).astype(np.int32).view(np.uint32)
    if any(name in opcode for name in _SIGNED_16):
        return lambda value: value.astype(np.uint16).view(np.int16).astype(np.int32).view(np.uint32)
    return lambda value: value


def stored_value(instruction: Instruction) -> Callable[[Words], Words]:
    """Function from data registers (count, ...) to what a store writes."""
    if instruction.opcode.endswith("_d16_hi"):
        return lambda data: data >> np.uint32(16)
    return lambda data: data
