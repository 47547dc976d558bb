"""Decides what lies in the rings of K and V tiles in shared memory, and when: the copying warp.

It copies in the order of the Hopper kernel's (zyfa_triton/kernels/hopper/producer.py): K's block n,
then, once place n + 1 was given back, V's block n. A copy takes some looks at its barrier; from the
moment that a place is given back until its next tile is there, it holds NaN and may not be read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from tests.asm.ptx.barriers import Barrier, Barriers
from tests.asm.ptx.operations import Values

ALIGNED = 1024  # bytes: where swizzled tiles begin
_SIZE = 227 * 1024  # of shared memory that a workgroup can have (sm_90)
_NAN = 0x7F
_WARPS = 4


def swizzled(tile: Values) -> Values:
    """(rows, 64 or 128) bytes as a copy lays them: pieces of 16 bytes, exchanged by row."""
    rows, width = tile.shape
    pieces = width // 16
    row = np.arange(rows)[:, None]
    by = row % 8 if pieces == 8 else row % 8 // 2
    result = np.empty((rows, pieces, 16), np.uint8)
    result[row, np.arange(pieces) ^ by] = tile.reshape(rows, pieces, 16)
    return result.reshape(-1)


@dataclass
class Place:
    """Where tiles of one kind arrive. known: warps that saw the tile's barrier since it arrived."""

    name: str
    ranges: tuple[tuple[int, int], ...]
    is_there: bool = False
    known: set[int] = field(default_factory=set)


@dataclass
class _Copy:
    kind: str  # "k" or "v"
    place: int
    content: tuple[Values, ...]  # for each range of the place
    needs: int  # so many phases of used[needs_at] are over
    needs_at: int
    looks: int  # at its barrier until it is there
    starts: bool = False


