"""Decides when results of earlier stages arrive in a stage; looks at the shortest way to it.

A branch forward carries what was issued before it to its label, so that a stage which may be
skipped does not count as time. The back edge is not followed: it estimates, it proves nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from asm_overrides.passes.access import Atom, access
from asm_overrides.passes.flow import branch_label
from asm_overrides.passes.latency import Knobs, after_overwrite, after_write
from asm_overrides.program import Op

_Ages = dict[Atom, dict[int, int]]
"""Atom -> identity of an operation that wrote it -> cycles since then."""

_FORGOTTEN = 1000
"""Cycles after which every result has arrived."""


class History:
    """Who wrote each atom last on some path, and how many cycles ago at least."""

    def __init__(self, knobs: Knobs) -> None:
        self.knobs = knobs
        self.ages: _Ages = {}
        self._ops: dict[int, Op] = {}
        self._at_label: dict[str, _Ages] = {}

    def arrivals(self, ops: Sequence[Op]) -> list[int]:
        """Cycles from now at which everything that each operation needs has arrived."""
        found = []
        fresh: set[Atom] = set()
        for op in ops:
            touched = access(op)
            arrival = 0
            for atom in (touched.reads | touched.writes) - fresh:
                wait = after_write if atom in touched.reads else after_overwrite
                for producer, age in self.ages.get(atom, {}).items():
                    needed = wait(self._ops[producer], op, atom, self.knobs)
                    arrival = max(arrival, needed - age)
            fresh |= touched.writes
            found.append(arrival)
        return found

    def passed(self, issued: Iterable[tuple[Op, int]], cycles: int) -> None:
        """A stage was issued, each operation at its cycle of the stage, which took `cycles`."""
        for op, start in issued:
            if op.label:
                self._join(self._at_label.pop(op.label, {}), start)
            self._ops[id(op)] = op
            for atom in access(op).writes:
                self.ages[atom] = {id(op): -start}
            if (label := branch_label(op)) is not None:
                there = self._at_label.setdefault(label, {})
                for atom, writers in self.ages.items():
                    mine = there.setdefault(atom, {})
                    for writer, age in writers.items():
                        mine[writer] = min(age + start, mine.get(writer, _FORGOTTEN))
        self.ages = {
            atom: {op: age + cycles for op, age in writers.items()}
            for atom, writers in self.ages.items()
            if min(writers.values()) + cycles < _FORGOTTEN
        }

    def _join(self, there: _Ages, start: int) -> None:
        """Another path ends here; ages are kept relative to the stage's beginning."""
        for atom, writers in there.items():
            mine = self.ages.setdefault(atom, {})
            for writer, age in writers.items():
                mine[writer] = min(age - start, mine.get(writer, _FORGOTTEN))
