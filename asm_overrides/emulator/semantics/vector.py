"""Decides how vector operations read operands and write under EXEC; arithmetic is elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from asm_overrides.emulator.arithmetic import UnknownOpcode, UnsupportedArithmetic, bind_valu
from asm_overrides.emulator.arithmetic import registers as registers_of
from asm_overrides.emulator.arithmetic.lanes import unpack_mask
from asm_overrides.emulator.semantics.environment import (
    Environment,
    Step,
    UnsupportedInstructionError,
)
from asm_overrides.emulator.semantics.fetch import (
    Fetch,
    vector_source,
    write_mask,
    write_vector,
)
from asm_overrides.emulator.semantics.lanes import dpp_fetch, lane_step
from asm_overrides.emulator.state import Group
from asm_overrides.isa import registers as ids
from asm_overrides.isa.instruction import Instruction
from asm_overrides.isa.operands import Operand, Register

_VCC_ROW = ids.VCC_LO - ids.SGPR
_EXEC_ROW = ids.EXEC_LO - ids.SGPR


def compile_vector(instruction: Instruction, environment: Environment) -> Step:
    """Step of a VALU instruction."""
    opcode = instruction.opcode
    if opcode == "v_nop":
        return lambda group: None
    step = lane_step(instruction) or _copy_step(instruction)
    if step is not None:
        return step
    try:
        operation = bind_valu(opcode, arithmetic_modifiers(instruction), environment.machine)
    except (UnknownOpcode, UnsupportedArithmetic) as error:
        raise UnsupportedInstructionError(instruction, str(error)) from None
    results = len(operation.results)
    if opcode.endswith("_swap_b32"):
        destinations, sources = instruction.operands, instruction.operands
    else:
        destinations, sources = instruction.operands[:results], instruction.operands[results:]
    fetches = [
        vector_source(operand, kind, instruction)
        for operand, kind in zip(sources, operation.sources, strict=False)
    ]
    if len(operation.sources) == len(sources) + 1 and operation.sources[-1] == "mask":
        fetches.append(lambda group: unpack_mask(group.s[_VCC_ROW : _VCC_ROW + 2]))
    if len(fetches) != len(operation.sources):
        raise UnsupportedInstructionError(
            instruction, f"{len(operation.sources)} sources expected, got {len(fetches)}"
        )
    writes = _writers(instruction, operation.results, destinations)
    active: Fetch | None = None
    if instruction.encoding in ("dpp", "e64_dpp"):
        fetches[0], active = dpp_fetch(fetches[0], instruction)
    if active is not None:
        return _dpp_step(operation, fetches, destinations, instruction, active)
    old = None
    if operation.needs_old:
        old = vector_source(destinations[0], operation.results[0], instruction)
    return _step(operation, fetches, writes, old)


_COPIES = frozenset(("v_mov_b32", "v_accvgpr_read_b32", "v_accvgpr_write_b32", "v_accvgpr_mov_b32"))


def _copy_step(instruction: Instruction) -> Step | None:
    """Step of a plain move, without arithmetic; None for anything else."""
    if instruction.opcode not in _COPIES or instruction.modifiers:
        return None
    destination, source = instruction.operands
    if not isinstance(destination, Register) or getattr(source, "negate", False):
        return None
    first, fetch = destination.first, vector_source(source, "b32", instruction)
    return lambda group: group.write_vector(first, fetch(group))


def arithmetic_modifiers(instruction: Instruction) -> dict[str, object]:
    """Modifiers as arithmetic wants them: those of the text and those written on sources."""
    modifiers: dict[str, object] = dict(instruction.modifiers)
    if "clamp" in modifiers:
        modifiers["clamp"] = True
    sources = [
        operand
        for operand, role in zip(instruction.operands, instruction.spec.roles, strict=True)
        if not role.writes or (role.access == "b" and instruction.opcode.endswith("swap_b32"))
    ]
    for name, attribute in (("neg", "negate"), ("abs", "absolute"), ("sext", "sext")):
        flags = tuple(bool(getattr(operand, attribute, False)) for operand in sources)
        if any(flags):
            modifiers[name] = flags
    return modifiers


def _writers(
    instruction: Instruction, kinds: tuple[str, ...], destinations: tuple[Operand, ...]
) -> list[Callable[[Group, Any], None]]:
    writers: list[Callable[[Group, Any], None]] = []
    for kind, operand in zip(kinds, destinations, strict=True):
        if kind == "mask":
            writer = write_mask(operand, instruction)
            if instruction.opcode.startswith("v_cmpx"):
                exec_writer = write_mask(Register(ids.EXEC_LO, 2), instruction)
                writer = _both(writer, exec_writer)
            writers.append(writer)
        else:
            writers.append(write_vector(operand, registers_of(kind), instruction))
    return writers


def _both(
    first: Callable[[Group, Any], None], second: Callable[[Group, Any], None]
) -> Callable[[Group, Any], None]:
    def write(group: Group, value: Any) -> None:
        first(group, value)
        second(group, value)

    return write


def _step(
    operation: Callable[..., Any],
    fetches: list[Fetch],
    writes: list[Callable[[Group, Any], None]],
    old: Fetch | None,
) -> Step:
    """Step for the common numbers of sources and results, without loops where it matters."""
    write = writes[0]
    if len(writes) > 1:

        def several(group: Group) -> None:
            values = operation(group.mode, *[fetch(group) for fetch in fetches])
            values = [np.array(value) for value in values]
            for each, value in zip(writes, values, strict=True):
                each(group, value)

        return several
    if old is not None:
        read_old = old

        def updating(group: Group) -> None:
            sources = [fetch(group) for fetch in fetches]
            write(group, operation(group.mode, *sources, old=read_old(group)))

        return updating
    if len(fetches) == 1:
        (only,) = fetches
        return lambda group: write(group, operation(group.mode, only(group)))
    if len(fetches) == 2:
        left, right = fetches
        return lambda group: write(group, operation(group.mode, left(group), right(group)))

    def general(group: Group) -> None:
        write(group, operation(group.mode, *[fetch(group) for fetch in fetches]))

    return general


def _dpp_step(
    operation: Any,
    fetches: list[Fetch],
    destinations: tuple[Operand, ...],
    instruction: Instruction,
    active: Fetch,
) -> Step:
    """Step of a DPP form: lanes without a source lane, or masked out, keep the destination."""
    destination = destinations[0]
    if len(operation.results) != 1 or not isinstance(destination, Register):
        raise UnsupportedInstructionError(instruction, "DPP with a mask result is not supported")
    first, count = destination.first, registers_of(operation.results[0])
    old = vector_source(destination, operation.results[0], instruction)

    def step(group: Group) -> None:
        sources = [fetch(group) for fetch in fetches]
        extra = {"old": old(group)} if operation.needs_old else {}
        value = operation(group.mode, *sources, **extra)
        target = group.v[first] if count <= 1 else group.v[first : first + count]
        np.copyto(target, value, where=active(group))

    return step
