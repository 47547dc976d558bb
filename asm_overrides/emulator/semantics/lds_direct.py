"""Decides where loads that bypass registers put their data in LDS; fetching it is elsewhere."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from asm_overrides.emulator.semantics.environment import Environment
from asm_overrides.emulator.semantics.fetch import integer
from asm_overrides.emulator.semantics.lds import LdsPort
from asm_overrides.emulator.state import WAVE_SIZE, Group
from asm_overrides.isa import registers as ids
from asm_overrides.isa.instruction import Instruction

_M0_ROW = ids.M0 - ids.SGPR
_M0_BUFFER = 0x3FFFF
_M0_GLOBAL = 0x3FFFC


class LdsDirect:
    """LDS side of one LDS-direct load: M0 + instruction offset + lane * size.

    M0[17:0] counts for buffer loads, M0[17:2] * 4 for global ones. Inactive lanes write nothing
    and keep their place. Loads of one or two bytes write a dword, extended.
    """

    __slots__ = ("_lane_offsets", "_mask", "_offset", "_port")

    def __init__(self, instruction: Instruction, environment: Environment, size: int) -> None:
        stored = max(4, size)
        self._port = LdsPort(instruction, environment, stored, alignment=4)
        self._lane_offsets = np.arange(WAVE_SIZE, dtype=np.int64) * stored
        self._offset = integer(instruction, "offset")
        is_buffer = instruction.opcode.startswith("buffer_")
        self._mask = np.uint32(_M0_BUFFER if is_buffer else _M0_GLOBAL)

    def write(
        self, group: Group, data: NDArray[np.uint32], lanes: NDArray[np.bool_] | None
    ) -> None:
        """Put words (dwords, waves, 64) of the active lanes into LDS."""
        base = (group.s[_M0_ROW] & self._mask).astype(np.int64) + self._offset
        self._port.write(group, base[:, None] + self._lane_offsets, data)
