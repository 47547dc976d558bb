"""The 16-bit opcodes of the vector ALU: fp16 and integers, one at a time or packed in pairs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import float32
from .assumptions import Machine
from .binding import Factory, Function, Modifiers, Operation
from .float32 import F32, F64, quiet, sum_to_odd
from .formats import encode_f16
from .mode import Mode
from .operands import Array
from .valu_float32 import turn_function
from .valu_integer import truth_table

OPERATIONS: dict[str, Operation] = {}

F16 = NDArray[np.float16]


def _define(
    name: str,
    sources: str,
    function: Function,
    results: str,
    accumulates: bool = False,
    keeps_high: bool | None = False,
) -> None:
    OPERATIONS[name] = Operation(
        name,
        tuple(results.split()),
        tuple(sources.split()),
        function,
        accumulates=accumulates,
        keeps_high=keeps_high,
    )


def _plain(function: Callable[..., Any]) -> Function:
    return lambda mode, *sources: function(*sources)


def _wide(function: Callable[..., F32]) -> Function:
    """An fp16 function from an fp32 one, whose extra bits make the second rounding harmless."""

    def evaluate(mode: Mode, *sources: F16) -> F16:
        wide = function(*(source.astype(np.float32) for source in sources))
        return encode_f16(wide, mode.fp16_overflow)

    return evaluate


def _wide_ieee(function: Callable[..., F32]) -> Function:
    """The same for a function that takes MODE.IEEE as its last argument."""
    return lambda mode, *sources: function(
        *(source.astype(np.float32) for source in sources), mode.ieee
    ).astype(np.float16)


def fma_f16(mode: Mode, a: F16, b: F16, c: F16) -> F16:
    """a * b + c, rounded once: through a float64 sum that is rounded to odd."""
    product = a.astype(np.float64) * b
    return encode_f16(sum_to_odd(product, c.astype(np.float64)), mode.fp16_overflow)


def _reverse(function: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    return lambda a, b: function(b, a)


# fp16, single and packed.

_ADD, _SUBTRACT, _MULTIPLY = (
    _wide(function) for function in (float32.add, float32.subtract, float32.multiply)
)
_define("v_add_f16", "f16 f16", _ADD, "f16")
_define("v_sub_f16", "f16 f16", _SUBTRACT, "f16")
_define("v_subrev_f16", "f16 f16", _wide(_reverse(float32.subtract)), "f16")
_define("v_mul_f16", "f16 f16", _MULTIPLY, "f16")
_define("v_min_f16", "f16 f16", _wide_ieee(float32.minimum), "f16")
_define("v_max_f16", "f16 f16", _wide_ieee(float32.maximum), "f16")
_define("v_fma_f16", "f16 f16 f16", fma_f16, "f16", keeps_high=True)
_define("v_min3_f16", "f16 f16 f16", _wide_ieee(float32.minimum3), "f16", keeps_high=None)
_define("v_max3_f16", "f16 f16 f16", _wide_ieee(float32.maximum3), "f16", keeps_high=None)
_define("v_med3_f16", "f16 f16 f16", _wide_ieee(float32.median3), "f16", keeps_high=None)
_define("v_pk_add_f16", "pf16 pf16", _ADD, "pf16")
_define("v_pk_mul_f16", "pf16 pf16", _MULTIPLY, "pf16")
_define("v_pk_fma_f16", "pf16 pf16 pf16", fma_f16, "pf16")
_define("v_pk_fmac_f16", "pf16 pf16", fma_f16, "pf16", accumulates=True)
_define("v_pk_min_f16", "pf16 pf16", _wide_ieee(float32.minimum), "pf16")
_define("v_pk_max_f16", "pf16 pf16", _wide_ieee(float32.maximum), "pf16")


def _three(function: Callable[[F32, F32], F32]) -> Callable[[F32, F32, F32], F32]:
    return lambda a, b, c: function(function(a, b), c)


_define("v_pk_minimum3_f16", "pf16 pf16 pf16", _wide(_three(float32.ieee_minimum)), "pf16")
_define("v_pk_maximum3_f16", "pf16 pf16 pf16", _wide(_three(float32.ieee_maximum)), "pf16")

for _name, _rounding in {
    "v_floor_f16": np.floor,
    "v_ceil_f16": np.ceil,
    "v_trunc_f16": np.trunc,
    "v_rndne_f16": np.rint,
}.items():
    _define(_name, "f16", _wide(float32.rounded(_rounding)), "f16")


def _fract(x: F32) -> F32:
    result: F32 = np.minimum(float32.fract(x), np.float32(1 - 2.0**-11))
    return result


_define("v_fract_f16", "f16", _wide(_fract), "f16")
_define("v_frexp_mant_f16", "f16", _wide(float32.frexp_mantissa), "f16")
_define(
    "v_frexp_exp_i16_f16",
    "f16",
    lambda mode, x: float32.frexp_exponent(x.astype(np.float32)).astype(np.int16),
    "i16",
)
_define(
    "v_ldexp_f16",
    "f16 i16",
    lambda mode, x, exponent: encode_f16(
        float32.ldexp(x.astype(np.float32), exponent.astype(np.int32)), mode.fp16_overflow
    ),
    "f16",
)

for _name, _double in {
    "v_exp_f16": np.exp2,
    "v_log_f16": np.log2,
    "v_rcp_f16": np.reciprocal,
    "v_rsq_f16": lambda x: 1.0 / np.sqrt(x),
    "v_sqrt_f16": np.sqrt,
    "v_sin_f16": turn_function(np.sin),
    "v_cos_f16": turn_function(np.cos),
}.items():
    # Bound as a default: the loop variable changes.
    _define(
        _name,
        "f16",
        lambda mode, x, double=_double: encode_f16(
            double(x.astype(np.float64)), mode.fp16_overflow
        ),
        "f16",
    )

# Mixed: op_sel_hi chooses fp16 (1) or fp32 (0) for each source, op_sel the half, neg_hi is |x|.


def _mix_source(modifiers: Modifiers, index: int) -> Callable[[Array], F32]:
    def field(key: str) -> bool:
        values = modifiers.get(key, ())
        return index < len(values) and bool(values[index])

    half, high = field("op_sel_hi"), field("op_sel")
    absolute = field("neg_hi") or field("abs")
    negate = field("neg_lo") or field("neg")

    def read(words: Array) -> F32:
        if half:
            bits = (words >> np.uint32(16 if high else 0)).astype(np.uint16)
            value = bits.view(np.float16).astype(np.float32)
        else:
            value = words.view(np.float32)
        if absolute:
            value = np.abs(value)
        result: F32 = -value if negate else value
        return result

    return read


def _mix_sum(modifiers: Modifiers) -> Callable[..., tuple[F64, F64, tuple[F32, ...]]]:
    reads = [_mix_source(modifiers, index) for index in range(3)]

    def terms(*words: Array) -> tuple[F64, F64, tuple[F32, ...]]:
        a, b, c = (read(word) for read, word in zip(reads, words, strict=True))
        return a.astype(np.float64) * b, c.astype(np.float64), (a, b, c)

    return terms


def _mix_f32(machine: Machine, modifiers: Modifiers) -> Function:
    terms = _mix_sum(modifiers)

    def evaluate(mode: Mode, *words: Array) -> F32:
        product, addend, sources = terms(*words)
        return float32.settle_nan(float32.round_sum(product, addend), *sources)

    return evaluate


def _mix_half(high: bool) -> Factory:
    def make(machine: Machine, modifiers: Modifiers) -> Function:
        terms = _mix_sum(modifiers)
        clamp = bool(modifiers.get("clamp"))

        def evaluate(mode: Mode, *words_and_old: Array) -> Array:
            *words, old = words_and_old
            product, addend, _ = terms(*words)
            half = encode_f16(sum_to_odd(product, addend), mode.fp16_overflow)
            if clamp:
                half = np.where(half > 1, np.float16(1), np.where(half > 0, half, np.float16(0)))
            bits = half.view(np.uint16).astype(np.uint32)
            result: Array = (
                old & np.uint32(0xFFFF) | bits << np.uint32(16)
                if high
                else old & np.uint32(0xFFFF0000) | bits
            )
            return result

        return evaluate

    return make


# The sources are words whose signs are handled here: "mix" keeps binding from doing it.
OPERATIONS["v_fma_mix_f32"] = Operation("v_fma_mix_f32", ("f32",), ("mix",) * 3, factory=_mix_f32)
for _name, _high in {"v_fma_mixlo_f16": False, "v_fma_mixhi_f16": True}.items():
    OPERATIONS[_name] = Operation(
        _name, ("b32",), ("mix",) * 3, factory=_mix_half(_high), merges=True
    )

# Integers of 16 bits.


def _saturating(exact: Callable[..., Array], dtype: type[np.int16] | type[np.uint16]) -> Factory:
    info = np.iinfo(dtype)

    def make(machine: Machine, modifiers: Modifiers) -> Function:
        if modifiers.get("clamp"):
            return lambda mode, *sources: np.clip(
                exact(*(source.astype(np.int64) for source in sources)), info.min, info.max
            ).astype(dtype)
        return lambda mode, *sources: exact(*sources)

    return make


def _subtract_reversed(a: Array, b: Array) -> Array:
    return b - a


def _multiply_add(a: Array, b: Array, c: Array) -> Array:
    return a * b + c


_ShortType = type[np.int16] | type[np.uint16]
_SHORTS: tuple[tuple[str, _ShortType], ...] = (("u16", np.uint16), ("i16", np.int16))
for _kind, _dtype in _SHORTS:
    _keeps = None if _kind == "i16" else False
    for _name, _exact, _count, _keep in (
        ("add", np.add, 2, _keeps),
        ("sub", np.subtract, 2, _keeps),
        ("subrev", _subtract_reversed, 2, _keeps),
        ("mad", _multiply_add, 3, True),
    ):
        if (_name, _kind) == ("subrev", "i16"):
            continue
        _full = f"v_{_name}_{_kind}"
        OPERATIONS[_full] = Operation(
            _full,
            (_kind,),
            (_kind,) * _count,
            factory=_saturating(_exact, _dtype),
            keeps_high=_keep,
        )
        if _name != "subrev":
            _packed = f"v_pk_{_name}_{_kind}"
            OPERATIONS[_packed] = Operation(
                _packed,
                (f"p{_kind}",),
                (f"p{_kind}",) * _count,
                factory=_saturating(_exact, _dtype),
            )
    for _name, _choose in {"min": np.minimum, "max": np.maximum}.items():
        _define(f"v_{_name}_{_kind}", f"{_kind} {_kind}", _plain(_choose), _kind)
        _define(f"v_pk_{_name}_{_kind}", f"p{_kind} p{_kind}", _plain(_choose), f"p{_kind}")
        _define(
            f"v_{_name}3_{_kind}",
            f"{_kind} {_kind} {_kind}",
            lambda mode, a, b, c, choose=_choose: choose(choose(a, b), c),
            _kind,
            keeps_high=None,
        )
    _define(
        f"v_med3_{_kind}",
        f"{_kind} {_kind} {_kind}",
        lambda mode, a, b, c: np.maximum(np.minimum(a, b), np.minimum(np.maximum(a, b), c)),
        _kind,
        keeps_high=None,
    )

_define("v_mul_lo_u16", "u16 u16", _plain(np.multiply), "u16")
_define("v_pk_mul_lo_u16", "pu16 pu16", _plain(np.multiply), "pu16")


def _count16(n: Array) -> Array:
    result: Array = n & n.dtype.type(15)
    return result


for _prefix, _packing in (("v_", ""), ("v_pk_", "p")):
    _u, _i = f"{_packing}u16", f"{_packing}i16"
    _define(f"{_prefix}lshlrev_b16", f"{_u} {_u}", lambda mode, n, x: x << _count16(n), _u)
    _define(f"{_prefix}lshrrev_b16", f"{_u} {_u}", lambda mode, n, x: x >> _count16(n), _u)
    _define(f"{_prefix}ashrrev_i16", f"{_i} {_i}", lambda mode, n, x: x >> _count16(n), _i)


def _bitop3(machine: Machine, modifiers: Modifiers) -> Function:
    table = int(modifiers.get("bitop3", 0))
    return lambda mode, a, b, c: truth_table(table, a, b, c)


OPERATIONS["v_bitop3_b16"] = Operation(
    "v_bitop3_b16", ("b16",), ("b16",) * 3, factory=_bitop3, keeps_high=None
)


def _pack(mode: Mode, low: F16, high: F16) -> Array:
    return np.stack(np.broadcast_arrays(low, high))


# Two fp16 sources, each of which op_sel may take from the high half.
_define("v_pack_b32_f16", "f16 f16", _pack, "pf16")


def _div_fixup_f16(mode: Mode, quotient: F16, denominator: F16, numerator: F16) -> F16:
    q, d, n = (x.astype(np.float32) for x in (quotient, denominator, numerator))
    return quiet(float32.div_fixup(q, d, n)).astype(np.float16)


_define("v_div_fixup_f16", "f16 f16 f16", _div_fixup_f16, "f16", keeps_high=True)
