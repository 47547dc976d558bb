"""16-bit opcodes, single, packed and mixed, and dot products, against exact arithmetic."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asm_overrides.emulator.arithmetic import Machine, Mode
from tests.asm.arithmetic_values import (
    FP16_OVERFLOW,
    MODE_BITS,
    call,
    examples,
    f16,
    f32,
    floats,
    ints,
    round_to_f32,
    signed,
    u32,
)

SATURATING = Mode.from_bits(MODE_BITS | FP16_OVERFLOW)
FLUSH_F16 = Mode.from_bits(0x330)
FILLED = u32([0xDDCCBBAA])
halves = st.floats(width=16, allow_nan=False, allow_infinity=False)
shorts = st.integers(0, 0xFFFF)


def low(words: np.ndarray) -> np.ndarray:
    return (words & 0xFFFF).astype(np.uint16).view(np.float16).reshape(-1)


def high(words: np.ndarray) -> np.ndarray:
    return (words >> 16).astype(np.uint16).view(np.float16).reshape(-1)


def round_to_f16(value: Fraction) -> np.float16:
    if value == 0:
        return np.float16(0)
    magnitude = abs(value)
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    if Fraction(2) ** exponent > magnitude:
        exponent -= 1
    unit = Fraction(2) ** (max(exponent, -14) - 10)
    rounded = float(round(magnitude / unit) * unit)
    rounded = np.inf if rounded > 65504 else rounded
    return np.float16(rounded if value > 0 else -rounded)


@given(a=halves, b=halves, c=halves)
@examples(80)
def test_fp16_arithmetic_rounds_once(a: float, b: float, c: float) -> None:
    x, y, z = (Fraction(float(np.float16(v))) for v in (a, b, c))
    for opcode, exact in (
        ("v_add_f16", x + y),
        ("v_sub_f16", x - y),
        ("v_subrev_f16", y - x),
        ("v_mul_f16", x * y),
    ):
        assert low(call(opcode, f16(a), f16(b)))[0] == round_to_f16(exact)
    fused = call("v_fma_f16", f16(a), f16(b), f16(c), old=FILLED)
    assert low(fused)[0] == round_to_f16(x * y + z)
    assert ints(fused)[0] >> 16 == 0xDDCC


def test_fp16_fma_of_a_tie_that_fp32_cannot_see() -> None:
    """2049 is halfway between fp16 numbers; the smallest addend decides."""
    a, b = f16(683), f16(3)
    tiny = f16([2.0**-24, -(2.0**-24)])
    assert list(low(call("v_fma_f16", a, b, tiny, old=FILLED))) == [2050, 2048]


def test_fp16_selections_and_rounding() -> None:
    a, b, c = f16([1, np.nan, -0.0]), f16([2, 5, 0.0]), f16([-3, 6, 1])
    assert list(low(call("v_min_f16", a, b))) == [1, 5, -0.0]
    assert np.signbit(low(call("v_min_f16", a, b))[2])
    assert list(low(call("v_max3_f16", a, b, c))) == [2, 6, 1]
    assert list(low(call("v_med3_f16", a, b, c))) == [1, 5, 0]
    assert list(low(call("v_rndne_f16", f16([2.5, 3.5])))) == [2, 4]
    assert list(low(call("v_floor_f16", f16([-0.5])))) == [-1]
    assert low(call("v_fract_f16", f16(-1.25)))[0] == 0.75
    assert low(call("v_ldexp_f16", f16(3), u32([0xFFFF])))[0] == 1.5
    assert low(call("v_frexp_mant_f16", f16(6)))[0] == 0.75
    assert ints(call("v_frexp_exp_i16_f16", f16(6))) == [3]
    assert low(call("v_rcp_f16", f16(4)))[0] == 0.25
    assert low(call("v_exp_f16", f16(-3)))[0] == 0.125


def test_fp16_modes() -> None:
    big = f16(60000)
    assert low(call("v_add_f16", big, big))[0] == np.inf
    assert low(call("v_add_f16", big, big, mode=SATURATING))[0] == 65504
    tiny = f16(2.0**-20)
    assert low(call("v_add_f16", tiny, f16(0)))[0] == 2.0**-20
    assert low(call("v_add_f16", tiny, f16(0), mode=FLUSH_F16))[0] == 0
    assert list(low(call("v_mul_f16", f16([3, -1]), f16(1), clamp=True))) == [1, 0]


def test_halves_of_registers() -> None:
    x, y = f16(1, 10), f16(2, 20)
    got = call("v_fma_f16", x, y, f16(0.5), old=FILLED, op_sel=(1, 0, 0, 1))
    assert high(got)[0] == 20.5 and ints(got)[0] & 0xFFFF == 0xBBAA
    assert ints(call("v_add_f16", x, y)) == [int(np.float16(3).view(np.uint16))]
    packed = call("v_pack_b32_f16", x, y, op_sel=(1, 0, 0))
    assert (low(packed)[0], high(packed)[0]) == (10, 2)


def test_unlisted_16_bit_results_clear_or_keep_the_high_half() -> None:
    clears = call("v_max3_i16", u32([5]), u32([6]), u32([7]), old=FILLED)
    keeps = call(
        "v_max3_i16",
        u32([5]),
        u32([6]),
        u32([7]),
        old=FILLED,
        machine=Machine(short_results_keep_high_half=True),
    )
    assert (ints(clears), ints(keeps)) == ([7], [0xDDCC0007])


def test_packed_fp16_chooses_halves_and_signs() -> None:
    x, y, z = f16(1, 2), f16(10, 100), f16(0.5, 0.25)
    got = call("v_pk_fma_f16", x, y, z)
    assert (low(got)[0], high(got)[0]) == (10.5, 200.25)
    got = call("v_pk_mul_f16", x, y, op_sel=(1, 0), op_sel_hi=(0, 1))
    assert (low(got)[0], high(got)[0]) == (20, 100)
    got = call("v_pk_add_f16", x, y, neg_lo=(1, 0), neg_hi=(0, 1))
    assert (low(got)[0], high(got)[0]) == (9, -98)
    got = call("v_pk_add_f16", x, y, clamp=True)
    assert (low(got)[0], high(got)[0]) == (1, 1)
    got = call("v_pk_fmac_f16", x, y, old=z)
    assert (low(got)[0], high(got)[0]) == (10.5, 200.25)
    got = call("v_pk_maximum3_f16", x, f16(np.nan, 3), y)
    assert np.isnan(low(got)[0]) and high(got)[0] == 100


@given(a=shorts, b=shorts, c=shorts, d=shorts)
@examples(60)
def test_16_bit_integers(a: int, b: int, c: int, d: int) -> None:
    x, y = u32([a | c << 16]), u32([b | d << 16])

    def each(exact: object) -> int:
        first, second = exact(a, b), exact(c, d)  # type: ignore[operator]
        return (first & 0xFFFF) | (second & 0xFFFF) << 16

    def s(value: int) -> int:
        return signed(value, 16)

    for name, exact in {
        "add_u16": lambda p, q: p + q,
        "sub_i16": lambda p, q: p - q,
        "mul_lo_u16": lambda p, q: p * q,
        "min_i16": lambda p, q: min(s(p), s(q)),
        "max_u16": max,
        "lshlrev_b16": lambda p, q: q << (p & 15),
        "lshrrev_b16": lambda p, q: q >> (p & 15),
        "ashrrev_i16": lambda p, q: s(q) >> (p & 15),
    }.items():
        assert ints(call(f"v_pk_{name}", x, y)) == [each(exact)]
        assert ints(call(f"v_{name}", x, y)) == [each(exact) & 0xFFFF]
    saturated = call("v_pk_add_i16", x, y, clamp=True)
    assert ints(saturated) == [each(lambda p, q: min(max(s(p) + s(q), -32768), 32767))]
    mad = ints(call("v_mad_u16", x, y, u32([d]), old=FILLED))
    assert mad == [a * b + d & 0xFFFF | 0xDDCC0000]


def test_mixed_precision_fma() -> None:
    x, y = f16(1.5, -4), f32([3.0])
    z = f32([0.25])
    got = call("v_fma_mix_f32", x, y, z, op_sel=(1, 0, 0), op_sel_hi=(1, 0, 0))
    assert floats(got)[0] == -11.75
    got = call("v_fma_mix_f32", x, y, z, op_sel=(1, 0, 0), op_sel_hi=(1, 0, 0), neg_hi=(1, 0, 0))
    assert floats(got)[0] == 12.25
    got = call("v_fma_mix_f32", x, y, z, op_sel_hi=(1, 0, 0), neg_lo=(0, 1, 0))
    assert floats(got)[0] == -4.25
    got = call("v_fma_mixlo_f16", x, y, z, old=FILLED, op_sel_hi=(1, 0, 0))
    assert low(got)[0] == 4.75 and ints(got)[0] >> 16 == 0xDDCC
    got = call("v_fma_mixhi_f16", x, y, z, old=FILLED, op_sel_hi=(1, 0, 0), clamp=True)
    assert high(got)[0] == 1 and ints(got)[0] & 0xFFFF == 0xBBAA


@given(a=halves, b=halves, c=halves, d=halves, e=st.floats(-1e6, 1e6, width=32))
@examples(60)
def test_dot2_rounds_the_exact_sum_once(a: float, b: float, c: float, d: float, e: float) -> None:
    def kept(value: float) -> Fraction:
        return Fraction(0) if abs(value) < 2.0**-14 else Fraction(value)

    addend = Fraction(0) if abs(e) < 2.0**-126 else Fraction(e)
    exact = kept(a) * kept(c) + kept(b) * kept(d) + addend
    expected = round_to_f32(exact)
    if 0 < abs(expected) < 2.0**-126:
        expected = np.float32(0)
    assert floats(call("v_dot2_f32_f16", f16(a, b), f16(c, d), f32([e])))[0] == expected
    assert floats(call("v_dot2c_f32_f16", f16(a, b), f16(c, d), old=f32([e])))[0] == expected


def test_dot2_sum_is_a_setting() -> None:
    x, y = f16(1, 1), f16(2.0**-12, -1)
    one = f32([2.0**12])
    exact = floats(call("v_dot2_f32_f16", x, y, one))[0]
    sequential = floats(call("v_dot2_f32_f16", x, y, one, machine=Machine(dot2_sum="sequential")))[
        0
    ]
    assert exact == 2.0**12 - 1 + 2.0**-12 and sequential == 2.0**12 - 1
    bf16 = u32([0x40403F80])  # 1, 3
    assert floats(call("v_dot2_f32_bf16", bf16, bf16, f32([0.5])))[0] == 10.5


@pytest.mark.parametrize("opcode", ["v_dot4_i32_i8", "v_dot4c_i32_i8"])
def test_dot4_of_bytes(opcode: str) -> None:
    a, b, c = u32([0x807F01FF]), u32([0x02030405]), u32([-7])
    expected = (-1 * 5 + 1 * 4 + 127 * 3 - 128 * 2 - 7) & 0xFFFFFFFF
    got = call(opcode, a, b, old=c) if "4c" in opcode else call(opcode, a, b, c)
    assert ints(got) == [expected]
