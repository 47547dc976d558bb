"""Decides what LDS storage of one workgroup holds; address arithmetic and races are elsewhere."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

POISON = 0xDEADBEEF
"""What LDS holds before it is written; reading it is a finding."""

MAXIMUM_BYTES = 160 * 1024


class Lds:
    """LDS of one workgroup, read and written in dwords or bytes by arrays of addresses.

    Addresses handed in lie inside: callers select lanes first.

    Attributes:
        incoming: while a write is announced to the checks, the words (dwords, waves, 64) that it
            brings (low bytes for small writes); two waves that write the same value do not race.
    """

    __slots__ = ("bytes", "incoming", "size", "words")

    def __init__(self, size: int) -> None:
        if not 0 <= size <= MAXIMUM_BYTES:
            raise ValueError(f"LDS size {size} is outside 0..{MAXIMUM_BYTES} bytes")
        self.size = size
        self.words = np.full((size + 19) // 4, POISON, np.uint32)
        self.bytes = self.words.view(np.uint8)
        self.incoming: NDArray[np.uint32] | None = None

    def read(self, addresses: NDArray[np.int64], dwords: int) -> NDArray[np.uint32]:
        """(dwords, ...) words from byte addresses (...)."""
        if (addresses & 3).any():
            pieces = self.bytes[addresses[..., None] + np.arange(4 * dwords)]
            words = np.ascontiguousarray(pieces).view(np.uint32)
            return np.moveaxis(words, -1, 0)
        index = addresses >> 2
        result = np.empty((dwords, *addresses.shape), np.uint32)
        for position in range(dwords):
            self.words.take(index + position if position else index, out=result[position])
        return result

    def read_small(self, addresses: NDArray[np.int64], size: int) -> NDArray[np.uint32]:
        """One or two bytes from byte addresses, zero-extended."""
        value = self.bytes[addresses].astype(np.uint32)
        if size == 2:
            value |= self.bytes[addresses + 1].astype(np.uint32) << np.uint32(8)
        return value

    def write(self, addresses: NDArray[np.int64], data: NDArray[np.uint32]) -> None:
        """Words (dwords, ...) to byte addresses (...); of equal addresses the highest lane wins."""
        if (addresses & 3).any():
            pieces = np.ascontiguousarray(np.moveaxis(data, 0, -1)).view(np.uint8)
            self.bytes[addresses[..., None] + np.arange(4 * data.shape[0])] = pieces
            return
        index = addresses >> 2
        for position in range(data.shape[0]):
            self.words[index + position if position else index] = data[position]

    def write_small(
        self, addresses: NDArray[np.int64], data: NDArray[np.uint32], size: int
    ) -> None:
        """The low one or two bytes of `data` to byte addresses."""
        self.bytes[addresses] = data.astype(np.uint8)
        if size == 2:
            self.bytes[addresses + 1] = (data >> np.uint32(8)).astype(np.uint8)
