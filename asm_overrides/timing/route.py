"""Decides which instructions a wave executes from a kernel's entry to its end; gives them no time.

A route is recorded while the emulator runs the kernel, so every branch goes as the machine code and
its inputs decide. Longer runs of the same program are made of recorded ones: what one more round of
a loop adds is repeated.
"""

from __future__ import annotations

from typing import Any

from asm_overrides.emulator.findings import FindingLog
from asm_overrides.emulator.kernel import Kernel
from asm_overrides.emulator.state import Group, Workgroup
from asm_overrides.isa.instruction import Instruction

Route = tuple[int, ...]
"""Indices into the kernel's instructions, in order of execution."""


class RouteRecorder:
    """What `emulator.run(checks=...)` takes: it notes where waves go, and distrusts nothing.

    One workgroup a recorder, in one process.
    """

    def __init__(self) -> None:
        self._indices: dict[int, list[int]] = {}

    def __call__(self, kernel: Kernel, log: FindingLog) -> RouteRecorder:
        return self

    def route(self, wave: int) -> Route:
        """Of one wave; KeyError if no such wave ran."""
        return tuple(self._indices[wave])

    def on_start(self, workgroup: Workgroup) -> None:
        if self._indices:
            raise ValueError("a RouteRecorder takes one workgroup")

    def on_instruction(self, group: Group, instruction: Instruction, index: int) -> None:
        for wave in range(group.first, group.end):
            self._indices.setdefault(wave, []).append(index)

    def on_lds(self, *access: Any) -> None:
        pass

    def on_memory(self, *access: Any) -> None:
        pass

    def on_barrier(self, workgroup: Workgroup) -> None:
        pass

    def on_end(self, group: Group, instruction: Instruction) -> None:
        pass


def extended(short: Route, long: Route, rounds: int) -> Route:
    """The route of a run with `rounds` more rounds than `short`.

    Args:
        short: a recorded route. long: that of a run with one round more.
    Raises:
        ValueError: `long` is not `short` with one stretch inserted.
    """
    more = len(long) - len(short)
    same = next(
        (place for place, (a, b) in enumerate(zip(short, long, strict=False)) if a != b),
        min(len(short), len(long)),
    )
    stretch = long[same : same + more]
    if more < 1 or short[:same] + stretch + short[same:] != long:
        raise ValueError(
            f"routes of {len(short)} and {len(long)} instructions differ by more than one round"
        )
    return short[:same] + stretch * rounds + short[same:]
