"""The 32-bit and 64-bit integer and bit opcodes of the vector ALU, moves and swaps."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, reduce
from typing import Any

import numpy as np

from .assumptions import Machine
from .binding import Function, Modifiers, Operation
from .operands import Array, Mask, Words

OPERATIONS: dict[str, Operation] = {}

_U32 = np.uint32
_FIVE_BITS = np.uint32(31)
_THIRTY_TWO = np.uint64(32)
_LANES = np.arange(64, dtype=np.uint64)


def _define(
    name: str,
    sources: str,
    function: Callable[..., Any],
    results: str = "u32",
    accumulates: bool = False,
) -> None:
    OPERATIONS[name] = Operation(
        name,
        tuple(results.split()),
        tuple(sources.split()),
        lambda mode, *typed: function(*typed),
        accumulates=accumulates,
    )


def wide(x: Words) -> Array:
    return x.astype(np.uint64)


def _signed_wide(x: Array) -> Array:
    return x.astype(np.int64)


def _low(x: Array) -> Words:
    return x.astype(np.uint32)


# Additions.  Clamp saturates, so these are made when the modifiers are known.


def _saturating(
    exact: Callable[..., Array], signed: bool
) -> Callable[[Machine, Modifiers], Function]:
    """A 32-bit operation from one that is exact in int64; clamp saturates it."""
    low, high = (-(1 << 31), (1 << 31) - 1) if signed else (0, (1 << 32) - 1)

    def make(machine: Machine, modifiers: Modifiers) -> Function:
        if modifiers.get("clamp"):
            return lambda mode, *typed: np.clip(
                exact(*(_signed_wide(x) for x in typed)), low, high
            ).astype(np.uint32)
        return lambda mode, *typed: exact(*typed)

    return make


def _define_saturating(name: str, kinds: str, exact: Callable[..., Array]) -> None:
    kind = kinds.split()[0]
    OPERATIONS[name] = Operation(
        name, (kind,), tuple(kinds.split()), factory=_saturating(exact, kind == "i32")
    )


def _subtract_reversed(a: Array, b: Array) -> Array:
    return b - a


_define_saturating("v_add_u32", "u32 u32", np.add)
_define_saturating("v_sub_u32", "u32 u32", np.subtract)
_define_saturating("v_subrev_u32", "u32 u32", _subtract_reversed)
_define_saturating("v_add_i32", "i32 i32", np.add)
_define_saturating("v_sub_i32", "i32 i32", np.subtract)
_define("v_add3_u32", "u32 u32 u32", lambda a, b, c: a + b + c)


def add_carry(a: Words, b: Words, carry: Mask | None = None) -> tuple[Words, Mask]:
    """a + b + carry and the carry out."""
    total = a + b
    out: Mask = total < a
    if carry is not None:
        more = total + carry
        out = out | (more < total)
        total = more
    return total, out


def subtract_borrow(a: Words, b: Words, borrow: Mask | None = None) -> tuple[Words, Mask]:
    """a - b - borrow and the borrow out."""
    difference = a - b
    out: Mask = a < b
    if borrow is not None:
        out = out | (borrow & (difference == 0))
        difference = difference - borrow
    return difference, out


_define("v_add_co_u32", "u32 u32", add_carry, "u32 mask")
_define("v_sub_co_u32", "u32 u32", subtract_borrow, "u32 mask")
_define("v_subrev_co_u32", "u32 u32", lambda a, b: subtract_borrow(b, a), "u32 mask")
_define("v_addc_co_u32", "u32 u32 mask", add_carry, "u32 mask")
_define("v_subb_co_u32", "u32 u32 mask", subtract_borrow, "u32 mask")
_define("v_subbrev_co_u32", "u32 u32 mask", lambda a, b, c: subtract_borrow(b, a, c), "u32 mask")

# Multiplications.


def _unsigned24(x: Words) -> Array:
    result: Array = x & np.uint32(0xFFFFFF)
    return result


def _signed24(x: Array) -> Array:
    result: Array = x << np.int32(8) >> np.int32(8)
    return result


def _high_unsigned(a: Words, b: Words) -> Words:
    return _low(wide(a) * b >> _THIRTY_TWO)


def _high_signed(a: Array, b: Array) -> Array:
    result: Array = (_signed_wide(a) * b >> np.int64(32)).astype(np.int32)
    return result


_define("v_mul_lo_u32", "u32 u32", np.multiply)
_define("v_mul_hi_u32", "u32 u32", _high_unsigned)
_define("v_mul_hi_i32", "i32 i32", _high_signed, "i32")
_define("v_mul_u32_u24", "u32 u32", lambda a, b: _unsigned24(a) * _unsigned24(b))
_define("v_mul_hi_u32_u24", "u32 u32", lambda a, b: _high_unsigned(_unsigned24(a), _unsigned24(b)))
_define("v_mul_i32_i24", "i32 i32", lambda a, b: _signed24(a) * _signed24(b), "i32")
_define("v_mul_hi_i32_i24", "i32 i32", lambda a, b: _high_signed(_signed24(a), _signed24(b)), "i32")
_define_saturating(
    "v_mad_u32_u24", "u32 u32 u32", lambda a, b, c: (a & 0xFFFFFF) * (b & 0xFFFFFF) + c
)


def _mad_i32_i24(a: Array, b: Array, c: Array) -> Array:
    # Also called with int64 sources, whose 24 low bits are taken the same way.
    shift = a.dtype.type(8 * a.dtype.itemsize - 24)
    result: Array = (a << shift >> shift) * (b << shift >> shift) + c
    return result


_define_saturating("v_mad_i32_i24", "i32 i32 i32", _mad_i32_i24)
_define("v_mad_u32_u16", "u16 u16 u32", lambda a, b, c: a.astype(np.uint32) * b + c)
_define("v_mad_i32_i16", "i16 i16 i32", lambda a, b, c: a.astype(np.int32) * b + c, "i32")


def _mad_u64(a: Words, b: Words, c: Array) -> tuple[Array, Mask]:
    total = wide(a) * b + c
    return total, total < c


def _mad_i64(a: Array, b: Array, c: Array) -> tuple[Array, Mask]:
    """The mask is bit 64 of the exact signed sum, which is its sign."""
    product = _signed_wide(a) * b
    total = product + c
    # Adding numbers of one sign overflows when the sum's sign differs: the exact sign is theirs.
    overflow = ((total ^ product) & (total ^ c)) < 0
    return total, (total < 0) ^ overflow


_define("v_mad_u64_u32", "u32 u32 u64", _mad_u64, "u64 mask")
_define("v_mad_i64_i32", "i32 i32 i64", _mad_i64, "i64 mask")

# Shifts: the count uses 5 bits, or 6 of a 64-bit operand.


def _count(x: Array) -> Array:
    result: Array = x & x.dtype.type(31)
    return result


def _count64(x: Words) -> Array:
    return wide(x & np.uint32(63))


_define("v_lshlrev_b32", "u32 u32", lambda n, x: x << _count(n))
_define("v_lshrrev_b32", "u32 u32", lambda n, x: x >> _count(n))
_define("v_ashrrev_i32", "i32 i32", lambda n, x: x >> _count(n), "i32")
_define("v_lshlrev_b64", "u32 u64", lambda n, x: x << _count64(n), "u64")
_define("v_lshrrev_b64", "u32 u64", lambda n, x: x >> _count64(n), "u64")
_define("v_ashrrev_i64", "u32 i64", lambda n, x: x >> _count64(n).view(np.int64), "i64")
_define("v_lshl_add_u32", "u32 u32 u32", lambda x, n, c: (x << _count(n)) + c)
_define("v_add_lshl_u32", "u32 u32 u32", lambda a, b, n: a + b << _count(n))
_define("v_lshl_or_b32", "u32 u32 u32", lambda x, n, c: x << _count(n) | c)


def _shift_add64(x: Array, n: Words, c: Array) -> Array:
    """Shifts beyond 4 count as none (manual)."""
    count = n & _U32(7)
    result: Array = (x << wide(np.where(count > 4, _U32(0), count))) + c
    return result


_define("v_lshl_add_u64", "u64 u32 u64", _shift_add64, "u64")


def _align(high: Words, low: Words, bits: Words) -> Words:
    return _low((wide(high) << _THIRTY_TWO | low) >> wide(bits))


_define("v_alignbit_b32", "u32 u32 u32", lambda a, b, n: _align(a, b, n & _FIVE_BITS))
_define("v_alignbyte_b32", "u32 u32 u32", lambda a, b, n: _align(a, b, (n & _U32(3)) * _U32(8)))

# Bits.

_define("v_and_b32", "u32 u32", np.bitwise_and)
_define("v_or_b32", "u32 u32", np.bitwise_or)
_define("v_xor_b32", "u32 u32", np.bitwise_xor)
_define("v_xnor_b32", "u32 u32", lambda a, b: ~(a ^ b))
_define("v_not_b32", "u32", np.invert)
_define("v_and_or_b32", "u32 u32 u32", lambda a, b, c: a & b | c)
_define("v_or3_b32", "u32 u32 u32", lambda a, b, c: a | b | c)
_define("v_xad_u32", "u32 u32 u32", lambda a, b, c: (a ^ b) + c)
_define("v_bfi_b32", "u32 u32 u32", lambda m, a, b: m & a | ~m & b)
_define(
    "v_bfm_b32", "u32 u32", lambda width, at: ((_U32(1) << _count(width)) - _U32(1)) << _count(at)
)


def field_unsigned(x: Words, offset: Words, width: Words) -> Words:
    result: Words = x >> _count(offset) & (_U32(1) << _count(width)) - _U32(1)
    return result


def field_signed(x: Array, offset: Array, width: Array) -> Array:
    """The sign is the field's own top bit; a field of no bits is 0."""
    width = _count(width)
    field = x >> _count(offset) & (np.int32(1) << width) - np.int32(1)
    top = np.where(width > 0, np.int32(1) << np.maximum(width - np.int32(1), np.int32(0)), 0)
    result: Array = ((field ^ top) - top).astype(np.int32)
    return result


