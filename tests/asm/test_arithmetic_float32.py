"""fp32 opcodes against exact rational arithmetic and the manual's special cases."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asm_overrides.emulator.arithmetic import Machine, Mode, UnsupportedArithmetic, bind_valu
from asm_overrides.emulator.arithmetic.assumptions import INVALID_NAN
from tests.asm.arithmetic_values import (
    FLUSH_F32_BITS,
    MODE,
    call,
    examples,
    f32,
    floats,
    ints,
    round_to_f32,
    u32,
)

FLUSH = Mode.from_bits(FLUSH_F32_BITS)
SIGNALLING, QUIET = 0x7F800001, 0x7FC00001

numbers = st.floats(width=32, allow_nan=False, allow_infinity=False)


def bits(value: np.float32) -> int:
    return int(np.float32(value).view(np.uint32))


def assert_rounds_once(a: float, b: float, c: float) -> None:
    exact = Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))
    got = floats(call("v_fma_f32", f32([a]), f32([b]), f32([c])))[0]
    if exact == 0:
        assert got == 0
    else:
        assert bits(got) == bits(round_to_f32(exact)), (a, b, c)


@given(a=numbers, b=numbers, c=numbers)
@examples(80)
def test_fma_rounds_once(a: float, b: float, c: float) -> None:
    assert_rounds_once(a, b, c)


@given(
    a=st.integers(1, 1 << 24),
    b=st.integers(1, 1 << 24),
    shift=st.integers(20, 90),
    sign=st.sampled_from([-1, 1]),
    scale=st.sampled_from([0, -100, -149, -200, 60]),
)
@examples(250)
def test_fma_rounds_once_near_ties(a: int, b: int, shift: int, sign: int, scale: int) -> None:
    """A small addend next to a product that may lie halfway between two fp32 numbers."""
    x = np.ldexp(np.float32(a), scale // 2)
    y = np.ldexp(np.float32(b), scale - scale // 2)
    with np.errstate(all="ignore"):
        c = np.float32(sign * np.ldexp(float(a) * b, scale - shift))
    assert_rounds_once(float(x), float(y), float(c))


def test_fma_of_a_tie_that_float64_cannot_see() -> None:
    """1 + 2^-24 is halfway; 2^-80 below or above it decides, beyond float64's 53 bits."""
    a = np.float32(1 + 2.0**-12)
    product = Fraction(float(a)) ** 2  # 1 + 2^-11 + 2^-24
    for tail in (2.0**-80, -(2.0**-80)):
        assert product + Fraction(tail) != product
        assert_rounds_once(float(a), float(a), tail)
    # The naive way rounds both to the same number.
    up, down = (
        floats(call("v_fma_f32", f32([a]), f32([a]), f32([t])))[0] for t in (2.0**-80, -(2.0**-80))
    )
    assert up > down


@pytest.mark.parametrize("addend", [2.0**-127 + 2.0**-149, 2.0**-126 - 2.0**-149])
@pytest.mark.parametrize("sign", [1, -1])
def test_fma_of_a_denormal_tie_that_float64_cannot_see(addend: float, sign: int) -> None:
    """2^-150 (1 - 2^-46) added to an odd denormal lies just below halfway to the next one."""
    a, b = (1 + 2.0**-23) * 2.0**-75, (1 - 2.0**-23) * 2.0**-75
    got = floats(call("v_fma_f32", f32([sign * a]), f32([b]), f32([sign * addend])))[0]
    assert got == sign * np.float32(addend)


def test_fma_keeps_denormals_exact_and_flushes_them_when_told() -> None:
    assert_rounds_once(2.0**-100, 1.5 * 2.0**-49, 2.0**-149)
    tiny = f32([2.0**-130])
    assert floats(call("v_fma_f32", tiny, f32([1]), f32([0])))[0] == np.float32(2.0**-130)
    assert floats(call("v_fma_f32", tiny, f32([2.0**100]), f32([0]), mode=FLUSH))[0] == 0
    flushed = call("v_mul_f32", f32([-(2.0**-100)]), f32([2.0**-40]), mode=FLUSH)
    assert ints(flushed) == [0x80000000]


def test_nan_sources_come_through_quieted_first_source_first() -> None:
    assert ints(call("v_add_f32", u32([SIGNALLING]), u32([QUIET + 8]))) == [SIGNALLING | 1 << 22]
    assert ints(call("v_fma_f32", f32([1]), f32([2]), u32([SIGNALLING]))) == [SIGNALLING | 1 << 22]
    assert ints(call("v_add_f32", f32([np.inf]), f32([-np.inf]))) == [INVALID_NAN]
    assert ints(call("v_mul_f32", f32([0]), f32([np.inf]))) == [INVALID_NAN]


