"""How words become typed operands and back, modifiers included; not what an operation computes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from .assumptions import Machine
from .float32 import flush_f32
from .mode import Mode
from .operands import (
    PACKED_16,
    PACKED_32,
    SIXTEEN_BIT,
    SIXTY_FOUR_BIT,
    Array,
    UnsupportedArithmetic,
    Words,
    join64,
    split64,
)

Modifiers = Mapping[str, Any]
Function = Callable[..., Any]
Factory = Callable[[Machine, Modifiers], Function]
Read = Callable[[Mode, Words], Array]
Write = Callable[[Mode, Array, Words | None], Words]
Evaluate = Callable[[Mode, tuple[Words, ...], Words | None], Any]

_DTYPES: dict[str, type[np.generic]] = {
    "b32": np.uint32,
    "u32": np.uint32,
    "i32": np.int32,
    "f32": np.float32,
    "b64": np.uint64,
    "u64": np.uint64,
    "i64": np.int64,
    "f64": np.float64,
    "b16": np.uint16,
    "u16": np.uint16,
    "i16": np.int16,
    "f16": np.float16,
    "bf16": np.uint16,
}
_FLOAT_KINDS = frozenset({"f16", "f32", "f64", "bf16"})
_SIGNS = {"b16": 0x8000, "bf16": 0x8000, "f16": 0x8000, "b32": 1 << 31, "f32": 1 << 31}
_SDWA_FIELDS = {
    "DWORD": (0, 32),
    "WORD_0": (0, 16),
    "WORD_1": (16, 16),
    "BYTE_0": (0, 8),
    "BYTE_1": (8, 8),
    "BYTE_2": (16, 8),
    "BYTE_3": (24, 8),
}
_LOW_HALF = np.uint32(0xFFFF)
_HIGH_HALF = np.uint32(0xFFFF0000)
_SIXTEEN = np.uint32(16)


@dataclass(frozen=True)
class Operation:
    """One opcode.

    `function(mode, *typed sources)` gives the typed result, or a tuple of them; `factory` makes
    such a function where it depends on the machine or on modifiers.
    """

    name: str
    results: tuple[str, ...]
    sources: tuple[str, ...]
    function: Function | None = None
    factory: Factory | None = None
    accumulates: bool = False
    """The old destination, typed like the first result, is the function's last argument."""
    merges: bool = False
    """The function's last argument is the old destination as words: it writes part of it."""
    keeps_high: bool | None = False
    """A 16-bit result preserves the high half of the destination (True), or writes 0 there (False).

    None: Machine.short_results_keep_high_half decides.
    """


@dataclass(frozen=True)
class BoundOperation:
    """An operation with its modifiers: call it with (mode, *sources, old=None)."""

    opcode: str
    results: tuple[str, ...]
    sources: tuple[str, ...]
    needs_old: bool
    evaluate: Evaluate

    def __call__(self, mode: Mode, *sources: Words, old: Words | None = None) -> Any:
        return self.evaluate(mode, sources, old)


def bind(operation: Operation, modifiers: Modifiers, machine: Machine) -> BoundOperation:
    """The operation with these modifiers; raises UnsupportedArithmetic where they cannot apply."""
    _refuse_output_modifiers(operation, modifiers)
    function = cast(
        Function,
        operation.factory(machine, modifiers) if operation.factory else operation.function,
    )
    reads = [_reader(operation, index, modifiers) for index in range(len(operation.sources))]
    writes = [
        _writer(operation, index, modifiers, machine) for index in range(len(operation.results))
    ]
    read_old = _plain_reader(operation.results[0]) if operation.accumulates else None
    needs_old = operation.accumulates or operation.merges or writes[0][1]
    merges = operation.merges
    write_one = writes[0][0]
    several = tuple(write for write, _ in writes) if len(writes) > 1 else ()

    def general(mode: Mode, sources: tuple[Words, ...], old: Words | None) -> Any:
        typed: list[Array] = [
            read(mode, source) for read, source in zip(reads, sources, strict=True)
        ]
        if read_old is not None:
            typed.append(read_old(mode, cast(Words, old)))
        elif merges:
            typed.append(cast(Words, old))
        result = function(mode, *typed)
        if several:
            return tuple(write(mode, one, old) for write, one in zip(several, result, strict=True))
        return write_one(mode, result, old)

    simple = read_old is None and not merges and not several
    evaluate = _without_loops(function, reads, write_one) if simple else None
    return BoundOperation(
        operation.name, operation.results, operation.sources, needs_old, evaluate or general
    )


