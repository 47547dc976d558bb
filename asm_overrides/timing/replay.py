"""Decides when each instruction of two waves issues on one SIMD; knows no program and no picture.

Both waves issue in order, one instruction a slot. The earliest instruction of either goes first; of
two that could issue at once the higher priority (s_setprio), then the wave that issued longer ago.
Shared are the vector port, the matrix pipe and the LDS queue; a matrix instruction leaves its wave
free while the pipe works. Registers are ready after their producer's latency, results of LDS and
memory when a wait says so. Barriers join the waves of a workgroup. Nothing is drawn at random.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from asm_overrides.timing.constants import DEFAULT, Constants
from asm_overrides.timing.steady import Steady
from asm_overrides.timing.steps import Kind, Step, compile_steps

ORDER = "in order"
"""Cause of no stall: the wave was not held."""
MATRIX_PIPE = "matrix pipe busy"
MATRIX_RESULT = "result of a matrix instruction"
VECTOR_PORT = "vector port taken"
VECTOR_RESULT = "result of a vector instruction"
MATRIX_READS = "own matrix instruction reads operands"
PACKED = "packed float32 beside a matrix instruction"
LDS_QUEUE = "LDS queue full"
LDS_WAIT = "wait for LDS"
MEMORY_WAIT = "wait for memory"
BARRIER = "barrier"
NOP = "nop"


@dataclass(frozen=True, slots=True)
class Event:
    """One instruction issued.

    Attributes:
        wave: 0 or 1. place: in its path. iteration: of the wave.
        ready: when the wave had come to it. start: when it issued.
        served: when its port began to work on it. cause: of start - ready.
    """

    wave: int
    place: int
    iteration: int
    ready: int
    start: int
    served: int
    cause: str


@dataclass(frozen=True)
class Replay:
    """A stretch of the steady state.

    Attributes:
        steps: of each wave. events: in order of issue, before the stretch included.
        begin, end: of the stretch. iterations: of the first wave in it.
    """

    steps: tuple[Sequence[Step], Sequence[Step]]
    events: tuple[Event, ...]
    begin: int
    end: int
    iterations: int

    @property
    def period(self) -> float:
        """Cycles of one iteration of both waves."""
        return (self.end - self.begin) / self.iterations

    def step(self, event: Event) -> Step:
        """What an event issued."""
        return self.steps[event.wave][event.place]

    @property
    def matrix_busy(self) -> float:
        """Share of the stretch in which the matrix pipe works."""
        return self._share(False)

    @property
    def useful_share(self) -> float:
        """Share of the stretch in which it works on Q K^T or P V."""
        return self._share(True)

    def _share(self, only_useful: bool) -> float:
        busy = 0
        for event in self.events:
            step = self.step(event)
            if step.kind is Kind.MATRIX and (step.useful or not only_useful):
                stop = min(self.end, event.start + step.cycles)
                busy += max(0, stop - max(self.begin, event.start))
        return busy / (self.end - self.begin)

    def stalls(self) -> dict[str, float]:
        """Cycles an iteration for which waves (both together) were held, by cause, largest first.

        Nops count with all their cycles but the one slot of any instruction.
        """
        found: Counter[str] = Counter()
        for event in self.events:
            if self.begin <= event.start < self.end:
                found[event.cause] += event.start - event.ready
                step = self.step(event)
                if step.instruction.opcode == "s_nop":
                    found[NOP] += step.next - step.cycles
        del found[ORDER]
        return {
            cause: round(count / self.iterations, 1)
            for cause, count in found.most_common()
            if count
        }

    def idle_matrix(self) -> dict[str, float]:
        """Cycles an iteration in which the matrix pipe is idle, by what held the wave that fed it
        next; "issuing ..." where that wave was not held but busy with other instructions."""
        found: Counter[str] = Counter()
        by_wave = [[each for each in self.events if each.wave == wave] for wave in (0, 1)]
        at = [0, 0]
        free = self.begin
        for event in self.events:
            step = self.step(event)
            if step.kind is not Kind.MATRIX:
                continue
            start = min(event.start, self.end)
            if start > free:
                mine = by_wave[event.wave]
                at[event.wave] = self._attribute(mine, at[event.wave], free, start, found)
            free = max(free, event.start + step.cycles)
            if free >= self.end:
                break
        return {
            cause: round(count / self.iterations, 1)
            for cause, count in found.most_common()
            if count
        }

    def _attribute(
        self, mine: Sequence[Event], at: int, begin: int, end: int, found: Counter[str]
    ) -> int:
        """Divide an idle time among what a wave did in it; where to look next."""
        while at > 0 and mine[at].ready > begin:
            at -= 1
        while at < len(mine) and mine[at].ready < end:
            event, step = mine[at], self.step(mine[at])
            held = min(event.start, end) - max(event.ready, begin)
            found[event.cause] += max(0, held)
            issuing = min(event.start + step.next, end) - max(event.start, begin)
            name = NOP if step.instruction.opcode == "s_nop" else f"issuing {step.port}"
            found[name] += max(0, issuing)
            at += 1
        return max(0, at - 1)


class _Wave:
    def __init__(self, steps: Sequence[Step], delay: int, skew: int, barriers: int) -> None:
        self.steps = steps
        self.place = 0
        self.iteration = 0
        self.barriers_first = barriers
        self.time, self.skew = delay, skew
        self.ready: dict[int, tuple[int, str]] = {}
        self.chains: dict[int, tuple[int, int, int]] = {}
        self.vector_from = 0
        self.packed_from = 0
        self.loads: dict[str, list[int]] = {"vmcnt": [], "lgkmcnt": []}
        self.priority = 0
        self.issued = -1
        self.arrived = -1  # at a barrier
        self.own: tuple[int, str] | None = None
        self.has_waited = False

    @property
    def step(self) -> Step:
        return self.steps[self.place]


class _Simd:
    def __init__(
        self, waves: Sequence[_Wave], joined: bool, constants: Constants, once: bool = False
    ) -> None:
        """once: a path is a program to its end, not an iteration."""
        self.waves, self.joined, self.constants, self.once = waves, joined, constants, once
        self.vector_free = self.matrix_free = self.lds_free = self.packed_from = 0
        self.queue: list[int] = []
        self.events: list[Event] = []
        self.starts: list[int] = []  # of the first wave's iterations

    def run(self, iterations: int) -> None:
        """Until the first wave has begun that many iterations."""
        while len(self.starts) <= iterations:
            self._turn()

    def finish(self) -> None:
        """Until every wave has been through its path once; needs `once`."""
        while not all(map(self._has_ended, self.waves)):
            self._turn()

    def _has_ended(self, wave: _Wave) -> bool:
        return self.once and wave.iteration > 0

    def _turn(self) -> None:
        """Issue what may go first, or let waves arrive at barriers."""
        best: tuple[int, int, int, int] | None = None
        chosen, why = None, ORDER
        for number, wave in enumerate(self.waves):
            if wave.arrived >= 0 or self._has_ended(wave):
                continue
            if wave.barriers_first or wave.step.kind is Kind.BARRIER:
                wave.arrived = wave.time
                self._release()
                if wave.arrived >= 0:
                    continue
                return  # times of the others have changed
            start, cause = self._earliest(wave)
            key = (start, -wave.priority, wave.issued, number)
            if best is None or key < best:
                best, chosen, why = key, wave, cause
        if best is not None and chosen is not None and not self._packed_is_held(chosen, best[0]):
            self._issue(chosen, best[3], best[0], why)

    def _packed_is_held(self, wave: _Wave, start: int) -> bool:
        """Whether packed arithmetic must wait for the matrix instruction that runs as it comes.

        Only for that one: a wave that feeds the pipe without a gap must not shut the other one out.
        """
        waits = wave.step.packed and self.constants.packed_waits_for_other
        if not waits or wave.has_waited or self.packed_from <= start:
            return False
        wave.own, wave.has_waited = (self.packed_from, PACKED), True
        return True

    def _release(self) -> None:
        """Let waves go on whose barrier is complete."""
        waiting = [wave for wave in self.waves if wave.arrived >= 0]
        running = [wave for wave in self.waves if wave.arrived < 0 and not self._has_ended(wave)]
        if not waiting or (self.joined and running):
            return
        leave = max(wave.arrived for wave in waiting) + self.constants.barrier
        for number, wave in enumerate(self.waves):
            if wave.arrived < 0:
                continue
            if wave.barriers_first:
                wave.barriers_first -= 1
            else:
                left = leave + wave.skew
                event = Event(number, wave.place, wave.iteration, wave.arrived, left, left, BARRIER)
                self.events.append(event)
                self._advance(wave, number, wave.arrived)
            wave.time, wave.arrived = leave + wave.skew, -1

    def _advance(self, wave: _Wave, number: int, ready: int) -> None:
        if number == 0 and wave.place == 0:
            self.starts.append(ready)
        wave.place += 1
        wave.own, wave.has_waited = None, False
        if wave.place == len(wave.steps):
            wave.place = 0
            wave.iteration += 1
            if self.once:  # a barrier may have waited for this wave alone
                self._release()

    def _own(self, wave: _Wave) -> tuple[int, str]:
        """Earliest issue as far as the wave itself decides it."""
        step, start, cause = wave.step, wave.time, ORDER
        ready = wave.ready
        for register in step.reads:
            known = ready.get(register)
            if known is not None and known[0] > start:
                start, cause = known
        kind = step.kind
        if kind is Kind.VECTOR:
            if wave.vector_from > start:
                start, cause = wave.vector_from, MATRIX_READS
            if step.packed and wave.packed_from > start:
                start, cause = wave.packed_from, PACKED
        elif kind is Kind.MATRIX:
            after = self._accumulator(wave, step)
            if after > start:
                start, cause = after, MATRIX_RESULT
        elif kind is Kind.WAIT:
            for counter, allowed, name in (
                ("vmcnt", step.waits[0], MEMORY_WAIT),
                ("lgkmcnt", step.waits[1], LDS_WAIT),
            ):
                loads = wave.loads[counter]
                if 0 <= allowed < len(loads):
                    done = max(loads[: len(loads) - allowed])
                    if done > start:
                        start, cause = done, name
        return start, cause

    @staticmethod
    def _accumulator(wave: _Wave, step: Step) -> int:
        """When a matrix instruction may add to and overwrite its accumulators."""
        first, width = step.addend
        chain = wave.chains.get(first)
        after = 0
        if chain is not None and step.addend == step.result and chain[0] == width:
            whole = all(
                wave.ready.get(register, (0, ""))[0] == chain[2]
                for register in range(first, first + width)
            )
            if whole:
                return chain[1]
        for register in (*range(first, first + width), *step.writes):
            known = wave.ready.get(register)
            if known is not None:
                after = max(after, known[0])
        return after

    def _earliest(self, wave: _Wave) -> tuple[int, str]:
        step = wave.step
        if wave.own is None:
            wave.own = self._own(wave)
        start, cause = wave.own
        if step.kind is Kind.VECTOR:
            if self.vector_free > start:
                start, cause = self.vector_free, VECTOR_PORT
        elif step.kind is Kind.MATRIX:
            if self.matrix_free > start:
                start, cause = self.matrix_free, MATRIX_PIPE
            if step.hold_other and self.vector_free > start:
                start, cause = self.vector_free, VECTOR_PORT
        elif step.kind is Kind.LDS and len(self.queue) >= self.constants.lds_queue:
            free = self.queue[-self.constants.lds_queue]
            if free > start:
                start, cause = free, LDS_QUEUE
        return start, cause

    def _issue(self, wave: _Wave, number: int, start: int, cause: str) -> None:
        step, served = wave.step, start
        kind = step.kind
        if kind is Kind.VECTOR:
            self.vector_free = start + step.cycles
            for register in step.writes:
                wave.ready[register] = (start + step.result_after, VECTOR_RESULT)
        elif kind is Kind.MATRIX:
            self._start_matrix(wave, step, start)
        elif kind is Kind.LDS:
            served = max(start, self.lds_free)
            self.lds_free = served + step.cycles
            self.queue.append(self.lds_free)
            del self.queue[: -self.constants.lds_queue]
            wave.loads["lgkmcnt"].append(served + step.latency)
        elif kind in (Kind.VMEM, Kind.SMEM):
            for counter in step.counts:
                wave.loads[counter].append(start + step.latency)
        elif kind is Kind.WAIT:
            for loads in wave.loads.values():
                loads[:] = [done for done in loads if done > start]
        elif kind is Kind.PRIORITY:
            wave.priority = step.priority
        self.events.append(
            Event(number, wave.place, wave.iteration, wave.time, start, served, cause)
        )
        self._advance(wave, number, wave.time)
        wave.time, wave.issued = start + step.next, start

    def _start_matrix(self, wave: _Wave, step: Step, start: int) -> None:
        self.matrix_free = start + step.cycles
        if step.hold_other:
            self.vector_free = max(self.vector_free, start + step.hold_other)
        wave.vector_from = start + step.hold
        wave.packed_from = start + step.cycles + self.constants.packed_after_matrix
        self.packed_from = max(self.packed_from, wave.packed_from)
        done = start + step.result_after
        for register in step.writes:
            wave.ready[register] = (done, MATRIX_RESULT)
        first, width = step.result
        wave.chains[first] = (width, start + step.cycles, done)


def replay(
    steady: Steady,
    constants: Constants = DEFAULT,
    *,
    delay: int = 0,
    skew: tuple[int, int] = (0, 0),
    warm: int = 3,
    iterations: int = 2,
) -> Replay:
    """Replay both waves for some iterations after the model has settled.

    Args:
        delay: cycles by which the second wave starts later.
        skew: cycles that each wave takes to go on from a barrier besides the constant.
        warm: iterations of the first wave before the stretch. iterations: in it.
    """
    tracks = steady.tracks
    fewest = min(track.barriers_before for track in tracks)
    # a wave that passes more barriers before its loop is held at those that the other one passes
    # within it
    waves = [
        _Wave(compile_steps(track.path, track.useful, constants), late, behind, barriers)
        for track, late, behind, barriers in zip(
            tracks,
            (0, delay),
            skew,
            [track.barriers_before - fewest for track in tracks],
            strict=True,
        )
    ]
    simd = _Simd(waves, steady.joined, constants)
    simd.run(warm + iterations + 1)  # whatever ends the stretch's last idle time is there, too
    begin, end = simd.starts[warm], simd.starts[warm + iterations]
    steps = (waves[0].steps, waves[1].steps)
    return Replay(steps, tuple(simd.events), begin, end, iterations)


def replay_once(
    paths: tuple[Sequence[Step], Sequence[Step]],
    constants: Constants = DEFAULT,
    *,
    skew: tuple[int, int] = (0, 0),
) -> tuple[Event, ...]:
    """Events of two waves of a workgroup, from their first instruction (cycle 0) to their last.

    paths: every instruction that each wave executes, in order.
    """
    waves = [_Wave(steps, 0, behind, 0) for steps, behind in zip(paths, skew, strict=True)]
    simd = _Simd(waves, True, constants, once=True)
    simd.finish()
    return tuple(simd.events)