@pytest.mark.parametrize(
    ("opcode", "a", "b", "expected"),
    [
        ("v_max_f32", 0x00000000, 0x80000000, 0x00000000),
        ("v_max_f32", 0x80000000, 0x00000000, 0x00000000),
        ("v_min_f32", 0x00000000, 0x80000000, 0x80000000),
        ("v_min_f32", 0x80000000, 0x80000000, 0x80000000),
        ("v_max_f32", QUIET, 0x3F800000, 0x3F800000),
        ("v_max_f32", 0xBF800000, QUIET, 0xBF800000),
        ("v_max_f32", QUIET, QUIET + 1, QUIET + 1),
        ("v_max_f32", SIGNALLING, 0x3F800000, SIGNALLING | 1 << 22),
        ("v_min_f32", 0x3F800000, SIGNALLING, SIGNALLING | 1 << 22),
        ("v_max_f32", 0xFF800000, 0xFF7FFFFF, 0xFF7FFFFF),
        ("v_min_f32", 0x3F800000, 0x40000000, 0x3F800000),
    ],
)
def test_min_and_max_special_cases(opcode: str, a: int, b: int, expected: int) -> None:
    assert ints(call(opcode, u32([a]), u32([b]))) == [expected]


def test_signalling_nan_loses_outside_ieee_mode() -> None:
    mode = Mode.from_bits(0x1F0)
    assert ints(call("v_max_f32", u32([SIGNALLING]), f32([1]), mode=mode)) == [0x3F800000]


@given(x=st.lists(st.floats(width=32), min_size=3, max_size=3))
@examples(80)
def test_three_operand_selections_follow_the_manual(x: list[float]) -> None:
    a, b, c = (f32([value]) for value in x)
    biggest = call("v_max_f32", call("v_max_f32", a, b), c)
    smallest = call("v_min_f32", call("v_min_f32", a, b), c)
    assert ints(call("v_max3_f32", a, b, c)) == ints(biggest)
    assert ints(call("v_min3_f32", a, b, c)) == ints(smallest)
    middle = floats(call("v_med3_f32", a, b, c))[0]
    if any(np.isnan(x)):
        assert ints(call("v_med3_f32", a, b, c)) == ints(smallest)
    else:
        assert middle == sorted(x)[1]
    ieee = floats(call("v_maximum3_f32", a, b, c))[0]
    assert np.isnan(ieee) if any(np.isnan(x)) else ieee == max(x)


@given(value=numbers, exponent=st.integers(-320, 320))
@examples(80)
def test_ldexp_rounds_once(value: float, exponent: int) -> None:
    exact = Fraction(value) * Fraction(2) ** exponent
    got = floats(call("v_ldexp_f32", f32([value]), u32([exponent])))[0]
    assert got == round_to_f32(exact)


@given(value=numbers.filter(lambda x: x != 0))
@examples(60)
def test_frexp_splits_exactly(value: float) -> None:
    mantissa = floats(call("v_frexp_mant_f32", f32([value])))[0]
    exponent = int(call("v_frexp_exp_i32_f32", f32([value])).view(np.int32)[0, 0])
    assert 0.5 <= abs(mantissa) < 1
    assert Fraction(float(mantissa)) * Fraction(2) ** exponent == Fraction(value)


def test_rounding_to_integers() -> None:
    x = [2.5, 3.5, -2.5, -0.5, 0.5, 1e20, -1.2, np.inf]
    assert list(floats(call("v_rndne_f32", f32(x)))) == [
        2,
        4,
        -2,
        -0.0,
        0,
        np.float32(1e20),
        -1,
        np.inf,
    ]
    assert list(floats(call("v_floor_f32", f32(x))))[:4] == [2, 3, -3, -1]
    assert list(floats(call("v_ceil_f32", f32(x))))[:4] == [3, 4, -2, -0.0]
    assert list(floats(call("v_trunc_f32", f32(x))))[:4] == [2, 3, -2, -0.0]
    assert floats(call("v_fract_f32", f32([-1.25])))[0] == 0.75
    # A fraction that rounds up to 1 stays below it.
    assert ints(call("v_fract_f32", f32([-1e-10]))) == [0x3F7FFFFF]


