"""Integer, bit and move opcodes against Python's integers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.asm.arithmetic_values import call, examples, ints, pairs, signed, u32, unpair

WORD = 1 << 32
words = st.one_of(
    st.integers(0, WORD - 1), st.sampled_from([0, 1, 0x7FFFFFFF, 0x80000000, WORD - 1, 31, 32, 33])
)
doubles = st.one_of(
    st.integers(0, (1 << 64) - 1), st.sampled_from([0, 1 << 63, (1 << 64) - 1, (1 << 63) - 1])
)


def clipped(value: int, low: int, high: int) -> int:
    return min(max(value, low), high)


def s(value: int) -> int:
    return signed(value)


def s24(value: int) -> int:
    return signed(value, 24)


def u24(value: int) -> int:
    return value & 0xFFFFFF


def leading(value: int) -> int:
    return 32 - value.bit_length() if value else -1


TWO: dict[str, Callable[[int, int], int]] = {
    "v_add_u32": lambda a, b: a + b,
    "v_sub_u32": lambda a, b: a - b,
    "v_subrev_u32": lambda a, b: b - a,
    "v_add_i32": lambda a, b: a + b,
    "v_sub_i32": lambda a, b: a - b,
    "v_mul_lo_u32": lambda a, b: a * b,
    "v_mul_hi_u32": lambda a, b: a * b >> 32,
    "v_mul_hi_i32": lambda a, b: s(a) * s(b) >> 32,
    "v_mul_u32_u24": lambda a, b: u24(a) * u24(b),
    "v_mul_hi_u32_u24": lambda a, b: u24(a) * u24(b) >> 32,
    "v_mul_i32_i24": lambda a, b: s24(a) * s24(b),
    "v_mul_hi_i32_i24": lambda a, b: s24(a) * s24(b) >> 32,
    "v_lshlrev_b32": lambda a, b: b << (a & 31),
    "v_lshrrev_b32": lambda a, b: b >> (a & 31),
    "v_ashrrev_i32": lambda a, b: s(b) >> (a & 31),
    "v_and_b32": lambda a, b: a & b,
    "v_or_b32": lambda a, b: a | b,
    "v_xor_b32": lambda a, b: a ^ b,
    "v_xnor_b32": lambda a, b: ~(a ^ b),
    "v_bfm_b32": lambda a, b: ((1 << (a & 31)) - 1) << (b & 31),
    "v_bcnt_u32_b32": lambda a, b: a.bit_count() + b,
    "v_min_u32": min,
    "v_max_u32": max,
    "v_min_i32": lambda a, b: min(s(a), s(b)),
    "v_max_i32": lambda a, b: max(s(a), s(b)),
}


def perm(a: int, b: int, select: int) -> int:
    data = (a << 32 | b).to_bytes(8, "little")
    chosen = []
    for code in select.to_bytes(4, "little"):
        if code < 8:
            chosen.append(data[code])
        elif code < 12:
            chosen.append(0xFF if data[2 * (code - 8) + 1] & 0x80 else 0)
        else:
            chosen.append(0 if code == 12 else 0xFF)
    return int.from_bytes(bytes(chosen), "little")


def sad(a: int, b: int) -> int:
    return sum(abs(x - y) for x, y in zip(a.to_bytes(4, "big"), b.to_bytes(4, "big"), strict=True))


def lerp(a: int, b: int, c: int) -> int:
    data = (x.to_bytes(4, "little") for x in (a, b, c))
    return int.from_bytes(
        bytes((x + y + (z & 1)) >> 1 for x, y, z in zip(*data, strict=True)), "little"
    )


THREE: dict[str, Callable[[int, int, int], int]] = {
    "v_add3_u32": lambda a, b, c: a + b + c,
    "v_lshl_add_u32": lambda a, b, c: (a << (b & 31)) + c,
    "v_add_lshl_u32": lambda a, b, c: (a + b) << (c & 31),
    "v_lshl_or_b32": lambda a, b, c: a << (b & 31) | c,
    "v_and_or_b32": lambda a, b, c: a & b | c,
    "v_or3_b32": lambda a, b, c: a | b | c,
    "v_xad_u32": lambda a, b, c: (a ^ b) + c,
    "v_bfi_b32": lambda a, b, c: a & b | ~a & c,
    "v_bfe_u32": lambda a, b, c: a >> (b & 31) & (1 << (c & 31)) - 1,
    "v_bfe_i32": lambda a, b, c: signed(s(a) >> (b & 31), c & 31) if c & 31 else 0,
    "v_alignbit_b32": lambda a, b, c: (a << 32 | b) >> (c & 31),
    "v_alignbyte_b32": lambda a, b, c: (a << 32 | b) >> 8 * (c & 3),
    "v_perm_b32": perm,
    "v_mad_u32_u24": lambda a, b, c: u24(a) * u24(b) + c,
    "v_mad_i32_i24": lambda a, b, c: s24(a) * s24(b) + s(c),
    "v_mad_u32_u16": lambda a, b, c: (a & 0xFFFF) * (b & 0xFFFF) + c,
    "v_mad_i32_i16": lambda a, b, c: signed(a, 16) * signed(b, 16) + s(c),
    "v_min3_u32": min,
    "v_max3_i32": lambda a, b, c: max(s(a), s(b), s(c)),
    "v_med3_u32": lambda a, b, c: sorted((a, b, c))[1],
    "v_med3_i32": lambda a, b, c: sorted((s(a), s(b), s(c)))[1],
    "v_sad_u8": lambda a, b, c: sad(a, b) + c,
    "v_sad_hi_u8": lambda a, b, c: (sad(a, b) << 16) + c,
    "v_msad_u8": lambda a, b, c: (
        c
        + sum(
            abs(x - y) for x, y in zip(a.to_bytes(4, "big"), b.to_bytes(4, "big"), strict=True) if y
        )
    ),
    "v_sad_u16": lambda a, b, c: c + abs((a & 0xFFFF) - (b & 0xFFFF)) + abs((a >> 16) - (b >> 16)),
    "v_sad_u32": lambda a, b, c: abs(a - b) + c,
    "v_lerp_u8": lerp,
    "v_dot4_u32_u8": lambda a, b, c: (
        c + sum(x * y for x, y in zip(a.to_bytes(4, "big"), b.to_bytes(4, "big"), strict=True))
    ),
    "v_dot2_i32_i16": lambda a, b, c: (
        s(c) + signed(a, 16) * signed(b, 16) + signed(a >> 16, 16) * signed(b >> 16, 16)
    ),
    "v_dot8_i32_i4": lambda a, b, c: (
        s(c) + sum(signed(a >> i, 4) * signed(b >> i, 4) for i in range(0, 32, 4))
    ),
}

ONE: dict[str, Callable[[int], int]] = {
    "v_not_b32": lambda a: ~a,
    "v_bfrev_b32": lambda a: int(f"{a:032b}"[::-1], 2),
    "v_ffbh_u32": leading,
    "v_ffbl_b32": lambda a: (a & -a).bit_length() - 1,
    "v_ffbh_i32": lambda a: leading(a ^ (WORD - 1 if a >> 31 else 0)),
    "v_prng_b32": lambda a: a << 1 ^ (197 if a >> 31 else 0),
    "v_sat_pk_u8_i16": lambda a: (
        clipped(signed(a, 16), 0, 255) | clipped(signed(a >> 16, 16), 0, 255) << 8
    ),
}


@pytest.mark.parametrize("opcode", TWO)
@given(a=st.lists(words, min_size=6, max_size=6), b=st.lists(words, min_size=6, max_size=6))
@examples(8)
def test_two_sources(opcode: str, a: list[int], b: list[int]) -> None:
    expected = [TWO[opcode](x, y) % WORD for x, y in zip(a, b, strict=True)]
    assert ints(call(opcode, u32(a), u32(b))) == expected


@pytest.mark.parametrize("opcode", THREE)
@given(data=st.lists(st.tuples(words, words, words), min_size=6, max_size=6))
@examples(8)
def test_three_sources(opcode: str, data: list[tuple[int, int, int]]) -> None:
    expected = [THREE[opcode](*row) % WORD for row in data]
    assert ints(call(opcode, *(u32(column) for column in zip(*data, strict=True)))) == expected


@pytest.mark.parametrize("opcode", ONE)
@given(a=st.lists(words, min_size=8, max_size=8))
@examples(8)
def test_one_source(opcode: str, a: list[int]) -> None:
    assert ints(call(opcode, u32(a))) == [ONE[opcode](x) % WORD for x in a]


def test_examples_of_the_manual_for_ffbh_i32() -> None:
    given_words = [0, 0x40000000, 0x80000000, 0x0FFFFFFF, 0xFFFF0000, 0xFFFFFFFE, 0xFFFFFFFF]
    expected = [0xFFFFFFFF, 1, 1, 4, 16, 31, 0xFFFFFFFF]
    assert ints(call("v_ffbh_i32", u32(given_words))) == expected


@given(a=words, b=words, carry=st.booleans())
@examples(80)
def test_carries_and_borrows(a: int, b: int, carry: bool) -> None:
    mask = np.array([[carry]])
    for opcode, exact in (
        ("v_add_co_u32", a + b),
        ("v_sub_co_u32", a - b),
        ("v_subrev_co_u32", b - a),
    ):
        value, out = call(opcode, u32([a]), u32([b]))
        assert (ints(value), bool(out[0, 0])) == ([exact % WORD], not 0 <= exact < WORD)
    for opcode, exact in (
        ("v_addc_co_u32", a + b + carry),
        ("v_subb_co_u32", a - b - carry),
        ("v_subbrev_co_u32", b - a - carry),
    ):
        value, out = call(opcode, u32([a]), u32([b]), mask)
        assert (ints(value), bool(out[0, 0])) == ([exact % WORD], not 0 <= exact < WORD)


@given(a=words, b=words, c=words)
@examples(60)
def test_clamp_saturates_integers(a: int, b: int, c: int) -> None:
    top, bottom = (1 << 31) - 1, -(1 << 31)
    assert ints(call("v_add_u32", u32([a]), u32([b]), clamp=True)) == [min(a + b, WORD - 1)]
    assert ints(call("v_sub_u32", u32([a]), u32([b]), clamp=True)) == [max(a - b, 0)]
    expected = clipped(s(a) + s(b), bottom, top) % WORD
    assert ints(call("v_add_i32", u32([a]), u32([b]), clamp=True)) == [expected]
    expected = clipped(s24(a) * s24(b) + s(c), bottom, top) % WORD
    assert ints(call("v_mad_i32_i24", u32([a]), u32([b]), u32([c]), clamp=True)) == [expected]


@given(a=doubles, n=words, c=doubles)
@examples(80)
def test_64_bit_opcodes(a: int, n: int, c: int) -> None:
    double = 1 << 64
    shift = n & 63
    assert unpair(call("v_lshlrev_b64", u32([n]), pairs([a]))) == [(a << shift) % double]
    assert unpair(call("v_lshrrev_b64", u32([n]), pairs([a]))) == [a >> shift]
    expected = (signed(a, 64) >> shift) % double
    assert unpair(call("v_ashrrev_i64", u32([n]), pairs([a]))) == [expected]
    few = n % 5
    got = unpair(call("v_lshl_add_u64", pairs([a]), u32([few]), pairs([c])))
    assert got == [((a << few) + c) % double]
    assert unpair(call("v_mov_b64", pairs([a]))) == [a]


def test_lshl_add_u64_treats_large_shifts_as_none() -> None:
    assert unpair(call("v_lshl_add_u64", pairs([3, 3]), u32([5, 8]), pairs([4, 4]))) == [7, 7]


@given(a=words, b=words, c=doubles)
@examples(80)
def test_64_bit_multiply_add(a: int, b: int, c: int) -> None:
    double = 1 << 64
    value, mask = call("v_mad_u64_u32", u32([a]), u32([b]), pairs([c]))
    exact = a * b + c
    assert (unpair(value), bool(mask[0, 0])) == ([exact % double], exact >= double)
    value, mask = call("v_mad_i64_i32", u32([a]), u32([b]), pairs([c]))
    exact = s(a) * s(b) + signed(c, 64)
    assert (unpair(value), bool(mask[0, 0])) == ([exact % double], bool(exact >> 64 & 1))


@pytest.mark.parametrize("opcode", ["v_bitop3_b32", "v_bitop3_b16"])
def test_every_truth_table(opcode: str) -> None:
    """The 8 combinations of bits stand in the low 8 bits of the sources."""
    a, b, c = u32([0xF0]), u32([0xCC]), u32([0xAA])
    for table in range(256):
        assert ints(call(opcode, a, b, c, bitop3=table))[0] & 0xFF == table


def test_bitop3_b16_selects_halves() -> None:
    a, b, c = u32([0xAAAA1111]), u32([0x0F0F2222]), u32([0])
    table = 0xFC  # a | b, whatever c is
    assert ints(call("v_bitop3_b16", a, b, c, bitop3=table, op_sel=(1, 0, 0, 0))) == [
        0xAAAA | 0x2222
    ]
    kept = call("v_bitop3_b16", a, b, c, old=u32([0x12345678]), bitop3=table, op_sel=(0, 1, 0, 1))
    assert ints(kept) == [(0x1111 | 0x0F0F) << 16 | 0x5678]


# Bytes only, zero bytes, all ones, nothing but zeros, sign extensions.
SELECTORS = (0x07060302, 0x05040100, 0x0C0C0501, 0, 0x03020107, 0x0DFF0C04, 0x0C0C0C0C, 0x0B0A0908)


def test_perm_with_one_selector_for_all_lanes_equals_perm_lane_by_lane() -> None:
    rng = np.random.default_rng(4)
    a, b = (rng.integers(0, WORD, (2, 64), np.uint32) for _ in range(2))
    for selector in SELECTORS:
        expected = [perm(int(x), int(y), selector) for x, y in zip(a.flat, b.flat, strict=True)]
        for rows in (1, 2):
            got = call("v_perm_b32", a, b, np.full((rows, 1), selector, np.uint32))
            assert ints(np.broadcast_to(got, a.shape)) == expected


def test_mbcnt_numbers_the_lanes() -> None:
    every = np.full((1, 1), WORD - 1, np.uint32)
    low = call("v_mbcnt_lo_u32_b32", every, np.zeros((1, 1), np.uint32))
    assert ints(call("v_mbcnt_hi_u32_b32", every, low)) == list(range(64))
    mask = 0xF0F0_1234_8001_00FF
    low = call("v_mbcnt_lo_u32_b32", u32([mask]), u32([100]))
    counts = ints(call("v_mbcnt_hi_u32_b32", u32([mask >> 32]), low))
    assert counts == [100 + (mask & (1 << lane) - 1).bit_count() for lane in range(64)]


def test_selection_by_mask_with_signs() -> None:
    mask = np.array([[False, True]])
    a, b = u32([1, 2]), u32([3, 0x3F800000])
    assert ints(call("v_cndmask_b32", a, b, mask)) == [1, 0x3F800000]
    assert ints(call("v_cndmask_b32", a, b, mask, neg=(False, True))) == [1, 0xBF800000]


@pytest.mark.parametrize(
    ("opcode", "width"), [("v_permlane16_swap_b32", 16), ("v_permlane32_swap_b32", 32)]
)
def test_lane_swaps_follow_the_manual_loop(opcode: str, width: int) -> None:
    rng = np.random.default_rng(width)
    first, second = rng.integers(0, WORD, (2, 3, 64), np.uint32)
    expected_first, expected_second = first.copy(), second.copy()
    for start in range(0, 64, 2 * width):
        for lane in range(start, start + width):
            kept = expected_second[:, lane].copy()
            expected_second[:, lane] = expected_first[:, lane + width]
            expected_first[:, lane + width] = kept
    new_first, new_second = call(opcode, first, second)
    np.testing.assert_array_equal(new_first, expected_first)
    np.testing.assert_array_equal(new_second, expected_second)


def test_swap_returns_copies() -> None:
    registers = np.arange(2, dtype=np.uint32).reshape(2, 1, 1)
    registers[0], registers[1] = call("v_swap_b32", registers[0], registers[1])
    assert ints(registers) == [1, 0]


def test_sub_dword_sources_and_destinations() -> None:
    a, b = u32([0x8899AABB]), u32([0x01020304])
    assert ints(call("v_add_u32", a, b, src0_sel="WORD_1", src1_sel="BYTE_2")) == [0x8899 + 2]
    extended = call("v_add_u32", a, b, src0_sel="BYTE_3", src1_sel="BYTE_0", sext=(True, False))
    assert ints(extended) == [(0x88 - 256 + 4) % WORD]
    old = u32([0x11111111])
    shown = {"dst_sel": "WORD_1", "src0_sel": "WORD_0", "src1_sel": "BYTE_0"}
    total = 0xAABB + 4
    assert ints(call("v_add_u32", a, b, dst_unused="UNUSED_PAD", **shown)) == [total << 16]
    kept = call("v_add_u32", a, b, old=old, dst_unused="UNUSED_PRESERVE", **shown)
    assert ints(kept) == [total << 16 | 0x1111]
    byte = {"dst_sel": "BYTE_1", "dst_unused": "UNUSED_SEXT", "src0_sel": "BYTE_0"}
    assert ints(call("v_add_u32", a, u32([0]), **byte)) == [0xFFFFBB00]


def test_scalars_broadcast_over_waves_and_lanes() -> None:
    lanes = np.arange(128, dtype=np.uint32).reshape(2, 64)
    scalar = np.array([[10], [20]], np.uint32)
    got = call("v_add_u32", lanes, scalar)
    np.testing.assert_array_equal(got, lanes + scalar)
    assert call("v_mov_b32", scalar).shape == (2, 1)
