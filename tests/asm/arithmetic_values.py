"""How the arithmetic tests write operands and call opcodes; decides no expected value."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from hypothesis import HealthCheck, settings

from asm_overrides.emulator.arithmetic import DEFAULT_MACHINE, Machine, Mode, bind_valu

# All denormals, round to nearest, DX10_CLAMP, IEEE: what Triton's kernels start with.
MODE_BITS = 0x3F0
FLUSH_F32_BITS = 0x3C0
FP16_OVERFLOW = 1 << 23
MODE = Mode.from_bits(MODE_BITS)


def examples(count: int) -> settings:
    """The same examples every run, on however busy a machine."""
    return settings(
        max_examples=count,
        deadline=None,
        derandomize=True,
        suppress_health_check=[HealthCheck.too_slow],
    )


def u32(values: Iterable[int]) -> np.ndarray:
    """Integers as a (1, n) operand, modulo 2**32."""
    return np.array([int(value) & 0xFFFFFFFF for value in values], np.uint32)[None]


def f32(values: Any) -> np.ndarray:
    """Floats as a (1, n) operand."""
    return np.asarray(values, np.float32).reshape(1, -1).view(np.uint32)


def f16(low: Any, high: Any = 0.0) -> np.ndarray:
    """fp16 numbers in the low and the high half."""
    with np.errstate(over="ignore"):
        halves = np.broadcast_arrays(np.asarray(low, np.float16), np.asarray(high, np.float16))
    bits = [half.reshape(1, -1).view(np.uint16).astype(np.uint32) for half in halves]
    return bits[0] | bits[1] << 16


def pairs(values: Iterable[int]) -> np.ndarray:
    """64-bit patterns as a (2, 1, n) operand."""
    bits = [int(value) & (1 << 64) - 1 for value in values]
    return np.array([[b & 0xFFFFFFFF for b in bits], [b >> 32 for b in bits]], np.uint32)[:, None]


def f64(values: Any) -> np.ndarray:
    return pairs(np.asarray(values, np.float64).reshape(-1).view(np.uint64))


def unpair(words: np.ndarray) -> list[int]:
    """A (2, 1, n) result as 64-bit patterns."""
    low, high = (ints(word) for word in words)
    return [first | second << 32 for first, second in zip(low, high, strict=True)]


def call(
    opcode: str,
    *sources: np.ndarray,
    old: np.ndarray | None = None,
    mode: Mode = MODE,
    machine: Machine = DEFAULT_MACHINE,
    **modifiers: Any,
) -> Any:
    """One opcode on its sources, with NumPy's warnings off as the executor has them."""
    operation = bind_valu(opcode, modifiers, machine)
    with np.errstate(all="ignore"):
        return operation(mode, *sources, old=old)


def floats(words: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(words).view(np.float32).reshape(-1)


def ints(words: np.ndarray) -> list[int]:
    return [int(word) for word in np.ravel(words)]


def signed(value: int, bits: int = 32) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> bits - 1 else value


def nearest_even(value: Fraction, table: Sequence[tuple[Fraction, int]]) -> int:
    """The code of the number nearest to a value, an even code on a tie.

    The table holds the non-negative numbers of a format and their codes, in ascending order.
    """
    best = min(abs(number - value) for number, _ in table)
    codes = [code for number, code in table if abs(number - value) == best]
    return codes[0] if len(codes) == 1 else next(code for code in codes if code % 2 == 0)


def round_to_f32(value: Fraction) -> np.float32:
    """An exact value rounded to fp32 once, by integer arithmetic."""
    if value == 0:
        return np.float32(0)
    magnitude, sign = abs(value), -1 if value < 0 else 1
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    if Fraction(2) ** exponent > magnitude:
        exponent -= 1
    unit = Fraction(2) ** (max(exponent, -126) - 23)
    # Python rounds a Fraction to the nearest integer, ties to even.
    rounded = round(magnitude / unit) * unit
    if rounded >= Fraction(2) ** 128:
        return np.float32(sign * np.inf)
    return np.float32(sign * float(rounded))
