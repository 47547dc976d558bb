"""Decides which waves of a workgroup advance when, through branches and barriers.

Without a seed, waves at the same instruction advance together and those furthest behind go first.
With a seed, groups of waves are split and interleaved at random; results must not depend on it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from asm_overrides.emulator.compile import Steps
from asm_overrides.emulator.kernel import Kernel
from asm_overrides.emulator.semantics.environment import Environment, UnsupportedInstructionError
from asm_overrides.emulator.state import Group, Workgroup
from asm_overrides.isa import registers as ids
from asm_overrides.isa.instruction import Instruction
from asm_overrides.isa.operands import Label

_VCC_ROW = ids.VCC_LO - ids.SGPR
_EXEC_ROW = ids.EXEC_LO - ids.SGPR

_LONGEST_RUN = 48
"""Seeded schedules run a group for 1.._LONGEST_RUN instructions at a time."""


class DidNotFinishError(RuntimeError):
    """A workgroup executed more instructions than it was allowed."""


Condition = Callable[[Group], NDArray[np.bool_]]


@dataclass(frozen=True, slots=True)
class Control:
    """An instruction at which a group stops: a branch, a barrier or the end."""

    kind: str
    target: int = -1
    condition: Condition | None = None


def _nonzero(row: int) -> Condition:
    return lambda group: (group.s[row] | group.s[row + 1]) != 0


_CONDITIONS: dict[str, Condition] = {
    "s_cbranch_scc0": lambda group: ~group.scc,
    "s_cbranch_scc1": lambda group: group.scc,
    "s_cbranch_vccz": lambda group: ~_nonzero(_VCC_ROW)(group),
    "s_cbranch_vccnz": _nonzero(_VCC_ROW),
    "s_cbranch_execz": lambda group: ~_nonzero(_EXEC_ROW)(group),
    "s_cbranch_execnz": _nonzero(_EXEC_ROW),
}


class Flow:
    """Control instructions of a kernel and how far a group runs before the next decision."""

    def __init__(self, kernel: Kernel) -> None:
        instructions = kernel.instructions
        self.control: dict[int, Control] = {}
        meeting: set[int] = {kernel.entry, kernel.fallback_entry}
        for index, instruction in enumerate(instructions):
            control = _control(instruction, kernel.labels)
            if control is not None:
                self.control[index] = control
                meeting.add(index + 1)
                if control.target >= 0:
                    meeting.add(control.target)
        self.stop = [0] * (len(instructions) + 1)
        following = len(instructions)
        self.stop[following] = following
        for index in range(len(instructions) - 1, -1, -1):
            if index in self.control:
                following = index
            self.stop[index] = following
            if index in meeting:
                following = index


def _control(instruction: Instruction, labels: dict[str, int]) -> Control | None:
    opcode = instruction.opcode
    if opcode == "s_barrier":
        return Control("barrier")
    if opcode == "s_endpgm":
        return Control("end")
    if instruction.spec.port != "branch":
        return None
    target = instruction.operands[-1]
    condition = _CONDITIONS.get(opcode)
    known = condition is not None or opcode == "s_branch"
    if not known or not isinstance(target, Label) or target.name not in labels or target.offset:
        return Control("unsupported")
    return Control("branch", labels[target.name], condition)


class Scheduler:
    """Runs the waves of one workgroup to their ends."""

    def __init__(
        self,
        kernel: Kernel,
        flow: Flow,
        steps: Steps,
        environment: Environment,
        seed: int | None = None,
        limit: int | None = None,
    ) -> None:
        self._instructions = kernel.instructions
        self._flow = flow
        self._table = steps.table
        self._environment = environment
        self._random = None if seed is None else np.random.default_rng(seed)
        self._limit = limit
        self.wave_instructions = 0

    def run(self, workgroup: Workgroup, entry: int) -> None:
        """Execute a workgroup from `entry`.

        Raises:
            DidNotFinishError: more than `limit` wave-instructions.
            UnsupportedInstructionError: an instruction that cannot be executed was reached.
        """
        checks = self._environment.checks
        if checks is not None:
            checks.on_start(workgroup)
        groups = [Group(workgroup, 0, workgroup.waves, entry)]
        start = self.wave_instructions
        while groups := self._released(workgroup, groups):
            position = self._pick(groups)
            group = groups[position]
            if self._random is not None and group.count > 1 and self._random.random() < 0.3:
                groups[position : position + 1] = self._split_at_random(group)
                continue
            replacement = self._advance(group)
            if replacement != [group]:
                groups[position : position + 1] = replacement
            if len(groups) > 1 and self._random is None:
                groups = merge(groups)
            if self._limit is not None and self.wave_instructions - start > self._limit:
                raise DidNotFinishError(
                    f"workgroup {workgroup.id} executed more than {self._limit} wave-instructions"
                )

    def _released(self, workgroup: Workgroup, groups: list[Group]) -> list[Group]:
        """Groups that still run; opens the barrier when every live wave has met there."""
        if any(group.done for group in groups):
            groups = [group for group in groups if not group.done]
        if groups and all(group.waiting for group in groups):
            if self._environment.checks is not None:
                self._environment.checks.on_barrier(workgroup)
            for group in groups:
                group.waiting = False
                group.pc += 1
            groups = merge(groups)
        return groups

    def _pick(self, groups: list[Group]) -> int:
        ready = [position for position, group in enumerate(groups) if not group.waiting]
        if self._random is not None:
            return ready[int(self._random.integers(len(ready)))]
        return min(ready, key=lambda position: groups[position].pc)

    def _split_at_random(self, group: Group) -> list[Group]:
        assert self._random is not None
        cut = group.first + 1 + int(self._random.integers(group.count - 1))
        return [
            Group(group.workgroup, group.first, cut, group.pc),
            Group(group.workgroup, cut, group.end, group.pc),
        ]

    def _advance(self, group: Group) -> list[Group]:
        """Run a group to its next decision and take it; returns what became of the group."""
        start = group.pc
        end = self._flow.stop[start]
        if self._random is not None:
            end = min(end, start + 1 + int(self._random.integers(_LONGEST_RUN)))
        self._run_steps(group, start, end)
        group.pc = end
        control = self._flow.control.get(end)
        if control is None or self._flow.stop[start] != end:
            return [group]
        instruction = self._instructions[end]
        self.wave_instructions += group.count
        checks = self._environment.checks
        if checks is not None:
            checks.on_instruction(group, instruction, end)
        if control.kind == "barrier":
            group.waiting = True
        elif control.kind == "end":
            if checks is not None:
                checks.on_end(group, instruction)
            group.done = True
        elif control.kind == "unsupported":
            raise UnsupportedInstructionError(instruction, "branches go to labels only")
        elif control.condition is None:
            group.pc = control.target
        else:
            return _branch(group, control.condition(group), control.target)
        return [group]

    def _run_steps(self, group: Group, start: int, end: int) -> None:
        table = self._table
        checks = self._environment.checks
        if checks is None:
            for index in range(start, end):
                table[index](group)
        else:
            instructions, announce = self._instructions, checks.on_instruction
            for index in range(start, end):
                announce(group, instructions[index], index)
                table[index](group)
        self.wave_instructions += (end - start) * group.count


def _branch(group: Group, taken: NDArray[np.bool_], target: int) -> list[Group]:
    """Continue each run of waves that agree as a group of its own."""
    following = group.pc + 1
    if taken.all() or not taken.any():
        group.pc = target if taken[0] else following
        return [group]
    edges = [0, *(np.flatnonzero(np.diff(taken.view(np.int8))) + 1).tolist(), group.count]
    return [
        Group(
            group.workgroup,
            group.first + low,
            group.first + high,
            target if taken[low] else following,
        )
        for low, high in itertools.pairwise(edges)
    ]


def merge(groups: list[Group]) -> list[Group]:
    """Join neighbours that stand at the same instruction in the same state."""
    result = [groups[0]]
    for group in groups[1:]:
        last = result[-1]
        if (
            last.end == group.first
            and last.pc == group.pc
            and not (last.waiting or group.waiting or last.done or group.done)
            and last.mode_bits == group.mode_bits
        ):
            result[-1] = Group(last.workgroup, last.first, group.end, last.pc)
        else:
            result.append(group)
    return result
