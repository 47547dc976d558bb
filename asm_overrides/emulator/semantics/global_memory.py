"""Decides what scalar, global, flat and scratch memory instructions move; buffers are elsewhere."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from asm_overrides.emulator.semantics.atomics import ATOMIC_OPERATIONS
from asm_overrides.emulator.semantics.environment import (
    Environment,
    Step,
    UnsupportedInstructionError,
)
from asm_overrides.emulator.semantics.fetch import (
    Fetch,
    integer,
    lane_address,
    lane_address64,
    scalar64,
    scalar_source,
)
from asm_overrides.emulator.semantics.lds_direct import LdsDirect
from asm_overrides.emulator.semantics.subword import merge_loaded, stored_value
from asm_overrides.emulator.state import Group
from asm_overrides.isa import registers as ids
from asm_overrides.isa.instruction import Instruction
from asm_overrides.isa.operands import Operand, Register, Symbolic

Addresses = NDArray[np.int64]
Lanes = NDArray[np.bool_]


class MemoryPort:
    """Checks lane addresses of one instruction and moves data for it."""

    __slots__ = ("environment", "instruction", "size")

    def __init__(self, instruction: Instruction, environment: Environment, size: int) -> None:
        self.instruction, self.environment, self.size = instruction, environment, size

    def load(self, group: Group, addresses: Addresses, lanes: Lanes | None) -> NDArray[np.uint32]:
        """Words (dwords, waves, 64) of the selected lanes (None: all); zero elsewhere."""
        self._announce(group, addresses, False, lanes)
        memory = self.environment.memory
        if lanes is None:
            data, outside = memory.load(addresses, self.size)
        else:
            shape = (max(1, self.size // 4), *addresses.shape)
            data = np.zeros(shape, np.uint32)
            picked, missed = memory.load(addresses[lanes], self.size)
            data[:, lanes] = picked
            outside = _spread(missed, lanes)
        if outside is not None:
            self._report_outside(group, addresses, outside)
        return data

    def store(
        self, group: Group, addresses: Addresses, data: NDArray[np.uint32], lanes: Lanes | None
    ) -> None:
        """Write words (dwords, waves, 64), or their low bytes, in the selected lanes."""
        self._announce(group, addresses, True, lanes)
        if lanes is None:
            lanes = np.ones(addresses.shape, np.bool_)
        missed, refused = self.environment.memory.store(addresses[lanes], data[:, lanes], self.size)
        outside = _spread(missed, lanes)
        if outside is not None:
            self._report_outside(group, addresses, outside)
        if refused:
            self.environment.report(
                "global-readonly",
                group,
                self.instruction,
                lanes,
                lambda row, lane: (
                    "stores into an input: "
                    + self.environment.memory.nearest(int(addresses[row, lane]))
                ),
            )

    def _announce(
        self, group: Group, addresses: Addresses, is_write: bool, lanes: Lanes | None
    ) -> None:
        alignment = min(self.size, 4)
        if alignment > 1:
            misaligned = (addresses & (alignment - 1)) != 0
            if misaligned.any():
                bad = misaligned if lanes is None else misaligned & lanes
                if bad.any():
                    self.environment.report(
                        "global-misaligned",
                        group,
                        self.instruction,
                        bad,
                        lambda row, lane: (
                            f"address {addresses[row, lane]:#x} is not a multiple of {alignment}"
                        ),
                    )
        checks = self.environment.checks
        if checks is not None:
            checks.on_memory(
                group, self.instruction, addresses.view(np.uint64), self.size, is_write, lanes
            )

    def _report_outside(self, group: Group, addresses: Addresses, outside: Lanes) -> None:
        memory = self.environment.memory
        self.environment.report(
            "global-out-of-bounds",
            group,
            self.instruction,
            outside,
            lambda row, lane: (
                f"{self.size} bytes at {int(addresses[row, lane]):#x} lie outside every tensor: "
                + memory.nearest(int(addresses[row, lane]))
            ),
        )


def _spread(missed: Lanes | None, lanes: Lanes) -> Lanes | None:
    """Missed lanes of the selected ones as a mask over all lanes."""
    if missed is None or not missed.any():
        return None
    result = np.zeros(lanes.shape, np.bool_)
    result[lanes] = missed
    return result


def active_lanes(group: Group) -> Lanes | None:
    """EXEC as memory code wants it: None for all lanes."""
    return None if group.exec_full else group.exec_mask


def compile_scalar_memory(instruction: Instruction, environment: Environment) -> Step:
    """Step of s_load and s_buffer_load (the low two bits of the address are ignored)."""
    if instruction.opcode in ("s_memtime", "s_memrealtime"):
        raise UnsupportedInstructionError(instruction, "clocks are not emulated")
    destination, base, offset = instruction.operands
    assert isinstance(destination, Register) and isinstance(base, Register)
    port = MemoryPort(instruction, environment, instruction.spec.bytes)
    fetch_base, fetch_offset = scalar64(base.first), scalar_source(offset, 1, instruction)
    row, count = destination.first - ids.SGPR, destination.count
    extra = integer(instruction, "offset")
    is_buffer = instruction.opcode.startswith("s_buffer")
    # Immediate offsets are signed, those in registers are not.
    offset_type = np.uint32 if isinstance(offset, Register) else np.int32
    records_row = base.first - ids.SGPR + 2

    def step(group: Group) -> None:
        offsets = fetch_offset(group).astype(offset_type).astype(np.int64) + extra
        address = fetch_base(group)
        lanes = None
        if is_buffer:
            address = address & 0xFFFFFFFFFFFF
            lanes = (offsets + 4 * count <= group.s[records_row].astype(np.int64))[:, None]
        addresses = np.broadcast_to(address + offsets & ~3, (group.count,))[:, None]
        group.s[row : row + count] = port.load(group, addresses, lanes)[..., 0]

    return step


def compile_global(instruction: Instruction, environment: Environment) -> Step:
    """Step of a global_ or flat_ instruction."""
    opcode, access = instruction.opcode, instruction.spec.access
    operands = list(instruction.operands)
    if opcode.startswith("global_load_lds_"):
        return _load_to_lds(instruction, environment)
    port = MemoryPort(instruction, environment, instruction.spec.bytes)
    if access == "load":
        destination, *where = operands
        address = _global_address(where, instruction)
        return _load_step(instruction, port, destination, address)
    if access == "store":
        address = _global_address([operands[0], *operands[2:]], instruction)
        return _store_step(instruction, port, operands[1], address)
    returned = operands.pop(0) if len(operands) > len(instruction.spec.roles) else None
    address = _global_address([operands[0], *operands[2:]], instruction)
    return atomic_step(instruction, port, operands[1], returned, address, active_lanes)


def _global_address(where: list[Operand], instruction: Instruction) -> Fetch:
    """Lane addresses from vaddr, saddr and the immediate offset."""
    offset = integer(instruction, "offset")
    vaddr = where[0]
    saddr = where[1] if len(where) > 1 else Symbolic("off")
    if not isinstance(vaddr, Register):
        raise UnsupportedInstructionError(instruction, f"address {vaddr} is not supported")
    if isinstance(saddr, Register):
        fetch_base, fetch_offset = scalar64(saddr.first), lane_address(vaddr, instruction)
        return lambda group: fetch_offset(group) + (fetch_base(group) + offset)[:, None]
    fetch = lane_address64(vaddr.first)
    return lambda group: fetch(group) + offset


def _load_step(
    instruction: Instruction, port: MemoryPort, destination: Operand, address: Fetch
) -> Step:
    assert isinstance(destination, Register)
    first, count = destination.first, destination.count
    if port.size < 4:
        merge = merge_loaded(instruction)

        def small(group: Group) -> None:
            value = port.load(group, address(group), active_lanes(group))[0]
            group.write_vector(first, merge(value, group.v[first]))

        return small

    def step(group: Group) -> None:
        data = port.load(group, address(group), active_lanes(group))
        group.write_vectors(first, count, data)

    return step


def _store_step(instruction: Instruction, port: MemoryPort, data: Operand, address: Fetch) -> Step:
    assert isinstance(data, Register)
    first, end = data.first, data.first + data.count
    value = stored_value(instruction)

    def step(group: Group) -> None:
        port.store(group, address(group), value(group.v[first:end]), active_lanes(group))

    return step


def atomic_step(
    instruction: Instruction,
    port: MemoryPort,
    data: Operand,
    returned: Operand | None,
    address: Fetch,
    selected: Callable[[Group], Lanes | None],
) -> Step:
    """Lane by lane in lane order; 32-bit operations only."""
    name = instruction.opcode.partition("_atomic_")[2]
    change = ATOMIC_OPERATIONS.get(name)
    if change is None or port.size != 4 or not isinstance(data, Register):
        raise UnsupportedInstructionError(instruction, "this atomic operation is not supported")
    source = data.first

    def step(group: Group) -> None:
        addresses, lanes = address(group), selected(group)
        old = np.zeros(addresses.shape, np.uint32)
        one = np.zeros(addresses.shape, np.bool_)
        for place in np.ndindex(addresses.shape):
            if lanes is None or lanes[place]:
                one[place] = True
                old[place] = port.load(group, addresses, one)[0][place]
                word = np.full(
                    (1, *addresses.shape), change(int(old[place]), int(group.v[source][place]))
                ).astype(np.uint32)
                port.store(group, addresses, word, one)
                one[place] = False
        if isinstance(returned, Register):
            group.write_vector(returned.first, old)

    return step


def _load_to_lds(instruction: Instruction, environment: Environment) -> Step:
    address = _global_address(list(instruction.operands), instruction)
    port = MemoryPort(instruction, environment, instruction.spec.bytes)
    direct = LdsDirect(instruction, environment, instruction.spec.bytes)

    def step(group: Group) -> None:
        lanes = active_lanes(group)
        direct.write(group, port.load(group, address(group), lanes), lanes)

    return step