def _without_loops(function: Function, reads: list[Read], write: Write) -> Evaluate | None:
    """The common operations, one result from one to three sources, without loops over sources."""
    if len(reads) == 1:
        (read,) = reads
        return lambda mode, sources, old: write(mode, function(mode, read(mode, *sources)), old)
    if len(reads) == 2:
        first, second = reads

        def binary(mode: Mode, sources: tuple[Words, ...], old: Words | None) -> Any:
            a, b = sources
            return write(mode, function(mode, first(mode, a), second(mode, b)), old)

        return binary
    if len(reads) == 3:
        r0, r1, r2 = reads

        def ternary(mode: Mode, sources: tuple[Words, ...], old: Words | None) -> Any:
            a, b, c = sources
            return write(mode, function(mode, r0(mode, a), r1(mode, b), r2(mode, c)), old)

        return ternary
    return None


def _refuse_output_modifiers(operation: Operation, modifiers: Modifiers) -> None:
    kind = operation.results[0]
    takes_omod = kind in ("f16", "f32", "f64")
    if ("mul" in modifiers or "div" in modifiers) and not takes_omod:
        raise UnsupportedArithmetic(
            f"{operation.name} cannot have mul or div: its result is {kind}"
        )
    if modifiers.get("clamp") and not (takes_omod or kind in ("pf16", "pf32") or operation.factory):
        raise UnsupportedArithmetic(f"{operation.name} with clamp is not supported")


def _flag(modifiers: Modifiers, key: str, index: int) -> bool:
    values = modifiers.get(key, ())
    return index < len(values) and bool(values[index])


def _reader(operation: Operation, index: int, modifiers: Modifiers) -> Read:
    kind = operation.sources[index]
    if kind in PACKED_16:
        return _packed16_reader(kind, index, modifiers)
    if kind in PACKED_32:
        return _packed32_reader(kind, index, modifiers)
    if kind == "mix":
        # The function applies op_sel and signs itself.
        return lambda mode, words: words
    read = _typed_reader(kind, high=_flag(modifiers, "op_sel", index))
    select = modifiers.get(f"src{index}_sel", "DWORD")
    if select != "DWORD":
        read = _after(_field_reader(select, _flag(modifiers, "sext", index)), read)
    negate, absolute = _flag(modifiers, "neg", index), _flag(modifiers, "abs", index)
    if negate or absolute:
        read = _with_sign(read, operation.name, kind, negate, absolute)
    return read


def _plain_reader(kind: str) -> Read:
    if kind in PACKED_16:
        return _packed16_reader(kind, 0, {})
    return _typed_reader(kind)


def _after(first: Callable[[Words], Words], read: Read) -> Read:
    return lambda mode, words: read(mode, first(words))


def _field_reader(select: str, signed: bool) -> Callable[[Words], Words]:
    """SDWA: one byte or half of a word, extended to a word."""
    offset, width = _SDWA_FIELDS[select]
    up, down = np.uint32(32 - offset - width), np.uint32(32 - width)
    if signed:
        return lambda words: ((words << up).view(np.int32) >> down.view(np.int32)).view(np.uint32)
    return lambda words: words << up >> down


