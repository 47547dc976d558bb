"""fp64 opcodes against Python's own doubles and exact fractions."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.asm.arithmetic_values import call, examples, f64, signed, u32, unpair

doubles = st.floats(allow_nan=False, allow_infinity=False, min_value=-1e150, max_value=1e150)


def value(words: np.ndarray) -> float:
    return float(np.array(unpair(words), np.uint64).view(np.float64)[0])


@given(a=doubles, b=doubles, c=doubles)
@examples(80)
def test_arithmetic(a: float, b: float, c: float) -> None:
    x, y, z = f64([a]), f64([b]), f64([c])
    assert value(call("v_add_f64", x, y)) == a + b
    assert value(call("v_mul_f64", x, y, neg=(True, False))) == -a * b
    assert value(call("v_min_f64", x, y)) == min(a, b)
    assert value(call("v_max_f64", x, y)) == max(a, b)
    exact = float(Fraction(a) * Fraction(b) + Fraction(c))
    assert value(call("v_fma_f64", x, y, z)) == exact
    assert value(call("v_fmac_f64", x, y, old=z)) == exact


def test_special_cases() -> None:
    zero, minus_zero, nan, inf = f64([0.0]), f64([-0.0]), f64([math.nan]), f64([math.inf])
    assert math.copysign(1, value(call("v_max_f64", zero, minus_zero))) == 1
    assert math.copysign(1, value(call("v_min_f64", zero, minus_zero))) == -1
    assert value(call("v_max_f64", nan, f64([2.0]))) == 2
    assert math.isnan(value(call("v_fma_f64", zero, inf, zero)))
    assert value(call("v_fma_f64", f64([1e200]), f64([1e200]), zero)) == math.inf
    assert value(call("v_fma_f64", f64([1.0]), f64([-1.0]), f64([1.0]))) == 0


def test_parts_and_rounding() -> None:
    x = f64([-6.5])
    assert value(call("v_floor_f64", x)) == -7
    assert value(call("v_ceil_f64", x)) == -6
    assert value(call("v_trunc_f64", x)) == -6
    assert value(call("v_rndne_f64", x)) == -6
    assert value(call("v_fract_f64", x)) == 0.5
    assert value(call("v_frexp_mant_f64", x)) == -0.8125
    assert signed(int(call("v_frexp_exp_i32_f64", x)[0, 0])) == 3
    assert value(call("v_ldexp_f64", x, u32([-2]))) == -1.625
    assert value(call("v_rcp_f64", f64([4.0]))) == 0.25
    assert value(call("v_sqrt_f64", f64([2.0]))) == math.sqrt(2)
    assert value(call("v_rsq_f64", f64([16.0]))) == 0.25
