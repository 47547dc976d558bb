"""Decides what LDS accesses cost in bank conflicts: a statistic of a run, not a finding.

An access is served in phases, each of some of the wave's lanes; a phase takes as many cycles as the
bank with most different dwords has of them. Lanes that want the same dword share it. Banks and
phases differ by instruction (docs/hardware-assumptions.md); LDS-direct loads count as writes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asm_overrides.isa.instruction import Instruction

_LANES = 64
_ROW_BITS = 16  # rows of banks that an address can lie in, as a shift


@dataclass(frozen=True, slots=True)
class BankUse:
    """What one instruction of a program cost LDS in a run.

    Attributes:
        instruction, line: text and 1-based line.
        is_write: whether these are its writes.
        accesses: of one wave each; instructions with two addresses make two.
        cycles: that they took, conflicts included.
        conflicts: cycles beyond one for each phase.
    """

    instruction: str
    line: int
    is_write: bool
    accesses: int
    cycles: int
    conflicts: int


@dataclass(frozen=True)
class Phases:
    """How LDS serves one kind of access.

    Attributes:
        banks: of four bytes each. lanes: (phases, lanes) in the order of service.
    """

    banks: int
    lanes: NDArray[np.int64]


def _in_order(count: int) -> NDArray[np.int64]:
    return np.arange(_LANES).reshape(count, -1)


def _quads(*phases: tuple[int, ...]) -> NDArray[np.int64]:
    """Phases of the lower 32 lanes by the first of four neighbours; the upper ones likewise."""
    lower = np.array([[quad + lane for quad in quads for lane in range(4)] for quads in phases])
    return np.concatenate([lower, lower + _LANES // 2])


_READS = {
    4: Phases(64, _in_order(1)),
    8: Phases(64, _in_order(2)),
    12: Phases(32, _quads((0, 20), (4, 16), (8, 28), (12, 24))),
    16: Phases(64, _quads((0, 12, 20, 24), (4, 8, 16, 28))),
}
_WRITES = {
    4: Phases(32, _in_order(2)),
    8: Phases(32, _in_order(4)),
    12: Phases(32, _in_order(8)),
    16: Phases(32, _in_order(8)),
}


def phases_of(size: int, is_write: bool) -> Phases:
    """How an access of `size` bytes a lane is served; one and two bytes as four."""
    return (_WRITES if is_write else _READS)[max(4, size)]


def bank_cycles(
    addresses: NDArray[np.int64],
    size: int,
    is_write: bool,
    lanes: NDArray[np.bool_] | None = None,
) -> tuple[int, int]:
    """Cycles of accesses at LDS byte addresses (waves, 64), and those that conflicts added.

    lanes: (waves, 64), which of them take part; None: all.
    """
    served = phases_of(size, is_write)
    dwords = (addresses[..., None] >> 2) + np.arange(max(1, size // 4))
    place = dwords % served.banks << _ROW_BITS | dwords // served.banks
    if lanes is not None:
        place = np.where(lanes[..., None], place, -1)
    rows = place[:, served.lanes].reshape(addresses.shape[0] * len(served.lanes), -1)
    rows.sort(axis=1)
    is_new = rows >= 0
    is_new[:, 1:] &= rows[:, 1:] != rows[:, :-1]
    phase = np.broadcast_to(np.arange(len(rows))[:, None], rows.shape)[is_new]
    counts = np.zeros((len(rows), served.banks), np.int64)
    np.add.at(counts, (phase, rows[is_new] >> _ROW_BITS), 1)
    most = counts.max(axis=1)
    return int(most.sum()), int(np.maximum(most - 1, 0).sum())


class BankCounter:
    """Counts for a run."""

    def __init__(self) -> None:
        self._counts: dict[tuple[int, bool], BankUse] = {}
        self._known: dict[tuple[Any, ...], tuple[int, int]] = {}

    @property
    def uses(self) -> tuple[BankUse, ...]:
        """One entry for each instruction that touched LDS, in order of lines."""
        return tuple(self._counts[key] for key in sorted(self._counts))

    def count(
        self,
        instruction: Instruction,
        addresses: NDArray[np.int64],
        size: int,
        is_write: bool,
        lanes: NDArray[np.bool_] | None,
    ) -> None:
        """Lanes access `size` bytes at LDS byte addresses (waves, 64); lanes None means all."""
        # a shift by whole rows of banks changes nothing: tiles of a ring are counted once
        pattern = addresses - (int(addresses.min()) & ~255)
        key = (size, is_write, pattern.tobytes(), None if lanes is None else lanes.tobytes())
        if key not in self._known:
            self._known[key] = bank_cycles(pattern, size, is_write, lanes)
        cycles, conflicts = self._known[key]
        place = (instruction.line, is_write)
        before = self._counts.get(place) or BankUse(
            instruction.text, instruction.line, is_write, 0, 0, 0
        )
        self._counts[place] = replace(
            before,
            accesses=before.accesses + len(addresses),
            cycles=before.cycles + cycles,
            conflicts=before.conflicts + conflicts,
        )


def added(parts: Iterable[tuple[BankUse, ...]]) -> tuple[BankUse, ...]:
    """The uses of several processes together, in order of lines."""
    total: dict[tuple[int, bool], BankUse] = {}
    for use in (use for part in parts for use in part):
        key = (use.line, use.is_write)
        before = total.get(key)
        total[key] = use if before is None else replace(
            before,
            accesses=before.accesses + use.accesses,
            cycles=before.cycles + use.cycles,
            conflicts=before.conflicts + use.conflicts,
        )  # fmt: skip
    return tuple(total[key] for key in sorted(total))
