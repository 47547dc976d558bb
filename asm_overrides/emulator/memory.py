"""Decides what global memory holds and where it is allocated; instructions are elsewhere."""

from __future__ import annotations

import bisect
import mmap
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

_FIRST_ADDRESS = 0x7E00_0000_0000
_ALIGNMENT = 4096
_GUARD = 1 << 20
_PADDING = 64

Addresses = NDArray[np.int64]


class Allocation:
    """A named run of bytes with unallocated guards on both sides.

    Attributes:
        base, size: address and bytes.
        data: its bytes, (size,) uint8, in memory that forked processes share.
    """

    __slots__ = ("base", "data", "name", "readonly", "size", "storage", "words")

    def __init__(self, name: str, base: int, size: int, readonly: bool) -> None:
        self.name, self.base, self.size, self.readonly = name, base, size, readonly
        padded = (size + _PADDING + 3) // 4 * 4
        self.storage = np.frombuffer(mmap.mmap(-1, padded), np.uint8)
        self.data = self.storage[:size]
        self.words = self.storage.view(np.uint32)


class GlobalMemory:
    """Allocations by address, accessed by arrays of lane addresses.

    Accesses outside every allocation read zero and write nothing; the lanes are returned so that
    the caller can report them.
    """

    def __init__(self) -> None:
        self._bases: list[int] = []
        self._allocations: list[Allocation] = []
        self._next = _FIRST_ADDRESS
        self._last: Allocation | None = None

    def alloc(self, name: str, array: ArrayLike, readonly: bool = False) -> int:
        """Copy an array into memory; returns its address (a multiple of 4096).

        Args:
            array: any dtype; copied in C order.
            readonly: a store into it is a finding.
        """
        source = np.ascontiguousarray(array)
        allocation = self._reserve(name, source.nbytes, readonly)
        allocation.data[:] = source.reshape(-1).view(np.uint8)
        return allocation.base

    def alloc_bytes(self, name: str, size: int, readonly: bool = False) -> int:
        """Reserve `size` zero bytes; returns the address."""
        return self._reserve(name, size, readonly).base

    def advance(self, address: int) -> None:
        """What is allocated next starts at `address` or behind (a multiple of 4096)."""
        self._next = max(self._next, -(-address // _ALIGNMENT) * _ALIGNMENT)

    def _reserve(self, name: str, size: int, readonly: bool) -> Allocation:
        allocation = Allocation(name, self._next, size, readonly)
        self._next += -(-(size + _GUARD) // _ALIGNMENT) * _ALIGNMENT + _ALIGNMENT
        self._bases.append(allocation.base)
        self._allocations.append(allocation)
        return allocation

    def free(self, address: int) -> None:
        """Forget the allocation that starts at an address."""
        position = self._bases.index(address)
        if self._last is self._allocations[position]:
            self._last = None
        del self._bases[position], self._allocations[position]

    def at(self, address: int) -> Allocation | None:
        """The allocation that holds an address, or None."""
        position = bisect.bisect_right(self._bases, address) - 1
        if position < 0:
            return None
        allocation = self._allocations[position]
        return allocation if address < allocation.base + allocation.size else None

    def nearest(self, address: int) -> str:
        """Where an address lies relative to the closest allocation, for messages."""
        if not self._allocations:
            return f"{address:#x}, and nothing is allocated"
        best = min(
            self._allocations,
            key=lambda each: max(each.base - address, address - each.base - each.size + 1),
        )
        offset = address - best.base
        return f"byte {offset} of {best.name!r}, which has {best.size}"

    def array(self, address: int, dtype: Any = np.uint8) -> NDArray[Any]:
        """Contents of the allocation that starts at an address, as a flat view."""
        return self._allocations[self._bases.index(address)].data.view(dtype)

    def _holding(self, low: int, high: int) -> Allocation | None:
        """The allocation that holds bytes low..high-1."""
        allocation = self._last
        if allocation is None or not (
            allocation.base <= low and high <= allocation.base + allocation.size
        ):
            allocation = self.at(low)
            if allocation is None or high > allocation.base + allocation.size:
                return None
            self._last = allocation
        return allocation

    def load(
        self, addresses: Addresses, size: int
    ) -> tuple[NDArray[np.uint32], NDArray[np.bool_] | None]:
        """Read `size` bytes (1, 2 or a multiple of 4) at each address (...).

        Returns:
            (dwords, ...) words, small sizes zero-extended, and the lanes outside (None: none is).
        """
        if addresses.size == 0:
            return np.zeros((max(1, size // 4), *addresses.shape), np.uint32), None
        low = int(addresses.min())
        allocation = self._holding(low, int(addresses.max()) + size)
        if allocation is not None:
            return _read(allocation, addresses - allocation.base, size), None
        result = np.zeros((max(1, size // 4), *addresses.shape), np.uint32)
        outside = np.ones(addresses.shape, np.bool_)
        for allocation in self._allocations:
            inside = _inside(allocation, addresses, size)
            if inside.any():
                result[:, inside] = _read(allocation, addresses[inside] - allocation.base, size)
                outside &= ~inside
        return result, outside

    def store(
        self, addresses: Addresses, data: NDArray[np.uint32], size: int
    ) -> tuple[NDArray[np.bool_] | None, bool]:
        """Write the low `size` bytes of words (dwords, ...) to addresses (...).

        Returns:
            The lanes outside every allocation (None: none is), and whether a lane met a
            readonly one. Neither is written.
        """
        if addresses.size == 0:
            return None, False
        low = int(addresses.min())
        allocation = self._holding(low, int(addresses.max()) + size)
        if allocation is not None:
            if not allocation.readonly:
                _write(allocation, addresses - allocation.base, data, size)
            return None, allocation.readonly
        outside = np.ones(addresses.shape, np.bool_)
        refused = False
        for allocation in self._allocations:
            inside = _inside(allocation, addresses, size)
            if not inside.any():
                continue
            outside &= ~inside
            if allocation.readonly:
                refused = True
            else:
                _write(allocation, addresses[inside] - allocation.base, data[:, inside], size)
        return outside, refused


def _inside(allocation: Allocation, addresses: Addresses, size: int) -> NDArray[np.bool_]:
    result: NDArray[np.bool_] = (addresses >= allocation.base) & (
        addresses + size <= allocation.base + allocation.size
    )
    return result


def _read(allocation: Allocation, offsets: Addresses, size: int) -> NDArray[np.uint32]:
    if size >= 4 and not (offsets & 3).any():
        index = offsets >> 2
        result = np.empty((size // 4, *offsets.shape), np.uint32)
        for position in range(size // 4):
            allocation.words.take(index + position if position else index, out=result[position])
        return result
    pieces = allocation.storage[offsets[..., None] + np.arange(size)]
    if size < 4:
        padded = np.zeros((*offsets.shape, 4), np.uint8)
        padded[..., :size] = pieces
        pieces = padded
    return np.moveaxis(np.ascontiguousarray(pieces).view(np.uint32), -1, 0)


def _write(allocation: Allocation, offsets: Addresses, data: NDArray[np.uint32], size: int) -> None:
    if size >= 4 and not (offsets & 3).any():
        index = offsets >> 2
        for position in range(size // 4):
            allocation.words[index + position if position else index] = data[position]
        return
    pieces = np.ascontiguousarray(np.moveaxis(data, 0, -1)).view(np.uint8)[..., :size]
    allocation.storage[offsets[..., None] + np.arange(size)] = pieces