class Rings:
    """Shared memory with rings of `stages` places.

    k: pieces of K's tiles by block, (rows, 128) and perhaps (rows, 64) bytes. v: V^T's by block,
    with rows behind that are not copied: `behind`. Rings begin at block number `base` of all that
    this workgroup has copied; before block `at` (counted without base) of K, and before at - 1 of
    V, everything was used and given back. looks: of each copy, in their order.
    reading: names of the places that products under way read; set by whoever runs the text.
    """

    def __init__(
        self,
        stages: int,
        k: Sequence[tuple[Values, ...]],
        v: Sequence[Values],
        *,
        behind: Values,
        base: int,
        at: int,
        looks: Callable[[], int],
    ) -> None:
        self.stages = stages
        self.reading: Callable[[], Iterable[str]] = tuple
        self._next = ALIGNED
        widths = [piece.size for piece in k[0]]
        self.address: dict[str, int] = {}
        for index, size in enumerate(widths):
            self.address[("k_first", "k_rest")[index]] = self._reserve(stages * size)
        self._value_size = v[0].size + behind.size
        self.address["values"] = self._reserve(stages * self._value_size)
        self.address["ones"] = self._reserve(ALIGNED)
        for name in ("k_full", "v_full", "used"):
            self.address[name] = self._reserve(8 * stages)
        assert self._next - ALIGNED <= _SIZE, f"stages: {stages} places do not fit"
        self.bytes = np.full(self._next, _NAN, np.uint8)
        self.places = self._make_places(widths)
        for place in range(stages):
            end = self._starts("values", self._value_size, place)[1]
            self.bytes[end - behind.size : end] = behind.reshape(-1)
        self._behind = behind.size
        self.given_back: list[tuple[int, int]] = []  # (place, warp)
        self.given_there: list[tuple[int, int]] = []  # to the other workgroup
        self._number = base + at
        self._queue = list(self._copies(k, v, base, looks))
        self.barriers = self._make_barriers()
        self._start()

    def write(self, name: str, content: Values) -> None:
        """What the kernel itself stores, such as ones: readable from then on."""
        first = self.address[name]
        self.bytes[first : first + content.size] = content.reshape(-1)
        place = Place(name, ((first, first + content.size),), True, set(range(_WARPS)))
        self.places[name] = place

    def readable(self, first: int, last: int) -> str:
        """See warpgroup.Tiles."""
        for place in self.places.values():
            if any(begin <= first and last < end for begin, end in place.ranges):
                if not place.is_there:
                    raise ValueError(f"{place.name} holds no tile")
                if len(place.known) < _WARPS:
                    raise ValueError(f"{place.name} was not waited for by all warps")
                return place.name
        raise ValueError(f"{first:#x} to {last:#x} lie in no tile")

    def _reserve(self, size: int) -> int:
        first = self._next
        self._next += -(-size // ALIGNED) * ALIGNED
        return first

    def _starts(self, name: str, size: int, place: int) -> tuple[int, int]:
        first = self.address[name] + place * size
        return first, first + size

    def _make_places(self, widths: Sequence[int]) -> dict[str, Place]:
        places = {}
        for place in range(self.stages):
            pieces = tuple(
                self._starts(name, size, place)
                for name, size in zip(("k_first", "k_rest"), widths, strict=False)
            )
            places[f"k[{place}]"] = Place(f"k[{place}]", pieces)
            where = self._starts("values", self._value_size, place)
            places[f"v[{place}]"] = Place(f"v[{place}]", (where,))
        return places

    def _copies(
        self,
        k: Sequence[tuple[Values, ...]],
        v: Sequence[Values],
        base: int,
        looks: Callable[[], int],
    ) -> Iterator[_Copy]:
        for block, (of_k, of_v) in enumerate(zip(k, v, strict=True)):
            number = base + block
            for kind, content, freed in (("k", of_k, number), ("v", (of_v,), number + 1)):
                if number < self._number - (kind == "v"):
                    continue  # copied and used before
                tiles = tuple(map(swizzled, content))
                needs, needs_at = divmod(freed, self.stages)
                yield _Copy(kind, number % self.stages, tiles, needs, needs_at, looks())

    def _make_barriers(self) -> Barriers:
        at = {}
        for place in range(self.stages):
            # blocks of this place before the number-th, whose use is over; V is one block behind
            def phases(number: int, place: int = place) -> int:
                return (number - place + self.stages - 1) // self.stages

            at[self.address["k_full"] + 8 * place] = Barrier(1, phases(self._number))
            at[self.address["v_full"] + 8 * place] = Barrier(1, phases(self._number - 1))
            at[self.address["used"] + 8 * place] = Barrier(_WARPS, phases(self._number))
        return Barriers(
            at,
            before_look=self._before_look,
            looked=self._looked,
            arriving=self._arriving,
            ended=self._ended,
            arriving_there=self._arriving_there,
        )

    # what happens

    def _start(self) -> None:
        """Copies begin, in order, as far as places were given back."""
        for copy in self._queue:
            if copy.starts:
                continue
            used = self.barriers.at[self.address["used"] + 8 * copy.needs_at]
            if used.completed < copy.needs:
                break
            copy.starts = True
            if copy.looks == 0:
                self._deliver(copy)
        self._queue = [copy for copy in self._queue if not copy.starts or copy.looks > 0]

    def _deliver(self, copy: _Copy) -> None:
        place = self.places[f"{copy.kind}[{copy.place}]"]
        assert not place.is_there, f"{place.name} is overwritten"
        for (first, _), content in zip(place.ranges, copy.content, strict=True):
            self.bytes[first : first + content.size] = content
        place.is_there, place.known = True, set()
        self.barriers.at[self.address[f"{copy.kind}_full"] + 8 * copy.place].complete()

    def _full(self, address: int) -> tuple[str, int] | None:
        for kind in "kv":
            place, rest = divmod(address - self.address[f"{kind}_full"], 8)
            if 0 <= place < self.stages and not rest:
                return kind, place
        return None

    def _before_look(self, address: int) -> None:
        waited = self._full(address)
        for copy in self._queue:
            if copy.starts and (copy.kind, copy.place) == waited:
                copy.looks -= 1
                if copy.looks == 0:
                    self._deliver(copy)
                    self._queue.remove(copy)
                break

    def _looked(self, address: int, answer: bool, warp: int) -> None:
        if (waited := self._full(address)) is None:
            raise ValueError(f"{address:#x} is no barrier of tiles")
        place = self.places[f"{waited[0]}[{waited[1]}]"]
        if answer and place.is_there:
            place.known.add(warp)

    def _arriving(self, address: int, warp: int) -> None:
        place, rest = divmod(address - self.address["used"], 8)
        if not 0 <= place < self.stages or rest:
            raise ValueError(f"{address:#x} is no barrier of used places")
        if warp in self.barriers.at[address].pending:
            raise ValueError(f"warp {warp} gives place {place} back twice")
        self._not_read(place)
        for name in self._of(place):
            if not self.places[name].is_there:
                raise ValueError(f"{name} is given back without a tile in it")
        self.given_back.append((place, warp))

    def _arriving_there(self, address: int, warp: int) -> None:
        place, rest = divmod(address - self.address["used"], 8)
        if not 0 <= place < self.stages or rest:
            raise ValueError(f"{address:#x} is no barrier of used places")
        self._not_read(place)
        self.given_there.append((place, warp))

    def _not_read(self, place: int) -> None:
        for name in self._of(place):
            if name in self.reading():
                raise ValueError(f"{name} is given back while a product reads it")

    def _of(self, place: int) -> tuple[str, str]:
        """Places that an arrival gives back: K's, and V's before it."""
        return f"k[{place}]", f"v[{(place - 1) % self.stages}]"

    def _ended(self, address: int) -> None:
        for name in self._of((address - self.address["used"]) // 8):
            place = self.places[name]
            place.is_there = False
            for first, last in place.ranges:
                end = last - (self._behind if name.startswith("v") else 0)
                self.bytes[first:end] = _NAN
        self._start()