_define("v_bfe_u32", "u32 u32 u32", field_unsigned)
_define("v_bfe_i32", "i32 i32 i32", field_signed, "i32")


def truth_table(table: int, a: Array, b: Array, c: Array) -> Array:
    """Bit i of the result is bit {a[i], b[i], c[i]} of the table."""
    terms = []
    for factors in _exclusive_or_form(table):
        chosen = [x for bit, x in ((4, a), (2, b), (1, c)) if factors & bit]
        terms.append(reduce(np.bitwise_and, chosen) if chosen else _all_ones(a.dtype))
    return reduce(np.bitwise_xor, terms) if terms else np.zeros((1, 1), a.dtype)


def _all_ones(dtype: np.dtype[Any]) -> Array:
    return np.full((1, 1), np.iinfo(dtype).max, dtype)


@cache
def _exclusive_or_form(table: int) -> tuple[int, ...]:
    """The products (bit 2: a, bit 1: b, bit 0: c) whose exclusive or is the table's function."""
    coefficients = [table >> index & 1 for index in range(8)]
    for bit in (1, 2, 4):
        for index in range(8):
            if index & bit:
                coefficients[index] ^= coefficients[index ^ bit]
    return tuple(index for index in range(8) if coefficients[index])


def _bitop3(machine: Machine, modifiers: Modifiers) -> Function:
    table = int(modifiers.get("bitop3", 0))
    return lambda mode, a, b, c: truth_table(table, a, b, c)


