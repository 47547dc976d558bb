"""Decides where undefined registers do harm: addresses, stored data, matrices, branches, EXEC.

How undefined bytes get there is shadow.py's business; LDS is watched by races.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from asm_overrides.emulator.findings import FindingLog
from asm_overrides.emulator.shadow import (
    ALL_BYTES,
    SCRATCH,
    Shadow,
    scalar_transfer,
    vector_transfer,
)
from asm_overrides.emulator.state import Group, Workgroup
from asm_overrides.isa import registers as ids
from asm_overrides.isa.instruction import Instruction
from asm_overrides.isa.operands import Register
from asm_overrides.isa.parse import effective_roles
from asm_overrides.isa.registers import register_name

Effect = Callable[[Group], None]
Lanes = NDArray[np.bool_]


class Initialised:
    """Watches the registers of one workgroup after the other."""

    def __init__(self, instructions: Sequence[Instruction], log: FindingLog) -> None:
        self._instructions = instructions
        self._log = log
        self._touched = [_touched(each) for each in instructions]
        self._effects: list[Effect | None] = [None] * len(instructions)
        self._shadow: Shadow

    def start(self, workgroup: Workgroup) -> None:
        """A workgroup begins with what the launch preloads."""
        self._shadow = Shadow(workgroup)
        self.undefined = self._shadow.maybe

    def before(self, group: Group, index: int) -> None:
        """An instruction follows."""
        if self.undefined.isdisjoint(self._touched[index]):
            return
        effect = self._effects[index]
        if effect is None:
            effect = self._effects[index] = self._effect(self._instructions[index])
        effect(group)

    def _effect(self, instruction: Instruction) -> Effect:
        port = instruction.spec.port
        if port in ("valu", "trans"):
            transfer = vector_transfer(instruction)
            return lambda group: transfer(self._shadow, group, instruction)
        if port == "mfma":
            return lambda group: self._matrix(group, instruction)
        if port == "salu":
            return lambda group: self._scalar(group, instruction)
        if port == "branch":
            return lambda group: self._branch(group, instruction)
        if instruction.opcode.startswith("scratch_"):
            return lambda group: self._scratch(group, instruction)
        if port in ("vmem", "lds", "smem"):
            return lambda group: self._memory(group, instruction)
        return lambda group: None

    def _report(
        self, group: Group, instruction: Instruction, register: int, lanes: Lanes, use: str
    ) -> None:
        """`lanes`: (waves, 64) or (waves, 1), those in which the register is undefined."""
        row = int(lanes.any(axis=1).argmax())
        where = "" if lanes.shape[1] == 1 else f" in lane {int(lanes[row].argmax())}"
        self._log.add(
            "uninitialised",
            group.first + row,
            instruction,
            f"{use} depends on {register_name(register)}{where}, which nothing has defined",
        )

    def _sink(
        self,
        group: Group,
        instruction: Instruction,
        operand: Register,
        use: str,
        relevant: int = ALL_BYTES,
        everywhere: bool = False,
    ) -> None:
        """Report a source that must be defined in the active lanes."""
        for register in operand.ids:
            lanes = self._shadow.lanes(group, Register(register, 1), relevant)
            if operand.is_vector and not (everywhere or group.exec_full):
                lanes = lanes & group.exec_mask
            if lanes.any():
                self._report(group, instruction, register, lanes, use)
                return

    def _matrix(self, group: Group, instruction: Instruction) -> None:
        """EXEC does not count; of a scale register one byte does."""
        destination, *sources = instruction.operands
        assert isinstance(destination, Register)
        matrix = instruction.spec.matrix
        assert matrix is not None
        for position, operand in enumerate(sources):
            if not isinstance(operand, Register):
                continue
            relevant = ALL_BYTES
            if matrix.scaled and position >= 3:
                relevant = 1 << _scale_byte(instruction, position - 3)
            self._sink(group, instruction, operand, "a matrix product", relevant, everywhere=True)
        if matrix.sparse:
            self._sink(group, instruction, destination, "a matrix product", everywhere=True)
        for register in destination.ids:
            self._shadow.write(group, register, 0, everywhere=True)

    def _scalar(self, group: Group, instruction: Instruction) -> None:
        if instruction.opcode.startswith("s_setreg"):
            self._scalar_sink(group, instruction, instruction.reads, "a hardware register")
            return
        scalar_transfer(self._shadow, group, instruction)
        written = instruction.writes & ids.EXEC
        self._scalar_sink(group, instruction, written, "EXEC")
        if "saveexec" in instruction.opcode or "wrexec" in instruction.opcode:
            source = instruction.operands[1]
            if isinstance(source, Register):
                self._scalar_sink(group, instruction, frozenset(source.ids), "EXEC")

    def _branch(self, group: Group, instruction: Instruction) -> None:
        self._scalar_sink(group, instruction, instruction.reads, "a branch")

    def _scalar_sink(
        self, group: Group, instruction: Instruction, registers: frozenset[int], use: str
    ) -> None:
        for register in sorted(registers & self.undefined):
            lanes = (self._shadow.bits(group, register) != 0)[:, None]
            if lanes.any():
                self._report(group, instruction, register, lanes, use)
            if register in ids.EXEC:
                self._shadow.write_bits(group, register, 0)

    def _memory(self, group: Group, instruction: Instruction) -> None:
        """Addresses and stored data must be defined; what is loaded is."""
        spec = instruction.spec
        roles = effective_roles(spec, instruction.operands, instruction.modifiers)
        stored = _stored_bytes(instruction)
        data = _data_position(instruction) if spec.access in ("store", "atomic") else -1
        for position, (role, operand) in enumerate(zip(roles, instruction.operands, strict=True)):
            if not role.reads or role.writes or not isinstance(operand, Register):
                continue
            if spec.access == "" or (data >= 0 and _is_data(instruction, position)):
                self._sink(group, instruction, operand, "what is stored", stored)
            else:
                self._sink(group, instruction, operand, "an address")
        self._scalar_sink(group, instruction, instruction.reads & {ids.M0}, "an LDS address")
        for register in instruction.writes:
            if register < ids.SGPR:
                self._shadow.write(group, register, 0)
            else:
                self._shadow.write_bits(group, register, 0)

    def _scratch(self, group: Group, instruction: Instruction) -> None:
        """Spills keep undefined bytes undefined; only constant addresses are followed."""
        shadow = self._shadow
        is_load = instruction.spec.access == "load"
        data = instruction.operands[0 if is_load else 1]
        address = instruction.operands[1 if is_load else 0]
        assert isinstance(data, Register)
        if isinstance(address, Register):
            self._sink(group, instruction, address, "a scratch address")
        base = instruction.operands[2]
        if isinstance(base, Register):
            self._sink(group, instruction, base, "a scratch address")
        offset = instruction.modifiers.get("offset", 0)
        assert isinstance(offset, int)
        followed = (
            not isinstance(address, Register)
            and not isinstance(base, Register)
            and offset % 4 == 0
            and instruction.spec.bytes >= 4
        )
        for position, register in enumerate(data.ids):
            place = offset // 4 + position if followed else -1
            known = 0 <= place < len(shadow.scratch)
            if is_load:
                kept = shadow.scratch[place, group.first : group.end] if known else 0
                shadow.write(group, register, kept)
            elif known:
                target = shadow.scratch[place, group.first : group.end]
                np.copyto(target, shadow.read(group, register), where=group.exec_mask)


def _touched(instruction: Instruction) -> frozenset[int]:
    spills = frozenset((SCRATCH,)) if instruction.opcode.startswith("scratch_") else frozenset()
    return instruction.reads | instruction.writes | spills


def _scale_byte(instruction: Instruction, operand: int) -> int:
    """Byte of the scale register that a scaled matrix instruction uses: op_sel + 2 op_sel_hi."""
    chosen = []
    for name, default in (("op_sel", 0), ("op_sel_hi", 0)):
        select = instruction.modifiers.get(name, ())
        known = isinstance(select, tuple) and operand < len(select)
        chosen.append(select[operand] if known and isinstance(select, tuple) else default)
    return chosen[0] + 2 * chosen[1]


def _stored_bytes(instruction: Instruction) -> int:
    """Bytes of each data register that are stored."""
    size = instruction.spec.bytes
    if not 0 < size < 4:
        return ALL_BYTES
    mask = (1 << size) - 1
    return mask << 2 if "_d16_hi" in instruction.opcode else mask


def _data_position(instruction: Instruction) -> int:
    """First operand that is stored data."""
    return 0 if instruction.opcode.startswith("buffer_") else 1


def _is_data(instruction: Instruction, position: int) -> bool:
    """Whether an operand at or behind the data's place is data."""
    first = _data_position(instruction)
    if instruction.spec.port == "lds":
        return position >= first
    return position == first


__all__ = ["Initialised"]
