"""Decides how matrix instructions read registers and write D; arithmetic is elsewhere."""

from __future__ import annotations

from asm_overrides.emulator.arithmetic import (
    UnknownOpcode,
    UnsupportedArithmetic,
    constant,
)
from asm_overrides.emulator.arithmetic.matrix import bind_matrix
from asm_overrides.emulator.checks import Observer, RegisterObserver
from asm_overrides.emulator.semantics.environment import (
    Environment,
    Step,
    UnsupportedInstructionError,
)
from asm_overrides.emulator.semantics.fetch import Fetch, vector_registers, vector_source
from asm_overrides.emulator.state import Group
from asm_overrides.isa.instruction import Instruction
from asm_overrides.isa.operands import Constant, Operand, Register


def compile_matrix(instruction: Instruction, environment: Environment) -> Step:
    """Step of a v_mfma or v_smfmac instruction. EXEC does not mask these."""
    try:
        operation = bind_matrix(
            instruction.opcode, dict(instruction.modifiers), environment.machine
        )
    except (UnknownOpcode, UnsupportedArithmetic) as error:
        raise UnsupportedInstructionError(instruction, str(error)) from None
    destination, a, b, *rest = instruction.operands
    assert isinstance(destination, Register)
    expected = operation.registers
    for operand, count in ((a, expected.a), (b, expected.b)):
        if not isinstance(operand, Register) or operand.count != count:
            raise UnsupportedInstructionError(
                instruction, f"{operand} should be {count} registers by cbsz and blgp"
            )
    fetches = [_block(a), _block(b)]
    matrix = instruction.spec.matrix
    sparse = matrix is not None and matrix.sparse
    if sparse:
        fetches.append(_block(destination))
        fetches.append(vector_source(rest[0], "b32", instruction))
    else:
        fetches.append(_accumulator(rest[0], expected.c, instruction))
        fetches += [vector_source(operand, "b32", instruction) for operand in rest[1:]]
    first, end = destination.first, destination.first + destination.count
    observer = environment.observer if isinstance(environment.observer, Observer) else None
    watcher = environment.observer
    if not isinstance(watcher, RegisterObserver):
        watcher = None
    scaled = matrix is not None and matrix.scaled

    def step(group: Group) -> None:
        sources = [fetch(group) for fetch in fetches]
        if observer is not None:
            index = sources[3] if sparse else None
            codes_a, codes_b = operation.matrices(sources[0], sources[1], index)
            scales = sources[3:5] if scaled else (None, None)
            observer.on_mfma(
                group.workgroup.id, group.waves, instruction, codes_a, codes_b, *scales
            )
        if watcher is None:
            group.v[first:end] = operation(group.mode, *sources)
            return
        before = tuple(source.copy() for source in sources[:3])  # D may lie over them
        group.v[first:end] = operation(group.mode, *sources)
        result = group.v[first:end]
        watcher.on_matrix_registers(group.workgroup.id, group.waves, instruction, (*before, result))

    return step


def _block(operand: Operand) -> Fetch:
    """Reader of a register block as (registers, waves, 64), one register included."""
    assert isinstance(operand, Register)
    first, end = operand.first, operand.first + operand.count
    return lambda group: group.v[first:end]


def _accumulator(operand: Operand, count: int, instruction: Instruction) -> Fetch:
    if isinstance(operand, Constant):
        value = constant("f32", operand.value).reshape(1, 1, 1)
        return lambda group: value
    if not isinstance(operand, Register) or operand.count != count:
        raise UnsupportedInstructionError(instruction, f"C {operand} should be {count} registers")
    return _block(operand) if count == 1 else vector_registers(operand.first, count)
