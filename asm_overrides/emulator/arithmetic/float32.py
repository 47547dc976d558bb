"""How fp32 numbers are added, multiplied, compared and rounded on gfx950; knows no opcodes.

Every function takes and returns float32 arrays.  NumPy's fp32 arithmetic is IEEE with round to
nearest even and denormals, so only fused operations, NaN patterns and flushing need work here.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from .assumptions import INVALID_NAN, Machine
from .operands import Array

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]

MIN_NORMAL = np.float32(2.0**-126)
_QUIET = np.uint32(0x00400000)
_SIGN = np.uint32(0x80000000)
_BELOW_F32 = np.uint64((1 << 29) - 1)
_TIE_F32 = np.uint64(1 << 28)


def flush_f32(x: F32) -> F32:
    """Denormals become zeros of their sign."""
    small = np.abs(x) < MIN_NORMAL
    if not np.count_nonzero(small):
        return x
    return np.where(small, np.copysign(np.float32(0), x), x)


def settle_nan(result: F32, *sources: F32) -> F32:
    """The result with gfx950's NaN patterns: the first NaN source quieted, else the invalid NaN."""
    bad = np.isnan(result)
    if not np.count_nonzero(bad):
        return result
    pattern: Array = np.broadcast_to(np.uint32(INVALID_NAN), result.shape)
    for source in reversed(sources):
        pattern = np.where(np.isnan(source), source.view(np.uint32) | _QUIET, pattern)
    return np.where(bad, pattern, result.view(np.uint32)).view(np.float32)


def add(a: F32, b: F32) -> F32:
    return settle_nan(a + b, a, b)


def subtract(a: F32, b: F32) -> F32:
    return settle_nan(a - b, a, b)


def multiply(a: F32, b: F32) -> F32:
    return settle_nan(a * b, a, b)


def multiply_legacy(a: F32, b: F32) -> F32:
    """Zero times anything is +0."""
    return np.where((a == 0) | (b == 0), np.float32(0), multiply(a, b))


def round_sum(a: F64, b: F64) -> F32:
    """a + b of float64 numbers, rounded to fp32 once.

    Rounding the float64 sum again is wrong only where that sum lies halfway between two fp32
    numbers, or where the result is an fp32 denormal; there the sum is rounded to odd instead.
    """
    total = a + b
    result = total.astype(np.float32)
    doubtful = (total.view(np.uint64) & _BELOW_F32) == _TIE_F32
    # A denormal may have been rounded up to the smallest normal number.
    small = np.abs(result) <= MIN_NORMAL
    if np.count_nonzero(small):
        doubtful |= small & (total != 0)
    if not np.count_nonzero(doubtful):
        return result
    return np.where(doubtful, sum_to_odd(a, b).astype(np.float32), result)


def sum_to_odd(a: F64, b: F64) -> F64:
    """a + b rounded so that a second rounding to fewer bits gives what one rounding would.

    An inexact sum whose last bit is even moves one step towards the exact one; Knuth's two-sum
    tells the error of the sum exactly.
    """
    total: F64 = a + b
    back = total - b
    error = (a - back) + (b - (total - back))
    even = (total.view(np.uint64) & np.uint64(1)) == 0
    inexact = (error != 0) & np.isfinite(error) & even
    if np.count_nonzero(inexact):
        towards = np.nextafter(total, np.where(error > 0, np.inf, -np.inf))
        total = np.where(inexact, towards, total)
    return total


def fma(a: F32, b: F32, c: F32) -> F32:
    """a * b + c, rounded once."""
    # 24 + 24 bits: the float64 product is exact, and far from float64's exponent limits.
    product = a.astype(np.float64) * b
    return settle_nan(round_sum(product, c.astype(np.float64)), a, b, c)


def _is_signalling(x: F32) -> NDArray[np.bool_]:
    result: NDArray[np.bool_] = np.isnan(x) & ((x.view(np.uint32) & _QUIET) == 0)
    return result


def quiet(x: F32) -> F32:
    """Signalling NaNs become quiet ones; every other number stays."""
    words = x.view(np.uint32)
    return np.where(np.isnan(x), words | _QUIET, words).view(np.float32)


def minimum(a: F32, b: F32, ieee: bool) -> F32:
    """v_min_f32: a number beats a quiet NaN, -0 is below +0, a signalling NaN wins in IEEE mode."""
    smallest = np.minimum(a, b)
    return smallest if _is_plain(smallest) else _select(np.fmin, np.bitwise_or, a, b, ieee)


def maximum(a: F32, b: F32, ieee: bool) -> F32:
    """v_max_f32: a number beats a quiet NaN, +0 is above -0, a signalling NaN wins in IEEE mode."""
    largest = np.maximum(a, b)
    return largest if _is_plain(largest) else _select(np.fmax, np.bitwise_and, a, b, ieee)