OPERATIONS["v_bitop3_b32"] = Operation("v_bitop3_b32", ("u32",), ("u32",) * 3, factory=_bitop3)


def reverse_bits(x: Words) -> Words:
    for shift, mask in ((1, 0x55555555), (2, 0x33333333), (4, 0x0F0F0F0F)):
        keep, by = np.uint32(mask), np.uint32(shift)
        x = (x >> by & keep) | (x & keep) << by
    result: Words = x.byteswap()
    return result


def count_bits(x: Array) -> Words:
    """Population count of uint32 or uint64 numbers."""
    octets = np.ascontiguousarray(x).view(np.uint8).reshape(*x.shape, x.dtype.itemsize)
    counts: Words = np.unpackbits(octets, axis=-1).sum(axis=-1, dtype=np.uint32)
    return counts


def top_bit(x: Array) -> Array:
    """The number of the highest one bit of unsigned numbers, -1 for 0."""
    result: Array = np.full(x.shape, -1, np.int32)
    for half in (32, 16, 8, 4, 2, 1):
        if half >= x.dtype.itemsize * 8:
            continue
        upper = x >> x.dtype.type(half)
        found = upper != 0
        result = result + np.where(found, np.int32(half), np.int32(0))
        x = np.where(found, upper, x)
    answer: Array = result + (x != 0).astype(np.int32)
    return answer


def leading_zeros(x: Array) -> Array:
    """v_ffbh_u32, s_flbit_i32_b*: zeros above the highest one bit, -1 for 0."""
    top = top_bit(x)
    result: Array = np.where(top < 0, np.int32(-1), np.int32(x.dtype.itemsize * 8 - 1) - top)
    return result


