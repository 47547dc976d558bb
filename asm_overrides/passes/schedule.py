"""Decides the order of operations inside stages; never moves one over a stage's border.

Needs: matrix and vector stages hold no label, branch, barrier, wait, nop or pseudo operation.
Keeps: every dependence through registers (vcc, scc and m0 included), LDS and memory; fixed stages.
Changes: the order of operations in matrix and vector stages.

A list scheduler for one wave: at each moment it issues, of the operations that need not wait, the
one whose consequences take longest (matrix stages) or that stands first (vector stages). LDS reads
of a matrix stage are then held back to the last moment that does not delay a matrix instruction,
so that their registers are taken late. LDS reads of a vector stage whose results a later stage uses
fill its gaps, and go out in time anyway.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from asm_overrides.passes.access import PSEUDO, Atom, access
from asm_overrides.passes.dependences import PINNED, Graph, dependences
from asm_overrides.passes.flow import branch_label, liveness, successors
from asm_overrides.passes.history import History
from asm_overrides.passes.latency import SLOT, Knobs, spec_of
from asm_overrides.program import LoopProgram, Op, Stage


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
    following = successors(program.ops)
    plans: list[StagePlan] = []
    history = History(knobs)
    first = 0
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
            work = _Work(
                stage,
                dependences(ops, dead, knobs),
                history.arrivals(ops),
                _due(program, following, first, stage, knobs),
            )
            plan = _plan_stage(work, knobs)
        history.passed(zip(plan.stage.ops, plan.starts, strict=True), plan.cycles)
        first += len(ops)
        plans.append(plan)
    return plans


def _check_movable(stage: Stage) -> None:
    for op in stage.ops:
        if op.label or op.opcode in PSEUDO or branch_label(op) is not None:
            what = "label" if op.label else op.opcode
        elif spec_of(op).port in ("special", "branch") and op.opcode not in PINNED:
            what = op.opcode
        else:
            continue
        raise ValueError(
            f"{op.source}: {what} in the {stage.kind} stage {stage.name!r}; "
            "it belongs into a fixed stage"
        )


def _due(
    program: LoopProgram,
    following: Sequence[tuple[int, ...]],
    first: int,
    stage: Stage,
    knobs: Knobs,
) -> dict[int, int]:
    """LDS reads of a vector stage that only later stages use -> cycle by which each should go."""
    if stage.kind != "vector":
        return {}
    ops, end = program.ops, first + len(stage.ops)
    # beside vector work an LDS instruction takes a slot of the wave, not its port's time
    specs = [spec_of(op) for op in stage.ops]
    total = sum(SLOT if spec.port == "lds" else spec.cycles for spec in specs)
    due: dict[int, int] = {}
    for index, op in enumerate(stage.ops):
        loaded = access(op).writes
        if spec_of(op).port != "lds" or spec_of(op).access != "load":
            continue
        if any(access(other).reads & loaded for other in stage.ops):
            continue
        slots = _slots_to_use(ops, following, end, loaded, knobs.lds_latency // SLOT)
        due[index] = max(0, total + SLOT * slots - knobs.lds_latency)
    return _spread(ops, due, knobs)


def _spread(ops: Sequence[Op], due: dict[int, int], knobs: Knobs) -> dict[int, int]:
    """Earlier times for all but the last: the LDS port has done one when the next goes."""
    moved: dict[int, int] = {}
    cursor: int | None = None
    for index in sorted(due, reverse=True):
        cursor = due[index] if cursor is None else min(due[index], cursor - knobs.lds_spacing)
        moved[index] = max(0, cursor)
    return moved


def _slots_to_use(
    ops: Sequence[Op],
    following: Sequence[tuple[int, ...]],
    start: int,
    atoms: frozenset[Atom],
    limit: int,
) -> int:
    """Fewest operations between a place and one that reads any of the atoms, at most `limit`."""
    front, seen = [start], {start}
    for slots in range(limit):
        reached: list[int] = []
        for index in front:
            if index == len(ops):
                continue
            if access(ops[index]).reads & atoms:
                return slots
            reached += [place for place in following[index] if place not in seen]
            seen.update(reached)
        front = reached
    return limit


@dataclass(frozen=True)
class _Work:
    """A stage with everything that restricts its order.

    Attributes:
        arrivals: cycle at which what earlier stages made is there, for each operation.
        due: operations that fill gaps -> cycle by which they go out anyway.
    """

    stage: Stage
    graph: Graph
    arrivals: list[int]
    due: dict[int, int]


def _plan_stage(work: _Work, knobs: Knobs) -> StagePlan:
    plan = _Run(work, list(work.arrivals), knobs).plan()
    if work.stage.kind != "matrix":
        return plan
    ahead = knobs.load_ahead
    while ahead < plan.cycles:
        held = _hold_back(work, plan, ahead)
        later = _Run(work, held, knobs).plan()
        if _last_matrix(later) <= _last_matrix(plan):
            return later
        ahead = 2 * max(ahead, SLOT)
    return plan


def _last_matrix(plan: StagePlan) -> int:
    starts = zip(plan.stage.ops, plan.starts, strict=True)
    return max((start for op, start in starts if spec_of(op).port == "mfma"), default=0)


def _hold_back(work: _Work, plan: StagePlan, ahead: int) -> list[int]:
    """Earliest cycles that let LDS reads go out just in time for the consumers in `plan`."""
    ops, graph = work.stage.ops, work.graph
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
    held = list(work.arrivals)
    cursor = plan.cycles
    for last, index in sorted(latest, reverse=True):
        cursor = min(last, cursor - spec_of(ops[index]).cycles)
        held[index] = max(held[index], cursor - ahead)
    return held


class _Run:
    """One pass of the list scheduler over a stage."""

    def __init__(self, work: _Work, earliest: list[int], knobs: Knobs) -> None:
        self.stage = work.stage
        self.ops = work.stage.ops
        self.graph = work.graph
        self.due = dict(work.due)
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
            self.due.pop(index, None)
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
        ahead = self.knobs.load_ahead
        times = {index: max(self._start(index), self.due.get(index, 0) - ahead) for index in ready}
        matrix = self.stage.kind == "matrix"
        last = len(self.ops) if matrix else pending[min(self.knobs.window, len(pending)) - 1]
        near = [index for index in ready if index <= last]
        soonest = min(times[index] for index in near)
        now = max(self.clock, soonest)
        able = [index for index in near if times[index] <= now]
        if matrix:
            return min(able, key=lambda i: (self.specs[i].port != "mfma", -self.heights[i], i))
        overdue = [i for i in able if i in self.due and self.due[i] <= now]
        if overdue:
            return min(overdue)
        return min(able, key=lambda i: (i in self.due, i))

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
