"""The scalar ALU opcodes: values and SCC for an array of waves; EXEC and branches are not here.

gfx950 has no scalar floating point.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from .operands import Array, Mask, Words, join64, split64
from .valu_integer import (
    count_bits,
    leading_signs,
    leading_zeros,
    reverse_bits,
    trailing_zeros,
)

SALU: dict[str, ScalarOperation] = {}

_DTYPES: dict[str, type[np.generic]] = {
    "u32": np.uint32,
    "i32": np.int32,
    "u64": np.uint64,
    "i64": np.int64,
}
_WIDTHS = {"b32": "u32", "b64": "u64"}


@dataclass(frozen=True)
class ScalarOperation:
    """One opcode: call it with (*sources, scc=None, old=None) for (value, scc)."""

    name: str
    results: tuple[str, ...]
    sources: tuple[str, ...]
    function: Callable[..., tuple[Any, Mask | None]]
    reads_scc: bool = False
    writes_scc: bool = False
    needs_old: bool = False

    def __call__(
        self, *sources: Words, scc: Mask | None = None, old: Words | None = None
    ) -> tuple[Any, Mask | None]:
        typed: list[Any] = [
            _read(kind, words) for kind, words in zip(self.sources, sources, strict=True)
        ]
        if self.reads_scc:
            typed.append(scc)
        if self.needs_old and old is not None:
            typed.append(_read(self.results[0], old))
        value, flag = self.function(*typed)
        if len(self.results) > 1:
            return tuple(_write(one) for one in value), flag
        return (None if value is None else _write(value)), flag


def _read(kind: str, words: Words) -> Array:
    if kind in ("u64", "i64"):
        return join64(words).view(_DTYPES[kind])
    return words.view(_DTYPES[kind])


def _write(value: Array) -> Words:
    if value.dtype.itemsize == 8:
        return split64(value)
    words: Words = value.view(np.uint32)
    return words


def _add(
    name: str,
    results: str,
    sources: str,
    function: Callable[..., tuple[Any, Mask | None]],
    *,
    reads_scc: bool = False,
    writes_scc: bool = True,
    needs_old: bool = False,
) -> None:
    SALU[name] = ScalarOperation(
        name,
        tuple(results.split()),
        tuple(sources.split()),
        function,
        reads_scc=reads_scc,
        writes_scc=writes_scc,
        needs_old=needs_old,
    )


def _silent(function: Callable[..., Array]) -> Callable[..., tuple[Array, None]]:
    """A function that leaves SCC alone."""
    return lambda *sources: (function(*sources), None)


def _nonzero(function: Callable[..., Array]) -> Callable[..., tuple[Array, Mask]]:
    """A function whose SCC says that the result is not zero."""

    def evaluate(*sources: Array) -> tuple[Array, Mask]:
        value = function(*sources)
        return value, value != 0

    return evaluate


# Additions: SCC is the carry of unsigned and the overflow of signed numbers.


def _add_u32(a: Array, b: Array, carry: Mask | None = None) -> tuple[Array, Mask]:
    total = a.astype(np.uint64) + b
    if carry is not None:
        total = total + carry
    return total.astype(np.uint32), total >> np.uint64(32) != 0


def _sub_u32(a: Array, b: Array, borrow: Mask | None = None) -> tuple[Array, Mask]:
    total = a.astype(np.int64) - b
    if borrow is not None:
        total = total - borrow
    return total.astype(np.uint32), total < 0


def _signed(combine: Callable[[Array, Array], Array]) -> Callable[..., tuple[Array, Mask]]:
    def evaluate(a: Array, b: Array) -> tuple[Array, Mask]:
        exact = combine(a.astype(np.int64), b.astype(np.int64))
        value = exact.astype(np.int32)
        return value, value != exact

    return evaluate


_add("s_add_u32", "u32", "u32 u32", _add_u32)
_add("s_sub_u32", "u32", "u32 u32", _sub_u32)
_add("s_addc_u32", "u32", "u32 u32", _add_u32, reads_scc=True)
_add("s_subb_u32", "u32", "u32 u32", _sub_u32, reads_scc=True)
_add("s_add_i32", "i32", "i32 i32", _signed(np.add))
_add("s_sub_i32", "i32", "i32 i32", _signed(np.subtract))


def _shift_add(count: int) -> Callable[[Array, Array], tuple[Array, Mask]]:
    def evaluate(a: Array, b: Array) -> tuple[Array, Mask]:
        total = (a.astype(np.uint64) << np.uint64(count)) + b
        return total.astype(np.uint32), total >> np.uint64(32) != 0

    return evaluate


for _count in (1, 2, 3, 4):
    _add(f"s_lshl{_count}_add_u32", "u32", "u32 u32", _shift_add(_count))


def _absolute_difference(a: Array, b: Array) -> Array:
    # The difference wraps first; the most negative number stays itself.
    result: Array = np.abs(a - b)
    return result


_add("s_absdiff_i32", "i32", "i32 i32", _nonzero(_absolute_difference))
_add("s_abs_i32", "i32", "i32", _nonzero(np.abs))

# Multiplications leave SCC alone.


def _high(dtype: type[np.generic]) -> Callable[[Array, Array], Array]:
    return lambda a, b: (a.astype(dtype) * b.astype(dtype) >> dtype(32)).astype(a.dtype)


_add("s_mul_i32", "i32", "i32 i32", _silent(np.multiply), writes_scc=False)
_add("s_mul_hi_u32", "u32", "u32 u32", _silent(_high(np.uint64)), writes_scc=False)
_add("s_mul_hi_i32", "i32", "i32 i32", _silent(_high(np.int64)), writes_scc=False)

# Minimum and maximum: SCC says that the first source was chosen.


def _choose(first: Callable[[Array, Array], Array]) -> Callable[[Array, Array], tuple[Array, Mask]]:
    def evaluate(a: Array, b: Array) -> tuple[Array, Mask]:
        chosen = first(a, b)
        return np.where(chosen, a, b), chosen

    return evaluate


for _kind in ("i32", "u32"):
    _add(f"s_min_{_kind}", _kind, f"{_kind} {_kind}", _choose(np.less))
    _add(f"s_max_{_kind}", _kind, f"{_kind} {_kind}", _choose(np.greater_equal))

# Bitwise.

_BITWISE: dict[str, Callable[[Array, Array], Array]] = {
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "andn2": lambda a, b: a & ~b,
    "orn2": lambda a, b: a | ~b,
    "nand": lambda a, b: ~(a & b),
    "nor": lambda a, b: ~(a | b),
    "xnor": lambda a, b: ~(a ^ b),
}
for _name, _function in _BITWISE.items():
    for _bits, _kind in _WIDTHS.items():
        _add(f"s_{_name}_{_bits}", _kind, f"{_kind} {_kind}", _nonzero(_function))


def _save_exec(combine: Callable[[Array, Array], Array]) -> Callable[..., tuple[Any, Mask]]:
    """(source, exec) to (old exec, new exec)."""

    def evaluate(source: Array, lanes: Array) -> tuple[Any, Mask]:
        changed = combine(source, lanes)
        return (lanes, changed), changed != 0

    return evaluate


def _write_exec(combine: Callable[[Array, Array], Array]) -> Callable[..., tuple[Any, Mask]]:
    """(source, exec) to the new exec, twice."""

    def evaluate(source: Array, lanes: Array) -> tuple[Any, Mask]:
        changed = combine(source, lanes)
        return (changed, changed), changed != 0

    return evaluate


_NEGATED_SOURCE: dict[str, Callable[[Array, Array], Array]] = {
    "andn1": lambda source, lanes: ~source & lanes,
    "orn1": lambda source, lanes: ~source | lanes,
}
for _name, _function in {**_BITWISE, **_NEGATED_SOURCE}.items():
    _add(f"s_{_name}_saveexec_b64", "u64 u64", "u64 u64", _save_exec(_function))
for _name, _function in {
    "andn1": _NEGATED_SOURCE["andn1"],
    "andn2": _BITWISE["andn2"],
}.items():
    _add(f"s_{_name}_wrexec_b64", "u64 u64", "u64 u64", _write_exec(_function))

# Shifts and fields.


def _amount(count: Array, like: Array) -> Array:
    """The shift count for `like`: 5 bits, or 6 for 64-bit numbers, in its type."""
    mask = np.uint32(like.dtype.itemsize * 8 - 1)
    result: Array = (count & mask).astype(like.dtype)
    return result


def _shift_left(x: Array, n: Array) -> Array:
    return x << _amount(n, x)


def _shift_right(x: Array, n: Array) -> Array:
    return x >> _amount(n, x)


for _bits, _kind in _WIDTHS.items():
    _add(f"s_lshl_{_bits}", _kind, f"{_kind} u32", _nonzero(_shift_left))
    _add(f"s_lshr_{_bits}", _kind, f"{_kind} u32", _nonzero(_shift_right))
_add("s_ashr_i32", "i32", "i32 u32", _nonzero(_shift_right))
_add("s_ashr_i64", "i64", "i64 u32", _nonzero(_shift_right))


def _low_ones(width: Array, dtype: np.dtype[Any]) -> Array:
    """Masks of `width` ones; all ones from the type's width on."""
    bits = dtype.itemsize * 8
    clipped = np.minimum(width, np.uint32(bits)).astype(np.uint64)
    # A shift by 64 is not defined: two shifts by half of it are.
    half = clipped >> np.uint64(1)
    ones = ~(np.uint64(0xFFFFFFFFFFFFFFFF) << half << (clipped - half))
    result: Array = ones.astype(np.dtype(f"u{dtype.itemsize}")).view(dtype)
    return result


