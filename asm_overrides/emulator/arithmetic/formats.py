"""What the bits of small number formats mean, and how numbers are rounded into them.

fp8 is OCP e4m3 (no infinity), bf8 is OCP e5m2, fp6 is e2m3, bf6 is e3m2, fp4 is e2m1, E8M0 is a
power of two.  Decoding is by table; encoding rounds to nearest even.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .operands import Array

F64 = NDArray[np.float64]

_MAGNITUDE_F32 = np.uint32(0x7FFFFFFF)
_INFINITY_F32 = np.uint32(0x7F800000)
_ONE = np.uint32(1)


@dataclass(frozen=True)
class Format:
    """A sign, `exponent` bits and `mantissa` bits; numbers up to code `largest`."""

    name: str
    exponent: int
    mantissa: int
    bias: int
    largest: int
    """The code of the largest finite number."""
    infinity: int | None
    """The code of infinity, None without one."""
    nan: int | None
    """The code that conversions give for NaN, None without one."""

    @property
    def bits(self) -> int:
        return 1 + self.exponent + self.mantissa

    @property
    def sign(self) -> int:
        return 1 << (self.exponent + self.mantissa)


FP8 = Format("fp8", 4, 3, 7, 0x7E, None, 0x7F)
BF8 = Format("bf8", 5, 2, 15, 0x7B, 0x7C, 0x7F)
FP6 = Format("fp6", 2, 3, 1, 0x1F, None, None)
BF6 = Format("bf6", 3, 2, 3, 0x1F, None, None)
FP4 = Format("fp4", 2, 1, 1, 0x7, None, None)


def decode_table(form: Format) -> F64:
    """The values of all codes."""
    codes = np.arange(1 << form.bits)
    magnitude = codes & (form.sign - 1)
    exponent = magnitude >> form.mantissa
    fraction = (magnitude & ((1 << form.mantissa) - 1)).astype(np.float64)
    normal = exponent > 0
    significand = np.where(normal, fraction + (1 << form.mantissa), fraction)
    scale = np.where(normal, exponent, 1) - form.bias - form.mantissa
    value = np.ldexp(significand, scale)
    value = np.where(magnitude > form.largest, np.nan, value)
    if form.infinity is not None:
        value = np.where(magnitude == form.infinity, np.inf, value)
    table = np.where(codes & form.sign, -value, value)
    table.flags.writeable = False
    return table


FP8_VALUES = decode_table(FP8)
BF8_VALUES = decode_table(BF8)
FP6_VALUES = decode_table(FP6)
BF6_VALUES = decode_table(BF6)
FP4_VALUES = decode_table(FP4)

E8M0_VALUES = np.append(np.ldexp(1.0, np.arange(255) - 127), np.nan)
E8M0_VALUES.flags.writeable = False


def encode(
    x: NDArray[np.float32], form: Format, saturate: bool, overflow_after_rounding: bool = True
) -> NDArray[np.uint32]:
    """Codes of float32 numbers, rounded to nearest even, as words.

    Args:
        saturate: overflow and infinities give the largest number; otherwise infinity, or NaN in a
            format without one.  Formats without NaN always saturate, and NaN gives their largest.
        overflow_after_rounding: False counts every number above the largest one as overflow.
    """
    words = x.view(np.uint32)
    magnitude = words & _MAGNITUDE_F32
    # Dropping mantissa bits: adding just under half, or half for an odd number, rounds to even.
    # A significand that rounds up to the next power of two carries into the exponent by itself.
    drop = np.uint32(23 - form.mantissa)
    odd = magnitude >> drop & _ONE
    kept = magnitude + (odd + np.uint32((1 << 22 - form.mantissa) - 1)) >> drop
    code = kept - np.uint32((127 - form.bias) << form.mantissa)
    small = magnitude < np.uint32((128 - form.bias) << 23)
    if np.count_nonzero(small):
        # Below the normal range fp32 addition rounds for us: one unit of the last place of this
        # power of two is the format's smallest number.
        power = np.float32(2.0 ** (24 - form.bias - form.mantissa))
        denormal = (magnitude.view(np.float32) + power).view(np.uint32) - power.view(np.uint32)
        code = np.where(small, denormal, code)
    over = code > np.uint32(form.largest)
    if not overflow_after_rounding:
        over |= magnitude > np.float32(_largest_value(form)).view(np.uint32)
    if np.count_nonzero(over):
        code = np.where(over, _overflow_codes(magnitude, form, saturate), code)
    result: NDArray[np.uint32] = code | words >> np.uint32(31) << np.uint32(form.bits - 1)
    return result


def _overflow_codes(
    magnitude: NDArray[np.uint32], form: Format, saturate: bool
) -> NDArray[np.uint32]:
    """The codes, signs aside, of what is too large, infinite or NaN."""
    code = form.largest
    if not saturate and form.nan is not None:
        code = form.nan if form.infinity is None else form.infinity
    nan = form.largest if form.nan is None else form.nan
    is_nan = magnitude > _INFINITY_F32
    result: NDArray[np.uint32] = np.where(is_nan, np.uint32(nan), np.uint32(code))
    return result


def _largest_value(form: Format) -> float:
    significand = (1 << form.mantissa) + (form.largest & ((1 << form.mantissa) - 1))
    exponent = (form.largest >> form.mantissa) - form.bias - form.mantissa
    return float(np.ldexp(float(significand), exponent))


def encode_f16(x: Array, saturate: bool) -> NDArray[np.float16]:
    """float32 or float64 numbers in fp16; `saturate` turns finite overflow into 65504."""
    half: NDArray[np.float16] = x.astype(np.float16)
    if saturate:
        overflow = np.isinf(half) & np.isfinite(x)
        if np.count_nonzero(overflow):
            half = np.where(overflow, np.copysign(np.float16(65504), half), half)
    return half


def encode_bf16(x: NDArray[np.float32]) -> NDArray[np.uint16]:
    """float32 numbers in bfloat16, NaNs quieted."""
    words = x.view(np.uint32)
    rounded = words + (np.uint32(0x7FFF) + (words >> np.uint32(16) & np.uint32(1)))
    nan = np.isnan(x)
    if np.count_nonzero(nan):
        rounded = np.where(nan, words | np.uint32(0x00400000), rounded)
    result: NDArray[np.uint16] = (rounded >> np.uint32(16)).astype(np.uint16)
    return result


def decode_bf16(codes: NDArray[np.uint16]) -> NDArray[np.float32]:
    result: NDArray[np.float32] = (codes.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return result


def unpack_nibbles(octets: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """(..., n) bytes as (..., 2 n) codes of 4 bits, low first."""
    pairs = np.stack([octets & np.uint8(15), octets >> np.uint8(4)], axis=-1)
    return pairs.reshape(*octets.shape[:-1], -1)


def unpack_sixes(octets: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """(..., 3 n) bytes as (..., 4 n) codes of 6 bits, dense, low first."""
    triple = octets.reshape(*octets.shape[:-1], -1, 3).astype(np.uint32)
    joined = triple[..., 0] | triple[..., 1] << np.uint32(8) | triple[..., 2] << np.uint32(16)
    shifts = np.arange(0, 24, 6, dtype=np.uint32)
    codes = (joined[..., None] >> shifts & np.uint32(63)).astype(np.uint8)
    result: NDArray[np.uint8] = codes.reshape(*octets.shape[:-1], -1)
    return result


def pack_sixes(codes: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The inverse of unpack_sixes."""
    four = codes.reshape(*codes.shape[:-1], -1, 4).astype(np.uint32)
    joined = np.bitwise_or.reduce(four << np.arange(0, 24, 6, dtype=np.uint32), axis=-1)
    octets = (joined[..., None] >> np.arange(0, 24, 8, dtype=np.uint32)).astype(np.uint8)
    result: NDArray[np.uint8] = octets.reshape(*codes.shape[:-1], -1)
    return result
