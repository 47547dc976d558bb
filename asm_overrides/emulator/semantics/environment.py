"""Decides what steps may use besides the group they run for; holds no semantics."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from asm_overrides.emulator.arithmetic import DEFAULT_MACHINE, Machine
from asm_overrides.emulator.findings import FindingLog
from asm_overrides.emulator.memory import GlobalMemory
from asm_overrides.isa.instruction import Instruction

if TYPE_CHECKING:
    from asm_overrides.emulator.banks import BankCounter
    from asm_overrides.emulator.checks import Checks, Observer, RegisterObserver
    from asm_overrides.emulator.state import Group

Step = Callable[["Group"], None]


class UnsupportedInstructionError(NotImplementedError):
    """The opcode is known and the emulator cannot execute it in this form."""

    def __init__(self, instruction: Instruction, why: str) -> None:
        super().__init__(f"line {instruction.line}: {instruction.text}: {why}")
        self._parts = (instruction, why)

    def __reduce__(self) -> tuple[type[UnsupportedInstructionError], tuple[Instruction, str]]:
        """Lets the error come back from a process that ran some of the workgroups."""
        return type(self), self._parts


@dataclass(slots=True)
class Environment:
    """Memory, recorders and assumptions of one run."""

    memory: GlobalMemory
    log: FindingLog = field(default_factory=FindingLog)
    checks: Checks | None = None
    observer: Observer | RegisterObserver | None = None
    machine: Machine = DEFAULT_MACHINE
    banks: BankCounter | None = None

    def report(
        self,
        kind: str,
        group: Group,
        instruction: Instruction,
        lanes: NDArray[np.bool_],
        message: Callable[[int, int], str],
    ) -> None:
        """Record a finding about the first of `lanes` (waves, 64); message(wave row, lane)."""
        row, lane = (int(index) for index in np.argwhere(lanes)[0])
        wave = group.first + row
        if self.log.seen(kind, instruction.line):
            text = ""
        else:
            text = f"{message(row, lane)} in lane {lane}, {int(lanes.sum())} lanes in all"
        self.log.add(kind, wave, instruction, text)
