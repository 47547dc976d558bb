"""Decides which results of memory instructions a wave may not touch yet; looks at no values.

A wave's outstanding work is a small immutable state, and an instruction maps one state to the next,
so the same machine serves a run (every step is looked up after its first occurrence) and a proof
over all paths (`find_missing_waits`).

What gfx950 guarantees: vmcnt counts loads, stores and LDS-direct loads and falls in order; lgkmcnt
counts LDS in order and scalar loads in any order, so that with a scalar load outstanding only
lgkmcnt(0) says anything; flat accesses count in both. A store has read its data when it was issued.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from asm_overrides.emulator.flow import control_flow
from asm_overrides.isa.instruction import Instruction
from asm_overrides.isa.operands import WaitCounts
from asm_overrides.isa.registers import register_name

COUNTER_LIMITS = {"vmcnt": 63, "lgkmcnt": 15}
"""Largest value of each counter; an instruction that would exceed it is not issued before the
oldest outstanding one is done."""

Work = tuple[int, ...]
"""Indices of outstanding instructions, oldest first."""

Report = Callable[["MissingWait"], None]


@dataclass(frozen=True)
class MissingWait:
    """An instruction that comes before the wait it needs.

    Attributes:
        kind: slug of the finding.
        index: the instruction; source: the memory instruction it should have waited for.
        registers: the registers concerned (empty at the end of a program).
        counter: which counter has to fall.
        overwrites: True if the instruction writes what the load is still going to write.
    """

    kind: str
    index: int
    source: int
    registers: frozenset[int]
    counter: str
    overwrites: bool = False

    def describe(self, instructions: Sequence[Instruction]) -> str:
        """One sentence naming the load, the registers and the counter."""
        load = instructions[self.source]
        names = ", ".join(register_name(register) for register in sorted(self.registers)[:4])
        if self.kind == "end-in-flight":
            return f"line {load.line} `{load.text}` is still in flight ({self.counter})"
        verb = "overwrites" if self.overwrites else "uses"
        return (
            f"{verb} {names} before an s_waitcnt {self.counter} covers "
            f"line {load.line} `{load.text}`"
        )


@dataclass(frozen=True)
class Outstanding:
    """What a wave has in flight: one state of the machine.

    Attributes:
        number: of the state.
        vmcnt, lgkmcnt: outstanding instructions.
        lds_loads: LDS-direct loads among vmcnt; lds: LDS accesses among lgkmcnt.
    """

    number: int
    vmcnt: Work
    lgkmcnt: Work
    lds_loads: int
    lds: int


class WaitMachine:
    """States of outstanding work for one program and the steps between them."""

    def __init__(self, instructions: Sequence[Instruction]) -> None:
        self.instructions = instructions
        self._touched = [each.reads | each.writes for each in instructions]
        self._loaded = [
            each.writes if each.spec.access in ("load", "atomic", "") else frozenset[int]()
            for each in instructions
        ]
        self._numbers: dict[tuple[Work, Work], int] = {}
        self.states: list[Outstanding] = []
        self._pending: list[frozenset[int]] = []
        self.steps: list[dict[int, int]] = []
        self.start = self._state((), ())

    def step(self, state: int, index: int, report: Report) -> int:
        """State after an instruction; what it does too early goes to `report`, once per step."""
        known = self.steps[state].get(index)
        if known is None:
            known = self.steps[state][index] = self._compute(state, index, report)
        return known

    def _state(self, vmcnt: Work, lgkmcnt: Work) -> int:
        key = (vmcnt, lgkmcnt)
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self.states)
            lds_loads = sum(is_lds_load(self.instructions[i]) for i in vmcnt)
            lds = sum(self.instructions[i].spec.port == "lds" for i in lgkmcnt)
            self.states.append(Outstanding(number, vmcnt, lgkmcnt, lds_loads, lds))
            pending = (self._loaded[i] for i in (*vmcnt, *lgkmcnt))
            self._pending.append(frozenset().union(*pending))
            self.steps.append({})
        return number

    def _compute(self, state: int, index: int, report: Report) -> int:
        instruction = self.instructions[index]
        now = self.states[state]
        vmcnt, lgkmcnt = now.vmcnt, now.lgkmcnt
        if not self._pending[state].isdisjoint(self._touched[index]):
            self._report_touched(now, index, report)
        opcode = instruction.opcode
        if opcode == "s_waitcnt":
            counts = instruction.operands[0]
            if isinstance(counts, WaitCounts):
                vmcnt = _newest(vmcnt, counts.vmcnt)
                if counts.lgkmcnt == 0 or not self._unordered(lgkmcnt):
                    lgkmcnt = _newest(lgkmcnt, counts.lgkmcnt)
        elif opcode == "s_endpgm":
            self._report_end(now, index, report)
        counters = instruction.spec.counters
        if "vmcnt" in counters:
            vmcnt = (*vmcnt, index)[-COUNTER_LIMITS["vmcnt"] :]
        if "lgkmcnt" in counters:
            lgkmcnt = (*lgkmcnt, index)
            if not self._unordered(lgkmcnt):
                lgkmcnt = lgkmcnt[-COUNTER_LIMITS["lgkmcnt"] :]
        return self._state(vmcnt, lgkmcnt)

    def _unordered(self, lgkmcnt: Work) -> bool:
        """True if something in lgkmcnt may overtake something else."""
        return any(self.instructions[i].spec.port != "lds" for i in lgkmcnt)

    def _report_touched(self, now: Outstanding, index: int, report: Report) -> None:
        instruction = self.instructions[index]
        for counter, work in (("vmcnt", now.vmcnt), ("lgkmcnt", now.lgkmcnt)):
            for source in reversed(work):
                loaded = self._loaded[source]
                read = loaded & instruction.reads
                if read and not read <= (instruction.writes & _kept(instruction, counter)):
                    report(MissingWait("use-before-wait", index, source, read, counter))
                    continue
                written = loaded & instruction.writes
                if written and not self._in_order(source, instruction, counter):
                    report(MissingWait("use-before-wait", index, source, written, counter, True))

    def _in_order(self, source: int, instruction: Instruction, counter: str) -> bool:
        """True if a load certainly returns before a second one into the same register."""
        first = self.instructions[source].spec
        if counter not in instruction.spec.counters:
            return False
        if counter == "vmcnt":
            return len(first.counters) == len(instruction.spec.counters) == 1
        return first.port == instruction.spec.port == "lds"

    def _report_end(self, now: Outstanding, index: int, report: Report) -> None:
        """Stores may be in flight when a wave ends; results that nobody will take may not."""
        for counter, work in (("vmcnt", now.vmcnt), ("lgkmcnt", now.lgkmcnt)):
            for source in work:
                instruction = self.instructions[source]
                if self._loaded[source] or is_lds_load(instruction):
                    report(MissingWait("end-in-flight", index, source, frozenset(), counter))


def _kept(instruction: Instruction, counter: str) -> frozenset[int]:
    """Registers that a load reads only because it keeps a part of them (d16 forms)."""
    if instruction.spec.access == "load" and counter in instruction.spec.counters:
        return instruction.writes
    return frozenset()


def _newest(work: Work, count: int | None) -> Work:
    """What may be outstanding after the counter has fallen to `count`."""
    if count is None or len(work) <= count:
        return work
    return work[len(work) - count :]


def is_lds_load(instruction: Instruction) -> bool:
    """True for vector memory loads that write LDS."""
    return instruction.spec.port == "vmem" and (
        "lds" in instruction.modifiers or "_load_lds_" in instruction.opcode
    )


_EXPLORED = 400_000
"""Steps after which a proof over all paths gives up; compiled kernels need few per instruction."""


def find_missing_waits(
    instructions: Sequence[Instruction], labels: Mapping[str, int], entry: int = 0
) -> list[MissingWait]:
    """Every use before its wait on any path, however unlikely, in program order.

    Raises:
        OverflowError: too many combinations of paths to look at all.
    """
    machine = WaitMachine(instructions)
    flow = control_flow(instructions, labels, entry)
    found: dict[tuple[str, int, int], MissingWait] = {}

    def report(missing: MissingWait) -> None:
        found.setdefault((missing.kind, missing.index, missing.source), missing)

    seen: set[tuple[int, int]] = set()
    work = [(entry, machine.start)] if instructions else []
    while work:
        place = work.pop()
        if place in seen:
            continue
        seen.add(place)
        if len(seen) > _EXPLORED:
            raise OverflowError(f"more than {_EXPLORED} states of outstanding memory work")
        index, state = place
        after = machine.step(state, index, report)
        work.extend((following, after) for following in flow.successors[index])
    return sorted(found.values(), key=lambda missing: (missing.index, missing.source))
