"""Decides what the executor tells a distrust check while it runs; finds nothing itself.

`run(..., checks=True)` makes one `distrust.Distrust(kernel, log)` for the run (asm_overrides/
emulator/distrust.py); a caller may hand over any other factory `(kernel, log) -> Checks` instead.
With checks=False none of these calls is made. All calls come in the order of execution; waves of a
group advance together, so one call stands for waves group.first .. group.end-1 of the workgroup.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from asm_overrides.emulator.state import Group, Workgroup
    from asm_overrides.isa.instruction import Instruction


class Checks(Protocol):
    """What a distrust check may listen to.

    A group has `first`, `end` (waves of the workgroup), `workgroup`, and the EXEC mask as
    `exec_mask` (bool (waves, 64)) with `exec_full` (True if every lane is active).
    """

    def on_start(self, workgroup: Workgroup) -> None:
        """A workgroup begins; its registers hold what the launch preloads, LDS nothing."""

    def on_instruction(self, group: Group, instruction: Instruction, index: int) -> None:
        """Before an instruction (its index in kernel.instructions), waits and branches included."""

    def on_lds(
        self,
        group: Group,
        instruction: Instruction,
        addresses: NDArray[np.int64],
        size: int,
        is_write: bool,
        lanes: NDArray[np.bool_] | None,
    ) -> None:
        """Lanes access `size` bytes at LDS byte addresses (waves, 64); lanes None means all.

        Only lanes whose whole access lies inside LDS are selected. An atomic comes as a read and a
        write; read2/write2 as two accesses; LDS-direct loads as writes. What a write is about to
        store is `group.workgroup.lds.incoming`, (dwords, waves, 64); None for atomics.
        """

    def on_memory(
        self,
        group: Group,
        instruction: Instruction,
        addresses: NDArray[np.uint64],
        size: int,
        is_write: bool,
        lanes: NDArray[np.bool_] | None,
    ) -> None:
        """Lanes access `size` bytes at global addresses (waves, 64); lanes None means all."""

    def on_barrier(self, workgroup: Workgroup) -> None:
        """All live waves have met at s_barrier and go on."""

    def on_end(self, group: Group, instruction: Instruction) -> None:
        """Waves of the group execute s_endpgm."""


@runtime_checkable
class Observer(Protocol):
    """What a caller may listen to for results inside a kernel."""

    def on_mfma(
        self,
        workgroup: tuple[int, int, int],
        waves: slice,
        instruction: Instruction,
        a: NDArray[Any],
        b: NDArray[Any],
        scale_a: NDArray[np.uint32] | None,
        scale_b: NDArray[np.uint32] | None,
    ) -> None:
        """A matrix instruction's operands as matrices of codes.

        Args:
            a: (waves, blocks, m, k) uint8, uint16, uint32 or uint64 codes.
            b: (waves, blocks, n, k), transposed: row n holds the k values of column n.
            scale_a, scale_b: scale registers (waves, 64) of scaled instructions, else None.
        """


@runtime_checkable
class RegisterObserver(Protocol):
    """What a caller may listen to for the bits that the matrix pipe works on."""

    def on_matrix_registers(
        self,
        workgroup: tuple[int, int, int],
        waves: slice,
        instruction: Instruction,
        operands: tuple[NDArray[np.uint32], ...],
    ) -> None:
        """A matrix instruction's registers, before the arrays are written again.

        Args:
            operands: words of A, B, C and D, each (registers, waves, 64); C may broadcast, as for
                an inline constant. Of a sparse instruction C is what D held before.
        """
