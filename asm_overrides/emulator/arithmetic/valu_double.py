"""The fp64 opcodes of the vector ALU; exact, and slow where fused (attention has none)."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from .binding import Function, Operation
from .float32 import F64
from .mode import Mode
from .operands import Array

OPERATIONS: dict[str, Operation] = {}


def _define(
    name: str, sources: str, function: Function, results: str = "f64", accumulates: bool = False
) -> None:
    OPERATIONS[name] = Operation(
        name, (results,), tuple(sources.split()), function, accumulates=accumulates
    )


def _fma_number(a: float, b: float, c: float) -> float:
    plain = a * b + c
    if not np.isfinite([a, b, c]).all() or a == 0 or b == 0:
        return plain
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    if exact == 0:
        # The sign of an exact zero is that of the separate operations, unless the product
        # underflowed: then it is positive.
        return plain if plain == 0 else 0.0
    try:
        return float(exact)
    except OverflowError:
        return float(np.copysign(np.inf, float(exact > 0) - 0.5))


_fma_numbers = np.vectorize(_fma_number, otypes=[np.float64])


def fma(mode: Mode, a: F64, b: F64, c: F64) -> F64:
    """a * b + c, rounded once."""
    result: F64 = _fma_numbers(a, b, c)
    return result


def _ordered(choose: np.ufunc) -> Function:
    """Minimum or maximum: a number beats NaN, and zeros are ordered by sign."""

    def evaluate(mode: Mode, a: F64, b: F64) -> Array:
        # Zeros compare equal: the sign bit decides, through the order of signed integers.
        chosen = choose(a, b)
        zeros = (a == 0) & (b == 0)
        want_negative = choose is np.fmin
        signs = np.signbit(a) | np.signbit(b) if want_negative else np.signbit(a) & np.signbit(b)
        return np.where(zeros, np.where(signs, -0.0, 0.0), chosen)

    return evaluate


_define("v_add_f64", "f64 f64", lambda mode, a, b: a + b)
_define("v_mul_f64", "f64 f64", lambda mode, a, b: a * b)
_define("v_fma_f64", "f64 f64 f64", fma)
_define("v_fmac_f64", "f64 f64", fma, accumulates=True)
# Correctly rounded; the machine promises only about half the bits, for Newton's method to extend.
_define("v_rcp_f64", "f64", lambda mode, x: 1.0 / x)
_define("v_sqrt_f64", "f64", lambda mode, x: np.sqrt(x))
_define("v_rsq_f64", "f64", lambda mode, x: 1.0 / np.sqrt(x))
_define("v_min_f64", "f64 f64", _ordered(np.fmin))
_define("v_max_f64", "f64 f64", _ordered(np.fmax))
_define("v_ldexp_f64", "f64 i32", lambda mode, x, n: np.ldexp(x, np.clip(n, -4300, 4300)))
_define("v_floor_f64", "f64", lambda mode, x: np.floor(x))
_define("v_ceil_f64", "f64", lambda mode, x: np.ceil(x))
_define("v_trunc_f64", "f64", lambda mode, x: np.trunc(x))
_define("v_rndne_f64", "f64", lambda mode, x: np.rint(x))
_define("v_fract_f64", "f64", lambda mode, x: np.minimum(x - np.floor(x), np.nextafter(1.0, 0.0)))
_define("v_frexp_mant_f64", "f64", lambda mode, x: np.where(np.isfinite(x), np.frexp(x)[0], x))
_define(
    "v_frexp_exp_i32_f64",
    "f64",
    lambda mode, x: np.where(np.isfinite(x), np.frexp(x)[1], 0).astype(np.int32),
    "i32",
)