def trailing_zeros(x: Array) -> Array:
    """v_ffbl_b32, s_ff1_i32_b*: the number of the lowest one bit, -1 for 0."""
    return top_bit(x & (~x + x.dtype.type(1)))


def leading_signs(x: Array) -> Array:
    """v_ffbh_i32, s_flbit_i32: bits equal to the sign bit from the top, -1 if all are."""
    unsigned = np.uint32 if x.dtype == np.int32 else np.uint64
    return leading_zeros((x ^ (x >> x.dtype.type(8 * x.dtype.itemsize - 1))).view(unsigned))


_define("v_bfrev_b32", "u32", reverse_bits)
_define("v_ffbh_u32", "u32", leading_zeros, "i32")
_define("v_ffbh_i32", "i32", leading_signs, "i32")
_define("v_ffbl_b32", "u32", trailing_zeros, "i32")
_define("v_bcnt_u32_b32", "u32 u32", lambda a, b: count_bits(a) + b)


def _masked_count(half: int) -> Callable[[Words, Words], Words]:
    """Ones of a below this lane's bit, in the low or high half of the wave, plus b."""
    below = ((np.uint64(1) << _LANES) - np.uint64(1)) >> np.uint64(32 * half)
    mask = below.astype(np.uint32)
    return lambda a, b: count_bits(a & mask) + b


_define("v_mbcnt_lo_u32_b32", "u32 u32", _masked_count(0))
_define("v_mbcnt_hi_u32_b32", "u32 u32", _masked_count(1))


def _permute_byte(joined: Array, select: Array) -> Array:
    """One result byte of v_perm_b32, as uint64."""
    picked = joined >> (select & np.uint64(7)) * np.uint64(8) & np.uint64(0xFF)
    # 8 to 11 repeat the top bits of bytes 1, 3, 5 and 7.
    signs = joined >> ((select & np.uint64(3)) * np.uint64(16) + np.uint64(15)) & np.uint64(1)
    special = np.where(
        select >= 13, np.uint64(0xFF), np.where(select == 12, np.uint64(0), signs * np.uint64(0xFF))
    )
    result: Array = np.where(select < 8, picked, special)
    return result


def _permute(a: Words, b: Words, selector: Words) -> Words:
    if selector.shape[-1] == 1:
        first = int(selector.flat[0])
        if selector.size == 1 or np.count_nonzero(selector == selector.flat[0]) == selector.size:
            moves = _byte_moves(first)
            if moves is not None:
                return _move_bytes(a, b, *moves)
    joined = wide(a) << _THIRTY_TWO | b
    result: Array = np.uint64(0)
    for byte in range(4):
        select = wide(selector >> _U32(8 * byte) & _U32(0xFF))
        result = result | _permute_byte(joined, select) << np.uint64(8 * byte)
    return _low(result)


@cache
def _byte_moves(selector: int) -> tuple[tuple[tuple[bool, int, np.uint32], ...], np.uint32] | None:
    """A selector as masked shifts, and the bytes that are all ones; None if it extends signs.

    A shift is (of the first source, bits to the left, mask).
    """
    groups: dict[tuple[bool, int], int] = {}
    ones = 0
    for byte in range(4):
        select = selector >> 8 * byte & 0xFF
        field = 0xFF << 8 * byte
        if select < 8:
            key = (select >= 4, 8 * byte - 8 * (select & 3))
            groups[key] = groups.get(key, 0) | field
        elif select < 12:
            return None
        elif select > 12:
            ones |= field
    moves = tuple((first, shift, _U32(mask)) for (first, shift), mask in groups.items())
    return moves, _U32(ones)


def _move_bytes(
    a: Words, b: Words, moves: tuple[tuple[bool, int, np.uint32], ...], ones: np.uint32
) -> Words:
    parts: list[Array] = [] if moves and not ones else [np.full((1, 1), ones)]
    for first, shift, mask in moves:
        source = a if first else b
        moved = source << _U32(shift) if shift >= 0 else source >> _U32(-shift)
        parts.append(moved & mask)
    result: Words = reduce(np.bitwise_or, parts)
    return result


_define("v_perm_b32", "u32 u32 u32", _permute)

# Minimum, maximum, median.

