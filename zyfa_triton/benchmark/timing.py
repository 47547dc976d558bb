"""How long calls take: blocks of back-to-back replays, interleaved between paths, and quantiles.

It knows nothing of attention and judges no result.

Every path gets `rounds` blocks; in each round the paths take turns, so that a card that grows warm
meets all of them alike. A block first runs `settle` seconds uncounted: the clock of a card at its
power limit is set by the kernel that runs, and needs that long to become this path's own. Then
replays run for `seconds`, each between two marks. A replay makes one call for every copy of the
inputs; a sample is the time of a replay over its calls.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Protocol

MIN_REPLAYS = 4  # counted in a block, however long one takes
MAX_REPLAYS = 4000


@dataclass(frozen=True)
class Pacing:
    """How long is measured: rounds of blocks, in seconds; `settle` is not counted."""

    rounds: int = 2
    settle: float = 1.0
    seconds: float = 0.5

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise ValueError(f"rounds: got {self.rounds}; accepted: 1 and more")
        for name in ("settle", "seconds"):
            value = getattr(self, name)
            if not 0 <= value < math.inf:
                raise ValueError(f"{name}: got {value}; accepted: 0 and more seconds")


class Stopwatch(Protocol):
    """Marks points in the device's work and tells, once they are passed, the time between them."""

    def mark(self) -> Any: ...

    def seconds(self, first: Any, second: Any) -> float: ...

    def synchronize(self) -> None: ...


@dataclass(frozen=True)
class Candidate:
    """What is timed: `replay` makes `calls` calls, one for each copy of the inputs."""

    name: str
    replay: Callable[[], object]
    calls: int


@dataclass
class Times:
    """Seconds a call, by block, and when the blocks were counted (host clock, for sensors)."""

    blocks: list[list[float]] = field(default_factory=list)
    windows: list[tuple[float, float]] = field(default_factory=list)

    @property
    def samples(self) -> list[float]:
        return [sample for block in self.blocks for sample in block]

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    @property
    def quantiles(self) -> tuple[float, float]:
        """20 % and 80 % of the samples are below these."""
        cuts = statistics.quantiles(self.samples, n=5, method="inclusive")
        return cuts[0], cuts[3]

    @property
    def drift(self) -> float:
        """How much longer calls take in the second half of a block, relative: median of blocks.

        Far from 0, the clock had not settled when counting began.
        """
        return statistics.median(
            statistics.median(block[len(block) // 2 :])
            / statistics.median(block[: len(block) // 2])
            - 1.0
            for block in self.blocks
        )


def interleaved(
    candidates: Sequence[Candidate],
    pacing: Pacing,
    stopwatch: Stopwatch,
    *,
    clock: Callable[[], float] = time.perf_counter,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Times]:
    """Times of every candidate, by name, measured in turns.

    clock: the host's, in seconds; windows are given in it. progress: called with (blocks
            done, all).
    """
    estimates = {one.name: _estimate(one, stopwatch) for one in candidates}
    times = {one.name: Times() for one in candidates}
    done = 0
    for _ in range(pacing.rounds):
        for one in candidates:
            samples, window = _block(one, estimates[one.name], pacing, stopwatch, clock)
            times[one.name].blocks.append(samples)
            times[one.name].windows.append(window)
            done += 1
            if progress is not None:
                progress(done, pacing.rounds * len(candidates))
    return times


def replays_in(seconds: float, one_replay: float, least: int) -> int:
    """How many replays last so long."""
    return min(MAX_REPLAYS, max(least, math.ceil(seconds / one_replay)))


def _estimate(candidate: Candidate, stopwatch: Stopwatch) -> float:
    """Seconds of a replay, from the second one."""
    candidate.replay()
    first = stopwatch.mark()
    candidate.replay()
    second = stopwatch.mark()
    stopwatch.synchronize()
    return max(stopwatch.seconds(first, second), 1e-9)


def _block(
    candidate: Candidate,
    estimate: float,
    pacing: Pacing,
    stopwatch: Stopwatch,
    clock: Callable[[], float],
) -> tuple[list[float], tuple[float, float]]:
    for _ in range(replays_in(pacing.settle, estimate, 1)):
        candidate.replay()
    stopwatch.synchronize()
    begun = clock()
    marks = [stopwatch.mark()]
    for _ in range(replays_in(pacing.seconds, estimate, MIN_REPLAYS)):
        candidate.replay()
        marks.append(stopwatch.mark())
    stopwatch.synchronize()
    window = begun, clock()
    samples = [
        stopwatch.seconds(first, second) / candidate.calls for first, second in pairwise(marks)
    ]
    return samples, window
