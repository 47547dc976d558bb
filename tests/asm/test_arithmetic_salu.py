"""Scalar opcodes and SCC against Python's integers."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asm_overrides.emulator.arithmetic import SALU
from tests.asm.arithmetic_values import examples, signed

WORD, DOUBLE = 1 << 32, 1 << 64
words = st.one_of(
    st.integers(0, WORD - 1), st.sampled_from([0, 1, 0x7FFFFFFF, 0x80000000, WORD - 1, 63])
)
doubles = st.one_of(
    st.integers(0, DOUBLE - 1), st.sampled_from([0, 1, 1 << 63, DOUBLE - 1, 1 << 32])
)


def operand(kind: str, value: int) -> np.ndarray:
    if kind in ("u64", "i64"):
        return np.array([[value & 0xFFFFFFFF], [value >> 32 & 0xFFFFFFFF]], np.uint32)
    return np.array([value & 0xFFFFFFFF], np.uint32)


def number(words: Any) -> int:
    return sum(int(word) << 32 * i for i, word in enumerate(np.ravel(words)))


def run(
    opcode: str, *sources: int, scc: bool = False, old: int = 0
) -> tuple[int | None, bool | None]:
    """Value and SCC for one wave."""
    operation = SALU[opcode]
    arrays = [operand(kind, x) for kind, x in zip(operation.sources, sources, strict=True)]
    options: dict[str, Any] = {}
    if operation.reads_scc:
        options["scc"] = np.array([scc])
    if operation.needs_old:
        options["old"] = operand(operation.results[0], old)
    with np.errstate(all="ignore"):
        value, flag = operation(*arrays, **options)
    assert (flag is not None) == operation.writes_scc
    return (
        None if value is None else number(value),
        None if flag is None else bool(flag[0]),
    )


def s(value: int) -> int:
    return signed(value)


def overflows(value: int) -> bool:
    return not -(1 << 31) <= value < 1 << 31


@given(a=words, b=words, carry=st.booleans())
@examples(60)
def test_additions_and_their_flags(a: int, b: int, carry: bool) -> None:
    assert run("s_add_u32", a, b) == ((a + b) % WORD, a + b >= WORD)
    assert run("s_sub_u32", a, b) == ((a - b) % WORD, a < b)
    assert run("s_addc_u32", a, b, scc=carry) == ((a + b + carry) % WORD, a + b + carry >= WORD)
    assert run("s_subb_u32", a, b, scc=carry) == ((a - b - carry) % WORD, a - b - carry < 0)
    assert run("s_add_i32", a, b) == ((a + b) % WORD, overflows(s(a) + s(b)))
    assert run("s_sub_i32", a, b) == ((a - b) % WORD, overflows(s(a) - s(b)))
    for shift in (1, 2, 3, 4):
        exact = (a << shift) + b
        assert run(f"s_lshl{shift}_add_u32", a, b) == (exact % WORD, exact >= WORD)
    assert run("s_mul_i32", a, b) == (a * b % WORD, None)
    assert run("s_mul_hi_u32", a, b) == (a * b >> 32, None)
    assert run("s_mul_hi_i32", a, b) == ((s(a) * s(b) >> 32) % WORD, None)


def test_examples_of_the_manual() -> None:
    for a, b, expected in (
        (2, 5, 3),
        (0xFFFFFFFF, 0, 1),
        (0x80000000, 0, 0x80000000),
        (0x80000000, 1, 0x7FFFFFFF),
    ):
        assert run("s_absdiff_i32", a, b) == (expected, True)
    for a, expected in ((1, 1), (0x80000000, 0x80000000), (0x80000001, 0x7FFFFFFF), (0, 0)):
        assert run("s_abs_i32", a) == (expected, expected != 0)


@given(a=words, b=words)
@examples(80)
def test_selections(a: int, b: int) -> None:
    assert run("s_min_i32", a, b) == (min(s(a), s(b)) % WORD, s(a) < s(b))
    assert run("s_max_i32", a, b) == (max(s(a), s(b)) % WORD, s(a) >= s(b))
    assert run("s_min_u32", a, b) == (min(a, b), a < b)
    assert run("s_max_u32", a, b) == (max(a, b), a >= b)
    assert run("s_cselect_b32", a, b, scc=True) == (a, None)
    assert run("s_cselect_b32", a, b, scc=False) == (b, None)
    assert run("s_cmov_b32", a, scc=False, old=b) == (b, None)
    assert run("s_pack_ll_b32_b16", a, b)[0] == (a & 0xFFFF | (b & 0xFFFF) << 16)
    assert run("s_pack_lh_b32_b16", a, b)[0] == (a & 0xFFFF | b >> 16 << 16)
    assert run("s_pack_hh_b32_b16", a, b)[0] == (a >> 16 | b >> 16 << 16)


BITWISE: dict[str, Callable[[int, int], int]] = {
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "andn2": lambda a, b: a & ~b,
    "orn2": lambda a, b: a | ~b,
    "nand": lambda a, b: ~(a & b),
    "nor": lambda a, b: ~(a | b),
    "xnor": lambda a, b: ~(a ^ b),
}


@pytest.mark.parametrize("name", BITWISE)
@given(a=doubles, b=doubles)
@examples(20)
def test_bitwise_and_exec_forms(name: str, a: int, b: int) -> None:
    exact = BITWISE[name](a, b) % DOUBLE
    assert run(f"s_{name}_b64", a, b) == (exact, exact != 0)
    narrow = exact % WORD
    assert run(f"s_{name}_b32", a % WORD, b % WORD) == (narrow, narrow != 0)
    (old, new), flag = SALU[f"s_{name}_saveexec_b64"](operand("u64", a), operand("u64", b))
    assert flag is not None
    assert (number(old), number(new), bool(flag[0])) == (b, exact, exact != 0)


def test_exec_forms_with_a_negated_source() -> None:
    a, b = operand("u64", 0b0101), operand("u64", 0b0011)
    (old, new), _ = SALU["s_andn1_saveexec_b64"](a, b)
    assert (number(old), number(new)) == (0b0011, 0b0010)
    (both, new), _ = SALU["s_andn2_wrexec_b64"](a, b)
    assert number(both) == number(new) == 0b0100


@given(a=doubles, n=words)
@examples(60)
def test_shifts_and_fields(a: int, n: int) -> None:
    low, few, many = a % WORD, n & 31, n & 63
    assert run("s_lshl_b32", low, n)[0] == (low << few) % WORD
    assert run("s_lshr_b32", low, n) == (low >> few, low >> few != 0)
    assert run("s_ashr_i32", low, n)[0] == (s(low) >> few) % WORD
    assert run("s_lshl_b64", a, n)[0] == (a << many) % DOUBLE
    assert run("s_lshr_b64", a, n)[0] == a >> many
    assert run("s_ashr_i64", a, n)[0] == (signed(a, 64) >> many) % DOUBLE
    width = n >> 16 & 0x7F
    field = low >> few & (1 << width) - 1
    assert run("s_bfe_u32", low, n) == (field, field != 0)
    wide = a >> many & (1 << width) - 1
    assert run("s_bfe_u64", a, n) == (wide, wide != 0)
    assert run("s_bfm_b32", n, low)[0] == (((1 << few) - 1) << (low & 31)) % WORD
    assert run("s_bfm_b64", n, low)[0] == (((1 << many) - 1) << (low & 63)) % DOUBLE
    if 0 < width <= 32:
        expected = signed(s(low) >> few & (1 << width) - 1, width)
        assert run("s_bfe_i32", low, n) == (expected % WORD, expected != 0)
    if 0 < width <= 64:
        expected = signed(signed(a, 64) >> many & (1 << width) - 1, width)
        assert run("s_bfe_i64", a, n) == (expected % DOUBLE, expected != 0)


@given(a=doubles)
@examples(80)
def test_counting(a: int) -> None:
    low = a % WORD
    for bits, x, limit in ((32, low, WORD), (64, a, DOUBLE)):
        ones = x.bit_count()
        assert run(f"s_bcnt1_i32_b{bits}", x) == (ones, ones != 0)
        assert run(f"s_bcnt0_i32_b{bits}", x) == (bits - ones, bits != ones)
        lowest = (x & -x).bit_length() - 1
        assert run(f"s_ff1_i32_b{bits}", x)[0] == lowest % WORD
        inverse = ~x % limit
        assert run(f"s_ff0_i32_b{bits}", x)[0] == ((inverse & -inverse).bit_length() - 1) % WORD
        leading = bits - x.bit_length() if x else -1
        assert run(f"s_flbit_i32_b{bits}", x)[0] == leading % WORD
        folded = x ^ (limit - 1 if x >> bits - 1 else 0)
        same = bits - folded.bit_length() if folded else -1
        name = "s_flbit_i32" if bits == 32 else "s_flbit_i32_i64"
        assert run(name, x)[0] == same % WORD
        assert run(f"s_brev_b{bits}", x)[0] == int(f"{x:0{bits}b}"[::-1], 2)
        assert run(f"s_not_b{bits}", x) == (inverse, inverse != 0)
        quads = [x >> i & 15 for i in range(0, bits, 4)]
        whole = sum(15 << 4 * i for i, quad in enumerate(quads) if quad)
        assert run(f"s_wqm_b{bits}", x)[0] == whole
        assert run(f"s_quadmask_b{bits}", x)[0] == sum(
            1 << i for i, quad in enumerate(quads) if quad
        )
    doubled = sum((low >> i & 1) * (3 << 2 * i) for i in range(32))
    assert run("s_bitreplicate_b64_b32", low)[0] == doubled
    assert run("s_sext_i32_i8", low)[0] == signed(low, 8) % WORD
    assert run("s_sext_i32_i16", low)[0] == signed(low, 16) % WORD


@given(a=doubles, n=st.integers(0, 70))
@examples(60)
def test_single_bits(a: int, n: int) -> None:
    low = a % WORD
    assert run("s_bitset1_b32", n, old=low) == (low | 1 << (n & 31), None)
    assert run("s_bitset0_b64", n, old=a) == (a & ~(1 << (n & 63)), None)
    assert run("s_bitcmp1_b32", low, n) == (None, bool(low >> (n & 31) & 1))
    assert run("s_bitcmp0_b64", a, n) == (None, not a >> (n & 63) & 1)


RELATIONS = {
    "eq": operator.eq,
    "lg": operator.ne,
    "gt": operator.gt,
    "ge": operator.ge,
    "lt": operator.lt,
    "le": operator.le,
}


@pytest.mark.parametrize("name", RELATIONS)
@given(a=words, b=words, k=st.sampled_from([0, 1, -1, 0x7FFF, 0x8000, 0xFFFF, -32768]))
@examples(40)
def test_compares(name: str, a: int, b: int, k: int) -> None:
    relation = RELATIONS[name]
    assert run(f"s_cmp_{name}_u32", a, b)[1] == relation(a, b)
    assert run(f"s_cmp_{name}_i32", a, b)[1] == relation(s(a), s(b))
    # Immediates count 16 bits, however they were written.
    assert run(f"s_cmpk_{name}_u32", a, k)[1] == relation(a, k & 0xFFFF)
    assert run(f"s_cmpk_{name}_i32", a, k)[1] == relation(s(a), signed(k, 16))
    if name in ("eq", "lg"):
        wide = a << 32 | b
        assert run(f"s_cmp_{name}_u64", wide, a << 32 | a)[1] == relation(b, a)


@given(a=words, k=st.sampled_from([0, 5, -5, 0x7FFF, 0x8000, 0xFFFF]))
@examples(40)
def test_immediates(a: int, k: int) -> None:
    value = signed(k, 16)
    assert run("s_movk_i32", k)[0] == value % WORD
    assert run("s_addk_i32", k, old=a) == ((a + value) % WORD, overflows(s(a) + value))
    assert run("s_mulk_i32", k, old=a) == (s(a) * value % WORD, None)
    assert run("s_cmovk_i32", k, scc=True, old=a)[0] == value % WORD
    assert run("s_cmovk_i32", k, scc=False, old=a)[0] == a


def test_waves_are_independent() -> None:
    a = np.array([1, 2, 0xFFFFFFFF], np.uint32)
    value, scc = SALU["s_add_u32"](a, np.array([1, 1, 1], np.uint32))
    assert scc is not None
    assert (list(value), list(scc)) == ([2, 3, 0], [False, False, True])
    pair = np.array([[1, 0], [0, 1]], np.uint32)
    value, _ = SALU["s_lshl_b64"](pair, np.array([4, 1], np.uint32))
    np.testing.assert_array_equal(value, [[16, 0], [0, 2]])
