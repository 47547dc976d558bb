"""Decides what control instructions do that do not branch: waits, priorities, MODE."""

from __future__ import annotations

import numpy as np

from asm_overrides.emulator.semantics.environment import Step, UnsupportedInstructionError
from asm_overrides.emulator.semantics.scalar import write_scalar
from asm_overrides.emulator.state import Group
from asm_overrides.isa import registers as ids
from asm_overrides.isa.instruction import Instruction
from asm_overrides.isa.operands import Constant, HardwareField, Register

WITHOUT_EFFECT = frozenset(
    (
        "s_nop",
        "s_waitcnt",
        "s_setprio",
        "s_sleep",
        "s_wakeup",
        "s_icache_inv",
        "s_ttracedata",
        "s_sethalt",
        "s_dcache_inv",
        "s_dcache_wb",
        "s_dcache_inv_vol",
        "s_dcache_wb_vol",
        "buffer_wbl2",
        "buffer_inv",
        "v_nop",
    )
)
"""Opcodes that change no register or memory; s_waitcnt is judged by the checks."""

_MODE_NAMES = ("HW_REG_MODE", "1")


def compile_control(instruction: Instruction) -> Step:
    """Step of an instruction of this module."""
    if instruction.opcode in WITHOUT_EFFECT:
        return lambda group: None
    if instruction.opcode == "s_getreg_b32":
        return _getreg(instruction)
    if instruction.opcode in ("s_setreg_b32", "s_setreg_imm32_b32"):
        return _setreg(instruction)
    raise UnsupportedInstructionError(instruction, "control instruction is not supported")


def _field(instruction: Instruction, position: int) -> HardwareField:
    operand = instruction.operands[position]
    if isinstance(operand, Constant):
        bits = int(operand.value) & 0xFFFF
        operand = HardwareField(str(bits & 63), bits >> 6 & 31, (bits >> 11) + 1)
    if not isinstance(operand, HardwareField) or operand.name not in _MODE_NAMES:
        raise UnsupportedInstructionError(
            instruction, f"{operand} is not supported, hwreg(HW_REG_MODE) is"
        )
    return operand


def _getreg(instruction: Instruction) -> Step:
    field = _field(instruction, 1)
    destination = instruction.operands[0]
    assert isinstance(destination, Register)
    write = write_scalar(destination)
    mask = np.uint32((1 << field.width) - 1)

    def step(group: Group) -> None:
        write(group, group.workgroup.mode[group.waves] >> np.uint32(field.offset) & mask)

    return step


def _setreg(instruction: Instruction) -> Step:
    field = _field(instruction, 0)
    source = instruction.operands[1]
    mask = (1 << field.width) - 1

    def step(group: Group) -> None:
        if isinstance(source, Constant):
            value = int(source.value)
        else:
            assert isinstance(source, Register)
            values = np.unique(group.s[source.first - ids.SGPR] & np.uint32(mask))
            if len(values) > 1:
                raise UnsupportedInstructionError(instruction, "waves set MODE differently")
            value = int(values[0])
        modes = group.workgroup.mode[group.waves]
        modes &= np.uint32(~(mask << field.offset) & 0xFFFFFFFF)
        modes |= np.uint32((value & mask) << field.offset)
        group.refresh_mode()

    return step
