"""Decides which module makes an instruction's step; branches and barriers are the scheduler's."""

from __future__ import annotations

from asm_overrides.emulator.semantics.buffer import compile_buffer
from asm_overrides.emulator.semantics.control import WITHOUT_EFFECT, compile_control
from asm_overrides.emulator.semantics.environment import (
    Environment,
    Step,
    UnsupportedInstructionError,
)
from asm_overrides.emulator.semantics.global_memory import compile_global, compile_scalar_memory
from asm_overrides.emulator.semantics.lds import compile_lds
from asm_overrides.emulator.semantics.matrix import compile_matrix
from asm_overrides.emulator.semantics.scalar import compile_scalar
from asm_overrides.emulator.semantics.scratch import compile_scratch
from asm_overrides.emulator.semantics.vector import compile_vector
from asm_overrides.emulator.state import Group
from asm_overrides.isa.instruction import Instruction


def compile_instruction(instruction: Instruction, environment: Environment) -> Step:
    """Step of one instruction that does not change the flow of control.

    Raises:
        UnsupportedInstructionError: names line and reason.
    """
    opcode, port = instruction.opcode, instruction.spec.port
    if opcode in WITHOUT_EFFECT or port == "special" or opcode in _HARDWARE_REGISTERS:
        return compile_control(instruction)
    if port in ("valu", "trans"):
        return compile_vector(instruction, environment)
    if port == "mfma":
        return compile_matrix(instruction, environment)
    if port == "salu":
        return compile_scalar(instruction)
    if port == "smem":
        return compile_scalar_memory(instruction, environment)
    if port == "lds":
        return compile_lds(instruction, environment)
    if opcode.startswith("buffer_"):
        return compile_buffer(instruction, environment)
    if opcode.startswith("scratch_"):
        return compile_scratch(instruction, environment)
    if port == "vmem":
        return compile_global(instruction, environment)
    raise UnsupportedInstructionError(instruction, "no module executes it")


_HARDWARE_REGISTERS = ("s_getreg_b32", "s_setreg_b32", "s_setreg_imm32_b32")


class Steps:
    """Steps of a program, each made when it is first reached."""

    def __init__(self, instructions: list[Instruction], environment: Environment) -> None:
        self._environment = environment
        self._instructions = instructions
        self.table: list[Step] = [self._maker(index) for index in range(len(instructions))]

    def _maker(self, index: int) -> Step:
        def make_and_run(group: Group) -> None:
            step = compile_instruction(self._instructions[index], self._environment)
            self.table[index] = step
            step(group)

        return make_and_run
