"""Decides how a workgroup's registers are stored and seen by groups of waves; executes nothing.

A workgroup's registers are arrays with a wave axis, so that one NumPy operation advances every wave
that stands at the same instruction. A group is a contiguous slice of waves at one place.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from asm_overrides.emulator.arithmetic import Mode
from asm_overrides.emulator.arithmetic.lanes import unpack_mask
from asm_overrides.emulator.lds import Lds
from asm_overrides.isa import registers

WAVE_SIZE = 64
VECTOR_POISON = 0xFFFFDEAD
"""What vector registers hold before they are written (a NaN); reading one is a finding."""
SCALAR_POISON = 0xDEADDEAD

_EXEC_ROW = registers.EXEC_LO - registers.SGPR


class Workgroup:
    """Registers, LDS and scratch of one workgroup.

    Attributes:
        id: (x, y, z) in the grid.
        waves: number of waves.
        vector: (512, waves, 64) uint32, VGPRs then AGPRs by register id.
        scalar: (128, waves) uint32 by register id - registers.SGPR.
        scc: (waves,) bool. mode: (waves,) uint32.
        scratch: (dwords, waves, 64) uint32, private memory of each lane.
    """

    __slots__ = ("id", "lds", "mode", "scalar", "scc", "scratch", "vector", "waves")

    def __init__(
        self, id: tuple[int, int, int], waves: int, lds_bytes: int, scratch_bytes: int, mode: int
    ) -> None:
        self.id = id
        self.waves = waves
        self.vector = np.full((2 * 256, waves, WAVE_SIZE), VECTOR_POISON, np.uint32)
        self.scalar = np.full((registers.SCALAR_SLOTS, waves), SCALAR_POISON, np.uint32)
        self.scc = np.zeros(waves, np.bool_)
        self.mode = np.full(waves, mode, np.uint32)
        self.lds = Lds(lds_bytes)
        self.scratch = np.full(((scratch_bytes + 3) // 4, waves, WAVE_SIZE), 0, np.uint32)
        self.scalar[_EXEC_ROW : _EXEC_ROW + 2] = 0xFFFFFFFF


class Group:
    """Waves first..end-1 of a workgroup, which stand at the same instruction.

    Attributes:
        v, s, scc: views of the workgroup's arrays for these waves.
        exec_mask: bool (waves, 64); exec_full: True if all of it is set.
        mode: meaning of MODE, the same for all waves of a group.
        pc: index of the next instruction.
        waiting: True at a barrier; done: True after s_endpgm.
    """

    __slots__ = (
        "count",
        "done",
        "end",
        "exec_full",
        "exec_mask",
        "first",
        "mode",
        "mode_bits",
        "pc",
        "s",
        "scc",
        "v",
        "waiting",
        "workgroup",
    )

    def __init__(self, workgroup: Workgroup, first: int, end: int, pc: int) -> None:
        self.workgroup = workgroup
        self.first, self.end, self.count = first, end, end - first
        self.pc = pc
        self.waiting = self.done = False
        self.v = workgroup.vector[:, first:end]
        self.s = workgroup.scalar[:, first:end]
        self.scc = workgroup.scc[first:end]
        self.refresh_exec()
        self.refresh_mode()

    @property
    def waves(self) -> slice:
        """These waves, as an index into a wave axis of the workgroup."""
        return slice(self.first, self.end)

    def refresh_exec(self) -> None:
        """Recompute the lane mask after EXEC was written."""
        self.exec_mask = unpack_mask(self.s[_EXEC_ROW : _EXEC_ROW + 2])
        self.exec_full = bool(self.exec_mask.all())

    def refresh_mode(self) -> None:
        """Recompute the arithmetic mode after MODE was written."""
        self.mode_bits = int(self.workgroup.mode[self.first])
        self.mode = Mode.from_bits(self.mode_bits)

    def write_vector(self, register: int, value: NDArray[np.uint32]) -> None:
        """Write one vector register in the active lanes."""
        if self.exec_full:
            self.v[register] = value
        else:
            np.copyto(self.v[register], value, where=self.exec_mask)

    def write_vectors(self, register: int, count: int, value: NDArray[np.uint32]) -> None:
        """Write `count` consecutive vector registers, value (count, waves, 64), in active lanes."""
        if self.exec_full:
            self.v[register : register + count] = value
        else:
            np.copyto(self.v[register : register + count], value, where=self.exec_mask)
