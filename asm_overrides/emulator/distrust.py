"""Decides which checks accompany a run and what each is told; every check is a module of its own.

Findings made here or there: `hazard` (too few wait states), `use-before-wait`, `end-in-flight`,
`lds-race`, `global-race`, `lds-uninitialised`, `uninitialised`, `exec-partial`, `lds-misaligned`
for transposing reads, `barrier-divergence`. Addresses outside tensors and LDS are found by the
executor.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from asm_overrides.emulator.findings import Finding, FindingLog
from asm_overrides.emulator.hazards import find_hazards
from asm_overrides.emulator.initialised import Initialised
from asm_overrides.emulator.kernel import Kernel
from asm_overrides.emulator.races import GlobalRaces, LdsRaces
from asm_overrides.emulator.state import Group, Workgroup
from asm_overrides.emulator.waits import MissingWait, WaitMachine, is_lds_load
from asm_overrides.isa.instruction import Instruction

_TRANSPOSING = ("ds_read_b64_tr_", "ds_read_b96_tr_")


def hazard_findings(kernel: Kernel) -> list[Finding]:
    """Findings for every pair of instructions that stands too close."""
    found = []
    for hazard in find_hazards(kernel.instructions, kernel.labels, kernel.entry):
        instruction = kernel.instructions[hazard.consumer]
        message = hazard.describe(kernel.instructions)
        found.append(Finding("hazard", (0, 0, 0), -1, instruction.text, instruction.line, message))
    return found


class Distrust:
    """All checks of one run (see checks.Checks for the calls)."""

    def __init__(self, kernel: Kernel, log: FindingLog) -> None:
        self._log = log
        self._instructions = kernel.instructions
        self._waits = WaitMachine(kernel.instructions)
        self._states: list[int] = []
        self._ended: set[int] = set()
        self._unit = 1 if any(map(_below_dword, kernel.instructions)) else 4
        self._lds_kind = [_lds_kind(each) for each in kernel.instructions]
        self._transposing = [each.opcode.startswith(_TRANSPOSING) for each in kernel.instructions]
        self._initialised = Initialised(kernel.instructions, log)
        self._global = GlobalRaces(log)
        log.extend(hazard_findings(kernel))

    def on_start(self, workgroup: Workgroup) -> None:
        """A workgroup begins."""
        self._states = [self._waits.start] * workgroup.waves
        self._ended = set()
        self._barrier: Instruction | None = None
        self._initialised.start(workgroup)
        self._global.start()
        self._races = LdsRaces(workgroup.lds.size, workgroup.waves, self._unit, self._log)

    def on_instruction(self, group: Group, instruction: Instruction, index: int) -> None:
        """Before an instruction: advance what its waves have in flight."""
        states = self._states
        steps = self._waits.steps
        first, end = group.first, group.end
        before = states[first]
        after = steps[before].get(index)
        if after is None or (end - first > 1 and states[first:end].count(before) != end - first):
            self._step_each(group, index)
        elif after != before:
            states[first:end] = [after] * (end - first)
        self._initialised.before(group, index)
        kind = self._lds_kind[index]
        if kind:
            if kind == "wait":
                self._complete(first, end)
            elif kind == "barrier":
                self._barrier = instruction
            else:
                self._races.issue(instruction, first, end, kind == "direct")
                if self._transposing[index] and not group.exec_full:
                    wave = first + int(np.argmin(group.exec_mask.all(axis=1)))
                    self._log.add(
                        "exec-partial",
                        wave,
                        instruction,
                        "a transposing read moves data between lanes: all lanes must be active",
                    )

    def on_lds(
        self,
        group: Group,
        instruction: Instruction,
        addresses: NDArray[np.int64],
        size: int,
        is_write: bool,
        lanes: NDArray[np.bool_] | None,
    ) -> None:
        """Lanes access LDS."""
        data = group.workgroup.lds.incoming if is_write else None
        self._races.access(addresses, size, is_write, lanes, data)
        if instruction.opcode.startswith(_TRANSPOSING) and size == 8 and (addresses & 7).any():
            wave = group.first + int(np.argmax((addresses & 7).any(axis=1)))
            self._log.add(
                "lds-misaligned",
                wave,
                instruction,
                f"a transposing read needs addresses that are multiples of {size}",
            )

    def on_memory(
        self,
        group: Group,
        instruction: Instruction,
        addresses: NDArray[np.uint64],
        size: int,
        is_write: bool,
        lanes: NDArray[np.bool_] | None,
    ) -> None:
        """Lanes access global memory; addresses are judged by the executor."""
        if is_write:
            self._global.store(instruction, group.first, addresses, size, lanes)

    def on_barrier(self, workgroup: Workgroup) -> None:
        """All live waves have met."""
        if self._ended and self._barrier is not None:
            self._log.add(
                "barrier-divergence",
                min(self._ended),
                self._barrier,
                "waves wait here after this wave has ended: it never meets them",
            )
        self._complete(0, workgroup.waves)
        self._races.barrier()
        self._global.barrier()

    def on_end(self, group: Group, instruction: Instruction) -> None:
        """Waves end."""
        self._ended.update(range(group.first, group.end))

    def _step_each(self, group: Group, index: int) -> None:
        """Advance every wave of a group on its own, reporting what is found."""
        for wave in range(group.first, group.end):

            def report(missing: MissingWait, wave: int = wave) -> None:
                instruction = self._instructions[missing.index]
                message = missing.describe(self._instructions)
                self._log.add(missing.kind, wave, instruction, message)

            self._states[wave] = self._waits.step(self._states[wave], index, report)

    def _complete(self, first: int, end: int) -> None:
        """Tell the race check what waves first..end-1 still have in flight."""
        for wave in range(first, end):
            state = self._waits.states[self._states[wave]]
            self._races.complete(wave, state.lds_loads, state.lds)


def _lds_kind(instruction: Instruction) -> str:
    """What the race check has to hear of: "direct", "plain", "wait", "barrier" or nothing."""
    if instruction.opcode in ("s_waitcnt", "s_barrier"):
        return instruction.opcode[2:].replace("waitcnt", "wait")
    if is_lds_load(instruction):
        return "direct"
    return "plain" if instruction.spec.port == "lds" else ""


def _below_dword(instruction: Instruction) -> bool:
    spec = instruction.spec
    return 0 < spec.bytes < 4 and (spec.port == "lds" or is_lds_load(instruction))
