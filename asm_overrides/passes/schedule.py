"""Decides the order of operations inside stages; never moves one over a stage's border.

Needs: matrix and vector stages hold no label, branch, barrier, wait, nop or pseudo operation.
Keeps: every dependence through registers (vcc, scc and m0 included), LDS and memory; fixed stages.
Changes: the order of operations in matrix and vector stages.

A list scheduler for one wave: at each moment it issues, of the operations that need not wait, the
one whose consequences take longest (matrix stages) or that stands first (vector stages). LDS reads
of a matrix stage are then held back to the last moment that does not delay a matrix instruction,
so that their registers are taken late.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from asm_overrides.passes.access import PSEUDO, Atom, access
from asm_overrides.passes.flow import branch_label, liveness
from asm_overrides.passes.latency import (
    SLOT,
    Knobs,
    after_overwrite,
    after_read,
    after_write,
    spec_of,
)
from asm_overrides.program import LoopProgram, Op, Stage

_PINNED = frozenset(("s_setprio",))
_ANY_RING = "*"


@dataclass(frozen=True)
class StagePlan:
    """The order found for one stage.

    Attributes:
        stage: its operations in the new order.
        starts: cycle at which each is expected to issue, counted from the stage's beginning.
        cycles: until the last has issued and its port is free.
        matrix_cycles: of these, in which the matrix pipe is busy.
    """

    stage: Stage
    starts: tuple[int, ...]
    cycles: int
    matrix_cycles: int


def schedule(program: LoopProgram, knobs: Knobs | None = None) -> LoopProgram:
    """The program with reordered stages.

    Raises:
        ValueError: something in a movable stage that cannot be moved; names the recipe's line.
    """
    return program.with_stages(plan.stage for plan in plan_stages(program, knobs))


def plan_stages(program: LoopProgram, knobs: Knobs | None = None) -> list[StagePlan]:
    """`schedule` with the times that it expects."""
    knobs = knobs or Knobs()
    live = liveness(program)
    numbering, after = live.numbering, live.after
    plans: list[StagePlan] = []
    clock = first = 0
    written: dict[Atom, tuple[Op, int]] = {}
    for stage in program.stages:
        ops = stage.ops
        if stage.kind == "fixed":
            plan = StagePlan(stage, tuple(SLOT * i for i in range(len(ops))), SLOT * len(ops), 0)
        else:
            _check_movable(stage)
            dead = [
                frozenset(
                    atom
                    for atom in access(op).writes
                    if atom[0].startswith("%") and not numbering.bits((atom,)) & after[first + i]
                )
                for i, op in enumerate(ops)
            ]
            plan = _plan_stage(stage, dead, _arrivals(ops, written, clock, knobs), knobs)
        for op, start in zip(plan.stage.ops, plan.starts, strict=True):
            for atom in access(op).writes:
                written[atom] = (op, clock + start)
        clock += plan.cycles
        first += len(ops)
        plans.append(plan)
    return plans


def _check_movable(stage: Stage) -> None:
    for op in stage.ops:
        if op.label or op.opcode in PSEUDO or branch_label(op) is not None:
            what = "label" if op.label else op.opcode
        elif spec_of(op).port in ("special", "branch") and op.opcode not in _PINNED:
            what = op.opcode
        else:
            continue
        raise ValueError(
            f"{op.source}: {what} in the {stage.kind} stage {stage.name!r}; "
            "it belongs into a fixed stage"
        )


def _arrivals(
    ops: Sequence[Op], written: dict[Atom, tuple[Op, int]], clock: int, knobs: Knobs
) -> list[int]:
    """Cycle of the stage at which results of earlier stages have arrived for each operation."""
    arrivals = []
    fresh: set[Atom] = set()
    for op in ops:
        touched = access(op)
        arrival = 0
        for atom in touched.reads | touched.writes:
            if atom in written and atom not in fresh:
                producer, start = written[atom]
                wait = after_write if atom in touched.reads else after_overwrite
                arrival = max(arrival, start + wait(producer, op, atom, knobs) - clock)
        fresh |= touched.writes
        arrivals.append(arrival)
    return arrivals


@dataclass
class _Graph:
    """Dependences of a stage: later[i][j] is the distance in cycles from i to j."""

    later: list[dict[int, int]]
    earlier: list[set[int]] = field(default_factory=list)

    def add(self, first: int, second: int, cycles: int) -> None:
        if first != second:
            self.later[first][second] = max(cycles, self.later[first].get(second, 0))
            self.earlier[second].add(first)


def _graph(ops: Sequence[Op], dead: Sequence[frozenset[Atom]], knobs: Knobs) -> _Graph:
    graph = _Graph([{} for _ in ops], [set() for _ in ops])
    writer: dict[Atom, int] = {}
    idle_writers: dict[Atom, list[int]] = defaultdict(list)
    readers: dict[Atom, list[int]] = defaultdict(list)
    for index, op in enumerate(ops):
        touched = access(op)
        for atom in touched.reads:
            if atom in writer:
                wait = after_write(ops[writer[atom]], op, atom, knobs)
                graph.add(writer[atom], index, wait)
            for each in idle_writers[atom]:
                graph.add(each, index, SLOT)
        for atom in touched.writes:
            for each in readers[atom]:
                graph.add(each, index, after_read(ops[each], op, atom))
            if atom in writer:
                wait = after_overwrite(ops[writer[atom]], op, atom, knobs)
                graph.add(writer[atom], index, wait)
            if atom in dead[index]:
                idle_writers[atom].append(index)
                continue
            for each in idle_writers.pop(atom, ()):
                graph.add(each, index, SLOT)
            writer[atom] = index
            readers[atom] = []
        for atom in touched.reads:
            readers[atom].append(index)
    _order_memory(ops, graph)
    _order_pinned(ops, graph)
    return graph


def _order_pinned(ops: Sequence[Op], graph: _Graph) -> None:
    """Priorities keep their place among all others."""
    for index, op in enumerate(ops):
        if op.opcode in _PINNED:
            for other in range(len(ops)):
                graph.add(min(index, other), max(index, other), SLOT)


def _order_memory(ops: Sequence[Op], graph: _Graph) -> None:
    """Stores keep their place among accesses to the same memory.

    A ring's LDS-direct loads and its readers are free of each other: a tile is read only behind
    the barrier that publishes it, and no barrier stands in a movable stage.
    """
    accesses = [(index, _memory(op)) for index, op in enumerate(ops)]
    accesses = [(index, each) for index, each in accesses if each]
    for place, (index, here) in enumerate(accesses):
        for other, there in accesses[:place]:
            if any(_conflict(a, b) for a in there for b in here):
                graph.add(other, index, SLOT)


_Memory = tuple[str, str]
"""("read" | "write" | "fill", "memory" or a ring's name)."""


def _memory(op: Op) -> list[_Memory]:
    spec = spec_of(op)
    if spec.port == "special" or not spec.access:
        return []
    instruction = access(op).instruction
    assert instruction is not None
    if spec.port == "lds":
        kind = "read" if spec.access == "load" else "write"
        rings = op.lds_reads if kind == "read" else op.lds_writes
        return [(kind, ring) for ring in rings or (_ANY_RING,)]
    found = [("read" if spec.access == "load" else "write", "memory")]
    if "lds" in instruction.modifiers or "_load_lds_" in op.opcode:
        found += [("fill", ring) for ring in op.lds_writes or (_ANY_RING,)]
    return found


def _conflict(first: _Memory, second: _Memory) -> bool:
    if (first[1] == "memory") != (second[1] == "memory"):
        return False
    if first[1] != second[1] and _ANY_RING not in (first[1], second[1]):
        return False
    kinds = {first[0], second[0]}
    if kinds == {"read", "fill"}:
        return _ANY_RING in (first[1], second[1])
    return kinds != {"read"}


def _plan_stage(
    stage: Stage, dead: Sequence[frozenset[Atom]], arrivals: Sequence[int], knobs: Knobs
) -> StagePlan:
    ops = stage.ops
    graph = _graph(ops, dead, knobs)
    plan = _Run(stage, graph, list(arrivals), knobs).plan()
    if stage.kind != "matrix":
        return plan
    ahead = knobs.load_ahead
    while ahead < plan.cycles:
        held = _hold_back(ops, graph, plan, arrivals, ahead)
        later = _Run(stage, graph, held, knobs).plan()
        if _last_matrix(later) <= _last_matrix(plan):
            return later
        ahead = 2 * max(ahead, SLOT)
    return plan


def _last_matrix(plan: StagePlan) -> int:
    starts = zip(plan.stage.ops, plan.starts, strict=True)
    return max((start for op, start in starts if spec_of(op).port == "mfma"), default=0)


def _hold_back(
    ops: Sequence[Op], graph: _Graph, plan: StagePlan, arrivals: Sequence[int], ahead: int
) -> list[int]:
    """Earliest cycles that let LDS reads go out just in time for the consumers in `plan`."""
    start_of = {id(op): start for op, start in zip(plan.stage.ops, plan.starts, strict=True)}
    starts = [start_of[id(op)] for op in ops]
    latest: list[tuple[int, int]] = []
    for index, op in enumerate(ops):
        if spec_of(op).port == "lds" and spec_of(op).access == "load":
            uses = [
                starts[user] - wait
                for user, wait in graph.later[index].items()
                if access(ops[user]).reads & access(op).writes
            ]
            if uses:
                latest.append((min(uses), index))
    held = list(arrivals)
    cursor = plan.cycles
    for last, index in sorted(latest, reverse=True):
        cursor = min(last, cursor - spec_of(ops[index]).cycles)
        held[index] = max(held[index], cursor - ahead)
    return held


class _Run:
    """One pass of the list scheduler over a stage."""

    def __init__(self, stage: Stage, graph: _Graph, earliest: list[int], knobs: Knobs) -> None:
        self.stage = stage
        self.ops = stage.ops
        self.graph = graph
        self.earliest = earliest
        self.knobs = knobs
        self.specs = [spec_of(op) for op in self.ops]
        self.heights = self._heights()
        self.free = dict.fromkeys(("vector", "matrix", "lds", "vmem"), 0)
        self.clock = 0

    def _heights(self) -> list[int]:
        """Cycles from each operation's issue to the end of the longest chain behind it."""
        heights = [0] * len(self.ops)
        for index in range(len(self.ops) - 1, -1, -1):
            later = self.graph.later[index]
            heights[index] = max(
                (wait + heights[user] for user, wait in later.items()),
                default=self.specs[index].cycles,
            )
        return heights

    def plan(self) -> StagePlan:
        """Issue everything; deterministic."""
        waiting = [len(each) for each in self.graph.earlier]
        ready = [index for index, count in enumerate(waiting) if not count]
        order: list[int] = []
        starts: list[int] = []
        pending = list(range(len(self.ops)))
        while ready:
            index = self._choose(ready, pending)
            start = self._issue(index)
            ready.remove(index)
            pending.remove(index)
            order.append(index)
            starts.append(start)
            for user, wait in self.graph.later[index].items():
                self.earliest[user] = max(self.earliest[user], start + wait)
                waiting[user] -= 1
                if not waiting[user]:
                    ready.append(user)
        ops = tuple(self.ops[index] for index in order)
        busy = sum(spec.cycles for spec in self.specs if spec.port == "mfma")
        end = max((self.clock, *self.free.values()))
        return StagePlan(replace(self.stage, ops=ops), tuple(starts), end, busy)

    def _choose(self, ready: Sequence[int], pending: Sequence[int]) -> int:
        """The best operation that can go now, else the one that can go soonest."""
        times = {index: self._start(index) for index in ready}
        matrix = self.stage.kind == "matrix"
        last = len(self.ops) if matrix else pending[min(self.knobs.window, len(pending)) - 1]
        near = [index for index in ready if index <= last]
        soonest = min(times[index] for index in near)
        now = max(self.clock, soonest)
        able = [index for index in near if times[index] <= now]
        if matrix:
            return min(able, key=lambda i: (self.specs[i].port != "mfma", -self.heights[i], i))
        return min(able)

    def _start(self, index: int) -> int:
        """Earliest cycle at which an operation can issue."""
        spec, start = self.specs[index], max(self.clock, self.earliest[index])
        if spec.port in ("valu", "trans", "mfma"):
            start = max(start, self.free["vector"])
        if spec.port == "mfma":
            start = max(start, self.free["matrix"])
        elif spec.opcode.startswith("v_pk_") and spec.opcode.endswith("_f32"):
            # Packed 32-bit arithmetic waits for the matrix pipe.
            start = max(start, self.free["matrix"])
        elif spec.port == "lds":
            start = max(start, self.free["lds"] - self.knobs.lds_queue * spec.cycles)
        elif spec.port == "vmem":
            start = max(start, self.free["vmem"])
        return start

    def _issue(self, index: int) -> int:
        start, spec = self._start(index), self.specs[index]
        if spec.port == "mfma":
            self.free["matrix"] = start + spec.cycles
            self.free["vector"] = start + self.knobs.matrix_issue
        elif spec.port in ("valu", "trans"):
            self.free["vector"] = start + spec.cycles
        elif spec.port == "lds":
            self.free["lds"] = max(self.free["lds"], start) + spec.cycles
        elif spec.port == "vmem":
            spacing = self.knobs.vmem_spacing if self.stage.kind == "matrix" else SLOT
            self.free["vmem"] = start + spacing
        self.clock = start + SLOT
        return start
