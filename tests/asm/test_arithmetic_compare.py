"""Compares of every type, and number classes."""

from __future__ import annotations

import itertools
import math
import operator

import numpy as np
import pytest

from tests.asm.arithmetic_values import call, f16, f32, f64, pairs, signed, u32

RELATIONS = {
    "lt": operator.lt,
    "eq": operator.eq,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}
FLOATS = [0.0, -0.0, 1.5, -2.0, math.inf, -math.inf, math.nan, 2.0**-24]
INTEGERS = [
    0,
    1,
    0x7FFF,
    0x8000,
    0xFFFF,
    0x7FFFFFFF,
    0x80000000,
    0xFFFFFFFF,
    1 << 63,
    (1 << 64) - 1,
]


@pytest.mark.parametrize(("kind", "make"), [("f16", f16), ("f32", f32), ("f64", f64)])
def test_float_relations(kind: str, make: object) -> None:
    a, b = zip(*itertools.product(FLOATS, FLOATS), strict=True)
    sources = make(a), make(b)  # type: ignore[operator]

    def outcome(name: str) -> list[bool]:
        return [bool(x) for x in np.ravel(call(f"v_cmp_{name}_{kind}", *sources))]

    unordered = [math.isnan(x) or math.isnan(y) for x, y in zip(a, b, strict=True)]
    for name, relation in RELATIONS.items():
        expected = [relation(x, y) for x, y in zip(a, b, strict=True)]
        assert outcome(name) == expected
        assert outcome(f"n{name}") == [not x for x in expected]
    assert outcome("u") == unordered
    assert outcome("o") == [not x for x in unordered]
    different = [x < y or x > y for x, y in zip(a, b, strict=True)]
    assert outcome("lg") == different
    assert outcome("nlg") == [not x for x in different]
    assert not any(outcome("f")) and all(outcome("tru"))


@pytest.mark.parametrize("bits", [16, 32, 64])
@pytest.mark.parametrize("sign", ["i", "u"])
def test_integer_relations(bits: int, sign: str) -> None:
    a, b = zip(*itertools.product(INTEGERS, INTEGERS), strict=True)
    make = pairs if bits == 64 else u32
    meant = [
        [signed(x, bits) if sign == "i" else x & (1 << bits) - 1 for x in column]
        for column in (a, b)
    ]
    for name, relation in {**RELATIONS, "ne": operator.ne}.items():
        got = call(f"v_cmp_{name}_{sign}{bits}", make(a), make(b))
        expected = [relation(x, y) for x, y in zip(*meant, strict=True)]
        assert [bool(x) for x in np.ravel(got)] == expected
        assert got.dtype == np.bool_
    assert call(f"v_cmpx_t_{sign}{bits}", make([1]), make([2])).all()


CLASSES = {
    0: 0x7F800001,
    1: 0x7FC00000,
    2: 0xFF800000,
    3: 0xBF800000,
    4: 0x80000001,
    5: 0x80000000,
    6: 0x00000000,
    7: 0x007FFFFF,
    8: 0x00800000,
    9: 0x7F800000,
}


@pytest.mark.parametrize("number", CLASSES)
def test_each_class_has_its_bit(number: int) -> None:
    for asked in range(10):
        got = call("v_cmp_class_f32", u32([CLASSES[number]]), u32([1 << asked]))
        assert bool(got[0, 0]) == (asked == number)


def test_classes_of_other_widths() -> None:
    assert call("v_cmp_class_f16", u32([0x0001]), u32([1 << 7])).all()
    assert call("v_cmp_class_f16", u32([0xFC00]), u32([1 << 2])).all()
    assert call("v_cmp_class_f64", pairs([1 << 63 | 1]), u32([1 << 4])).all()
    assert call("v_cmp_class_f64", pairs([0x7FF8 << 48]), u32([1 << 1])).all()


def test_compares_take_signs() -> None:
    assert call("v_cmp_lt_f32", f32([1]), f32([0.5]), neg=(True, False)).all()
    assert call("v_cmp_eq_f32", f32([-3]), f32([3]), abs=(True, False)).all()
