"""The dot product opcodes of the vector ALU: pairs of fp16 or bf16, and packed integers."""

from __future__ import annotations

import numpy as np

from .assumptions import Machine
from .binding import Factory, Function, Modifiers, Operation
from .float32 import F32, flush_f32, round_sum, settle_nan, sum_to_odd
from .formats import decode_bf16
from .mode import Mode
from .operands import Array

OPERATIONS: dict[str, Operation] = {}


def _values(pair: Array) -> F32:
    """fp16 or bf16 numbers as fp32, denormals of their own format flushed."""
    if pair.dtype == np.uint16:
        return flush_f32(decode_bf16(pair))
    wide: F32 = pair.astype(np.float32)
    return np.where(np.abs(wide) < np.float32(2.0**-14), np.copysign(np.float32(0), wide), wide)


def _dot2(machine: Machine, modifiers: Modifiers) -> Function:
    exact = machine.dot2_sum == "exact"

    def evaluate(mode: Mode, a: Array, b: Array, c: F32) -> F32:
        products = _values(a).astype(np.float64) * _values(b)
        addend = flush_f32(c).astype(np.float64)
        if exact:
            # Rounded to odd, the sum of the products cannot mislead the last rounding.
            result = round_sum(sum_to_odd(products[0], products[1]), addend)
        else:
            first = round_sum(products[0], addend)
            result = round_sum(products[1], first.astype(np.float64))
        return settle_nan(flush_f32(result), c)

    return evaluate


def _add(name: str, sources: str, result: str, factory: Factory, compact: bool = False) -> None:
    """The opcode with three sources, or the compact one whose third is the destination."""
    kinds = tuple(sources.split())
    OPERATIONS[name] = Operation(
        name, (result,), kinds[:2] if compact else kinds, factory=factory, accumulates=compact
    )


for _kind in ("f16", "bf16"):
    _add(f"v_dot2_f32_{_kind}", f"p{_kind} p{_kind} f32", "f32", _dot2)
    _add(f"v_dot2c_f32_{_kind}", f"p{_kind} p{_kind} f32", "f32", _dot2, compact=True)


def _elements(words: Array, bits: int, signed: bool) -> Array:
    """Packed integers of `bits` bits as int64, one a row of the first axis."""
    shifts = np.arange(0, 32, bits, dtype=np.uint32).reshape(-1, *([1] * words.ndim))
    fields = (words.view(np.uint32) >> shifts & np.uint32((1 << bits) - 1)).astype(np.int64)
    result: Array = (fields ^ (1 << bits - 1)) - (1 << bits - 1) if signed else fields
    return result


def _integer_dot(bits: int, signed: bool) -> Factory:
    low, high = (-(1 << 31), (1 << 31) - 1) if signed else (0, (1 << 32) - 1)

    def make(machine: Machine, modifiers: Modifiers) -> Function:
        clamp = bool(modifiers.get("clamp"))

        def evaluate(mode: Mode, a: Array, b: Array, c: Array) -> Array:
            total = c.astype(np.int64) + (
                _elements(a, bits, signed) * _elements(b, bits, signed)
            ).sum(axis=0)
            result: Array = (np.clip(total, low, high) if clamp else total).astype(np.uint32)
            return result

        return evaluate

    return make


for _count, _bits in ((2, 16), (4, 8), (8, 4)):
    for _sign, _signed in (("i", True), ("u", False)):
        _kinds = f"u32 u32 {_sign}32"
        _tail = f"{_sign}32_{_sign}{_bits}"
        _add(f"v_dot{_count}_{_tail}", _kinds, f"{_sign}32", _integer_dot(_bits, _signed))
        if _signed:
            _add(
                f"v_dot{_count}c_{_tail}",
                _kinds,
                "i32",
                _integer_dot(_bits, True),
                compact=True,
            )
