"""Decides where elements of matrices lie: in lanes' registers, and behind descriptors of wgmma.

PTX ISA 8.7, section 9.7.14.5 (m16n8k32) and 9.7.15.5 (wgmma). Arrays of registers
are (register, warp, lane), float32 as such. It knows no order of instructions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tests.asm.ptx.operations import Values, e4m3

DEPTH = 32  # of K, in bytes
_LANE = np.arange(32)
_G, _T = _LANE // 4, _LANE % 4
_WIDTHS = {1: 128, 2: 64, 3: 32}  # a descriptor's code -> bytes that are swizzled together
_UNIT = 16


def left(words: Values) -> Values:
    """A's 32 bytes of K by warp: words (4, warps, 32) uint32 -> bytes (16 * warps, 32)."""
    warps = words.shape[1]
    result = np.empty((warps, 16, DEPTH), np.uint8)
    codes = words[..., None].view(np.uint8)  # (4, warps, 32, byte)
    for index in range(4):
        for byte in range(4):
            column = 16 * (index // 2) + 4 * _T + byte
            result[:, _G + 8 * (index % 2), column] = codes[index, :, :, byte]
    return result.reshape(16 * warps, DEPTH)


def right(words: Values) -> Values:
    """B of n8k32 of one warp: words (2, 32) -> float64 (32, 8)."""
    result = np.empty((DEPTH, 8))
    for index in range(2):
        for byte in range(4):
            codes = (words[index] >> np.uint32(8 * byte)).astype(np.uint8)
            result[16 * index + 4 * _T + byte, _G] = e4m3(codes)
    return result


def result_places(registers: int) -> tuple[Values, Values]:
    """Row of its warp's 16 and column of each (register, lane) of a result."""
    index = np.arange(registers)[:, None]
    return _G + 8 * (index >> 1 & 1), 8 * (index >> 2) + 2 * _T + (index & 1)


def to_result(matrix: Values) -> Values:
    """(16 * warps, columns) -> (registers, warps, 32)."""
    rows, columns = result_places(matrix.shape[1] // 2)
    by_warp = matrix.reshape(-1, 16, matrix.shape[1])
    return np.ascontiguousarray(by_warp[:, rows, columns].transpose(1, 0, 2))


def from_result(registers: Values) -> Values:
    """(registers, warps, 32) -> (16 * warps, columns)."""
    count, warps, _ = registers.shape
    rows, columns = result_places(count)
    by_warp = np.empty((warps, 16, 2 * count), registers.dtype)
    by_warp[:, rows, columns] = registers.transpose(1, 0, 2)
    return by_warp.reshape(16 * warps, 2 * count)


@dataclass(frozen=True)
class Descriptor:
    """A matrix in shared memory whose rows have K contiguous, swizzled: bytes."""

    start: int
    stride: int  # from eight rows to the next eight
    width: int
    leading: int  # from the columns of one width to the next, where those are contiguous

    @classmethod
    def decode(cls, bits: int) -> Descriptor:
        """Raises ValueError where a field is not what such a matrix has."""
        start, leading, stride = (bits >> shift & 0x3FFF for shift in (0, 16, 32))
        if bits != start | leading << 16 | stride << 32 | bits >> 62 << 62:
            raise ValueError(f"descriptor {bits:#018x} has bits outside its fields")
        if bits >> 62 not in _WIDTHS:
            raise ValueError(f"descriptor {bits:#018x} is not swizzled")
        return cls(start * _UNIT, stride * _UNIT, _WIDTHS[bits >> 62], leading * _UNIT)

    def addresses(self, rows: int) -> Values:
        """(rows, DEPTH) addresses of the bytes."""
        row = np.arange(rows)[:, None]
        return self._swizzled(
            self.start + row // 8 * self.stride + row % 8 * self.width + np.arange(DEPTH)
        )

    def columns(self, count: int) -> Values:
        """The same (count, DEPTH) of a matrix of 16-bit elements whose columns are contiguous."""
        column = np.arange(count)[:, None]
        row, byte = np.arange(DEPTH) // 2, np.arange(DEPTH) % 2
        piece, inside = np.divmod(2 * column, self.width)
        return self._swizzled(
            self.start + piece * self.leading + row // 8 * self.stride + row % 8 * self.width
            + inside + byte
        )  # fmt: skip

    def _swizzled(self, plain: Values) -> Values:
        mask = self.width // _UNIT - 1  # address bits from 4 on, by those from 7 on
        return plain ^ ((plain >> 7 & mask) << 4)
