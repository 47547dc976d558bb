"""A model of how two workgroups share K and V: barriers, copies that take their time, warpgroups.

It follows `zyfa_triton.kernels.hopper` (producer, pair, consumer) step by step and knows no data: a
copy carries the number of its block. Who goes on is drawn at random, and some are slow.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

WORKGROUPS = WARPGROUPS = (0, 1)
_TILES = 4  # producer.TILES
_PATIENCE = 200_000  # steps
Slot = tuple[int, int]  # place of a ring and the parity to wait for


class Finding(AssertionError):
    """A rule that a run has broken."""


@dataclass
class Barrier:
    """An mbarrier: a phase is over when all have arrived and all that was expected has come."""

    arrivals: int
    pending: int = 0
    missing: int = 0  # below 0 where copies come before they are expected
    completed: int = 0

    def __post_init__(self) -> None:
        self.pending = self.arrivals

    def arrive(self, expected: int = 0) -> None:
        self.pending -= 1
        self.come(-expected)

    def come(self, count: int = 1) -> None:
        self.missing -= count
        if self.pending < 0:
            raise Finding("more arrivals than a phase has")
        if self.pending == 0 and self.missing == 0:
            self.completed, self.pending = self.completed + 1, self.arrivals

    def is_over(self, parity: int) -> bool:
        return self.completed & 1 != parity


@dataclass(frozen=True)
class Tiles:
    """Blocks of keys that are copied for each pair of row tiles, and how many of them each of the
    two needs, the last ones."""

    copied: tuple[int, ...]
    needed: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Rules:
    """What may be done wrong on purpose. mail: places for drawn tiles. gives_back_there: warpgroups
    arrive at both. waits_when_passing: for V of blocks that are passed over, too."""

    mail: int = 16
    gives_back_there: bool = True
    waits_when_passing: bool = True


class Model:
    """One launch of one cluster. `run` raises Finding where a rule is broken."""

    def __init__(self, tiles: Tiles, stages: int, seed: int, rules: Rules = Rules()) -> None:
        self.tiles, self.stages, self.rules = tiles, stages, rules
        self.random = random.Random(seed)

        def ring(places: int, arrivals: int) -> list[list[Barrier]]:
            return [[Barrier(arrivals) for _ in range(places)] for _ in WORKGROUPS]

        self.full = {kind: ring(stages, 1) for kind in "kv"}
        self.used = ring(stages, 4 if rules.gives_back_there else 2)
        self.tile_full, self.tile_empty = ring(_TILES, 1), ring(_TILES, 2)
        self.drawn = [Barrier(1) for _ in range(rules.mail)]
        self.mail: list[int] = [0] * rules.mail
        self.announced: list[list[tuple[int, int] | None]] = [[None] * _TILES for _ in WORKGROUPS]
        self.content: dict[tuple[int, str, int, int], int] = {}  # workgroup, kind, place, half
        self.reads: dict[tuple[int, int, str], int] = {}  # workgroup, warpgroup, kind: place
        self.now = 0
        self.under_way: list[
            tuple[float, int, str, int, int, int]
        ] = []  # the first: when it is there
        self.finished = 0  # tiles by warpgroups

    def run(self) -> None:
        agents = [self._copying(workgroup) for workgroup in WORKGROUPS]
        agents += [self._computing(g, w) for g in WORKGROUPS for w in WARPGROUPS]
        speeds = {id(agent): self.random.choice((1.0, 1.0, 0.3, 0.1)) for agent in agents}
        for self.now in range(_PATIENCE):
            self._deliver()
            agent = self.random.choice(agents)
            if self.random.random() < speeds[id(agent)] and next(agent, True):
                agents.remove(agent)
                if not agents:
                    break
        else:
            raise Finding("waits for ever")
        if self.finished != 4 * len(self.tiles.copied):
            raise Finding(f"{self.finished} tiles were finished")

    def _deliver(self) -> None:
        due = [copy for copy in self.under_way if copy[0] <= self.now]
        if not due:
            return
        arrival = self.random.choice(due)
        self.under_way.remove(arrival)
        _, workgroup, kind, place, half, block = arrival
        for warpgroup in WARPGROUPS:
            if self.reads.get((workgroup, warpgroup, kind)) == place:
                raise Finding(f"{kind}[{place}] is overwritten while it is read")
        self.content[workgroup, kind, place, half] = block
        self.full[kind][workgroup][place].come()

    def _next(self, slot: Slot) -> Slot:
        place, parity = slot
        return (0, parity ^ 1) if place + 1 == self.stages else (place + 1, parity)

    def _copying(self, workgroup: int) -> Iterator[bool]:
        """The copying warp. Yields False where it waits or is held up."""
        index = number = block = 0
        slot = (0, 1)

        def copy(kind: str) -> None:
            self.full[kind][workgroup][slot[0]].arrive(expected=2)
            for there in WORKGROUPS:
                time = self.now + 2000 * self.random.random() ** 20  # few take long
                self.under_way.append((time, there, kind, slot[0], workgroup, block))

        while index < len(self.tiles.copied):
            upcoming = index
            for visit in range(self.tiles.copied[index]):
                copy("k")
                if visit == 0:
                    yield from self._announce(workgroup, number, (index, (workgroup + number) % 2))
                after = self._next(slot)
                yield from _until(self.used[workgroup][after[0]], after[1])
                copy("v")
                slot, block = after, block + 1
                if visit == 0:
                    place, parity = number % self.rules.mail, number // self.rules.mail & 1
                    if workgroup == 0:
                        self.mail[place] = index + 1
                        yield False
                        self.drawn[place].arrive()
                    else:
                        yield from _until(self.drawn[place], parity)
                    upcoming = self.mail[place]
                yield False
            index, number = upcoming, number + 1
        yield from self._announce(workgroup, number, None)

    def _announce(
        self, workgroup: int, number: int, tile: tuple[int, int] | None
    ) -> Iterator[bool]:
        place = number % _TILES
        yield from _until(self.tile_empty[workgroup][place], number // _TILES & 1 ^ 1)
        self.announced[workgroup][place] = tile
        self.tile_full[workgroup][place].arrive()

    def _computing(self, workgroup: int, warpgroup: int) -> Iterator[bool]:
        """A computing warpgroup."""
        at = {"k": (0, 0), "v": (0, 0)}
        block = {"k": 0, "v": 0}
        number = 0

        def wait(kind: str) -> Iterator[bool]:
            place, parity = at[kind]
            yield from _until(self.full[kind][workgroup][place], parity)

        def look(kind: str) -> None:
            for half in WORKGROUPS:
                found = self.content.get((workgroup, kind, at[kind][0], half))
                if found != block[kind]:
                    raise Finding(f"{kind}[{at[kind][0]}] holds {found}, not {block[kind]}")

        def start(kind: str) -> None:
            look(kind)
            self.reads[workgroup, warpgroup, kind] = at[kind][0]

        def end(kind: str) -> None:
            look(kind)
            del self.reads[workgroup, warpgroup, kind]

        def advance(kind: str) -> None:
            if kind == "k":
                for there in WORKGROUPS if self.rules.gives_back_there else (workgroup,):
                    self.used[there][at["k"][0]].arrive()
            at[kind], block[kind] = self._next(at[kind]), block[kind] + 1

        while True:
            place = number % _TILES
            yield from _until(self.tile_full[workgroup][place], number // _TILES & 1)
            tile = self.announced[workgroup][place]
            if tile is None:
                return
            index, member = tile
            needed = self.tiles.needed[index][member]
            for _ in range(self.tiles.copied[index] - needed):
                yield from wait("k")
                advance("k")
                if self.rules.waits_when_passing:
                    yield from wait("v")
                advance("v")
            for visit in range(needed):
                yield from wait("k")
                start("k")
                if visit:
                    yield from wait("v")
                    start("v")
                yield from self._busy()
                end("k")
                if visit:
                    end("v")
                    advance("v")
                advance("k")
            yield from wait("v")
            start("v")
            yield from self._busy()
            end("v")
            advance("v")
            self.tile_empty[workgroup][place].arrive()
            number += 1
            self.finished += 1
            yield from self._busy()

    def _busy(self) -> Iterator[bool]:
        for _ in range(self.random.randrange(5)):
            yield False


def _until(barrier: Barrier, parity: int) -> Iterator[bool]:
    while not barrier.is_over(parity):
        yield False
