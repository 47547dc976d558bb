"""Decides how long a workgroup of attention takes, by its tiles of keys; launches no grid.

Two waves of it are replayed on one SIMD from the kernel's first instruction to its last, the other
three SIMDs taken to be in the same state. Long runs need no replay: once the loop has settled,
further tiles cost the same, to the cycle (tests/asm/test_timing_workgroup.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from asm_overrides.isa.instruction import Instruction
from asm_overrides.timing.constants import DEFAULT, Constants
from asm_overrides.timing.phases import SKEWS
from asm_overrides.timing.replay import replay_once
from asm_overrides.timing.route import Route, extended
from asm_overrides.timing.steps import Kind, compile_steps

WAVES = (0, 4)
"""Of eight waves, two that share a SIMD."""
ROUND = 4
"""Tiles after which a loop stands in the same place again: the slots of our ring; Triton's loop is
in the same place after each."""
SETTLED = 4 * ROUND
"""Tiles without a mask after which a further round costs what the last one did."""
_RECORDED = 2 * ROUND
"""Tiles without a mask of the shorter of the two runs from which longer ones are made."""

Routes = tuple[Route, Route]
Recording = Callable[[int, int], Routes]
"""Routes of WAVES in a workgroup with so many tiles without and with a mask."""


@dataclass(frozen=True)
class WorkgroupTime:
    """Cycles of a workgroup.

    Attributes:
        prologue: up to the first matrix instruction of either wave.
        full, masked: of the tiles without and with a mask.
        ramp: between the first matrix instruction and the last one's end, beyond these: scores
            before the first P is there, the last output after the last P. Below 0 where more of the
            first tile's loads lies in the prologue.
        epilogue: from the end of the last matrix instruction.
    """

    prologue: float
    full: float
    masked: float
    ramp: float
    epilogue: float

    @property
    def cycles(self) -> float:
        """From the first instruction to the last."""
        return self.prologue + self.full + self.masked + self.ramp + self.epilogue


@dataclass(frozen=True)
class Passage:
    """One replay from a kernel's start to its end: cycles until the first matrix instruction, until
    the end of the last one, and in all."""

    first_matrix: int
    last_matrix: int
    end: int


class WorkgroupModel:
    """Times of workgroups of one kernel on inputs of one kind.

    Args:
        code: the kernel's instructions. record: gives routes of short runs.
        most_masked: tiles with a mask that a workgroup may have; where it is 1, none is possible.
        skew: cycles by which the waves leave a barrier later; None takes the slowest of SKEWS.
    """

    def __init__(
        self,
        code: Sequence[Instruction],
        record: Recording,
        *,
        most_masked: int,
        constants: Constants = DEFAULT,
        skew: tuple[int, int] | None = None,
    ) -> None:
        self.record, self.most_masked, self.constants = record, most_masked, constants
        self._steps = compile_steps(code, frozenset(), constants)
        self._asked = skew
        self._routes: dict[tuple[int, int], Routes] = {}
        self._passages: dict[tuple[int, int], Passage] = {}

    @cached_property
    def skew(self) -> tuple[int, int]:
        """Of the replays."""
        if self._asked is not None:
            return self._asked
        routes = self.routes(SETTLED, self.most_masked)
        return max(SKEWS, key=lambda skew: self._replay(routes, skew).end)

    def routes(self, full: int, masked: int) -> Routes:
        """Routes of both waves; recorded where they are short, else extended from recorded ones."""
        rounds, rest = divmod(full, ROUND)
        shorter = _RECORDED + rest
        if full <= shorter + ROUND:
            return self._recorded(full, masked)
        pairs = zip(
            self._recorded(shorter, masked), self._recorded(shorter + ROUND, masked), strict=True
        )
        first, second = (
            extended(short, long, rounds - _RECORDED // ROUND) for short, long in pairs
        )
        return first, second

    def passage(self, full: int, masked: int) -> Passage:
        """The replay of the whole workgroup, however long."""
        key = (full, masked)
        if key not in self._passages:
            self._passages[key] = self._replay(self.routes(full, masked), self.skew)
        return self._passages[key]

    @cached_property
    def tile(self) -> float:
        """Cycles of a tile without a mask in the settled loop."""
        return self._round(SETTLED, self.most_masked) / ROUND

    @cached_property
    def masked_tile(self) -> float:
        """Cycles of a tile with a mask, by workgroups with the most and with one such tile.

        For inputs that make no maximum grow: of the one with a single such tile most query rows
        lie behind the end, and what rows there do is not what others do.
        """
        most = self.most_masked
        fewest = 1 if most > 1 else 0
        more = self.passage(SETTLED, most).end - self.passage(SETTLED, fewest).end
        return more / (most - fewest)

    def time(self, full: int, masked: int) -> WorkgroupTime:
        """Cycles of a workgroup with so many tiles without and with a mask.

        Raises:
            ValueError: more masked tiles than a workgroup of this kernel has, or no tile at all.
        """
        replayed, beyond = self._split(full, masked)
        passage = self.passage(replayed, masked)
        first, last = passage.first_matrix, passage.last_matrix + beyond
        tiles = full * self.tile, masked * self.masked_tile
        epilogue = passage.end - passage.last_matrix
        return WorkgroupTime(first, *tiles, last - first - sum(tiles), epilogue)

    def cycles(self, full: int, masked: int) -> int:
        """All cycles of such a workgroup; raises as `time`."""
        replayed, beyond = self._split(full, masked)
        return self.passage(replayed, masked).end + beyond

    def _split(self, full: int, masked: int) -> tuple[int, int]:
        """Tiles without a mask that are replayed, and cycles of those beyond."""
        if not 0 <= masked <= self.most_masked or full < 0 or full + masked < 1:
            raise ValueError(
                f"tiles: got {full} without and {masked} with a mask; accepted: at least one, "
                f"at most {self.most_masked} with a mask"
            )
        if full <= SETTLED + ROUND:
            return full, 0
        replayed = SETTLED + full % ROUND
        return replayed, (full - replayed) // ROUND * self._round(replayed, masked)

    def _recorded(self, full: int, masked: int) -> Routes:
        key = (full, masked)
        if key not in self._routes:
            self._routes[key] = self.record(full, masked)
        return self._routes[key]

    def _round(self, full: int, masked: int) -> int:
        """What ROUND more tiles cost."""
        return self.passage(full + ROUND, masked).end - self.passage(full, masked).end

    def _replay(self, routes: Routes, skew: tuple[int, int]) -> Passage:
        first, second = ([self._steps[index] for index in route] for route in routes)
        events = replay_once((first, second), self.constants, skew=skew)
        paths = (first, second)
        steps = [paths[event.wave][event.place] for event in events]
        pairs = list(zip(events, steps, strict=True))
        matrix = [
            (event.start, event.start + step.cycles)
            for event, step in pairs
            if step.kind is Kind.MATRIX
        ]
        return Passage(
            first_matrix=min(start for start, _ in matrix),
            last_matrix=max(end for _, end in matrix),
            end=max(event.start + step.next for event, step in pairs),
        )