for _sign in ("u32", "i32"):
    _define(f"v_min_{_sign}", f"{_sign} {_sign}", np.minimum, _sign)
    _define(f"v_max_{_sign}", f"{_sign} {_sign}", np.maximum, _sign)
    _define(
        f"v_min3_{_sign}",
        f"{_sign} {_sign} {_sign}",
        lambda a, b, c: np.minimum(np.minimum(a, b), c),
        _sign,
    )
    _define(
        f"v_max3_{_sign}",
        f"{_sign} {_sign} {_sign}",
        lambda a, b, c: np.maximum(np.maximum(a, b), c),
        _sign,
    )
    _define(
        f"v_med3_{_sign}",
        f"{_sign} {_sign} {_sign}",
        lambda a, b, c: np.maximum(np.minimum(a, b), np.minimum(np.maximum(a, b), c)),
        _sign,
    )

# Bytes.


def octets(x: Words) -> list[Words]:
    return [x >> _U32(8 * byte) & _U32(0xFF) for byte in range(4)]


def _sum_of_differences(a: Words, b: Words, c: Words) -> Words:
    for x, y in zip(octets(a), octets(b), strict=True):
        c = c + (np.maximum(x, y) - np.minimum(x, y))
    return c


def _lerp(a: Words, b: Words, c: Words) -> Words:
    result: Words = np.zeros((1, 1), np.uint32)
    for byte, (x, y, z) in enumerate(zip(octets(a), octets(b), octets(c), strict=True)):
        result = result | (x + y + (z & _U32(1)) >> _U32(1)) << _U32(8 * byte)
    return result


def _masked_sum_of_differences(a: Words, b: Words, c: Words) -> Words:
    """Bytes that are zero in the second source do not count."""
    for x, y in zip(octets(a), octets(b), strict=True):
        c = c + np.where(y == 0, _U32(0), np.maximum(x, y) - np.minimum(x, y))
    return c


def _sum_of_short_differences(a: Words, b: Words, c: Words) -> Words:
    for shift in (_U32(0), _U32(16)):
        x, y = (word >> shift & _U32(0xFFFF) for word in (a, b))
        c = c + (np.maximum(x, y) - np.minimum(x, y))
    return c


_define("v_msad_u8", "u32 u32 u32", _masked_sum_of_differences)
_define("v_sad_u16", "u32 u32 u32", _sum_of_short_differences)
_define("v_sad_u8", "u32 u32 u32", _sum_of_differences)
_define("v_sad_hi_u8", "u32 u32 u32", lambda a, b, c: (_sum_of_differences(a, b, c * 0) << 16) + c)
_define("v_sad_u32", "u32 u32 u32", lambda a, b, c: np.maximum(a, b) - np.minimum(a, b) + c)
_define("v_lerp_u8", "u32 u32 u32", _lerp)
_define("v_prng_b32", "u32", lambda x: (x << _U32(1)) ^ np.where(x >> _U32(31), _U32(197), _U32(0)))

# Moves.

_define("v_mov_b32", "b32", lambda x: x, "b32")
_define("v_mov_b64", "b64", lambda x: x, "b64")
_define("v_accvgpr_read_b32", "b32", lambda x: x, "b32")
_define("v_accvgpr_write_b32", "b32", lambda x: x, "b32")
_define("v_accvgpr_mov_b32", "b32", lambda x: x, "b32")
_define("v_cndmask_b32", "b32 b32 mask", lambda a, b, mask: np.where(mask, b, a), "b32")


def _swap_groups(width: int) -> Callable[[Words, Words], tuple[Words, Words]]:
    """Odd groups of `width` lanes of the first register against even groups of the second."""

    def swap(first: Words, second: Words) -> tuple[Words, Words]:
        shape = (*np.broadcast_shapes(first.shape, second.shape)[:-1], 64)
        grouped = (*shape[:-1], 32 // width, 2, width)
        new_first = np.broadcast_to(first, shape).reshape(grouped).copy()
        new_second = np.broadcast_to(second, shape).reshape(grouped).copy()
        odd = new_first[..., 1, :].copy()
        new_first[..., 1, :] = new_second[..., 0, :]
        new_second[..., 0, :] = odd
        return new_first.reshape(shape), new_second.reshape(shape)

    return swap


_define("v_swap_b32", "b32 b32", lambda a, b: (b.copy(), a.copy()), "b32 b32")
_define("v_permlane16_swap_b32", "b32 b32", _swap_groups(16), "b32 b32")
_define("v_permlane32_swap_b32", "b32 b32", _swap_groups(32), "b32 b32")
