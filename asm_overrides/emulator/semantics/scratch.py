"""Decides what scratch instructions move; scratch is private to a lane and addressed in bytes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from asm_overrides.emulator.semantics.environment import (
    Environment,
    Step,
    UnsupportedInstructionError,
)
from asm_overrides.emulator.semantics.fetch import Fetch, integer, lane_address, scalar_source
from asm_overrides.emulator.semantics.subword import merge_loaded, stored_value
from asm_overrides.emulator.state import Group
from asm_overrides.isa.instruction import Instruction
from asm_overrides.isa.operands import Operand, Register


def compile_scratch(instruction: Instruction, environment: Environment) -> Step:
    """Step of a scratch_load or scratch_store instruction."""
    operands = instruction.operands
    is_load = instruction.spec.access == "load"
    if "_lds_" in instruction.opcode:
        raise UnsupportedInstructionError(instruction, "scratch loads to LDS are not supported")
    data = operands[0] if is_load else operands[1]
    vaddr = operands[1] if is_load else operands[0]
    assert isinstance(data, Register)
    static = not isinstance(vaddr, Register) and not isinstance(operands[2], Register)
    offset, size = integer(instruction, "offset"), instruction.spec.bytes
    if static and size >= 4 and offset % 4 == 0:
        return _static(instruction, environment, data, offset, is_load)
    address = _address(vaddr, operands[2], offset, instruction)
    if is_load:
        return _load(instruction, environment, data, address)
    return _store(instruction, environment, data, address)


def _static(
    instruction: Instruction, environment: Environment, data: Register, offset: int, is_load: bool
) -> Step:
    """Spills and reloads: one place for all lanes."""
    first, count = data.first, data.count
    low, high = offset // 4, offset // 4 + count

    def step(group: Group) -> None:
        scratch = group.workgroup.scratch
        if low < 0 or high > len(scratch):
            _report(environment, group, instruction, np.full((group.count, 64), offset))
            return
        place = scratch[low:high, group.first : group.end]
        if is_load:
            group.write_vectors(first, count, place)
        elif group.exec_full:
            place[...] = group.v[first : first + count]
        else:
            np.copyto(place, group.v[first : first + count], where=group.exec_mask)

    return step


def _address(vaddr: Operand, saddr: Operand, offset: int, instruction: Instruction) -> Fetch:
    parts: list[Fetch] = []
    if isinstance(vaddr, Register):
        parts.append(lane_address(vaddr, instruction))
    if isinstance(saddr, Register):
        scalar = scalar_source(saddr, 1, instruction)
        parts.append(lambda group: scalar(group).astype(np.int64)[:, None])

    def fetch(group: Group) -> NDArray[np.int64]:
        total = np.full((group.count, 64), offset, np.int64)
        for part in parts:
            total += part(group)
        return total & 0xFFFFFFFF

    return fetch


def _lanes_inside(
    environment: Environment, group: Group, instruction: Instruction, addresses: NDArray[np.int64]
) -> NDArray[np.bool_]:
    limit = 4 * len(group.workgroup.scratch)
    outside = addresses + instruction.spec.bytes > limit
    if (outside & group.exec_mask).any():
        _report(environment, group, instruction, addresses, outside & group.exec_mask)
    inside: NDArray[np.bool_] = group.exec_mask & ~outside
    return inside


def _report(
    environment: Environment,
    group: Group,
    instruction: Instruction,
    addresses: NDArray[np.int64],
    bad: NDArray[np.bool_] | None = None,
) -> None:
    lanes = group.exec_mask if bad is None else bad
    if not lanes.any():
        return
    environment.report(
        "scratch-out-of-bounds",
        group,
        instruction,
        lanes,
        lambda row, lane: (
            f"scratch byte {addresses[row, lane]} lies outside the "
            f"{4 * len(group.workgroup.scratch)} that a lane has"
        ),
    )


def _bytes_of(group: Group, addresses: NDArray[np.int64], rows: NDArray[np.intp],
              lanes: NDArray[np.intp], position: int) -> tuple[NDArray[np.int64], ...]:  # fmt: skip
    """Index of byte `position` after each address in scratch seen as bytes."""
    place = addresses + position
    return place >> 2, rows + group.first, lanes, place & 3


def _load(
    instruction: Instruction, environment: Environment, data: Register, address: Fetch
) -> Step:
    size = instruction.spec.bytes
    merge = merge_loaded(instruction)

    def step(group: Group) -> None:
        addresses = address(group)
        inside = _lanes_inside(environment, group, instruction, addresses)
        rows, lanes = np.nonzero(inside)
        scratch = group.workgroup.scratch.view(np.uint8).reshape(*group.workgroup.scratch.shape, 4)
        loaded = np.zeros((group.count, 64, max(4, size)), np.uint8)
        for position in range(size):
            index = _bytes_of(group, addresses[inside], rows, lanes, position)
            loaded[rows, lanes, position] = scratch[index]
        words = np.moveaxis(loaded.view(np.uint32), -1, 0)
        if size < 4:
            group.write_vector(data.first, merge(words[0], group.v[data.first]))
        else:
            group.write_vectors(data.first, data.count, words)

    return step


def _store(
    instruction: Instruction, environment: Environment, data: Register, address: Fetch
) -> Step:
    size = instruction.spec.bytes
    value = stored_value(instruction)

    def step(group: Group) -> None:
        addresses = address(group)
        inside = _lanes_inside(environment, group, instruction, addresses)
        rows, lanes = np.nonzero(inside)
        scratch = group.workgroup.scratch.view(np.uint8).reshape(*group.workgroup.scratch.shape, 4)
        words = value(group.v[data.first : data.first + data.count])
        pieces = np.ascontiguousarray(np.moveaxis(words, 0, -1)).view(np.uint8)
        for position in range(size):
            index = _bytes_of(group, addresses[inside], rows, lanes, position)
            scratch[index] = pieces[rows, lanes, position]

    return step
