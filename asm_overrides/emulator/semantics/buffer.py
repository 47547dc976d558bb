"""Decides what buffer instructions move: descriptor, bounds check, LDS-direct forms."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from asm_overrides.emulator.semantics.environment import (
    Environment,
    Step,
    UnsupportedInstructionError,
)
from asm_overrides.emulator.semantics.fetch import Fetch, integer, scalar_source
from asm_overrides.emulator.semantics.global_memory import (
    MemoryPort,
    active_lanes,
    atomic_step,
)
from asm_overrides.emulator.semantics.lds_direct import LdsDirect
from asm_overrides.emulator.semantics.subword import merge_loaded, stored_value
from asm_overrides.emulator.state import WAVE_SIZE, Group
from asm_overrides.isa import registers as ids
from asm_overrides.isa.instruction import Instruction
from asm_overrides.isa.operands import Operand, Register

Addresses = NDArray[np.int64]
Lanes = NDArray[np.bool_]

_STRIDE_MASK = 0x3FFF
_SWIZZLE_BIT = 31


class BufferAddress:
    """Lane addresses and bounds of one buffer instruction.

    Word 0 and the low half of word 1 are the base, word 1[29:16] the stride, word 2 num_records.
    Raw buffers (stride 0 or no idxen) compare offsets in bytes, the scalar offset included;
    structured ones compare the index. An access out of range loads zero and stores nothing, judged
    for each dword.
    """

    def __init__(
        self, instruction: Instruction, vaddr: Operand, descriptor: Operand, soffset: Operand
    ) -> None:
        assert isinstance(descriptor, Register)
        self._instruction = instruction
        self._row = descriptor.first - ids.SGPR
        self._scalar = scalar_source(soffset, 1, instruction)
        self._offset = integer(instruction, "offset")
        index, offset = self._vector_parts(vaddr)
        self._index, self._vector_offset = index, offset
        self._size = instruction.spec.bytes

    def _vector_parts(self, vaddr: Operand) -> tuple[Fetch | None, Fetch | None]:
        modifiers = self._instruction.modifiers
        indexed, offset = bool(modifiers.get("idxen")), bool(modifiers.get("offen"))
        if not indexed and not offset:
            return None, None
        if not isinstance(vaddr, Register) or vaddr.count != indexed + offset:
            raise UnsupportedInstructionError(
                self._instruction, f"{vaddr} does not match offen and idxen"
            )
        first = vaddr.first

        def reader(register: int) -> Fetch:
            return lambda group: group.v[register].astype(np.int64)

        return (
            reader(first) if indexed else None,
            reader(first + indexed) if offset else None,
        )

    def __call__(self, group: Group) -> tuple[Addresses, Addresses]:
        """Addresses (waves, 64) and, for each lane, the bytes in range from there (maybe < 0)."""
        words = group.s[self._row : self._row + 4].astype(np.int64)
        base = words[0] | (words[1] & 0xFFFF) << 32
        scalar = self._scalar(group).astype(np.int64)
        if self._vector_offset is not None:
            offset = self._vector_offset(group) + self._offset
        else:
            offset = np.full((group.count, WAVE_SIZE), self._offset, np.int64)
        if self._index is None:
            room = (words[2] - scalar)[:, None] - offset
            return offset + (base + scalar)[:, None], room
        return self._structured(group, words, base + scalar, offset)

    def _structured(
        self, group: Group, words: NDArray[np.int64], base: NDArray[np.int64], offset: Addresses
    ) -> tuple[Addresses, Addresses]:
        assert self._index is not None
        stride = (words[1] >> 16 & _STRIDE_MASK)[:, None]
        if (words[1] >> _SWIZZLE_BIT & 1).any():
            raise UnsupportedInstructionError(self._instruction, "swizzled buffers")
        index = self._index(group)
        room = np.where(
            stride == 0,
            words[2][:, None] - offset,
            np.where(index < words[2][:, None], np.int64(self._size), np.int64(-1)),
        )
        return base[:, None] + index * stride + offset, room


def compile_buffer(instruction: Instruction, environment: Environment) -> Step:
    """Step of a buffer_ instruction."""
    operands = instruction.operands
    if instruction.modifiers.get("lds"):
        address = BufferAddress(instruction, operands[0], operands[1], operands[2])
        return _load_to_lds(instruction, environment, address)
    data, *where = operands
    assert isinstance(data, Register)
    address = BufferAddress(instruction, where[0], where[1], where[2])
    access = instruction.spec.access
    if access == "load":
        return _load(instruction, environment, data, address)
    if access == "store":
        return _store(instruction, environment, data, address)
    port = MemoryPort(instruction, environment, instruction.spec.bytes)
    size = port.size

    def selected(group: Group) -> Lanes | None:
        lanes: Lanes = group.exec_mask & (address(group)[1] >= size)
        return lanes

    returned = data if instruction.modifiers.get("sc0") else None
    return atomic_step(instruction, port, data, returned, lambda group: address(group)[0], selected)


class BufferLoad:
    """Loads with the bounds check: (dwords, waves, 64), zero out of range."""

    def __init__(
        self, instruction: Instruction, environment: Environment, address: BufferAddress
    ) -> None:
        self._address = address
        self._size = instruction.spec.bytes
        self._whole = MemoryPort(instruction, environment, self._size)
        self._dword = MemoryPort(instruction, environment, 4)

    def __call__(self, group: Group) -> NDArray[np.uint32]:
        addresses, room = self._address(group)
        whole = room >= self._size
        if whole.all():
            return self._whole.load(group, addresses, active_lanes(group))
        data = self._whole.load(group, addresses, whole & group.exec_mask)
        if self._size > 4:
            partly = (room >= 4) & ~whole & group.exec_mask
            if partly.any():
                for position in range(self._size // 4):
                    lanes = partly & (room >= 4 * position + 4)
                    word = self._dword.load(group, addresses + 4 * position, lanes)[0]
                    data[position][lanes] = word[lanes]
        return data


def _load(
    instruction: Instruction, environment: Environment, data: Register, address: BufferAddress
) -> Step:
    load = BufferLoad(instruction, environment, address)
    first, count = data.first, data.count
    if instruction.spec.bytes < 4:
        merge = merge_loaded(instruction)
        return lambda group: group.write_vector(first, merge(load(group)[0], group.v[first]))
    return lambda group: group.write_vectors(first, count, load(group))


def _load_to_lds(
    instruction: Instruction, environment: Environment, address: BufferAddress
) -> Step:
    load = BufferLoad(instruction, environment, address)
    direct = LdsDirect(instruction, environment, instruction.spec.bytes)
    return lambda group: direct.write(group, load(group), active_lanes(group))


def _store(
    instruction: Instruction, environment: Environment, data: Register, address: BufferAddress
) -> Step:
    size = instruction.spec.bytes
    whole_port = MemoryPort(instruction, environment, size)
    dword_port = MemoryPort(instruction, environment, 4)
    value = stored_value(instruction)
    first, end = data.first, data.first + data.count

    def step(group: Group) -> None:
        addresses, room = address(group)
        words = value(group.v[first:end])
        whole = (room >= size) & group.exec_mask
        if whole.any():
            whole_port.store(group, addresses, words, whole)
        if size > 4:
            partly = (room >= 4) & ~whole & group.exec_mask
            if partly.any():
                for position in range(size // 4):
                    lanes = partly & (room >= 4 * position + 4)
                    dword_port.store(
                        group, addresses + 4 * position, words[position : position + 1], lanes
                    )

    return step