MANUAL = {
    "v_exp_f32": {0xFF800000: 0, 0x80000000: 0x3F800000, 0x7F800000: 0x7F800000},
    "v_log_f32": {
        0xFF800000: 0xFFC00000,
        0xBF800000: 0xFFC00000,
        0x80000000: 0xFF800000,
        0: 0xFF800000,
        0x3F800000: 0,
        0x7F800000: 0x7F800000,
    },
    "v_rcp_f32": {
        0xFF800000: 0x80000000,
        0xC0000000: 0xBF000000,
        0x80000000: 0xFF800000,
        0: 0x7F800000,
        0x7F800000: 0,
    },
    "v_rsq_f32": {
        0xFF800000: 0xFFC00000,
        0x80000000: 0xFF800000,
        0: 0x7F800000,
        0x40800000: 0x3F000000,
        0x7F800000: 0,
    },
    "v_sqrt_f32": {0xFF800000: 0xFFC00000, 0x80000000: 0x80000000, 0: 0, 0x40800000: 0x40000000},
}


@pytest.mark.parametrize("opcode", MANUAL)
def test_transcendental_examples_of_the_manual(opcode: str) -> None:
    table = MANUAL[opcode]
    assert ints(call(opcode, u32(list(table)))) == list(table.values())


def test_transcendental_denormals_are_flushed_whatever_mode_says() -> None:
    assert ints(call("v_exp_f32", f32([-130, -126]))) == [0, bits(np.float32(2.0**-126))]
    assert floats(call("v_rcp_f32", f32([2.0**-130])))[0] == np.inf
    assert floats(call("v_rcp_f32", f32([2.0**127])))[0] == 0
    kept = Machine(transcendental_flushes_denormals=False)
    assert floats(call("v_exp_f32", f32([-130]), machine=kept))[0] == np.float32(2.0**-130)


def test_transcendental_results_are_correctly_rounded_or_moved_as_asked() -> None:
    x = np.random.default_rng(2).uniform(-80, 80, 500).astype(np.float32)
    expected = np.exp2(x.astype(np.longdouble)).astype(np.float32)
    np.testing.assert_array_equal(floats(call("v_exp_f32", f32(x))), expected)
    moved = floats(call("v_exp_f32", f32(x), machine=Machine(transcendental_error_ulp=1)))
    np.testing.assert_array_equal(moved, np.nextafter(expected, np.float32(np.inf)))


