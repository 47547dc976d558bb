"""Decides what PTX instructions without memory compute, on numpy arrays over the lanes of a warp.

PTX ISA 8.7, sections 9.7.1 to 9.7.9. Each result is rounded once; ex2.approx is the float64 result
rounded, which a card misses by 2 ulp at most. Payloads of NaN are not modelled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch

Values = np.ndarray  # one number a lane
_CANONICAL_HALF = 0x7FFF
_CANONICAL_E4M3 = 0x7F
_SMALLEST = np.float32(2.0**-126)  # normal float32


@dataclass(frozen=True)
class Operation:
    """inputs, result: PTX types."""

    inputs: tuple[str, ...]
    result: str
    compute: Callable[..., Values]


def fma(a: Values, b: Values, c: Values) -> Values:
    """float32 a * b + c, rounded once: the float64 sum is made odd where it is inexact."""
    product, addend = a.astype(np.float64) * b, c.astype(np.float64)
    total = product + addend
    virtual = total - product
    error = (product - (total - virtual)) + (addend - virtual)
    bits = total.view(np.int64)
    even = np.isfinite(total) & (error != 0) & (bits & 1 == 0)
    step = np.where((error > 0) == (total > 0), 1, -1) * even
    return (bits + step).view(np.float64).astype(np.float32)


def _extreme(of: Callable[..., Values], sign: Callable[..., Values]) -> Callable[..., Values]:
    """max or min: of a number and NaN the number; -0 is below +0."""

    def compute(a: Values, b: Values) -> Values:
        zeros = sign(a.view(np.uint32), b.view(np.uint32)).view(np.float32)
        return np.where((a == 0) & (b == 0), zeros, of(a, b))

    return compute


def _exponential(x: Values) -> Values:
    flushed = np.where(np.abs(x) < _SMALLEST, np.float32(0), x)
    y = np.exp2(flushed.astype(np.float64)).astype(np.float32)
    return np.where(y < _SMALLEST, np.float32(0), y)


def _permute(a: Values, b: Values, selector: Values) -> Values:
    pool = a.astype(np.uint64) | b.astype(np.uint64) << np.uint64(32)
    result = np.zeros_like(a)
    for byte in range(4):
        chosen = (selector >> np.uint32(4 * byte)) & np.uint32(0xF)
        assert not (chosen & 8).any(), "prmt with replicated signs is not written down"
        value = (pool >> (8 * chosen).astype(np.uint64)) & np.uint64(0xFF)
        result |= value.astype(np.uint32) << np.uint32(8 * byte)
    return result


def _halves(dtype: type, compute: Callable[..., Values]) -> Callable[..., Values]:
    """Both 16-bit halves at once, wrapping."""
    return lambda *words: compute(*(word.view(dtype) for word in words)).view(np.uint32)


def _to_halves(high: Values, low: Values) -> Values:
    """Two float32 to float16, below 0 to 0; the first one into the upper half."""
    result = np.empty((len(high), 2), np.uint16)
    for place, value in enumerate((low, high)):
        half = np.where(value > 0, value, np.float32(0)).astype(np.float16).view(np.uint16)
        result[:, place] = np.where(np.isnan(value), _CANONICAL_HALF, half)
    return result.view(np.uint32)[:, 0]


def _to_e4m3(high: Values, low: Values) -> Values:
    """Two float32 to e4m3, nearest even, at most 448; the first one into the upper byte."""
    parts = []
    for value in (high, low):
        clamped = torch.from_numpy(np.clip(value, -448, 448))
        code = clamped.to(torch.float8_e4m3fn).view(torch.uint8).numpy().astype(np.uint16)
        parts.append(np.where(np.isnan(value), np.uint16(_CANONICAL_E4M3), code))
    return parts[0] << np.uint16(8) | parts[1]


def _from_e4m3(pair: Values) -> Values:
    halves = e4m3(pair.view(np.uint8)).astype(np.float16)
    return halves.view(np.uint32)


_E4M3 = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).double().numpy()


def e4m3(codes: Values) -> Values:
    """e4m3 codes (uint8, any shape) as float64."""
    return _E4M3[codes]


def bf16(parts: Values) -> Values:
    """bfloat16 as bytes (..., 2 n) -> float64 (..., n)."""
    words = np.ascontiguousarray(parts).view(np.uint16).astype(np.uint32) << np.uint32(16)
    return words.view(np.float32).astype(np.float64)


def _to_bfloat16(high: Values, low: Values) -> Values:
    """Two float32 to bfloat16, nearest even; the first one into the upper half."""
    result = np.empty((len(high), 2), np.uint16)
    for place, value in enumerate((low, high)):
        bits = value.view(np.uint32)
        rounded = (bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))) >> np.uint32(
            16
        )
        result[:, place] = np.where(np.isnan(value), _CANONICAL_HALF, rounded)
    return result.view(np.uint32)[:, 0]


def _wide(a: Values, b: Values, c: Values, kind: type) -> Values:
    return (a.astype(kind) * b.astype(kind)).view(c.dtype) + c


def _shifted(by: Callable[..., Values]) -> Callable[..., Values]:
    return lambda a, count: np.where(count > 31, np.uint32(0), by(a, count & np.uint32(31)))


def _signed(of: Callable[..., Values]) -> Callable[..., Values]:
    return lambda a, b: of(a.view(np.int32), b.view(np.int32)).view(np.uint32)


def _of(kinds: str, compute: Callable[..., Values]) -> Operation:
    inputs, result = kinds.split(" -> ")
    return Operation(tuple(inputs.split()), result, compute)


_FLOATS = {
    "mul.rn.f32": np.multiply, "add.rn.f32": np.add, "add.f32": np.add, "sub.rn.f32": np.subtract,
    "div.rn.f32": np.divide, "max.f32": _extreme(np.fmax, np.bitwise_and),
    "min.f32": _extreme(np.fmin, np.bitwise_or),
}  # fmt: skip
_WORDS: Mapping[str, Callable[..., Values]] = {
    "and.b32": np.bitwise_and, "or.b32": np.bitwise_or, "xor.b32": np.bitwise_xor,
    "add.u32": np.add, "sub.u32": np.subtract,
    "add.s32": np.add, "sub.s32": np.subtract,
    "max.s32": _signed(np.maximum), "min.s32": _signed(np.minimum),
    "shl.b32": _shifted(np.left_shift), "shr.u32": _shifted(np.right_shift),
    "max.u16x2": _halves(np.uint16, np.maximum), "min.u16x2": _halves(np.uint16, np.minimum),
    "max.s16x2": _halves(np.int16, np.maximum), "add.s16x2": _halves(np.uint16, np.add),
    "add.rn.f16x2": _halves(np.float16, np.add),
}  # fmt: skip
_COMPARISONS = {
    "setp.ge.s32": np.greater_equal, "setp.gt.s32": np.greater, "setp.le.s32": np.less_equal,
    "setp.eq.s32": np.equal, "setp.eq.u32": np.equal, "setp.ne.u32": np.not_equal,
    "setp.neu.f32": np.not_equal, "setp.eq.f32": np.equal, "setp.lt.f32": np.less,
    "setp.ge.f32": np.greater_equal,
}  # fmt: skip

WINDOW = np.uint32(24)  # bits of an address in one workgroup's shared memory; its rank lies above

OPERATIONS: Mapping[str, Operation] = {
    **{name: _of("f32 f32 -> f32", function) for name, function in _FLOATS.items()},
    **{name: _of("b32 b32 -> b32", function) for name, function in _WORDS.items()},
    **{
        name: _of(f"{name[-3:]} {name[-3:]} -> pred", function)
        for name, function in _COMPARISONS.items()
    },
    "setp.lt.or.f32": _of("f32 f32 pred -> pred", lambda a, b, c: (a < b) | c),
    "setp.gt.or.s32": _of("s32 s32 pred -> pred", lambda a, b, c: (a > b) | c),
    "setp.gt.and.s32": _of("s32 s32 pred -> pred", lambda a, b, c: (a > b) & c),
    "selp.b32": _of("b32 b32 pred -> b32", lambda a, b, c: np.where(c, a, b)),
    "setp.ge.and.f32": _of("f32 f32 pred -> pred", lambda a, b, c: (a >= b) & c),
    "setp.neu.or.f32": _of("f32 f32 pred -> pred", lambda a, b, c: (a != b) | c),
    "fma.rn.f32": _of("f32 f32 f32 -> f32", fma),
    "neg.f32": _of("f32 -> f32", np.negative),
    "abs.f32": _of("f32 -> f32", np.abs),
    "ex2.approx.ftz.f32": _of("f32 -> f32", _exponential),
    "mov.f32": _of("f32 -> f32", np.copy),
    "mov.b32": _of("b32 -> b32", np.copy),
    "mov.u32": _of("b32 -> b32", np.copy),
    "mov.pred": _of("pred -> pred", np.copy),
    "mapa.shared::cluster.u32": _of("b32 b32 -> b32", lambda at, rank: at + (rank << WINDOW)),
    "neg.s32": _of("s32 -> s32", np.negative),
    "prmt.b32": _of("b32 b32 b32 -> b32", _permute),
    "bfe.u32": _of(
        "u32 u32 u32 -> u32", lambda a, start, count: (a >> start) & ((np.uint32(1) << count) - 1)
    ),
    "mad.lo.s32": _of("s32 s32 s32 -> s32", lambda a, b, c: a * b + c),
    "mad.lo.u32": _of("u32 u32 u32 -> u32", lambda a, b, c: a * b + c),
    "mad.wide.s32": _of("s32 s32 s64 -> s64", lambda a, b, c: _wide(a, b, c, np.int64)),
    "mad.wide.u32": _of("u32 u32 b64 -> b64", lambda a, b, c: _wide(a, b, c, np.uint64)),
    "add.s64": _of("b64 b64 -> b64", np.add),
    "or.b64": _of("b64 b64 -> b64", np.bitwise_or),
    "cvt.s64.s32": _of("s32 -> s64", lambda a: a.astype(np.int64)),
    "cvt.u64.u32": _of("u32 -> b64", lambda a: a.astype(np.uint64)),
    "cvt.u32.u16": _of("b16 -> u32", lambda a: a.astype(np.uint32)),
    "cvt.u16.u32": _of("u32 -> b16", lambda a: a.astype(np.uint16)),
    "cvt.rn.f32.u32": _of("u32 -> f32", lambda a: a.astype(np.float32)),
    "cvt.f32.f16": _of("f16 -> f32", lambda a: a.astype(np.float32)),
    "cvt.rn.relu.f16x2.f32": _of("f32 f32 -> b32", _to_halves),
    "cvt.rn.bf16x2.f32": _of("f32 f32 -> b32", _to_bfloat16),
    "cvt.rn.satfinite.e4m3x2.f32": _of("f32 f32 -> b16", _to_e4m3),
    "cvt.rn.f16x2.e4m3x2": _of("b16 -> b32", _from_e4m3),
}
