"""Decides how operands are read as arrays and results written back; computes nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asm_overrides.emulator.arithmetic import constant, registers
from asm_overrides.emulator.arithmetic.lanes import pack_mask, unpack_mask
from asm_overrides.emulator.semantics.environment import UnsupportedInstructionError
from asm_overrides.emulator.state import WAVE_SIZE, Group
from asm_overrides.isa import registers as ids
from asm_overrides.isa.instruction import Instruction
from asm_overrides.isa.operands import Constant, Operand, Register

Words = NDArray[np.uint32]
Fetch = Callable[[Group], Any]

_SCALAR = ids.SGPR


def vector_source(operand: Operand, kind: str, instruction: Instruction) -> Fetch:
    """Reader of a vector instruction's source as arithmetic wants it for a kind."""
    count = registers(kind)
    if isinstance(operand, Constant):
        if count == 0:
            bits = operand.bits("b64")
            mask = np.array([[bits >> lane & 1 for lane in range(WAVE_SIZE)]], np.bool_)
            return lambda group: mask
        value = constant(kind, operand.value)
        return lambda group: value
    if not isinstance(operand, Register):
        raise UnsupportedInstructionError(instruction, f"source {operand} is not supported")
    if operand.is_vector:
        return vector_registers(operand.first, count)
    if operand.first == ids.SCC:
        return lambda group: group.scc[:, None].astype(np.uint32)
    row = operand.first - _SCALAR
    if count == 0:
        return lambda group: unpack_mask(group.s[row : row + 2])
    if count == 1:
        return lambda group: group.s[row][:, None]
    return lambda group: group.s[row : row + count][..., None]


def vector_registers(first: int, count: int) -> Fetch:
    """Reader of vector registers: (waves, 64), or (count, waves, 64) for more than one."""
    if count <= 1:
        return lambda group: group.v[first]
    return lambda group: group.v[first : first + count]


def scalar_source(operand: Operand, count: int, instruction: Instruction) -> Fetch:
    """Reader of a scalar instruction's source: (waves,), or (count, waves) for more dwords."""
    if isinstance(operand, Constant):
        bits = operand.bits("b64" if count == 2 else "b32")
        if isinstance(operand.value, float) and count == 2:
            bits = operand.bits("f64")
        words = np.array(
            [bits >> 32 * index & 0xFFFFFFFF for index in range(count)], np.uint32
        ).reshape(count, 1)
        value = words[0] if count == 1 else words
        return lambda group: value
    if not isinstance(operand, Register):
        raise UnsupportedInstructionError(instruction, f"source {operand} is not supported")
    if operand.first == ids.SCC:
        return lambda group: group.scc.astype(np.uint32)
    row = operand.first - _SCALAR
    if count == 1:
        return lambda group: group.s[row]
    return lambda group: group.s[row : row + count]


def lane_address(operand: Operand, instruction: Instruction) -> Fetch:
    """Reader of a 32-bit lane address or offset as int64 (waves, 64), zero-extended."""
    if isinstance(operand, Register) and operand.is_vector:
        first = operand.first
        if operand.count == 1:
            return lambda group: group.v[first].astype(np.int64)
    raise UnsupportedInstructionError(instruction, f"address {operand} is not supported")


def lds_address(operand: Operand, offset: int, instruction: Instruction) -> Fetch:
    """Reader of LDS byte addresses as int64 (waves, 64); the sum wraps at 32 bits as LLVM uses."""
    if not isinstance(operand, Register) or operand.count != 1:
        raise UnsupportedInstructionError(instruction, f"address {operand} is not supported")
    first, added = operand.first, np.uint32(offset)
    if offset == 0:
        return lambda group: group.v[first].astype(np.int64)
    return lambda group: (group.v[first] + added).astype(np.int64)


def lane_address64(first: int) -> Fetch:
    """Reader of a 64-bit lane address in a register pair as int64 (waves, 64)."""

    def fetch(group: Group) -> NDArray[np.int64]:
        high: NDArray[np.int64] = group.v[first + 1].astype(np.int64)
        high <<= 32
        high |= group.v[first]
        return high

    return fetch


def scalar64(first: int) -> Fetch:
    """Reader of a 64-bit scalar pair as int64 (waves,)."""
    row = first - _SCALAR

    def fetch(group: Group) -> NDArray[np.int64]:
        address: NDArray[np.int64] = group.s[row + 1].astype(np.int64) << 32 | group.s[row]
        return address

    return fetch


def write_mask(operand: Operand, instruction: Instruction) -> Callable[[Group, Any], None]:
    """Writer of a lane mask to a scalar pair; bits of inactive lanes become 0."""
    if not isinstance(operand, Register) or operand.is_vector:
        raise UnsupportedInstructionError(instruction, f"{operand} cannot hold a lane mask")
    row = operand.first - _SCALAR
    is_exec = operand.first == ids.EXEC_LO

    def write(group: Group, mask: NDArray[np.bool_]) -> None:
        if not group.exec_full:
            mask = mask & group.exec_mask
        if mask.shape != group.exec_mask.shape:
            mask = np.broadcast_to(mask, group.exec_mask.shape)
        group.s[row : row + 2] = pack_mask(mask)
        if is_exec:
            group.refresh_exec()

    return write


def write_vector(operand: Operand, count: int, instruction: Instruction) -> Callable[..., None]:
    """Writer of a vector result in the active lanes."""
    if not isinstance(operand, Register) or not operand.is_vector:
        raise UnsupportedInstructionError(instruction, f"{operand} is not a vector destination")
    first = operand.first
    if count <= 1:
        return lambda group, value: group.write_vector(first, value)
    return lambda group, value: group.write_vectors(first, count, value)


def integer(instruction: Instruction, name: str, default: int = 0) -> int:
    """An integer modifier of an instruction."""
    value = instruction.modifiers.get(name, default)
    if not isinstance(value, int):
        raise UnsupportedInstructionError(instruction, f"modifier {name}:{value} is no integer")
    return value
