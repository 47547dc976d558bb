"""Small number formats against torch's, and against exact nearest-number searches."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from asm_overrides.emulator.arithmetic import formats
from tests.asm.arithmetic_values import examples, nearest_even

EIGHT_BIT = {
    "fp8": (formats.FP8, formats.FP8_VALUES, torch.float8_e4m3fn),
    "bf8": (formats.BF8, formats.BF8_VALUES, torch.float8_e5m2),
}
SMALL = {
    "fp6": (formats.FP6, formats.FP6_VALUES),
    "bf6": (formats.BF6, formats.BF6_VALUES),
    "fp4": (formats.FP4, formats.FP4_VALUES),
}
# The numbers of the manual's table 31, largest first, and the smallest positive one.
LIMITS = {"fp6": (7.5, 0.125), "bf6": (28.0, 0.0625), "fp4": (6.0, 0.5)}

singles = st.floats(width=32, allow_nan=False)


def encode(x: np.ndarray, form: formats.Format, **options: bool) -> np.ndarray:
    with np.errstate(all="ignore"):
        return formats.encode(x.astype(np.float32), form, **options)


@pytest.mark.parametrize("name", EIGHT_BIT)
def test_every_code_of_8_bits_means_what_torch_says(name: str) -> None:
    _, table, dtype = EIGHT_BIT[name]
    theirs = torch.arange(256, dtype=torch.uint8).view(dtype).to(torch.float64).numpy()
    np.testing.assert_array_equal(table, theirs)
    assert (np.signbit(table) == np.signbit(theirs)).all()


@pytest.mark.parametrize("name", SMALL)
def test_codes_of_6_and_4_bits_from_their_fields(name: str) -> None:
    form, table = SMALL[name]
    for code, value in enumerate(table):
        sign = -1 if code >> form.exponent + form.mantissa else 1
        exponent = code >> form.mantissa & (1 << form.exponent) - 1
        fraction = Fraction(code & (1 << form.mantissa) - 1, 1 << form.mantissa)
        scale = Fraction(2) ** (max(exponent, 1) - form.bias)
        assert Fraction(value) == sign * (fraction + (exponent > 0)) * scale
    assert (table.max(), table[1]) == LIMITS[name]


def test_e8m0_is_a_power_of_two_and_255_is_nan() -> None:
    assert formats.E8M0_VALUES[127] == 1
    assert formats.E8M0_VALUES[0] == 2.0**-127
    assert formats.E8M0_VALUES[254] == 2.0**127
    assert np.isnan(formats.E8M0_VALUES[255])


@pytest.mark.parametrize("name", EIGHT_BIT)
def test_encoding_8_bits_agrees_with_torch(name: str) -> None:
    form, table, dtype = EIGHT_BIT[name]
    finite = table[np.isfinite(table)].astype(np.float32)
    between = (finite[:, None] + finite[None, :]).ravel() / 2
    around = np.concatenate([np.nextafter(between, np.float32(s)) for s in (np.inf, -np.inf)])
    wide = np.ldexp(np.float32(1.37), np.arange(-140, 128)).astype(np.float32)
    special = np.array([0, -0.0, np.inf, -np.inf, np.nan, 448, 464, 464.001, 61440], np.float32)
    values = np.concatenate([between, around, wide, -wide, special])
    # torch saturates e4m3, which has no infinity, and not e5m2.
    ours = encode(values, form, saturate=form.infinity is None).astype(np.uint8)
    theirs = torch.from_numpy(values).to(dtype).view(torch.uint8).numpy()
    np.testing.assert_array_equal(ours[~np.isnan(values)], theirs[~np.isnan(values)])
    assert np.isnan(table[ours[np.isnan(values)]]).all()


@pytest.mark.parametrize(("name", "largest"), [("fp8", 448.0), ("bf8", 57344.0)])
def test_saturation_gives_the_largest_number_but_keeps_nan(name: str, largest: float) -> None:
    form, table, _ = EIGHT_BIT[name]
    codes = encode(np.array([1e30, -1e30, np.inf, -np.inf, largest]), form, saturate=True)
    assert list(table[codes]) == [largest, -largest, largest, -largest, largest]
    assert np.isnan(table[encode(np.array([np.nan]), form, saturate=True)])


def test_overflow_may_be_decided_before_rounding() -> None:
    values = np.array([448, 449, 464, 465])
    after = encode(values, formats.FP8, saturate=False)
    before = encode(values, formats.FP8, saturate=False, overflow_after_rounding=False)
    assert list(after) == [0x7E, 0x7E, 0x7E, 0x7F]
    assert list(before) == [0x7E, 0x7F, 0x7F, 0x7F]


@pytest.mark.parametrize("name", SMALL)
@given(value=st.floats(-40, 40, width=32))
@examples(80)
def test_encoding_small_formats_finds_the_nearest_number(name: str, value: float) -> None:
    form, table = SMALL[name]
    positive = [(Fraction(number), code) for code, number in enumerate(table[: form.largest + 1])]
    magnitude = min(abs(Fraction(value)), positive[-1][0])
    sign = form.sign if np.signbit(value) else 0
    expected = nearest_even(magnitude, positive) | sign
    assert encode(np.array([value]), form, saturate=False)[0] == expected


@given(values=st.lists(singles, min_size=1, max_size=32))
@examples(60)
def test_bf16_and_fp16_agree_with_torch(values: list[float]) -> None:
    x = np.array(values, np.float32)
    bf16 = torch.from_numpy(x).to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
    np.testing.assert_array_equal(formats.encode_bf16(x), bf16)
    half = torch.from_numpy(x).to(torch.float16).numpy()
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(formats.encode_f16(x, saturate=False), half)


def test_fp16_saturates_finite_numbers_only() -> None:
    x = np.array([65519, 65520, 1e9, -1e9, np.inf, -np.inf], np.float32)
    with np.errstate(all="ignore"):
        half = formats.encode_f16(x, saturate=True)
    assert list(half) == [65504, 65504, 65504, -65504, np.inf, -np.inf]


def test_bf16_nan_stays_nan_when_its_payload_is_low() -> None:
    x = np.array([0x7F800001, 0xFFFFFFFF], np.uint32).view(np.float32)
    assert np.isnan(formats.decode_bf16(formats.encode_bf16(x))).all()


@pytest.mark.parametrize(
    ("bits", "unpack"), [(4, formats.unpack_nibbles), (6, formats.unpack_sixes)]
)
def test_dense_codes_are_cut_from_one_long_number(bits: int, unpack: object) -> None:
    rng = np.random.default_rng(bits)
    octets = rng.integers(0, 256, (3, 24), np.uint8)
    codes = unpack(octets)  # type: ignore[operator]
    for row, cut in zip(octets, codes, strict=True):
        number = int.from_bytes(row.tobytes(), "little")
        assert list(cut) == [number >> bits * i & (1 << bits) - 1 for i in range(192 // bits)]


def test_packing_sixes_undoes_unpacking() -> None:
    octets = np.random.default_rng(1).integers(0, 256, (5, 12), np.uint8)
    np.testing.assert_array_equal(formats.pack_sixes(formats.unpack_sixes(octets)), octets)