def _field(x: Array, control: Array) -> Array:
    """Bits [4:0] or [5:0] of the control are the offset, bits [22:16] the width."""
    width = control >> np.uint32(16) & np.uint32(0x7F)
    field: Array = x >> _amount(control, x) & _low_ones(width, x.dtype)
    if x.dtype.kind == "u":
        return field
    top = _low_ones(width, x.dtype) ^ _low_ones(
        np.maximum(width.astype(np.int32) - 1, 0).astype(np.uint32), x.dtype
    )
    return (field ^ top) - top


for _kind in ("u32", "i32", "u64", "i64"):
    _add(f"s_bfe_{_kind}", _kind, f"{_kind} u32", _nonzero(_field))


def _field_mask(dtype: type[np.generic]) -> Callable[[Array, Array], Array]:
    kind = np.dtype(dtype)
    limit = np.uint32(kind.itemsize * 8 - 1)

    def evaluate(width: Array, offset: Array) -> Array:
        ones = _low_ones(width & limit, kind)
        result: Array = ones << (offset & limit).astype(kind)
        return result

    return evaluate


_add("s_bfm_b32", "u32", "u32 u32", _silent(_field_mask(np.uint32)), writes_scc=False)
_add("s_bfm_b64", "u64", "u32 u32", _silent(_field_mask(np.uint64)), writes_scc=False)

