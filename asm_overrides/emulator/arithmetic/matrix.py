"""What the matrix instructions compute: register layouts, formats, block scales, sparse operands.

`bind_matrix` reads shape and types from the opcode.  How the products are added is Machine's
matrix_sum; products are exact in float64, and so are sums of fp8, fp6 and fp4 products unless
scales lie more than 10 powers of two apart.  fp64 matrix instructions are not here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import formats
from .assumptions import DEFAULT_MACHINE, INVALID_NAN, Machine
from .float32 import F64, flush_f32, round_sum
from .mode import Mode
from .operands import Array, UnknownOpcode, UnsupportedArithmetic, Words

_OPCODE = re.compile(
    r"v_(?P<kind>mfma|mfma_scale|smfmac)_(?P<result>f32|i32)_(?P<m>\d+)x(?P<n>\d+)x(?P<k>\d+)"
    r"(?:_(?P<blocks>\d+)b)?_(?P<types>f32|f16|bf16|bf16_1k|i8|f8f6f4|[fb]+[fp]*8_[fb]+[fp]*8)"
)
_MAX_F32 = np.float32(np.finfo(np.float32).max)
_LANES = np.arange(64)
_BLGP = {
    1: _LANES % 32,
    2: _LANES % 32 + 32,
    3: (_LANES + 16) % 64,
    4: _LANES % 16,
    5: _LANES % 16 + 16,
    6: _LANES % 16 + 32,
    7: _LANES % 16 + 48,
}
_SELECTABLE = ("fp8", "bf8", "fp6", "bf6", "fp4")


@dataclass(frozen=True)
class Element:
    """A type of matrix elements."""

    name: str
    bits: int
    decode: Callable[[Array], Array]


def _by_table(table: F64) -> Callable[[Array], Array]:
    return lambda codes: table[codes]


_ELEMENTS = {
    element.name: element
    for element in (
        Element("fp8", 8, _by_table(formats.FP8_VALUES)),
        Element("bf8", 8, _by_table(formats.BF8_VALUES)),
        Element("fp6", 6, _by_table(formats.FP6_VALUES)),
        Element("bf6", 6, _by_table(formats.BF6_VALUES)),
        Element("fp4", 4, _by_table(formats.FP4_VALUES)),
        Element("f16", 16, lambda codes: codes.view(np.float16).astype(np.float64)),
        Element("bf16", 16, lambda codes: formats.decode_bf16(codes).astype(np.float64)),
        Element("i8", 8, lambda codes: codes.view(np.int8).astype(np.float64)),
        Element("f32", 32, lambda codes: codes.view(np.float32).astype(np.float64)),
    )
}


@dataclass(frozen=True)
class Side:
    """How one operand, A or B, lies in registers: `rows` of A, or columns of B, by `depth` k."""

    element: Element
    rows: int
    depth: int
    blocks: int
    split: bool
    """A lane's k lie in two runs, half of the depth apart (operands of 8 registers)."""

    @property
    def groups(self) -> int:
        """Groups of lanes that hold different k of the same row."""
        return 64 // (self.rows * self.blocks)

    @property
    def registers(self) -> int:
        return self.depth // self.groups * self.element.bits // 32

    def codes(self, words: Words) -> Array:
        """(registers, waves, 64) words as codes (waves, blocks, rows, depth)."""
        count, waves, _ = words.shape
        runs = 2 if self.split else 1
        apart = words.reshape(runs, count // runs, waves, self.groups, self.blocks, self.rows)
        # (waves, blocks, rows, runs, groups, registers of a run): k in ascending order.
        ordered = np.ascontiguousarray(apart.transpose(2, 4, 5, 0, 3, 1))
        if self.element.bits == 4:
            codes: Array = formats.unpack_nibbles(ordered.view(np.uint8))
        elif self.element.bits == 6:
            codes = formats.unpack_sixes(ordered.view(np.uint8))
        else:
            codes = ordered.view(f"u{self.element.bits // 8}")
        return codes.reshape(waves, self.blocks, self.rows, self.depth)


@dataclass(frozen=True)
class Registers:
    """Register counts of A, B, and of C and D."""

    a: int
    b: int
    c: int


@dataclass(frozen=True)
class BoundMatrix:
    """One matrix instruction: call it with (mode, a, b, c, *scales or index)."""

    opcode: str
    m: int
    n: int
    k: int
    blocks: int
    a: Side
    b: Side
    integer: bool
    scaled: bool
    sparse: bool
    scale_bytes: tuple[int, int]
    index_set: int
    permute_a: NDArray[np.int64] | None
    permute_b: NDArray[np.int64] | None
    machine: Machine

    @property
    def registers(self) -> Registers:
        return Registers(self.a.registers, self.b.registers, self.m * self.n * self.blocks // 64)

    def matrices(self, a: Words, b: Words, index: Words | None = None) -> tuple[Array, Array]:
        """The operands as codes: A (waves, blocks, m, k) and B (waves, blocks, n, k).

        A sparse A is given with its zeros, code 0, and needs the index register.
        """
        if self.permute_a is not None:
            a = a[..., self.permute_a]
        if self.permute_b is not None:
            b = b[..., self.permute_b]
        codes = self.a.codes(a)
        if self.sparse:
            if index is None:
                raise ValueError(f"{self.opcode} needs its index register, got None")
            codes = self._dense(codes, index)
        return codes, self.b.codes(b)

    def scales(self, scale_a: Words, scale_b: Words) -> tuple[Array, Array]:
        """The E8M0 codes: (waves, m, k / 32) of A and (waves, n, k / 32) of B."""
        return (
            _scale_codes(scale_a, self.scale_bytes[0], self.m),
            _scale_codes(scale_b, self.scale_bytes[1], self.n),
        )

    def __call__(self, mode: Mode, a: Words, b: Words, c: Words, *extra: Words) -> Words:
        codes_a, codes_b = self.matrices(a, b, extra[0] if self.sparse else None)
        values_a = self.a.element.decode(codes_a)
        values_b = self.b.element.decode(codes_b)
        if self.a.element.name == "f32" and mode.flush_inputs_f32:
            values_a, values_b = _flush(values_a), _flush(values_b)
        if self.scaled:
            scale_a, scale_b = self.scales(*extra)
            values_a = _apply_scales(values_a, scale_a)
            values_b = _apply_scales(values_b, scale_b)
        if self.integer:
            return self._add_integer(mode, values_a, values_b, c)
        if self.machine.matrix_sum == "even_odd":
            return self._add_even_odd(mode, values_a, values_b, c)
        total = np.matmul(values_a, values_b.swapaxes(-1, -2))
        return _finish(mode, self._to_registers(total), c.view(np.float32).astype(np.float64))

    def _dense(self, codes: Array, index: Words) -> Array:
        """Stored elements (waves, 1, m, k / 2) at the k that the index names, of every 4."""
        waves, _, rows, stored = codes.shape
        groups = self.a.groups
        held = stored // groups
        bits = np.broadcast_to(index, (waves, 64)).reshape(waves, groups, rows)
        shifts = (2 * (self.index_set * held + np.arange(held))).astype(np.uint32)
        choice = (bits[..., None] >> shifts & np.uint32(3)).astype(np.int64)
        # (waves, rows, groups, held) -> (waves, rows, stored), as the codes are ordered.
        choice = choice.transpose(0, 2, 1, 3).reshape(waves, 1, rows, stored)
        positions = 4 * (np.arange(stored) // 2) + choice
        dense = np.zeros((waves, 1, rows, 2 * stored), codes.dtype)
        np.put_along_axis(dense, positions, codes, axis=-1)
        return dense

    def _to_registers(self, total: Array) -> Array:
        """(waves, blocks, m, n) as (registers, waves, 64): 4 rows to a lane, then lane groups."""
        waves = total.shape[0]
        together = max(1, 64 // (self.n * self.m // 4))
        lane_rows = 64 // together // self.n
        row_groups = self.m // (4 * lane_rows)
        shape = (waves, self.blocks // together, together, row_groups, lane_rows, 4, self.n)
        ordered = total.reshape(shape).transpose(1, 3, 5, 0, 2, 4, 6)
        return np.ascontiguousarray(ordered).reshape(-1, waves, 64)

    def _add_integer(self, mode: Mode, a: Array, b: Array, c: Words) -> Words:
        total = np.matmul(a, b.swapaxes(-1, -2))
        exact = self._to_registers(total).astype(np.int64) + c.view(np.int32)
        if mode.fp16_overflow:
            exact = np.clip(exact, -(1 << 31), (1 << 31) - 1)
        return exact.astype(np.uint32)

    def _add_even_odd(self, mode: Mode, a: Array, b: Array, c: Words) -> Words:
        """Machine.matrix_sum "even_odd", 16 k at a time."""
        accumulator = c
        for start in range(0, self.k, 16):
            products = a[..., :, None, start : start + 16] * b[..., None, :, start : start + 16]
            even = self._to_registers(_truncated_sum(products[..., 0::2]))
            odd = self._to_registers(_truncated_sum(products[..., 1::2]))
            # Each sum has at most 28 bits; C joins them before the only rounding.
            accumulator = _finish(mode, even + odd, accumulator.view(np.float32).astype(np.float64))
        return accumulator


def _flush(values: F64) -> F64:
    return flush_f32(values.astype(np.float32)).astype(np.float64)


def _truncated_sum(products: F64) -> F64:
    """The sum over the last axis of products cut to 24 bits below the largest one's leading bit."""
    exponent = np.frexp(np.abs(products).max(axis=-1, keepdims=True))[1] - 1
    cut = np.ldexp(np.trunc(np.ldexp(products, 24 - exponent)), exponent - 24)
    total: F64 = cut.sum(axis=-1)
    return total


def _finish(mode: Mode, total: F64, c: F64) -> Words:
    """total + c rounded to fp32 once, as words."""
    result = round_sum(total, c)
    if mode.fp16_overflow:
        overflow = np.isinf(result) & np.isfinite(total) & np.isfinite(c)
        result = np.where(overflow, np.copysign(_MAX_F32, result), result)
    words = result.view(np.uint32)
    nan = np.isnan(result)
    return np.where(nan, np.uint32(INVALID_NAN), words) if np.count_nonzero(nan) else words


def _scale_codes(scale: Words, byte: int, rows: int) -> Array:
    """Lane rows * block + row holds the scale of 32 k, in the byte that the modifiers name."""
    codes = (scale >> np.uint32(8 * byte)).astype(np.uint8)
    waves = codes.shape[0]
    lanes = np.broadcast_to(codes, (waves, 64)).reshape(waves, 64 // rows, rows)
    result: Array = lanes.transpose(0, 2, 1)
    return result


def _apply_scales(values: F64, scales: Array) -> F64:
    waves, blocks, rows, depth = values.shape
    factors = formats.E8M0_VALUES[scales][:, None, :, :, None]
    scaled: F64 = (values.reshape(waves, blocks, rows, depth // 32, 32) * factors).reshape(
        waves, blocks, rows, depth
    )
    return scaled


def bind_matrix(
    opcode: str, modifiers: Mapping[str, Any] | None = None, machine: Machine = DEFAULT_MACHINE
) -> BoundMatrix:
    """The matrix instruction with these modifiers.

    Raises UnknownOpcode for an opcode that is none, UnsupportedArithmetic for a format code
    (cbsz, blgp) that does not exist.
    """
    match = _OPCODE.fullmatch(opcode)
    if match is None:
        raise UnknownOpcode(f"opcode {opcode!r} is not a matrix instruction of gfx950 known here")
    modifiers = modifiers or {}
    m, n, k = (int(match[name]) for name in ("m", "n", "k"))
    blocks = int(match["blocks"] or 1)
    sparse = match["kind"] == "smfmac"
    selectable = match["types"] == "f8f6f4"
    name_a, name_b = _element_names(opcode, match["types"], modifiers)
    depth_a = k // 2 if sparse else k
    a = _side(name_a, m, depth_a, blocks, selectable)
    b = _side(name_b, n, k, blocks, selectable or sparse)
    cbsz, abid, blgp = (int(modifiers.get(name, 0)) for name in ("cbsz", "abid", "blgp"))
    plain = not selectable and not sparse
    broadcast = 64 >> cbsz
    return BoundMatrix(
        opcode=opcode,
        m=m,
        n=n,
        k=k,
        blocks=blocks,
        a=a,
        b=b,
        integer=match["result"] == "i32",
        scaled=match["kind"] == "mfma_scale",
        sparse=sparse,
        scale_bytes=_scale_bytes(modifiers),
        # A set as wide as the register leaves no choice; cbsz turns the choice off.
        index_set=abid if sparse and cbsz == 0 and a.depth // a.groups < 16 else 0,
        permute_a=_LANES % broadcast + broadcast * abid if plain and cbsz else None,
        permute_b=_BLGP[blgp] if plain and blgp else None,
        machine=machine,
    )


def _side(name: str, rows: int, depth: int, blocks: int, may_split: bool) -> Side:
    side = Side(_ELEMENTS[name], rows, depth, blocks, split=False)
    if may_split and side.registers == 8:
        return Side(_ELEMENTS[name], rows, depth, blocks, split=True)
    return side


def _element_names(opcode: str, types: str, modifiers: Mapping[str, Any]) -> tuple[str, str]:
    if types == "f8f6f4":
        names = []
        for key in ("cbsz", "blgp"):
            code = int(modifiers.get(key, 0))
            if code >= len(_SELECTABLE):
                raise UnsupportedArithmetic(
                    f"{opcode} with {key}:{code}; 0 to 4 ({', '.join(_SELECTABLE)}) are accepted"
                )
            names.append(_SELECTABLE[code])
        return names[0], names[1]
    if types in _ELEMENTS:
        return types, types
    if types == "bf16_1k":
        return "bf16", "bf16"
    first, _, second = types.partition("_")
    if first in _ELEMENTS and second in _ELEMENTS:
        return first, second
    raise UnknownOpcode(f"opcode {opcode!r} has element types {types!r} that are not known here")


def _scale_bytes(modifiers: Mapping[str, Any]) -> tuple[int, int]:
    low = (*modifiers.get("op_sel", ()), 0, 0)
    high = (*modifiers.get("op_sel_hi", ()), 0, 0)
    return int(low[0]) + 2 * int(high[0]), int(low[1]) + 2 * int(high[1])
