"""Where lanes look: masks as words, DPP lane maps, ds_swizzle patterns; reads no registers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .operands import Array, Mask, UnsupportedArithmetic, Words

Lanes = NDArray[np.int64]

_LANES = np.arange(64)
_ROW = _LANES // 16 * 16
_IN_ROW = _LANES % 16


def pack_mask(mask: Mask) -> Words:
    """Lane masks (waves, 64) as words (2, waves), lanes 0 to 31 first."""
    octets = np.packbits(mask, axis=-1, bitorder="little")
    return np.ascontiguousarray(octets.view(np.uint32).T)


def unpack_mask(words: Words) -> Mask:
    """The inverse of pack_mask: (2, waves) words as a mask (waves, 64)."""
    octets = np.ascontiguousarray(words.T).view(np.uint8)
    return np.unpackbits(octets, axis=-1, bitorder="little").view(np.bool_)


def first_lane(mask: Mask) -> Lanes:
    """The lowest lane of each wave that is set, 0 where none is (v_readfirstlane)."""
    result: Lanes = np.argmax(mask, axis=-1)
    return result


@dataclass(frozen=True)
class LaneMap:
    """Which lane of source 0 each lane reads, and what happens where there is none."""

    source: Lanes
    exists: Mask
    """The lane that is named lies within the row or the wave."""
    written: Mask
    """row_mask and bank_mask let the lane be written; others keep the old destination."""
    zero_fill: bool
    """bound_ctrl: lanes without a source read zero; otherwise they are not written."""

    def permute(self, words: Words) -> Words:
        """Source 0 as the lanes see it; 0 where no such lane exists (EXEC is not looked at)."""
        moved = np.broadcast_to(words, (*words.shape[:-1], 64))[..., self.source]
        return np.where(self.exists, moved, np.uint32(0))

    def enabled(self, exec_mask: Mask) -> Mask:
        """The lanes (waves, 64) that the instruction writes.

        A source lane that EXEC turns off counts like one that does not exist.
        """
        active = exec_mask & self.written
        return active if self.zero_fill else active & self.valid(exec_mask)

    def valid(self, exec_mask: Mask) -> Mask:
        """The lanes (waves, 64) whose source lane exists and is on; the others see 0."""
        return self.exists & exec_mask[..., self.source]


def _row_shift(distance: int) -> tuple[Lanes, Mask]:
    """Every lane reads `distance` lanes further up in its row of 16 (down if negative)."""
    target = _IN_ROW + distance
    return _ROW + target % 16, (target >= 0) & (target < 16)


def _wave_shift(distance: int, rotate: bool) -> tuple[Lanes, Mask]:
    target = _LANES + distance
    inside = (target >= 0) & (target < 64)
    return target % 64, inside | rotate


def _everywhere(source: Array) -> tuple[Lanes, Mask]:
    return source, np.ones(64, np.bool_)


def _dpp_source(modifiers: Mapping[str, Any]) -> tuple[Lanes, Mask]:
    if "quad_perm" in modifiers:
        order = np.asarray(modifiers["quad_perm"], np.int64)
        return _everywhere(_LANES // 4 * 4 + order[_LANES % 4])
    simple: dict[str, Callable[[], tuple[Lanes, Mask]]] = {
        "row_mirror": lambda: _everywhere(_ROW + 15 - _IN_ROW),
        "row_half_mirror": lambda: _everywhere(_LANES // 8 * 8 + 7 - _LANES % 8),
        "wave_shl": lambda: _wave_shift(1, False),
        "wave_rol": lambda: _wave_shift(1, True),
        "wave_shr": lambda: _wave_shift(-1, False),
        "wave_ror": lambda: _wave_shift(-1, True),
    }
    for name, make in simple.items():
        if name in modifiers:
            return make()
    if "row_shl" in modifiers:
        return _row_shift(int(modifiers["row_shl"]))
    if "row_shr" in modifiers:
        return _row_shift(-int(modifiers["row_shr"]))
    if "row_ror" in modifiers:
        return _everywhere(_ROW + (_IN_ROW - int(modifiers["row_ror"])) % 16)
    if "row_newbcast" in modifiers:
        return _everywhere(_ROW + int(modifiers["row_newbcast"]))
    if "row_bcast" in modifiers:
        return _row_broadcast(int(modifiers["row_bcast"]))
    raise UnsupportedArithmetic(f"no DPP control of gfx950 among the modifiers {dict(modifiers)}")


def _row_broadcast(kind: int) -> tuple[Lanes, Mask]:
    """15: the last lane of each row to the next row; 31: lane 31 to the upper half."""
    if kind == 15:
        return np.maximum(_ROW - 1, 0), _LANES >= 16
    if kind == 31:
        return np.full(64, 31), _LANES >= 32
    raise UnsupportedArithmetic(f"row_bcast:{kind}; gfx950 has row_bcast:15 and row_bcast:31")


def is_dpp(modifiers: Mapping[str, Any]) -> bool:
    """Whether the modifiers hold a DPP control."""
    return any(name.startswith(("quad_perm", "row_", "wave_")) for name in modifiers)


def dpp_map(modifiers: Mapping[str, Any]) -> LaneMap:
    """The lane map of an instruction's DPP modifiers, keyed as printed.

    quad_perm is a tuple of 4; row_shl, row_shr, row_ror, row_newbcast, row_bcast, row_mask and
    bank_mask are ints; the others only need to be present, bound_ctrl too (LLVM's bound_ctrl:0 and
    bound_ctrl:1 are the same encoding).
    """
    source, exists = _dpp_source(modifiers)
    rows = int(modifiers.get("row_mask", 0xF)) >> _LANES // 16 & 1
    banks = int(modifiers.get("bank_mask", 0xF)) >> _LANES % 16 // 4 & 1
    return LaneMap(source, exists, (rows & banks) == 1, "bound_ctrl" in modifiers)


def swizzle_map(offset: int) -> Lanes:
    """The lane that each lane reads by ds_swizzle_b32, for the 16-bit offset field.

    Lanes that EXEC turns off read as 0.  Bit 15 clear: in each half wave, lane = ((lane & and) |
    or) ^ xor.  Set: a permutation of each group of 4, or, with bit 14, a rotation or (bit 13) the
    bit reversal of an FFT in each half wave.
    """
    in_half = _LANES % 32
    half = _LANES - in_half
    if not offset & 0x8000:
        keep, put, flip = offset & 31, offset >> 5 & 31, offset >> 10 & 31
        return half + (((in_half & keep) | put) ^ flip)
    if offset >= 0xE000:
        return half + _fft_order(in_half, offset & 31)
    if offset >= 0xC000:
        return half + _rotation(in_half, offset)
    order = np.array([offset >> 2 * lane & 3 for lane in range(4)])
    result: Lanes = _LANES // 4 * 4 + order[_LANES % 4]
    return result


def _fft_order(in_half: Lanes, keep: int) -> Lanes:
    reversed_lane = sum((in_half >> bit & 1) << 4 - bit for bit in range(5))
    return reversed_lane >> keep.bit_count() | in_half & keep


def _rotation(in_half: Lanes, offset: int) -> Lanes:
    """Bit 10 is the direction, bits 9:5 the distance, and bits 4:0 the lane bits that stay."""
    keep, distance = offset & 31, offset >> 5 & 31
    turned = in_half + (-distance if offset & 0x400 else distance)
    return in_half & keep | turned & ~keep & 31
