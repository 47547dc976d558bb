"""How operands look as arrays: kinds, register counts, constants, pairs; not what is computed."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Words = NDArray[np.uint32]
Mask = NDArray[np.bool_]

SIXTEEN_BIT = frozenset({"b16", "u16", "i16", "f16", "bf16"})
PACKED_16 = frozenset({"pb16", "pu16", "pi16", "pf16", "pbf16"})
PACKED_32 = frozenset({"pb32", "pf32"})
SIXTY_FOUR_BIT = frozenset({"b64", "u64", "i64", "f64"})

# 1 / (2 pi), an inline constant whose text is longer than fp16 or fp32 can hold.
_INVERSE_TWO_PI = 0.15915494309189532


class UnsupportedArithmetic(NotImplementedError):
    """The opcode exists, but not with this mode or modifier."""


class UnknownOpcode(UnsupportedArithmetic):
    """No arithmetic is known for the opcode."""


def registers(kind: str) -> int:
    """How many registers an operand of that kind takes; 0 for a mask."""
    if kind == "mask":
        return 0
    if kind in SIXTY_FOUR_BIT or kind in PACKED_32:
        return 2
    if kind[0] == "b" and kind[1:].isdigit():
        return max(1, int(kind[1:]) // 32)
    return 1


def constant(kind: str, value: int | float) -> Words:
    """A number of the text as an operand: (1, 1), or (n, 1, 1) for an operand of n registers.

    A float is encoded in the operand's own width: fp16 for 16-bit kinds, fp64 for 64-bit kinds,
    fp32 otherwise.  An int is a bit pattern, sign-extended to 64 bits; beyond the inline range it
    is the high half of an f64 operand.  The second word of a packed pair is 0.
    """
    count = registers(kind)
    if isinstance(value, float):
        bits = _float_bits(kind, value)
    elif kind == "f64" and not -16 <= value <= 64:
        bits = (value & 0xFFFFFFFF) << 32
    else:
        bits = value & 0xFFFFFFFFFFFFFFFF
    if count <= 1:
        return np.full((1, 1), bits & 0xFFFFFFFF, np.uint32)
    words = np.zeros((count, 1, 1), np.uint32)
    words[0] = bits & 0xFFFFFFFF
    if kind in SIXTY_FOUR_BIT:
        words[1] = bits >> 32
    return words


def _float_bits(kind: str, value: float) -> int:
    if kind in SIXTEEN_BIT or kind in PACKED_16:
        # The encoding of 1 / (2 pi) is truncated, not rounded.
        return 0x3118 if value == _INVERSE_TWO_PI else int(np.float16(value).view(np.uint16))
    if kind in SIXTY_FOUR_BIT:
        return int(struct.unpack("<Q", struct.pack("<d", value))[0])
    return int(struct.unpack("<I", struct.pack("<f", value))[0])


def join64(pair: Words) -> NDArray[np.uint64]:
    """(2, ...) words, low first, as uint64 (...)."""
    result: NDArray[np.uint64] = pair[0].astype(np.uint64) | pair[1].astype(np.uint64) << np.uint64(
        32
    )
    return result


def split64(value: Array) -> Words:
    """64-bit values (...) of any type as (2, ...) words, low first."""
    words = np.ascontiguousarray(value).view(np.uint32).reshape(*value.shape, 2)
    return np.moveaxis(words, -1, 0)
