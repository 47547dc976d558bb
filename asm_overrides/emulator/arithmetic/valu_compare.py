"""The compare opcodes of the vector ALU: v_cmp_* and v_cmpx_* of every type, and classes.

They return the lanes as a mask; that v_cmpx also writes EXEC is the caller's work.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .binding import Operation
from .mode import Mode
from .operands import Array, Mask

OPERATIONS: dict[str, Operation] = {}

Compare = Callable[[Array, Array], Array]


def _never(a: Array, b: Array) -> Array:
    return np.zeros(np.broadcast_shapes(a.shape, b.shape), np.bool_)


def _always(a: Array, b: Array) -> Array:
    return np.ones(np.broadcast_shapes(a.shape, b.shape), np.bool_)


def _unordered(a: Array, b: Array) -> Array:
    return np.isnan(a) | np.isnan(b)


def _less_or_greater(a: Array, b: Array) -> Array:
    return (a < b) | (a > b)


def _not(compare: Compare) -> Compare:
    return lambda a, b: ~compare(a, b)


_INTEGER: dict[str, Compare] = {
    "f": _never,
    "lt": np.less,
    "eq": np.equal,
    "le": np.less_equal,
    "gt": np.greater,
    "ne": np.not_equal,
    "ge": np.greater_equal,
    "t": _always,
}
_FLOAT: dict[str, Compare] = {
    "f": _never,
    "lt": np.less,
    "eq": np.equal,
    "le": np.less_equal,
    "gt": np.greater,
    "lg": _less_or_greater,
    "ge": np.greater_equal,
    "o": _not(_unordered),
    "u": _unordered,
    "nge": _not(np.greater_equal),
    "nlg": _not(_less_or_greater),
    "ngt": _not(np.greater),
    "nle": _not(np.less_equal),
    "neq": _not(np.equal),
    "nlt": _not(np.less),
    "tru": _always,
}


def _define(name: str, sources: tuple[str, str], compare: Compare) -> None:
    for prefix in ("v_cmp", "v_cmpx"):
        full = f"{prefix}_{name}"
        OPERATIONS[full] = Operation(
            full, ("mask",), sources, lambda mode, a, b: np.asarray(compare(a, b))
        )


for _kinds, _table in (
    (("i16", "u16", "i32", "u32", "i64", "u64"), _INTEGER),
    (("f16", "f32", "f64"), _FLOAT),
):
    for _kind in _kinds:
        for _relation, _compare in _table.items():
            _define(f"{_relation}_{_kind}", (_kind, _kind), _compare)


def classify(x: Array) -> Array:
    """The bit of v_cmp_class that each number has, as a number 0 to 9."""
    bits = x.dtype.itemsize * 8
    words = x.view(f"u{x.dtype.itemsize}")
    mantissa_bits = {16: 10, 32: 23, 64: 52}[bits]
    quiet = (words >> words.dtype.type(mantissa_bits - 1) & words.dtype.type(1)) == 1
    negative = np.signbit(x)
    smallest_normal = np.finfo(x.dtype).smallest_normal
    positive_class = np.select(
        [np.isinf(x), x == 0, np.abs(x) < smallest_normal], [9, 6, 7], default=8
    )
    # The negative classes mirror the positive ones: 2 to 5 against 9 to 6.
    number = np.where(negative, 11 - positive_class, positive_class)
    return np.where(np.isnan(x), np.where(quiet, 1, 0), number)


def _is_in_class(mode: Mode, x: Array, classes: Array) -> Mask:
    result: Mask = (classes >> classify(x).astype(classes.dtype) & classes.dtype.type(1)) == 1
    return result


# Denormals are a class of their own, whatever MODE flushes: the source is read as bits.
_CLASS_KINDS = {"f16": (np.float16, "b16"), "f32": (np.float32, "b32"), "f64": (np.float64, "b64")}


def _define_class(kind: str) -> None:
    dtype, bits = _CLASS_KINDS[kind]
    for prefix in ("v_cmp", "v_cmpx"):
        full = f"{prefix}_class_{kind}"
        OPERATIONS[full] = Operation(
            full,
            ("mask",),
            (bits, "u32"),
            lambda mode, x, classes: _is_in_class(mode, x.view(dtype), classes),
        )


for _kind in _CLASS_KINDS:
    _define_class(_kind)
