"""Decides what LDS instructions read and write; races and waits are judged elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asm_overrides.emulator.semantics import lanes
from asm_overrides.emulator.semantics.atomics import ATOMIC_OPERATIONS, apply_atomic
from asm_overrides.emulator.semantics.environment import (
    Environment,
    Step,
    UnsupportedInstructionError,
)
from asm_overrides.emulator.semantics.fetch import integer, lds_address
from asm_overrides.emulator.semantics.subword import merge_loaded, stored_value
from asm_overrides.emulator.state import Group
from asm_overrides.isa.instruction import Instruction
from asm_overrides.isa.operands import Register

_ALIGNMENT = {1: 1, 2: 2, 4: 4, 8: 8, 12: 4, 16: 16}
"""Bytes of alignment that an access of a size needs."""

Addresses = NDArray[np.int64]
Lanes = NDArray[np.bool_]


class LdsPort:
    """Checks lane addresses of one instruction and moves data for it."""

    __slots__ = ("alignment", "environment", "instruction", "size")

    def __init__(
        self,
        instruction: Instruction,
        environment: Environment,
        size: int,
        alignment: int | None = None,
    ) -> None:
        self.instruction, self.environment, self.size = instruction, environment, size
        self.alignment = _ALIGNMENT[size] if alignment is None else alignment

    def inside(self, group: Group, addresses: Addresses, is_write: bool) -> Lanes | None:
        """Lanes that are active and whose access lies inside LDS, None for all; reports others."""
        limit = group.workgroup.lds.size - self.size
        mask = None if group.exec_full else group.exec_mask
        lanes = mask
        outside = addresses > limit
        if outside.any():
            bad = outside if mask is None else outside & mask
            if bad.any():
                self._report_outside(group, addresses, bad)
            lanes = ~outside if mask is None else mask & ~outside
        alignment = self.alignment
        if alignment > 1:
            misaligned = (addresses & (alignment - 1)) != 0
            if misaligned.any():
                bad = misaligned if lanes is None else misaligned & lanes
                if bad.any():
                    self._report_misaligned(group, addresses, bad, alignment)
        checks = self.environment.checks
        if checks is not None:
            checks.on_lds(group, self.instruction, addresses, self.size, is_write, lanes)
        banks = self.environment.banks
        if banks is not None:
            banks.count(self.instruction, addresses, self.size, is_write, lanes)
        return lanes

    def _report_outside(self, group: Group, addresses: Addresses, bad: Lanes) -> None:
        self.environment.report(
            "lds-out-of-bounds",
            group,
            self.instruction,
            bad,
            lambda row, lane: (
                f"LDS bytes {addresses[row, lane]}..{addresses[row, lane] + self.size - 1} "
                f"lie outside the {group.workgroup.lds.size} that the workgroup has"
            ),
        )

    def _report_misaligned(
        self, group: Group, addresses: Addresses, bad: Lanes, alignment: int
    ) -> None:
        self.environment.report(
            "lds-misaligned",
            group,
            self.instruction,
            bad,
            lambda row, lane: (
                f"LDS address {addresses[row, lane]} is not a multiple of {alignment}"
            ),
        )

    def read(self, group: Group, addresses: Addresses) -> NDArray[np.uint32]:
        """Words (dwords, waves, 64) or small values (1, waves, 64); zero outside."""
        lanes = self.inside(group, addresses, False)
        lds = group.workgroup.lds
        where = addresses if lanes is None else np.where(lanes, addresses, 0)
        if lanes is not None and lds.size < self.size:
            return np.zeros((max(1, self.size // 4), *addresses.shape), np.uint32)
        if self.size < 4:
            data = lds.read_small(where, self.size)[None]
        else:
            data = lds.read(where, self.size // 4)
        if lanes is not None:
            data[:, ~lanes] = 0
        return data

    def write(self, group: Group, addresses: Addresses, data: NDArray[np.uint32]) -> None:
        """Write words (dwords, waves, 64) or the low bytes of (1, waves, 64)."""
        lds = group.workgroup.lds
        lds.incoming = data
        lanes = self.inside(group, addresses, True)
        lds.incoming = None
        if lanes is not None:
            addresses, data = addresses[lanes], data[:, lanes]
        if self.size < 4:
            lds.write_small(addresses, data[0], self.size)
        else:
            lds.write(addresses, data)


def compile_lds(instruction: Instruction, environment: Environment) -> Step:
    """Step of a ds_ instruction."""
    opcode = instruction.opcode
    if opcode == "ds_nop":
        return lambda group: None
    if opcode in ("ds_bpermute_b32", "ds_permute_b32", "ds_swizzle_b32"):
        return lanes.compile_lds_lane_move(instruction)
    port = LdsPort(instruction, environment, instruction.spec.bytes)
    if instruction.spec.access == "atomic":
        return _atomic(instruction, port)
    if "_tr_b" in opcode:
        return _transposed(instruction, port)
    if "read2" in opcode or "write2" in opcode:
        return _two_elements(instruction, port)
    offset = integer(instruction, "offset")
    if instruction.spec.access == "load":
        return _read(instruction, port, offset)
    return _write(instruction, port, offset)


def _read(instruction: Instruction, port: LdsPort, offset: int) -> Step:
    destination, address = instruction.operands
    assert isinstance(destination, Register)
    fetch = lds_address(address, offset, instruction)
    first, count, size = destination.first, destination.count, port.size
    if size < 4:
        merge = merge_loaded(instruction)

        def small(group: Group) -> None:
            value = port.read(group, fetch(group))[0]
            group.write_vector(first, merge(value, group.v[first]))

        return small

    def step(group: Group) -> None:
        group.write_vectors(first, count, port.read(group, fetch(group)))

    return step


def _write(instruction: Instruction, port: LdsPort, offset: int) -> Step:
    address, data = instruction.operands
    assert isinstance(data, Register)
    fetch = lds_address(address, offset, instruction)
    first, end = data.first, data.first + data.count
    value = stored_value(instruction)

    def step(group: Group) -> None:
        port.write(group, fetch(group), value(group.v[first:end]))

    return step


def _two_elements(instruction: Instruction, port: LdsPort) -> Step:
    """ds_read2, ds_write2 and st64 forms: two elements at offsets counted in elements."""
    stride = port.size * (64 if "st64" in instruction.opcode else 1)
    offsets = [integer(instruction, name) * stride for name in ("offset0", "offset1")]
    dwords = port.size // 4
    if instruction.spec.access == "load":
        destination, address = instruction.operands
        assert isinstance(destination, Register)
        fetches = [lds_address(address, offset, instruction) for offset in offsets]
        first = destination.first

        def read(group: Group) -> None:
            values = [port.read(group, fetch(group)) for fetch in fetches]
            for position, value in enumerate(values):
                group.write_vectors(first + position * dwords, dwords, value)

        return read
    address, *data = instruction.operands
    fetches = [lds_address(address, offset, instruction) for offset in offsets]
    firsts = [operand.first for operand in data if isinstance(operand, Register)]

    def write(group: Group) -> None:
        for fetch, first in zip(fetches, firsts, strict=True):
            port.write(group, fetch(group), group.v[first : first + dwords])

    return write


def _transposed(instruction: Instruction, port: LdsPort) -> Step:
    """ds_read_b64_tr_b4/b8/b16: each 16 lanes read a matrix of 16 columns, a lane gets one column.

    With E elements a lane, element j of lane t is element t % E of what lane (16/E) j + t/E read.
    """
    destination, address = instruction.operands
    assert isinstance(destination, Register)
    if instruction.opcode == "ds_read_b96_tr_b6":
        raise UnsupportedInstructionError(instruction, "6-bit transposing reads are not supported")
    bits = int(instruction.opcode.rpartition("_b")[2])
    fetch = lds_address(address, integer(instruction, "offset"), instruction)
    first, count = destination.first, destination.count

    def step(group: Group) -> None:
        words = port.read(group, fetch(group))
        group.write_vectors(first, count, transpose16(words, bits))

    return step


def transpose16(words: NDArray[np.uint32], bits: int) -> NDArray[np.uint32]:
    """Transpose 64-bit lanes (2, waves, 64) in groups of 16 lanes, elements of 4, 8 or 16 bits."""
    waves = words.shape[1]
    lanes_first = np.ascontiguousarray(np.moveaxis(words, 0, -1))
    if bits == 4:
        nibbles = lanes_first.view(np.uint8)
        split = np.stack((nibbles & 15, nibbles >> 4), axis=-1).reshape(waves, 4, 16, 16)
        turned = split.transpose(0, 1, 3, 2)
        joined = turned[..., 0::2] | turned[..., 1::2] << 4
        flat: NDArray[Any] = np.ascontiguousarray(joined)
    else:
        elements = lanes_first.view(np.uint8 if bits == 8 else np.uint16)
        rows = 64 // bits
        turned = elements.reshape(waves, 4, rows, 16).transpose(0, 1, 3, 2)
        flat = np.ascontiguousarray(turned)
    return np.moveaxis(flat.reshape(waves, 64, -1).view(np.uint32), -1, 0)


def _atomic(instruction: Instruction, port: LdsPort) -> Step:
    """Lane by lane in lane order, waves in wave order."""
    operands = list(instruction.operands)
    destination = operands.pop(0) if "_rtn_" in instruction.opcode else None
    address, data = operands[0], operands[1]
    name = instruction.opcode.removeprefix("ds_").replace("_rtn", "")
    if name not in ATOMIC_OPERATIONS or not isinstance(data, Register):
        raise UnsupportedInstructionError(instruction, "this LDS atomic is not supported")
    fetch = lds_address(address, integer(instruction, "offset"), instruction)
    first = data.first
    change: Callable[[int, int], int] = ATOMIC_OPERATIONS[name]

    def step(group: Group) -> None:
        addresses = fetch(group)
        port.inside(group, addresses, False)
        lanes_inside = port.inside(group, addresses, True)
        words = group.workgroup.lds.words
        old = apply_atomic(words, addresses >> 2, group.v[first], lanes_inside, change)
        if isinstance(destination, Register):
            group.write_vector(destination.first, old)

    return step