def _is_plain(x: F32) -> bool:
    """Whether no number is zero or NaN: then NumPy's minimum and maximum are gfx950's."""
    return np.count_nonzero(x) == x.size and not np.count_nonzero(np.isnan(x))


def _select(
    choose: np.ufunc, merge_signs: Callable[[Array, Array], Array], a: F32, b: F32, ieee: bool
) -> F32:
    chosen: F32 = choose(a, b)
    # NumPy does not order zeros: merging the bits of two zeros merges their signs.
    merged = merge_signs(a.view(np.uint32), b.view(np.uint32)).view(np.float32)
    chosen = np.where((a == 0) & (b == 0), merged, chosen)
    if np.count_nonzero(np.isnan(a) | np.isnan(b)):
        chosen = np.where(np.isnan(a), b, np.where(np.isnan(b), a, chosen))
        if ieee:
            chosen = np.where(_is_signalling(b), quiet(b), chosen)
            chosen = np.where(_is_signalling(a), quiet(a), chosen)
    return chosen


def minimum3(a: F32, b: F32, c: F32, ieee: bool) -> F32:
    smallest = np.minimum(np.minimum(a, b), c)
    return smallest if _is_plain(smallest) else minimum(minimum(a, b, ieee), c, ieee)


def maximum3(a: F32, b: F32, c: F32, ieee: bool) -> F32:
    largest = np.maximum(np.maximum(a, b), c)
    return largest if _is_plain(largest) else maximum(maximum(a, b, ieee), c, ieee)


def median3(a: F32, b: F32, c: F32, ieee: bool) -> F32:
    """The middle one; the smallest number if one is NaN."""
    top = maximum3(a, b, c, ieee)
    middle = np.where(
        top == a,
        maximum(b, c, ieee),
        np.where(top == b, maximum(a, c, ieee), maximum(a, b, ieee)),
    )
    nan = np.isnan(a) | np.isnan(b) | np.isnan(c)
    return np.where(nan, minimum3(a, b, c, ieee), middle)


def ieee_minimum(a: F32, b: F32) -> F32:
    """IEEE 754-2019 minimum: any NaN gives a quiet NaN."""
    return settle_nan(np.where(np.isnan(a) | np.isnan(b), a + b, minimum(a, b, True)), a, b)


def ieee_maximum(a: F32, b: F32) -> F32:
    """IEEE 754-2019 maximum: any NaN gives a quiet NaN."""
    return settle_nan(np.where(np.isnan(a) | np.isnan(b), a + b, maximum(a, b, True)), a, b)


def ldexp(x: F32, exponent: NDArray[np.int32]) -> F32:
    """x * 2**exponent, rounded once."""
    # float64 holds x * 2**+-400 exactly, and everything beyond is zero or infinity in fp32.
    clipped = np.clip(exponent, -400, 400)
    return settle_nan(np.ldexp(x.astype(np.float64), clipped).astype(np.float32), x)


def frexp_mantissa(x: F32) -> F32:
    """The significand in [0.5, 1); infinities and NaN themselves."""
    return np.where(np.isfinite(x), np.frexp(x)[0], quiet(x))


def frexp_exponent(x: F32) -> NDArray[np.int32]:
    """The exponent that goes with frexp_mantissa; 0 for infinities and NaN."""
    return np.where(np.isfinite(x), np.frexp(x)[1], 0).astype(np.int32)


def fract(x: F32) -> F32:
    """x - floor(x), below 1 even where that rounds up to 1."""
    largest = np.float32(1 - 2.0**-24)
    return settle_nan(np.minimum(x - np.floor(x), largest), x)


def rounded(function: Callable[[F32], F32]) -> Callable[[F32], F32]:
    """floor, ceil, trunc or rint with NaNs quieted."""
    return lambda x: quiet(function(x))


def transcendental(function: Callable[[F64], F64], machine: Machine) -> Callable[[F32], F32]:
    """An fp32 opcode of the transcendental unit, from a float64 function."""

    def evaluate(x: F32) -> F32:
        flush = machine.transcendental_flushes_denormals
        source = flush_f32(x) if flush else x
        result = function(source.astype(np.float64)).astype(np.float32)
        if machine.transcendental_error_ulp:
            result = _move_ulps(result, machine.transcendental_error_ulp)
        return settle_nan(flush_f32(result) if flush else result, x)

    return evaluate


def _move_ulps(x: F32, steps: int) -> F32:
    """Finite nonzero numbers moved by that many steps away from (or towards) zero."""
    moved = (x.view(np.int32) + np.int32(steps)).view(np.float32)
    return np.where(np.isfinite(x) & (x != 0) & np.isfinite(moved), moved, x)


def exponent_field(x: F32) -> NDArray[np.int32]:
    field: NDArray[np.int32] = x.view(np.int32) >> np.int32(23) & np.int32(0xFF)
    return field