def _with_sign(read: Read, name: str, kind: str, negate: bool, absolute: bool) -> Read:
    if kind == "f64":
        change = np.negative if negate else np.positive
        if absolute:
            return lambda mode, words: change(np.abs(read(mode, words)))
        return lambda mode, words: change(read(mode, words))
    if kind not in _SIGNS:
        raise UnsupportedArithmetic(f"{name} cannot negate or take |x| of its {kind} source")
    sign = _SIGNS[kind]
    flip = sign if negate else 0
    keep = sign - 1 if absolute else 2 * sign - 1

    def signed(mode: Mode, words: Words) -> Array:
        value = read(mode, words)
        bits = value.view(np.uint16 if sign == 0x8000 else np.uint32)
        result: Array = (bits & bits.dtype.type(keep) ^ bits.dtype.type(flip)).view(value.dtype)
        return result

    return signed


def _typed_reader(kind: str, high: bool = False) -> Read:
    if kind in SIXTEEN_BIT:
        dtype = _DTYPES[kind]
        read = _half_reader(dtype, high)
        return _flushing(read, flush_f16) if kind == "f16" else read
    if kind == "f32":
        return _read_f32
    if kind == "f64":
        return _flushing(lambda mode, pair: join64(pair).view(np.float64), flush_f64)
    if kind in SIXTY_FOUR_BIT:
        dtype64 = _DTYPES[kind]
        return lambda mode, pair: join64(pair).view(dtype64)
    if kind == "i32":
        return lambda mode, words: words.view(np.int32)
    return lambda mode, words: words


def _half_reader(dtype: type[np.generic], high: bool) -> Read:
    if high:
        return lambda mode, words: (words >> _SIXTEEN).astype(np.uint16).view(dtype)
    return lambda mode, words: words.astype(np.uint16).view(dtype)


def _read_f32(mode: Mode, words: Words) -> Array:
    value = words.view(np.float32)
    return flush_f32(value) if mode.flush_inputs_f32 else value


def _flushing(read: Read, flush: Callable[[Array], Array]) -> Read:
    def evaluate(mode: Mode, words: Words) -> Array:
        value = read(mode, words)
        return flush(value) if mode.flush_inputs_f64_f16 else value

    return evaluate


def flush_f16(x: Array) -> Array:
    return np.where(np.abs(x) < np.float16(2.0**-14), np.copysign(np.float16(0), x), x)


def flush_f64(x: Array) -> Array:
    return np.where(np.abs(x) < 2.0**-1022, np.copysign(0.0, x), x)


def _packed16_reader(kind: str, index: int, modifiers: Modifiers) -> Read:
    """(2, ...): the halves that op_sel and op_sel_hi choose for the low and the high result."""
    element = kind[1:]
    op_sel_hi = modifiers.get("op_sel_hi")
    high_half = bool(op_sel_hi[index]) if op_sel_hi is not None else True
    low = _typed_reader(element, _flag(modifiers, "op_sel", index))
    high = _typed_reader(element, high_half)
    if _flag(modifiers, "neg_lo", index):
        low = _with_sign(low, "packed", element, True, False)
    if _flag(modifiers, "neg_hi", index):
        high = _with_sign(high, "packed", element, True, False)
    return lambda mode, words: np.stack([low(mode, words), high(mode, words)])


def _packed32_reader(kind: str, index: int, modifiers: Modifiers) -> Read:
    """(2, ...): the words of a pair that op_sel and op_sel_hi choose."""
    op_sel_hi = modifiers.get("op_sel_hi")
    first = int(_flag(modifiers, "op_sel", index))
    second = int(op_sel_hi[index]) if op_sel_hi is not None else 1
    negate_first = _flag(modifiers, "neg_lo", index)
    negate_second = _flag(modifiers, "neg_hi", index)
    flips = np.array([negate_first << 31, negate_second << 31], np.uint32).reshape(2, 1, 1)
    is_float = kind == "pf32"

    def read(mode: Mode, pair: Words) -> Array:
        if first == second:
            pair = pair[first : first + 1]
        elif second == 0:
            pair = pair[::-1]
        if negate_first or negate_second:
            pair = pair ^ flips
        return _read_f32(mode, pair) if is_float else pair

    return read