# One source.


def _reverse64(x: Array) -> Array:
    low, high = split64(x)
    return join64(np.stack([reverse_bits(high), reverse_bits(low)]))


_add("s_brev_b32", "u32", "u32", _silent(reverse_bits), writes_scc=False)
_add("s_brev_b64", "u64", "u64", _silent(_reverse64), writes_scc=False)
_add(
    "s_sext_i32_i8",
    "i32",
    "u32",
    _silent(lambda x: x.astype(np.int8).astype(np.int32)),
    writes_scc=False,
)
_add(
    "s_sext_i32_i16",
    "i32",
    "u32",
    _silent(lambda x: x.astype(np.int16).astype(np.int32)),
    writes_scc=False,
)
for _bits, _kind in _WIDTHS.items():
    _add(f"s_mov_{_bits}", _kind, _kind, _silent(lambda x: x), writes_scc=False)
    _add(f"s_not_{_bits}", _kind, _kind, _nonzero(np.invert))
    _add(f"s_bcnt1_i32_{_bits}", "u32", _kind, _nonzero(count_bits))
    _add(f"s_bcnt0_i32_{_bits}", "u32", _kind, _nonzero(lambda x: count_bits(~x)))
    _add(f"s_ff1_i32_{_bits}", "i32", _kind, _silent(trailing_zeros), writes_scc=False)
    _add(
        f"s_ff0_i32_{_bits}", "i32", _kind, _silent(lambda x: trailing_zeros(~x)), writes_scc=False
    )
    _add(f"s_flbit_i32_{_bits}", "i32", _kind, _silent(leading_zeros), writes_scc=False)
_add("s_flbit_i32", "i32", "i32", _silent(leading_signs), writes_scc=False)
_add("s_flbit_i32_i64", "i32", "i64", _silent(leading_signs), writes_scc=False)


def _whole_quads(x: Array) -> Array:
    """Bits of each group of 4 set where any is."""
    one = x.dtype.type
    any_bit = x | x >> one(1) | x >> one(2) | x >> one(3)
    lowest = any_bit & one(0x1111111111111111 & np.iinfo(x.dtype).max)
    result: Array = lowest * one(15)
    return result


def _quad_mask(x: Array) -> Array:
    one = x.dtype.type
    result = np.zeros_like(x)
    quads = _whole_quads(x)
    for quad in range(x.dtype.itemsize * 2):
        result |= (quads >> one(4 * quad) & one(1)) << one(quad)
    return result


def _replicate(x: Array) -> Array:
    result: Array = np.zeros(x.shape, np.uint64)
    for bit in range(32):
        result |= (x >> np.uint32(bit) & np.uint32(1)).astype(np.uint64) * np.uint64(3 << 2 * bit)
    return result