def _is_ordinary_division(denominator: F32, numerator: F32, lowest: int, highest: int) -> bool:
    """Whether all operands are normal, away from both ends, and all quotients between powers."""
    top, bottom = exponent_field(numerator), exponent_field(denominator)
    difference = top - bottom
    ordinary = (top > 23) & (top < 255) & (bottom > 0) & (bottom < 253)
    ordinary = ordinary & (difference >= lowest) & (difference <= highest)
    return bool(np.count_nonzero(ordinary) == ordinary.size)


def div_scale(scaled: F32, denominator: F32, numerator: F32) -> tuple[F32, NDArray[np.bool_]]:
    """v_div_scale_f32: `scaled`, which is one of the two others, scaled; and where to undo it.

    The manual's case of a denominator whose reciprocal and whose quotient are both denormal
    would overflow with its factor 2**64; 2**-64 is what makes the division come out right.
    """
    difference = exponent_field(numerator) - exponent_field(denominator)
    if _is_ordinary_division(denominator, numerator, -120, 95):
        return scaled, np.zeros(difference.shape, np.bool_)
    quotient = np.abs(numerator.astype(np.float64) / denominator)
    tiny = np.float64(MIN_NORMAL)
    quotient_denormal = (quotient < tiny) & (quotient != 0)
    reciprocal_denormal = (1.0 / np.abs(denominator.astype(np.float64)) < tiny) & np.isfinite(
        denominator
    )
    denominator_denormal = (np.abs(denominator) < MIN_NORMAL) & (denominator != 0)
    is_denominator = scaled.view(np.uint32) == denominator.view(np.uint32)
    is_numerator = scaled.view(np.uint32) == numerator.view(np.uint32)
    numerator_exponent = exponent_field(numerator)
    near_max = difference >= 96
    conditions = [
        near_max,
        denominator_denormal,
        reciprocal_denormal & quotient_denormal,
        reciprocal_denormal,
        quotient_denormal,
        numerator_exponent <= 23,
    ]
    powers = [
        np.where(is_denominator, 64, 0),
        np.broadcast_to(64, near_max.shape),
        np.where(is_denominator, -64, 0),
        np.broadcast_to(-64, near_max.shape),
        np.where(is_numerator, 64, 0),
        np.broadcast_to(64, near_max.shape),
    ]
    post_scale = np.select(
        conditions, [np.True_, np.False_, np.True_, np.False_, np.True_, np.False_], np.False_
    )
    power = np.select(conditions, powers, 0).astype(np.int32)
    zero = (numerator == 0) | (denominator == 0)
    result = np.where(zero, np.float32(np.nan), ldexp(scaled, power))
    return settle_nan(result, scaled), post_scale & ~zero


def div_fmas(a: F32, b: F32, c: F32, post_scale: NDArray[np.bool_]) -> F32:
    """v_div_fmas_f32: fma, times 2**64 or 2**-64 where v_div_scale asked for it.

    The sign of the power follows from c, the approximate quotient: a quotient near the largest
    number was made smaller by v_div_scale, one near the smallest was made larger.
    """
    fused = fma(a, b, c)
    if not np.count_nonzero(post_scale):
        return fused
    power = np.where(exponent_field(c) > 127, 64, -64).astype(np.int32)
    # The unscaled sum is rounded to the final precision once: denormals must not round twice.
    product = np.ldexp(a.astype(np.float64) * b, power)
    exact = round_sum(product, np.ldexp(c.astype(np.float64), power))
    return np.where(post_scale, settle_nan(exact, a, b, c), fused)


def div_fixup(quotient: F32, denominator: F32, numerator: F32) -> F32:
    """v_div_fixup_f32: the quotient with its sign, and the special cases of a division.

    The manual asks for overflow where the *denominator* has exponent 255, which earlier cases have
    already taken; a *quotient* with exponent 255, which an overflow leaves behind, must be meant.
    """
    sign = (numerator.view(np.uint32) ^ denominator.view(np.uint32)) & _SIGN
    overflow = exponent_field(quotient) == 255
    magnitude = np.where(overflow, np.float32(np.inf), np.abs(quotient))
    if _is_ordinary_division(denominator, numerator, -150, 255):
        signed: F32 = (magnitude.view(np.uint32) | sign).view(np.float32)
        return signed
    infinite_n, infinite_d = np.isinf(numerator), np.isinf(denominator)
    zero_n, zero_d = numerator == 0, denominator == 0
    underflow = exponent_field(numerator) - exponent_field(denominator) < -150
    magnitude = np.select(
        [zero_d | infinite_n, infinite_d | zero_n | underflow],
        [np.float32(np.inf), np.float32(0)],
        magnitude,
    )
    result = (magnitude.view(np.uint32) | sign).view(np.float32)
    nan = np.isnan(numerator) | np.isnan(denominator) | zero_n & zero_d | infinite_n & infinite_d
    return settle_nan(np.where(nan, np.float32(np.nan), result), numerator, denominator)