def _writer(
    operation: Operation, index: int, modifiers: Modifiers, machine: Machine
) -> tuple[Write, bool]:
    """The writer of a result, and whether it needs the old destination."""
    kind = operation.results[index]
    if kind == "mask":
        return (lambda mode, value, old: value), False
    write = _plain_writer(kind)
    # The machine or modifiers already took part in a factory's integer result.
    if index == 0 and kind in ("f16", "f32", "f64", "pf16", "pf32"):
        write = _shaped(write, kind, modifiers)
    if index == 0 and modifiers.get("dst_sel", "DWORD") != "DWORD":
        return _into_field(write, modifiers)
    if index == 0 and kind in SIXTEEN_BIT and not operation.merges:
        if _flag(modifiers, "op_sel", len(operation.sources)):
            return _into_high(write), True
        keeps = operation.keeps_high
        if machine.short_results_keep_high_half if keeps is None else keeps:
            return _into_low(write), True
    return write, False


def _plain_writer(kind: str) -> Write:
    if kind in PACKED_16:
        return lambda mode, value, old: _pack_halves(value)
    if kind in SIXTEEN_BIT:
        return lambda mode, value, old: value.view(np.uint16).astype(np.uint32)
    if kind in SIXTY_FOUR_BIT:
        return lambda mode, value, old: split64(value)
    return lambda mode, value, old: value.view(np.uint32)


def _pack_halves(value: Array) -> Words:
    halves = value.view(np.uint16).astype(np.uint32)
    packed: Words = halves[0] | halves[1] << _SIXTEEN
    return packed


def _shaped(write: Write, kind: str, modifiers: Modifiers) -> Write:
    """Output modifiers and denormal flushing, before the words are written."""
    single = kind in ("f32", "pf32")
    flush = flush_f32 if single else flush_f64 if kind == "f64" else flush_f16
    clamp = bool(modifiers.get("clamp"))
    factor = float(modifiers.get("mul", 1)) / float(modifiers.get("div", 1))

    def evaluate(mode: Mode, value: Array, old: Words | None) -> Words:
        if factor != 1:
            value = value * value.dtype.type(factor)
        if clamp:
            value = _clamp(value, mode)
        if mode.flush_results_f32 if single else mode.flush_results_f64_f16:
            value = flush(value)
        return write(mode, value, old)

    return evaluate


def _clamp(value: Array, mode: Mode) -> Array:
    """To [0, 1]; NaN to 0 if MODE says so."""
    one = value.dtype.type(1)
    zero = value.dtype.type(0)
    clamped = np.where(value > one, one, np.where(value > zero, value, zero))
    return clamped if mode.dx10_clamp else np.where(np.isnan(value), value, clamped)


def _into_high(write: Write) -> Write:
    return lambda mode, value, old: (
        cast(Words, old) & _LOW_HALF | write(mode, value, None) << _SIXTEEN
    )


def _into_low(write: Write) -> Write:
    return lambda mode, value, old: cast(Words, old) & _HIGH_HALF | write(mode, value, None)


def _into_field(write: Write, modifiers: Modifiers) -> tuple[Write, bool]:
    """SDWA: the result in one byte or half, the rest zero, sign-extended or preserved."""
    offset, width = _SDWA_FIELDS[modifiers["dst_sel"]]
    shift = np.uint32(offset)
    field = np.uint32(((1 << width) - 1) << offset)
    unused = modifiers.get("dst_unused", "UNUSED_PAD")

    def pad(mode: Mode, value: Array, old: Words | None) -> Words:
        result: Words = write(mode, value, None) << shift & field
        return result

    def preserve(mode: Mode, value: Array, old: Words | None) -> Words:
        result: Words = cast(Words, old) & ~field | pad(mode, value, None)
        return result

    def extend(mode: Mode, value: Array, old: Words | None) -> Words:
        up = np.uint32(32 - width)
        down = np.int32(32 - width - offset)
        result: Words = ((write(mode, value, None) << up).view(np.int32) >> down).view(np.uint32)
        return result

    if unused == "UNUSED_PRESERVE":
        return preserve, True
    if unused == "UNUSED_SEXT":
        return extend, False
    return pad, False
