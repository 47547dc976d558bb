"""Decides how scalar operations read operands and write results; arithmetic is elsewhere."""

from __future__ import annotations

from typing import Any

from asm_overrides.emulator.arithmetic.salu import SALU
from asm_overrides.emulator.semantics.environment import Step, UnsupportedInstructionError
from asm_overrides.emulator.semantics.fetch import Fetch, scalar_source
from asm_overrides.emulator.state import Group
from asm_overrides.isa import registers as ids
from asm_overrides.isa.instruction import Instruction
from asm_overrides.isa.operands import Register

_EXEC_ROW = ids.EXEC_LO - ids.SGPR


def compile_scalar(instruction: Instruction) -> Step:
    """Step of a scalar ALU instruction."""
    operation: Any = SALU.get(instruction.opcode)
    if operation is None:
        raise UnsupportedInstructionError(instruction, "no scalar arithmetic is known for it")
    if instruction.opcode.endswith(("_saveexec_b64", "_wrexec_b64")):
        return _saveexec(instruction, operation)
    roles = instruction.spec.roles
    pairs = list(zip(roles, instruction.operands, strict=True))
    fetches = [
        scalar_source(operand, role.widths[0], instruction)
        for role, operand in pairs
        if role.access == "r"
    ]
    destination = next((operand for role, operand in pairs if role.writes), None)
    old: Fetch | None = None
    if operation.needs_old and destination is not None:
        old = scalar_source(destination, roles[0].widths[0], instruction)
    write = None
    if isinstance(destination, Register):
        write = write_scalar(destination)
    reads_scc, writes_scc = bool(operation.reads_scc), bool(operation.writes_scc)

    def step(group: Group) -> None:
        sources = [fetch(group) for fetch in fetches]
        extra: dict[str, Any] = {}
        if reads_scc:
            extra["scc"] = group.scc
        if old is not None:
            extra["old"] = old(group)
        value, scc = operation(*sources, **extra)
        if write is not None:
            write(group, value)
        if writes_scc:
            group.scc[:] = scc

    return step


def write_scalar(destination: Register) -> Any:
    """Writer of a scalar result, (waves,) or (dwords, waves)."""
    row, count = destination.first - ids.SGPR, destination.count
    touches_exec = bool(ids.EXEC & set(destination.ids))

    def write(group: Group, value: Any) -> None:
        if count == 1:
            group.s[row] = value
        else:
            group.s[row : row + count] = value
        if touches_exec:
            group.refresh_exec()

    return write


def _saveexec(instruction: Instruction, operation: Any) -> Step:
    """s_and_saveexec_b64 and its like: destination and EXEC are both written."""
    destination, source = instruction.operands
    assert isinstance(destination, Register)
    fetch = scalar_source(source, 2, instruction)
    write = write_scalar(destination)

    def step(group: Group) -> None:
        execs = group.s[_EXEC_ROW : _EXEC_ROW + 2]
        (saved, replaced), scc = operation(fetch(group), execs)
        write(group, saved.copy())
        group.s[_EXEC_ROW : _EXEC_ROW + 2] = replaced
        group.scc[:] = scc
        group.refresh_exec()

    return step
