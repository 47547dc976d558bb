"""Decides how long a launch takes: which compute unit runs which workgroup, and when.

It knows the card and orders of workgroups, no instruction. A compute unit runs one workgroup at a
time. Workgroups go round robin to the XCDs (chiplets), each of which starts its own in order, each
on the compute unit that is free first. Starting one costs nothing beyond its own instructions.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Card:
    """What of an MI355X decides about a launch.

    Attributes:
        xcds: chiplets with compute units and an L2 cache each. units: compute units of one.
        simds: of a compute unit. hertz: the clock. flop: of a SIMD a cycle, dense FP8.

    Sources: docs/cycle-model.md.
    """

    xcds: int = 8
    units: int = 32
    simds: int = 4
    hertz: float = 2.4e9
    flop: int = 2048

    @property
    def all_units(self) -> int:
        """Compute units of the card."""
        return self.xcds * self.units

    @property
    def peak(self) -> float:
        """FLOP a second."""
        return self.all_units * self.simds * self.flop * self.hertz


MI355X = Card()

Work = tuple[int, ...]
"""Query tiles (m_block) of a head that one workgroup computes, one after another."""
Order = Callable[[int, int, int], list[Work]]
"""Work of workgroups 0, 1, .. for numbers of query tiles a head, of heads, and of batch entries."""


def _descending(m_blocks: int) -> list[Work]:
    return [(m_block,) for m_block in reversed(range(m_blocks))]


def _by_head(m_blocks: int, nheads: int, batch: int) -> list[Work]:
    return _descending(m_blocks) * (nheads * batch)


def _by_head_ascending(m_blocks: int, nheads: int, batch: int) -> list[Work]:
    return _descending(m_blocks)[::-1] * (nheads * batch)


def _by_entry(m_blocks: int, nheads: int, batch: int) -> list[Work]:
    return [work for work in _descending(m_blocks) for _ in range(nheads)] * batch


def _longest_first(m_blocks: int, nheads: int, batch: int) -> list[Work]:
    return _by_entry(m_blocks, nheads * batch, 1)


def _head_an_xcd(m_blocks: int, nheads: int, batch: int) -> list[Work]:
    work: list[Work] = []
    for first in range(0, nheads * batch, MI355X.xcds):
        work += _by_entry(m_blocks, min(MI355X.xcds, nheads * batch - first), 1)
    return work


def _folded(m_blocks: int, nheads: int, batch: int) -> list[Work]:
    pairs: list[Work] = [(m_blocks - 1 - i, i) for i in range(m_blocks // 2)]
    middle: list[Work] = [(m_blocks // 2,)] if m_blocks % 2 else []
    return [work for work in pairs + middle for _ in range(nheads * batch)]


ORDERS: Mapping[str, Order] = {
    "by_head": _by_head,
    "by_head_ascending": _by_head_ascending,
    "by_entry": _by_entry,
    "longest_first": _longest_first,
    "head_an_xcd": _head_an_xcd,
    "folded": _folded,
}
"""by_head: one head after another, its longest tile first; by_head_ascending: its shortest first.
by_entry: one batch entry after another, the longest tiles of all its heads first, heads fastest.
longest_first: the longest tiles of all heads of all entries first. head_an_xcd: the same for eight
heads at a time, which gives each XCD one. folded: as longest_first, but each workgroup computes a
long tile and the short one that makes the sum the same."""


@dataclass(frozen=True)
class Makespan:
    """A launch.

    Attributes:
        cycles: until the last workgroup ends. ideal: if all compute units ended together.
    """

    cycles: float
    ideal: float

    @property
    def balance(self) -> float:
        """1 where no compute unit waits for another one."""
        return self.ideal / self.cycles


def makespan(costs: Sequence[float], card: Card = MI355X) -> Makespan:
    """Launch of workgroups of so many cycles, in the order of their numbers. At least one."""
    if not costs:
        raise ValueError("costs: got no workgroup; accepted: at least one")
    ends = []
    for xcd in range(card.xcds):
        free = [0.0] * card.units
        for cost in costs[xcd :: card.xcds]:
            heapq.heappush(free, heapq.heappop(free) + cost)
        ends.append(max(free))
    return Makespan(max(ends), sum(costs) / card.all_units)
