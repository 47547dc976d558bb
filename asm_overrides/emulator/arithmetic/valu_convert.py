"""The conversion opcodes of the vector ALU, packed ones, byte packing and small formats included.

Not here: stochastic rounding (v_cvt_sr_*, v_cvt_scalef32_sr_*).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from . import formats
from .assumptions import Machine
from .binding import Factory, Function, Modifiers, Operation
from .float32 import F32, quiet
from .formats import Format, encode_bf16, encode_f16
from .mode import Mode
from .operands import Array, Words

OPERATIONS: dict[str, Operation] = {}

IntegerType = type[np.int16] | type[np.uint16] | type[np.int32] | type[np.uint32]

_U32 = np.uint32
_SIXTEEN = np.uint32(16)


def _define(name: str, sources: str, results: str, function: Function, **options: Any) -> None:
    OPERATIONS[name] = Operation(name, (results,), tuple(sources.split()), function, **options)


# Between integers and floats.


def to_integer(x: Array, dtype: IntegerType) -> Array:
    """Truncated; out of range saturates, NaN gives 0."""
    info = np.iinfo(dtype)
    wide = np.trunc(x.astype(np.float64))
    # The limits of 32-bit types are float64 numbers, so clipping is exact.
    bounded = np.clip(np.where(np.isnan(wide), 0.0, wide), float(info.min), float(info.max))
    return bounded.astype(dtype)


def _to(dtype: IntegerType, rounding: Callable[[Array], Array] | None = None) -> Function:
    if rounding is None:
        return lambda mode, x: to_integer(x, dtype)
    return lambda mode, x: to_integer(rounding(x.astype(np.float64)), dtype)


def _from(dtype: type[np.generic]) -> Function:
    return lambda mode, x: x.astype(dtype)


_define("v_cvt_f32_i32", "i32", "f32", _from(np.float32))
_define("v_cvt_f32_u32", "u32", "f32", _from(np.float32))
_define("v_cvt_f64_i32", "i32", "f64", _from(np.float64))
_define("v_cvt_f64_u32", "u32", "f64", _from(np.float64))
_define("v_cvt_f16_i16", "i16", "f16", _from(np.float16))
_define(
    "v_cvt_f16_u16",
    "u16",
    "f16",
    lambda mode, x: encode_f16(x.astype(np.float32), mode.fp16_overflow),
)
_define("v_cvt_i32_f32", "f32", "i32", _to(np.int32))
_define("v_cvt_u32_f32", "f32", "u32", _to(np.uint32))
_define("v_cvt_i32_f64", "f64", "i32", _to(np.int32))
_define("v_cvt_u32_f64", "f64", "u32", _to(np.uint32))
_define("v_cvt_i16_f16", "f16", "i16", _to(np.int16), keeps_high=None)
_define("v_cvt_u16_f16", "f16", "u16", _to(np.uint16), keeps_high=None)
_define("v_cvt_flr_i32_f32", "f32", "i32", _to(np.int32, np.floor))
_define("v_cvt_rpi_i32_f32", "f32", "i32", _to(np.int32, lambda x: np.floor(x + 0.5)))
_define(
    "v_cvt_off_f32_i4",
    "u32",
    "f32",
    lambda mode, x: (
        (((x & _U32(15)) ^ _U32(8)).astype(np.float32) - np.float32(8)) / np.float32(16)
    ),
)


def _byte_to_f32(byte: int) -> Function:
    return lambda mode, x: (x >> _U32(8 * byte) & _U32(0xFF)).astype(np.float32)


for _byte in range(4):
    _define(f"v_cvt_f32_ubyte{_byte}", "u32", "f32", _byte_to_f32(_byte))

# Between floats.


def _pair(low: Array, high: Array) -> Array:
    both: Array = np.empty((2, *np.broadcast_shapes(low.shape, high.shape)), low.dtype)
    both[0], both[1] = low, high
    return both


def _f32_to_f16_toward_zero(x: F32) -> Array:
    nearest = x.astype(np.float16)
    too_far = np.abs(nearest.astype(np.float64)) > np.abs(x.astype(np.float64))
    # Towards zero is one code less; infinity becomes the largest number that way too.
    codes = nearest.view(np.uint16) - too_far.astype(np.uint16)
    return codes.view(np.float16)


_define("v_cvt_f16_f32", "f32", "f16", lambda mode, x: encode_f16(x, mode.fp16_overflow))
_define("v_cvt_f32_f16", "f16", "f32", lambda mode, x: quiet(x.astype(np.float32)))
_define("v_cvt_f32_f64", "f64", "f32", lambda mode, x: x.astype(np.float32))
_define("v_cvt_f64_f32", "f32", "f64", lambda mode, x: x.astype(np.float64))
_define("v_cvt_f32_bf16", "bf16", "f32", lambda mode, x: formats.decode_bf16(x))
_define(
    "v_cvt_pk_bf16_f32",
    "f32 f32",
    "pbf16",
    lambda mode, a, b: _pair(encode_bf16(a), encode_bf16(b)),
)
_define(
    "v_cvt_pk_f16_f32",
    "f32 f32",
    "pf16",
    lambda mode, a, b: _pair(encode_f16(a, mode.fp16_overflow), encode_f16(b, mode.fp16_overflow)),
)
_define(
    "v_cvt_pkrtz_f16_f32",
    "f32 f32",
    "pf16",
    lambda mode, a, b: _pair(_f32_to_f16_toward_zero(a), _f32_to_f16_toward_zero(b)),
)

# Normalised and clamped integers.


def _norm(signed: bool) -> Callable[[Array], Array]:
    """[-1, 1] or [0, 1] on 16-bit integers, rounded to nearest even; NaN gives 0."""
    low, high = (-32767.0, 32767.0) if signed else (0.0, 65535.0)
    dtype = np.int16 if signed else np.uint16

    def convert(x: Array) -> Array:
        scaled = np.rint(np.clip(x.astype(np.float64) * high, low, high))
        return np.where(np.isnan(scaled), 0.0, scaled).astype(dtype)

    return convert


_SNORM, _UNORM = _norm(True), _norm(False)
for _suffix, _convert, _kind in (("i16", _SNORM, "pi16"), ("u16", _UNORM, "pu16")):
    for _float in ("f32", "f16"):
        _define(
            f"v_cvt_pknorm_{_suffix}_{_float}",
            f"{_float} {_float}",
            _kind,
            lambda mode, a, b, convert=_convert: _pair(convert(a), convert(b)),
        )
    _define(
        f"v_cvt_norm_{_suffix}_f16", "f16", _suffix, lambda mode, x, convert=_convert: convert(x)
    )


def _clip_pair(dtype: type[np.int16] | type[np.uint16]) -> Function:
    info = np.iinfo(dtype)
    return lambda mode, a, b: np.clip(
        _pair(a.astype(np.int64), b.astype(np.int64)), info.min, info.max
    ).astype(dtype)


_define("v_cvt_pk_i16_i32", "i32 i32", "pi16", _clip_pair(np.int16))
_define("v_cvt_pk_u16_u32", "u32 u32", "pu16", _clip_pair(np.uint16))

# Bytes.


def _into_byte(value: Array, byte: Words, old: Words) -> Words:
    shift = (byte & _U32(3)) * _U32(8)
    result: Words = old & ~(_U32(0xFF) << shift) | value.astype(np.uint32) << shift
    return result


def _cvt_pk_u8(machine: Machine, modifiers: Modifiers) -> Function:
    rounding = np.rint if machine.cvt_pk_u8_rounding == "nearest_even" else np.trunc

    def evaluate(mode: Mode, x: F32, byte: Words, old: Words) -> Words:
        rounded = np.clip(np.where(np.isnan(x), np.float32(0), rounding(x)), 0, 255)
        return _into_byte(rounded, byte, old)

    return evaluate


OPERATIONS["v_cvt_pk_u8_f32"] = Operation(
    "v_cvt_pk_u8_f32", ("u32",), ("f32", "u32", "u32"), factory=_cvt_pk_u8
)
OPERATIONS["v_cvt_pkaccum_u8_f32"] = Operation(
    "v_cvt_pkaccum_u8_f32", ("u32",), ("f32", "u32"), factory=_cvt_pk_u8, merges=True
)


def _destination_half(modifiers: Modifiers, index: int) -> int:
    values = modifiers.get("op_sel", ())
    return int(values[index]) if index < len(values) else 0


def _into_half(half: int, value: Words, old: Words) -> Words:
    """16 bits into one half of a register, the other half preserved."""
    keep, shift = (_U32(0xFFFF), _SIXTEEN) if half else (_U32(0xFFFF0000), _U32(0))
    result: Words = old & keep | value << shift
    return result


def _ashr_pk(low: int, high: int) -> Factory:
    """Two signed numbers shifted, saturated to a byte each, 16 bits of the destination written."""

    def make(machine: Machine, modifiers: Modifiers) -> Function:
        half = _destination_half(modifiers, 3)

        def evaluate(mode: Mode, a: Array, b: Array, count: Array, old: Words) -> Words:
            shift = (count & _U32(31)).view(np.int32)
            first, second = (
                (np.clip(x >> shift, low, high) & 0xFF).astype(np.uint32) for x in (a, b)
            )
            pair = first | second << _U32(8)
            return _into_half(
                half, pair, old if machine.ashr_pk_keeps_other_half else old * _U32(0)
            )

        return evaluate

    return make


for _name, _low, _high in (("v_ashr_pk_u8_i32", 0, 255), ("v_ashr_pk_i8_i32", -128, 127)):
    OPERATIONS[_name] = Operation(
        _name, ("u32",), ("i32", "i32", "u32"), factory=_ashr_pk(_low, _high), merges=True
    )


def _sat_pk_u8_i16(mode: Mode, words: Words) -> Words:
    low = np.clip(words.astype(np.uint16).view(np.int16), 0, 255).astype(np.uint32)
    high = np.clip((words >> _SIXTEEN).astype(np.uint16).view(np.int16), 0, 255).astype(np.uint32)
    result: Words = low | high << _U32(8)
    return result


_define("v_sat_pk_u8_i16", "u32", "u32", _sat_pk_u8_i16)

# fp8, bf8 and fp4, plain and scaled.  A scale is the exponent field of an fp32 number: conversions
# to a small format divide by 2**(field - 127), conversions from one multiply; field 255 is NaN.

_EIGHT: dict[str, tuple[Format, Array]] = {
    "fp8": (formats.FP8, formats.FP8_VALUES),
    "bf8": (formats.BF8, formats.BF8_VALUES),
}


def _scale_of(words: Words) -> Array:
    scales: Array = formats.E8M0_VALUES[words >> _U32(23) & _U32(0xFF)]
    return scales


def _scaled_down(x: Array, scale: Array) -> F32:
    """x / scale in fp32, exact wherever a small format has more than zero for it."""
    if scale.size == 1 and scale.flat[0] == 1:
        return x.astype(np.float32, copy=False)
    return (x.astype(np.float64) / scale).astype(np.float32)


def _pack_eight(form: Format, machine: Machine, mode: Mode, first: F32, second: F32) -> Words:
    after = machine.fp8_overflow_after_rounding
    low, high = formats.encode(_pair(first, second), form, mode.fp16_overflow, after)
    result: Words = low | high << _U32(8)
    return result


def _to_eight(form: Format, scaled: bool) -> Factory:
    """Two fp32 numbers into half a register."""

    def make(machine: Machine, modifiers: Modifiers) -> Function:
        half = _destination_half(modifiers, 3 if scaled else 2)

        def evaluate(mode: Mode, a: Array, b: Array, *scale_and_old: Words) -> Words:
            *scale, old = scale_and_old
            if scale:
                factor = _scale_of(scale[0])
                a, b = _scaled_down(a, factor), _scaled_down(b, factor)
            return _into_half(half, _pack_eight(form, machine, mode, a, b), old)

        return evaluate

    return make


def _pair_to_eight(form: Format) -> Factory:
    """Two fp16 or bf16 numbers of one register, scaled, into half a register."""

    def make(machine: Machine, modifiers: Modifiers) -> Function:
        half = _destination_half(modifiers, 2)

        def evaluate(mode: Mode, pair: Array, scale: Words, old: Words) -> Words:
            first, second = _scaled_down(_wide_pair(pair), _scale_of(scale))
            return _into_half(half, _pack_eight(form, machine, mode, first, second), old)

        return evaluate

    return make


def _wide_pair(pair: Array) -> F32:
    """fp16 or bf16 numbers in fp32."""
    if pair.dtype == np.uint16:
        return formats.decode_bf16(pair)
    return pair.astype(np.float32)


def _to_fp4(sources: int) -> Factory:
    """Two numbers, scaled, into the byte that op_sel[3:2] names."""

    def make(machine: Machine, modifiers: Modifiers) -> Function:
        byte = _destination_half(modifiers, 2) + 2 * _destination_half(modifiers, 3)
        at = np.full((1, 1), byte, np.uint32)

        def evaluate(mode: Mode, *operands: Array) -> Words:
            *numbers, scale, old = operands
            factor = _scale_of(scale)
            pair = _wide_pair(numbers[0]) if sources == 1 else _pair(*numbers)
            low, high = formats.encode(_scaled_down(pair, factor), formats.FP4, True)
            return _into_byte(low | high << _U32(4), at, old)

        return evaluate

    return make


def _encode_as(kind: str, value: Array, mode: Mode) -> Array:
    """float64 numbers, each exact in fp32 unless it overflows there, in the kind of a result."""
    if kind.endswith("bf16"):
        return encode_bf16(value.astype(np.float32))
    if kind.endswith("f16"):
        return encode_f16(value, mode.fp16_overflow)
    return value.astype(np.float32)


def _from_codes(
    read: Callable[[Words, Modifiers], Array], table: Array, kind: str, scaled: bool
) -> Factory:
    def make(machine: Machine, modifiers: Modifiers) -> Function:
        def evaluate(mode: Mode, words: Words, *scale: Words) -> Array:
            value = table[read(words, modifiers)]
            if scale:
                value = value * _scale_of(scale[0])
            return _encode_as(kind, value, mode)

        return evaluate

    return make


def _byte_code(words: Words, modifiers: Modifiers) -> Array:
    byte = _destination_half(modifiers, 0) + 2 * _destination_half(modifiers, 1)
    result: Array = words >> _U32(8 * byte) & _U32(0xFF)
    return result


def _half_codes(words: Words, modifiers: Modifiers) -> Array:
    half = words >> _U32(16 * _destination_half(modifiers, 0))
    return _pair(half & _U32(0xFF), half >> _U32(8) & _U32(0xFF))


def _nibble_codes(words: Words, modifiers: Modifiers) -> Array:
    byte = _byte_code(words, modifiers)
    return _pair(byte & _U32(15), byte >> _U32(4))


def _add(name: str, results: str, sources: str, factory: Factory, **options: Any) -> None:
    OPERATIONS[name] = Operation(
        name, (results,), tuple(sources.split()), factory=factory, **options
    )


for _name, (_form, _table) in _EIGHT.items():
    _add(f"v_cvt_pk_{_name}_f32", "u32", "f32 f32", _to_eight(_form, False), merges=True)
    _add(
        f"v_cvt_scalef32_pk_{_name}_f32", "u32", "f32 f32 u32", _to_eight(_form, True), merges=True
    )
    _add(f"v_cvt_f32_{_name}", "f32", "u32", _from_codes(_byte_code, _table, "f32", False))
    _add(f"v_cvt_pk_f32_{_name}", "pf32", "u32", _from_codes(_half_codes, _table, "f32", False))
    for _float in ("f32", "f16"):
        _add(
            f"v_cvt_scalef32_{_float}_{_name}",
            _float,
            "u32 u32",
            _from_codes(_byte_code, _table, _float, True),
            keeps_high=True,
        )
    for _float in ("f32", "f16", "bf16"):
        _add(
            f"v_cvt_scalef32_pk_{_float}_{_name}",
            f"p{_float}",
            "u32 u32",
            _from_codes(_half_codes, _table, _float, True),
        )
    for _float in ("f16", "bf16"):
        _add(
            f"v_cvt_scalef32_pk_{_name}_{_float}",
            "u32",
            f"p{_float} u32",
            _pair_to_eight(_form),
            merges=True,
        )
for _float in ("f32", "f16", "bf16"):
    _add(
        f"v_cvt_scalef32_pk_{_float}_fp4",
        f"p{_float}",
        "u32 u32",
        _from_codes(_nibble_codes, formats.FP4_VALUES, _float, True),
    )
_add("v_cvt_scalef32_pk_fp4_f32", "u32", "f32 f32 u32", _to_fp4(2), merges=True)
for _float in ("f16", "bf16"):
    _add(f"v_cvt_scalef32_pk_fp4_{_float}", "u32", f"p{_float} u32", _to_fp4(1), merges=True)