for _bits, _kind in _WIDTHS.items():
    _add(f"s_wqm_{_bits}", _kind, _kind, _nonzero(_whole_quads))
    _add(f"s_quadmask_{_bits}", _kind, _kind, _nonzero(_quad_mask))
_add("s_bitreplicate_b64_b32", "u64", "u32", _silent(_replicate), writes_scc=False)


def _set_bit(value: int) -> Callable[[Array, Array], tuple[Array, None]]:
    def evaluate(position: Array, old: Array) -> tuple[Array, None]:
        one = old.dtype.type(1) << _amount(position, old)
        return (old | one if value else old & ~one), None

    return evaluate


def _compare_bit(value: int) -> Callable[[Array, Array], tuple[None, Mask]]:
    return lambda x, position: (None, (x >> _amount(position, x) & x.dtype.type(1)) == value)


for _bits, _kind in _WIDTHS.items():
    for _value in (0, 1):
        _add(
            f"s_bitset{_value}_{_bits}",
            _kind,
            "u32",
            _set_bit(_value),
            writes_scc=False,
            needs_old=True,
        )
        _add(f"s_bitcmp{_value}_{_bits}", "", f"{_kind} u32", _compare_bit(_value))

# Selections: SCC decides.

for _bits, _kind in _WIDTHS.items():
    _add(
        f"s_cselect_{_bits}",
        _kind,
        f"{_kind} {_kind}",
        lambda a, b, scc: (np.where(scc, a, b), None),
        reads_scc=True,
        writes_scc=False,
    )
    _add(
        f"s_cmov_{_bits}",
        _kind,
        _kind,
        lambda x, scc, old: (np.where(scc, x, old), None),
        reads_scc=True,
        writes_scc=False,
        needs_old=True,
    )

# Halves.


def _half(x: Array, high: bool) -> Array:
    result: Array = x >> np.uint32(16) if high else x & np.uint32(0xFFFF)
    return result


for _letters, (_first, _second) in {
    "ll": (False, False),
    "lh": (False, True),
    "hh": (True, True),
}.items():
    _add(
        f"s_pack_{_letters}_b32_b16",
        "u32",
        "u32 u32",
        lambda a, b, first=_first, second=_second: (
            _half(a, first) | _half(b, second) << np.uint32(16),
            None,
        ),
        writes_scc=False,
    )

# Compares, and 16-bit immediates.

_RELATIONS: dict[str, Callable[[Array, Array], Array]] = {
    "eq": np.equal,
    "lg": np.not_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "lt": np.less,
    "le": np.less_equal,
}


def _compare(relation: Callable[[Array, Array], Array]) -> Callable[..., tuple[None, Mask]]:
    return lambda a, b: (None, relation(a, b))


def _extend(immediate: Array) -> Array:
    """Sign-extended from 16 bits, whether it was written as -1 or as 0xffff."""
    return immediate.astype(np.int16).astype(np.int32)


def _compare_immediate(
    relation: Callable[[Array, Array], Array], signed: bool
) -> Callable[..., tuple[None, Mask]]:
    if signed:
        return lambda a, b: (None, relation(a, _extend(b)))
    return lambda a, b: (None, relation(a, b & np.uint32(0xFFFF)))


for _name, _relation in _RELATIONS.items():
    for _kind in ("i32", "u32"):
        _add(f"s_cmp_{_name}_{_kind}", "", f"{_kind} {_kind}", _compare(_relation))
        _add(
            f"s_cmpk_{_name}_{_kind}",
            "",
            f"{_kind} u32",
            _compare_immediate(_relation, _kind == "i32"),
        )
for _name in ("eq", "lg"):
    _add(f"s_cmp_{_name}_u64", "", "u64 u64", _compare(_RELATIONS[_name]))


def _add_immediate(immediate: Array, old: Array) -> tuple[Array, Mask]:
    return _signed(np.add)(old, _extend(immediate))


_add("s_movk_i32", "i32", "u32", _silent(_extend), writes_scc=False)
_add("s_addk_i32", "i32", "u32", _add_immediate, needs_old=True)
_add(
    "s_mulk_i32",
    "i32",
    "u32",
    lambda immediate, old: (old * _extend(immediate), None),
    writes_scc=False,
    needs_old=True,
)
_add(
    "s_cmovk_i32",
    "i32",
    "u32",
    lambda immediate, scc, old: (np.where(scc, _extend(immediate), old), None),
    reads_scc=True,
    writes_scc=False,
    needs_old=True,
)
