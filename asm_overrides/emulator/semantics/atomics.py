"""Decides what one atomic operation makes of a memory word; ordering is lane order."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray


def _signed(value: int) -> int:
    return value - (value >> 31 << 32)


def _float(bits: int) -> float:
    return float(struct.unpack("<f", struct.pack("<I", bits))[0])


def _float_bits(value: float) -> int:
    with np.errstate(all="ignore"):
        return int(np.float32(value).view(np.uint32))


def _halves(function: Callable[[int, int], int]) -> Callable[[int, int], int]:
    def packed(old: int, data: int) -> int:
        low = function(old & 0xFFFF, data & 0xFFFF)
        return low | function(old >> 16, data >> 16) << 16

    return packed


def _add_f16(old: int, data: int) -> int:
    pair = np.array([old, data], np.uint16).view(np.float16)
    with np.errstate(all="ignore"):
        return int((pair[0] + pair[1]).view(np.uint16))


def _add_bf16(old: int, data: int) -> int:
    total = _float_bits(_float(old << 16) + _float(data << 16))
    if total & 0x7FFFFFFF > 0x7F800000:
        return total >> 16 | 0x40
    return (total + 0x7FFF + (total >> 16 & 1)) >> 16 & 0xFFFF


def _minimum_f32(old: int, data: int) -> int:
    left, right = _float(old), _float(data)
    if math.isnan(left):
        return data
    return old if math.isnan(right) or left <= right else data


def _maximum_f32(old: int, data: int) -> int:
    left, right = _float(old), _float(data)
    if math.isnan(left):
        return data
    return old if math.isnan(right) or left >= right else data


_WORD = 0xFFFFFFFF

_add: Callable[[int, int], int] = lambda old, data: old + data & _WORD  # noqa: E731
_sub: Callable[[int, int], int] = lambda old, data: old - data & _WORD  # noqa: E731


def _increment(old: int, data: int) -> int:
    """Count up to `data`, then start again at 0."""
    return 0 if old >= data else old + 1


def _decrement(old: int, data: int) -> int:
    """Count down from `data`."""
    return data if old == 0 or old > data else old - 1


ATOMIC_OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "add": _add,
    "add_u32": _add,
    "sub": _sub,
    "sub_u32": _sub,
    "rsub_u32": lambda old, data: data - old & _WORD,
    "inc": _increment,
    "inc_u32": _increment,
    "dec": _decrement,
    "dec_u32": _decrement,
    "smin": lambda old, data: min(old, data, key=_signed),
    "min_i32": lambda old, data: min(old, data, key=_signed),
    "smax": lambda old, data: max(old, data, key=_signed),
    "max_i32": lambda old, data: max(old, data, key=_signed),
    "umin": min,
    "min_u32": min,
    "umax": max,
    "max_u32": max,
    "and": lambda old, data: old & data,
    "and_b32": lambda old, data: old & data,
    "or": lambda old, data: old | data,
    "or_b32": lambda old, data: old | data,
    "xor": lambda old, data: old ^ data,
    "xor_b32": lambda old, data: old ^ data,
    "swap": lambda old, data: data,
    "wrxchg_b32": lambda old, data: data,
    "add_f32": lambda old, data: _float_bits(_float(old) + _float(data)),
    "min_f32": _minimum_f32,
    "max_f32": _maximum_f32,
    "pk_add_f16": _halves(_add_f16),
    "pk_add_bf16": _halves(_add_bf16),
}
"""Name without ds_ or space_atomic_ -> function (old word, data word) -> new word."""


def apply_atomic(
    words: NDArray[np.uint32],
    index: NDArray[np.int64],
    data: NDArray[np.uint32],
    lanes: NDArray[np.bool_] | None,
    change: Callable[[int, int], int],
) -> Any:
    """Apply `change` at words[index] for each selected lane in order; returns the old words."""
    old = np.zeros(index.shape, np.uint32)
    for place in np.ndindex(index.shape):
        if lanes is None or lanes[place]:
            position = int(index[place])
            before = int(words[position])
            old[place] = before
            words[position] = change(before, int(data[place])) & _WORD
    return old