def divide(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    """LLVM's expansion of a correctly rounded fp32 division."""
    n, d = f32(numerator), f32(denominator)
    scaled_d, _ = call("v_div_scale_f32", d, d, n)
    scaled_n, post = call("v_div_scale_f32", n, d, n)
    r = call("v_rcp_f32", scaled_d)
    minus = {"neg": (True, False, False)}
    error = call("v_fma_f32", scaled_d, r, f32([1]), **minus)
    r = call("v_fma_f32", error, r, r)
    q = call("v_mul_f32", scaled_n, r)
    error = call("v_fma_f32", scaled_d, q, scaled_n, **minus)
    q = call("v_fma_f32", error, r, q)
    error = call("v_fma_f32", scaled_d, q, scaled_n, **minus)
    q = call("v_div_fmas_f32", error, r, q, post)
    return floats(call("v_div_fixup_f32", q, d, n))


def test_the_division_sequence_is_correctly_rounded_everywhere() -> None:
    rng = np.random.default_rng(3)
    count = 20000
    exponents = rng.integers(0, 255, (2, count)).astype(np.uint32)
    words = exponents << 23 | rng.integers(0, 1 << 23, (2, count)).astype(np.uint32)
    words |= rng.integers(0, 2, (2, count)).astype(np.uint32) << 31
    n, d = words.view(np.float32)
    with np.errstate(all="ignore"):
        expected = n / d
    ours = divide(n, d)
    different = ours.view(np.uint32) != expected.view(np.uint32)
    assert not different.any(), (n[different][:3], d[different][:3])


def test_the_division_sequence_in_special_cases() -> None:
    special = np.array([0, -0.0, 1, -1, np.inf, -np.inf, 2.0**-149, 2.0**-126, 3e38], np.float32)
    n, d = (x.ravel() for x in np.meshgrid(special, special))
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(divide(n, d), n / d)


# Powers of two of denominator and numerator; by which power each is scaled; post-scaling.
SCALING = [
    (0, 95, 0, 0, False),
    (0, 96, 64, 0, True),  # close to the largest number
    (-130, -40, 64, 64, False),  # a denormal denominator
    (127, 0, -64, 0, True),  # reciprocal and quotient both denormal
    (127, 10, -64, -64, False),  # only the reciprocal
    (126, 10, 0, 0, False),
    (102, -24, 0, 0, False),
    (103, -24, 0, 64, True),  # only the quotient
    (-100, -104, 64, 64, False),  # a tiny numerator
    (-100, -103, 0, 0, False),
]


@pytest.mark.parametrize(("d", "n", "scale_d", "scale_n", "post_scale"), SCALING)
def test_division_is_scaled_where_the_manual_says(
    d: int, n: int, scale_d: int, scale_n: int, post_scale: bool
) -> None:
    denominator, numerator = f32([2.0**d]), f32([-(2.0**n)])
    for scaled, power in ((denominator, scale_d), (numerator, scale_n)):
        value, post = call("v_div_scale_f32", scaled, denominator, numerator)
        assert floats(value)[0] == floats(scaled)[0] * 2.0**power
        assert bool(post[0, 0]) == post_scale


def test_division_by_zero_is_not_scaled() -> None:
    value, post = call("v_div_scale_f32", f32([0]), f32([0]), f32([1]))
    assert np.isnan(floats(value)[0]) and not post.any()


def test_packed_fp32_chooses_words_and_signs() -> None:
    a = np.stack([f32([1.0]), f32([2.0])])
    b = np.stack([f32([10.0]), f32([100.0])])
    assert list(floats(call("v_pk_mul_f32", a, b))) == [10, 200]
    assert list(floats(call("v_pk_mul_f32", a, b, op_sel_hi=(1, 0)))) == [10, 20]
    assert list(floats(call("v_pk_mul_f32", a, b, op_sel=(1, 0), op_sel_hi=(0, 1)))) == [20, 100]
    assert list(floats(call("v_pk_add_f32", a, b, neg_lo=(1, 0), neg_hi=(0, 1)))) == [9, -98]
    assert list(floats(call("v_pk_add_f32", a, b, neg_lo=(1, 0), neg_hi=(0, 1), clamp=True))) == [
        1,
        0,
    ]
    c = np.stack([f32([0.5]), f32([0.25])])
    assert list(floats(call("v_pk_fma_f32", a, b, c, op_sel_hi=(1, 1, 0)))) == [10.5, 200.5]
    assert list(floats(call("v_pk_mov_b32", a, b, op_sel=(1, 0)))) == [2, 10]
    assert list(floats(call("v_pk_mov_b32", a, b, op_sel=(0, 1)))) == [1, 100]


def test_signs_and_output_modifiers() -> None:
    a, b = f32([-3.0]), f32([0.25])
    assert floats(call("v_mul_f32", a, b, abs=(True, False)))[0] == 0.75
    assert floats(call("v_mul_f32", a, b, abs=(True, False), neg=(True, False)))[0] == -0.75
    assert floats(call("v_mul_f32", a, b, mul=4))[0] == -3
    assert floats(call("v_mul_f32", a, b, div=2))[0] == -0.375
    assert list(floats(call("v_mul_f32", f32([-3, 8, 2]), b, clamp=True))) == [0, 1, 0.5]
    assert floats(call("v_add_f32", u32([QUIET]), b, clamp=True))[0] == 0
    assert ints(call("v_mov_b32", f32([1]), neg=(True,))) == [0xBF800000]
    assert floats(call("v_fmac_f32", a, b, old=f32([10])))[0] == 9.25
    assert floats(call("v_fmamk_f32", a, f32([2]), b))[0] == -5.75


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(UnsupportedArithmetic, match=r"v_and_b32.*mul or div"):
        bind_valu("v_and_b32", {"mul": 2})
    with pytest.raises(UnsupportedArithmetic, match=r"v_and_b32.*u32 source"):
        bind_valu("v_and_b32", {"neg": (True, False)})
    with pytest.raises(UnsupportedArithmetic, match=r"v_and_b32 with clamp"):
        bind_valu("v_and_b32", {"clamp": True})
    with pytest.raises(UnsupportedArithmetic, match=r"rounding mode 3 for fp32"):
        Mode.from_bits(0x3F3)
    with pytest.raises(UnsupportedArithmetic, match=r"'v_frobnicate_f32'"):
        bind_valu("v_frobnicate_f32")
    assert MODE.ieee and MODE.dx10_clamp and not MODE.fp16_overflow
