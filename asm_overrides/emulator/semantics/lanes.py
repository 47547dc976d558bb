"""Decides how values move between lanes and to scalars: readlane, DPP, permute, swizzle."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from asm_overrides.emulator.arithmetic import UnsupportedArithmetic
from asm_overrides.emulator.arithmetic.lanes import dpp_map, first_lane, swizzle_map
from asm_overrides.emulator.semantics.environment import Step, UnsupportedInstructionError
from asm_overrides.emulator.semantics.fetch import Fetch, integer, scalar_source, vector_source
from asm_overrides.emulator.state import WAVE_SIZE, Group
from asm_overrides.isa import registers as ids
from asm_overrides.isa.instruction import Instruction
from asm_overrides.isa.operands import Register


def lane_step(instruction: Instruction) -> Step | None:
    """Step of an instruction that moves between a lane and a scalar, or None for any other."""
    if instruction.opcode == "v_readfirstlane_b32":
        return _read_first_lane(instruction)
    if instruction.opcode == "v_readlane_b32":
        return _read_lane(instruction)
    if instruction.opcode == "v_writelane_b32":
        return _write_lane(instruction)
    return None


def _scalar_row(instruction: Instruction) -> int:
    destination = instruction.operands[0]
    assert isinstance(destination, Register)
    if destination.first in ids.EXEC:
        raise UnsupportedInstructionError(instruction, "EXEC cannot be the destination")
    return destination.first - ids.SGPR


def _read_first_lane(instruction: Instruction) -> Step:
    row = _scalar_row(instruction)
    fetch = vector_source(instruction.operands[1], "b32", instruction)

    def step(group: Group) -> None:
        value = fetch(group)
        if group.exec_full:
            group.s[row] = value[:, 0]
            return
        # With no lane active, lane 0 is read.
        first = first_lane(group.exec_mask)
        value = np.broadcast_to(value, group.exec_mask.shape)
        group.s[row] = value[np.arange(group.count), first]

    return step


def _read_lane(instruction: Instruction) -> Step:
    row = _scalar_row(instruction)
    fetch = vector_source(instruction.operands[1], "b32", instruction)
    select = scalar_source(instruction.operands[2], 1, instruction)

    def step(group: Group) -> None:
        lane = np.broadcast_to(select(group) % WAVE_SIZE, (group.count,))
        group.s[row] = fetch(group)[np.arange(group.count), lane]

    return step


def _write_lane(instruction: Instruction) -> Step:
    destination, data, selected = instruction.operands
    assert isinstance(destination, Register)
    register = destination.first
    fetch = scalar_source(data, 1, instruction)
    select = scalar_source(selected, 1, instruction)

    def step(group: Group) -> None:
        lane = np.broadcast_to(select(group) % WAVE_SIZE, (group.count,))
        group.v[register][np.arange(group.count), lane] = fetch(group)

    return step


def dpp_fetch(fetch: Fetch, instruction: Instruction) -> tuple[Fetch, Fetch]:
    """Reader of source 0 through DPP, and reader of the lanes that are written at all.

    A lane whose source lane does not exist or is inactive reads 0 with bound_ctrl, and keeps its
    destination without.
    """
    lanes = dpp_map(instruction.modifiers)

    def moved(group: Group) -> NDArray[np.uint32]:
        value = lanes.permute(fetch(group))
        if group.exec_full:
            return value
        return np.where(lanes.valid(group.exec_mask), value, np.uint32(0))

    return moved, lambda group: lanes.enabled(group.exec_mask)


def compile_lds_lane_move(instruction: Instruction) -> Step:
    """ds_bpermute, ds_permute and ds_swizzle: lane moves through the LDS crossbar."""
    if instruction.opcode == "ds_swizzle_b32":
        return _swizzle(instruction)
    destination, address, data = instruction.operands
    assert isinstance(destination, Register) and isinstance(address, Register)
    assert isinstance(data, Register)
    offset = integer(instruction, "offset")
    target, selects, values = destination.first, address.first, data.first
    backward = instruction.opcode == "ds_bpermute_b32"

    def step(group: Group) -> None:
        lane = ((group.v[selects].astype(np.int64) + offset) >> 2) % WAVE_SIZE
        rows = np.arange(group.count)[:, None]
        if backward:
            moved = group.v[values][rows, lane]
            result = np.where(group.exec_mask[rows, lane], moved, np.uint32(0))
        else:
            result = np.zeros((group.count, WAVE_SIZE), np.uint32)
            row, column = np.nonzero(group.exec_mask)
            result[row, lane[row, column]] = group.v[values][row, column]
        group.write_vector(target, result)

    return step


def _swizzle(instruction: Instruction) -> Step:
    destination, data = instruction.operands
    assert isinstance(destination, Register) and isinstance(data, Register)
    try:
        source = swizzle_map(integer(instruction, "offset"))
    except UnsupportedArithmetic as error:
        raise UnsupportedInstructionError(instruction, str(error)) from None
    target, values = destination.first, data.first

    def step(group: Group) -> None:
        moved = group.v[values][:, source]
        group.write_vector(target, np.where(group.exec_mask[:, source], moved, np.uint32(0)))

    return step
