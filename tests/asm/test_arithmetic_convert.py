"""Conversions: integers, packed halves and bytes, fp8, bf8 and fp4 with their scales."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from asm_overrides.emulator.arithmetic import Machine, Mode
from asm_overrides.emulator.arithmetic.formats import FP4_VALUES, FP8_VALUES
from tests.asm.arithmetic_values import (
    FP16_OVERFLOW,
    MODE_BITS,
    call,
    examples,
    f16,
    f32,
    f64,
    floats,
    ints,
    signed,
    u32,
)

SATURATING = Mode.from_bits(MODE_BITS | FP16_OVERFLOW)
FILLED = u32([0xDDCCBBAA])
AWKWARD = [0.0, -0.0, 0.5, 1.5, 2.5, -0.75, 1e10, -1e10, math.inf, -math.inf, math.nan, 65504.0]


def saturated(value: float, low: int, high: int) -> int:
    if math.isnan(value):
        return 0
    return int(min(max(value, low), high))


@pytest.mark.parametrize(
    ("opcode", "low", "high", "make"),
    [
        ("v_cvt_i32_f32", -(1 << 31), (1 << 31) - 1, f32),
        ("v_cvt_u32_f32", 0, (1 << 32) - 1, f32),
        ("v_cvt_i32_f64", -(1 << 31), (1 << 31) - 1, f64),
        ("v_cvt_u32_f64", 0, (1 << 32) - 1, f64),
        ("v_cvt_i16_f16", -(1 << 15), (1 << 15) - 1, f16),
        ("v_cvt_u16_f16", 0, (1 << 16) - 1, f16),
    ],
)
def test_floats_to_integers_truncate_and_saturate(
    opcode: str, low: int, high: int, make: object
) -> None:
    got = ints(call(opcode, make(AWKWARD)))  # type: ignore[operator]
    width = 16 if "16" in opcode else 32
    assert got == [saturated(x, low, high) & (1 << width) - 1 for x in AWKWARD]


def test_rounding_conversions() -> None:
    x = f32([1.5, 2.5, -1.5, -0.25])
    assert [signed(v) for v in ints(call("v_cvt_flr_i32_f32", x))] == [1, 2, -2, -1]
    assert [signed(v) for v in ints(call("v_cvt_rpi_i32_f32", x))] == [2, 3, -1, 0]


@given(value=st.integers(0, (1 << 32) - 1))
@examples(60)
def test_integers_to_floats(value: int) -> None:
    assert floats(call("v_cvt_f32_u32", u32([value])))[0] == np.float32(value)
    assert floats(call("v_cvt_f32_i32", u32([value])))[0] == np.float32(signed(value))
    for byte in range(4):
        got = floats(call(f"v_cvt_f32_ubyte{byte}", u32([value])))[0]
        assert got == (value >> 8 * byte & 0xFF)
    nibble = signed(value, 4)
    assert floats(call("v_cvt_off_f32_i4", u32([value])))[0] == nibble / 16


@given(x=st.lists(st.floats(width=32, allow_nan=False), min_size=2, max_size=2))
@examples(80)
def test_packed_halves(x: list[float]) -> None:
    a, b = f32([x[0]]), f32([x[1]])
    bf16 = torch.tensor(x).to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
    half = torch.tensor(x).to(torch.float16).numpy().view(np.uint16)
    assert ints(call("v_cvt_pk_bf16_f32", a, b)) == [int(bf16[0]) | int(bf16[1]) << 16]
    assert ints(call("v_cvt_pk_f16_f32", a, b)) == [int(half[0]) | int(half[1]) << 16]
    low = np.uint16(ints(call("v_cvt_pkrtz_f16_f32", a, b))[0] & 0xFFFF).view(np.float16)
    assert np.signbit(low) == np.signbit(x[0]) and abs(float(low)) <= abs(x[0])
    if abs(x[0]) < 65504:
        further = np.nextafter(low, np.float16(math.copysign(math.inf, x[0])))
        assert abs(float(further)) > abs(x[0])


def test_rounding_to_fp16_towards_zero_never_overflows() -> None:
    got = ints(call("v_cvt_pkrtz_f16_f32", f32([1e9]), f32([-65519.9])))[0]
    assert got == 0xFBFF7BFF


def test_fp16_conversions_saturate_in_overflow_mode() -> None:
    assert ints(call("v_cvt_f16_f32", f32([1e9]))) == [0x7C00]
    assert ints(call("v_cvt_f16_f32", f32([1e9]), mode=SATURATING)) == [0x7BFF]
    assert ints(call("v_cvt_f16_f32", f32([math.inf]), mode=SATURATING)) == [0x7C00]


def test_widening_is_exact_and_takes_sub_dwords() -> None:
    assert list(floats(call("v_cvt_f32_f16", f16([0.5, -65504, 2.0**-24])))) == [
        0.5,
        -65504,
        2.0**-24,
    ]
    assert floats(call("v_cvt_f32_f16", f16(1, 3), src0_sel="WORD_1"))[0] == 3
    assert floats(call("v_cvt_f32_bf16", u32([0x00003FC0])))[0] == 1.5
    low, high = call("v_cvt_f64_f32", f32([1 / 3]))
    wide = np.array([int(low[0, 0]) | int(high[0, 0]) << 32], np.uint64).view(np.float64)[0]
    assert wide == float(np.float32(1 / 3))
    assert floats(call("v_cvt_f32_f64", f64([1 / 3])))[0] == np.float32(1 / 3)


def test_normalised_integers_round_to_even_and_clamp() -> None:
    a, b = f32([0.5, 2.0, math.nan]), f32([-1.0, 1.0, 0.25 / 65535])
    packed = ints(call("v_cvt_pknorm_u16_f32", a, b))
    assert packed == [32768, 0xFFFF | 0xFFFF << 16, 0]
    packed = ints(call("v_cvt_pknorm_i16_f32", a, b))
    assert packed == [16384 | (0x10000 - 32767) << 16, 32767 | 32767 << 16, 0]
    halves = ints(call("v_cvt_pknorm_i16_f16", f16(0.5, 1.0), f16(0.25, -1.0), op_sel=(1, 0, 0)))
    assert halves == [32767 | 8192 << 16]
    assert ints(call("v_cvt_norm_u16_f16", f16(1.0))) == [65535]


def test_packed_integers_saturate() -> None:
    a, b = u32([70000, -5, 12]), u32([-70000, 65536, 13])
    assert ints(call("v_cvt_pk_i16_i32", a, b)) == [0x80007FFF, 0x7FFFFFFB, 13 << 16 | 12]
    assert ints(call("v_cvt_pk_u16_u32", a, b)) == [0xFFFFFFFF, 0xFFFFFFFF, 13 << 16 | 12]


def test_cvt_pk_u8_writes_one_byte() -> None:
    x = f32([0.5, 1.5, 254.5, 255.5, 300, -3, math.nan])
    got = ints(call("v_cvt_pk_u8_f32", x, u32([2]), FILLED))
    assert got == [0xDD00BBAA | value << 16 for value in (0, 2, 254, 255, 255, 0, 0)]
    truncating = Machine(cvt_pk_u8_rounding="truncate")
    got = ints(call("v_cvt_pk_u8_f32", x, u32([5]), FILLED, machine=truncating))
    assert got == [0xDDCC00AA | value << 8 for value in (0, 1, 254, 255, 255, 0, 0)]
    assert ints(call("v_cvt_pkaccum_u8_f32", f32([7]), u32([3]), old=FILLED)) == [0x07CCBBAA]


def test_ashr_pk_shifts_saturates_and_keeps_the_other_half() -> None:
    a, b = u32([300 << 4, -1, 200 << 4]), u32([5 << 4, 1 << 30, -(200 << 4)])
    count = u32([36])  # 5 bits of it: 4
    low = ints(call("v_ashr_pk_u8_i32", a, b, count, old=FILLED))
    assert low == [0xDDCC0000 | pair for pair in (0x05FF, 0xFF00, 0x00C8)]
    high = ints(call("v_ashr_pk_u8_i32", a, b, count, old=FILLED, op_sel=(0, 0, 0, 1)))
    assert high == [0x0000BBAA | pair << 16 for pair in (0x05FF, 0xFF00, 0x00C8)]
    both = ints(call("v_ashr_pk_i8_i32", a, b, count, old=FILLED))
    assert both == [0xDDCC0000 | pair for pair in (0x057F, 0x7FFF, 0x807F)]
    clearing = Machine(ashr_pk_keeps_other_half=False)
    assert ints(call("v_ashr_pk_u8_i32", a, b, count, old=FILLED, machine=clearing))[0] == 0x05FF


def test_fp8_pairs_go_into_the_half_that_op_sel_names() -> None:
    a, b = f32([1.0, 500.0]), f32([-448.0, 1e-9])
    low = ints(call("v_cvt_pk_fp8_f32", a, b, old=FILLED))
    assert low == [0xDDCC0000 | 0xFE38, 0xDDCC0000 | 0x007F]
    high = ints(call("v_cvt_pk_fp8_f32", a, b, old=FILLED, op_sel=(0, 0, 1), mode=SATURATING))
    assert high == [0xFE38BBAA, 0x007EBBAA]
    scaled = ints(
        call("v_cvt_scalef32_pk_fp8_f32", a, b, f32([4.0]), old=FILLED, op_sel=(0, 0, 0, 1))
    )
    quarter = torch.tensor([0.25, -112.0, 125.0]).to(torch.float8_e4m3fn).view(torch.uint8)
    assert scaled[0] == 0xBBAA | int(quarter[0]) << 16 | int(quarter[1]) << 24
    assert scaled[1] >> 16 & 0xFF == int(quarter[2])
    bf8 = ints(call("v_cvt_pk_bf8_f32", a, b, old=FILLED))[0]
    theirs = torch.tensor([1.0, -448.0]).to(torch.float8_e5m2).view(torch.uint8)
    assert bf8 == 0xDDCC0000 | int(theirs[0]) | int(theirs[1]) << 8


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_packed_16_bit_numbers_to_fp8(kind: str) -> None:
    pair = f16(3.0, -0.5) if kind == "f16" else u32([0xBF00_4040])
    got = call(f"v_cvt_scalef32_pk_fp8_{kind}", pair, f32([0.5]), old=FILLED, op_sel=(0, 0, 1))
    code = ints(got)[0]
    assert code & 0xFFFF == 0xBBAA
    assert (FP8_VALUES[code >> 16 & 0xFF], FP8_VALUES[code >> 24]) == (6.0, -1.0)


def test_fp8_codes_to_floats() -> None:
    codes = u32([0x7E_01_B8_38])  # 448, 2^-9, -1, 1 from the top
    assert list(floats(call("v_cvt_pk_f32_fp8", codes))) == [1, -1]
    assert list(floats(call("v_cvt_pk_f32_fp8", codes, src0_sel="WORD_1"))) == [2.0**-9, 448]
    assert floats(call("v_cvt_f32_fp8", codes, src0_sel="BYTE_3"))[0] == 448
    assert floats(call("v_cvt_f32_bf8", codes, src0_sel="BYTE_2"))[0] == 2.0**-16
    scale = f32([8.0])
    got = call("v_cvt_scalef32_pk_f32_fp8", codes, scale, op_sel=(1, 0, 0))
    assert list(floats(got)) == [2.0**-6, 3584]
    assert floats(call("v_cvt_scalef32_f32_fp8", codes, scale, op_sel=(0, 1, 0)))[0] == 2.0**-6
    assert ints(call("v_cvt_scalef32_pk_bf16_fp8", codes, scale)) == [0xC1004100]
    assert ints(call("v_cvt_scalef32_pk_f16_fp8", codes, scale)) == [0xC8004800]
    half = call("v_cvt_scalef32_f16_fp8", codes, scale, old=FILLED, op_sel=(1, 0, 1))
    assert ints(half) == [0xC800BBAA]
    assert np.isnan(floats(call("v_cvt_scalef32_f32_fp8", codes, u32([0x7F800000])))).all()


def test_only_the_exponent_of_a_scale_counts() -> None:
    a, b = f32([3.0]), f32([6.0])
    got = [
        ints(call("v_cvt_scalef32_pk_fp8_f32", a, b, f32([s]), old=FILLED))
        for s in (2.0, 3.9, -2.5)
    ]
    assert got[0] == got[1] == got[2]


@pytest.mark.parametrize("byte", range(4))
def test_fp4_bytes(byte: int) -> None:
    select = (0, 0, byte & 1, byte >> 1)
    got = call(
        "v_cvt_scalef32_pk_fp4_f32", f32([5.0]), f32([-1e9]), f32([2.0]), old=FILLED, op_sel=select
    )
    word = ints(got)[0]
    assert word & ~(0xFF << 8 * byte) == 0xDDCCBBAA & ~(0xFF << 8 * byte)
    code = word >> 8 * byte & 0xFF
    # 2.5 lies between 2 and 3: the even code is 2.
    assert (FP4_VALUES[code & 15], FP4_VALUES[code >> 4]) == (2.0, -6.0)
    source = (byte & 1, byte >> 1, 0)
    back = floats(call("v_cvt_scalef32_pk_f32_fp4", got, f32([2.0]), op_sel=source))
    assert list(back) == [4.0, -12.0]
    halves = call(
        "v_cvt_scalef32_pk_fp4_f16", f16(1.5, -3.0), f32([1.0]), old=FILLED, op_sel=select
    )
    code = ints(halves)[0] >> 8 * byte & 0xFF
    assert (FP4_VALUES[code & 15], FP4_VALUES[code >> 4]) == (1.5, -3.0)


@given(
    x=st.floats(width=32, min_value=-(2.0**120), max_value=2.0**120), power=st.integers(-126, 127)
)
@examples(80)
def test_scaled_conversion_rounds_the_exact_quotient(x: float, power: int) -> None:
    exact = Fraction(x) / Fraction(2) ** power
    word = ints(
        call(
            "v_cvt_scalef32_pk_fp8_f32",
            f32([x]),
            f32([x]),
            f32([2.0**power]),
            old=FILLED,
            mode=SATURATING,
        )
    )[0]
    got = Fraction(float(FP8_VALUES[word & 0xFF]))
    clipped = min(max(exact, Fraction(-448)), Fraction(448))
    finite = [Fraction(float(v)) for v in FP8_VALUES if not math.isnan(v)]
    assert abs(got - clipped) == min(abs(v - clipped) for v in finite)
