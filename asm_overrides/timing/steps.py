"""Decides what the replay needs to know of an instruction, looked up once; replays nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from asm_overrides.inspection.operands import PACKED_F32, vector_ids
from asm_overrides.isa.instruction import Instruction
from asm_overrides.isa.operands import Constant, WaitCounts
from asm_overrides.timing.constants import VECTOR_PORTS, Constants

Tuple = tuple[int, int]
"""First register and number of registers."""


class Kind(IntEnum):
    """How the replay treats an instruction."""

    OTHER = 0
    VECTOR = 1
    MATRIX = 2
    LDS = 3
    VMEM = 4
    SMEM = 5
    WAIT = 6
    BARRIER = 7
    PRIORITY = 8


@dataclass(frozen=True, slots=True)
class Step:
    """One instruction of a path.

    Attributes:
        port: its track in pictures: "vector", "matrix", "lds", "vmem", "scalar".
        cycles: on its port. next: until the wave may issue again.
        reads: registers whose producers must be done, an accumulator of a matrix instruction apart.
        writes: registers that become ready later.
        addend, result: tuples of a matrix instruction; (-1, 0) without.
        hold: cycles for which a matrix instruction keeps its wave from vector work; hold_other: the
            other wave. result_after: cycles until others may use its result.
        packed: packed float32 arithmetic.
        waits: outstanding (vmcnt, lgkmcnt) that a wait allows; -1 for any.
        counts: counters it increments. latency: of memory work.
        priority: that an s_setprio sets.
        useful: a matrix instruction of Q K^T or P V.
    """

    instruction: Instruction
    kind: Kind
    port: str
    cycles: int
    next: int
    reads: tuple[int, ...] = ()
    writes: tuple[int, ...] = ()
    addend: Tuple = (-1, 0)
    result: Tuple = (-1, 0)
    hold: int = 0
    hold_other: int = 0
    result_after: int = 0
    packed: bool = False
    waits: tuple[int, int] = (-1, -1)
    counts: tuple[str, ...] = ()
    latency: int = 0
    priority: int = 0
    useful: bool = False


def compile_steps(
    path: Sequence[Instruction], useful: frozenset[int], constants: Constants
) -> list[Step]:
    """Steps of a path."""
    return [_step(each, place in useful, constants) for place, each in enumerate(path)]


def _step(instruction: Instruction, useful: bool, constants: Constants) -> Step:
    port, slot = instruction.spec.port, constants.slot
    cost = constants.port_cycles(instruction)
    if port in VECTOR_PORTS:
        late = port == "trans"
        after = constants.transcendental_result if late else constants.vector_result
        return Step(
            instruction, Kind.VECTOR, "vector", cost, slot,
            reads=tuple(instruction.reads | instruction.writes),
            writes=tuple(instruction.writes),
            result_after=max(cost, after),
            packed=instruction.opcode in PACKED_F32,
        )  # fmt: skip
    if port == "mfma":
        return _matrix(instruction, useful, cost, constants)
    if port in ("lds", "vmem", "smem"):
        kind = {"lds": Kind.LDS, "vmem": Kind.VMEM, "smem": Kind.SMEM}[port]
        latency = {
            "lds": constants.lds_latency,
            "vmem": constants.vmem_latency,
            "smem": constants.smem_latency,
        }[port]
        return Step(
            instruction, kind, port if port != "smem" else "scalar", cost, slot,
            reads=tuple(instruction.reads), counts=instruction.spec.counters, latency=latency,
        )  # fmt: skip
    return _control(instruction, slot)


def _matrix(instruction: Instruction, useful: bool, cost: int, constants: Constants) -> Step:
    shape = instruction.spec.matrix
    assert shape is not None
    result = vector_ids(instruction.operands[0])
    addend = result if shape.sparse else vector_ids(instruction.operands[3])
    others = (*instruction.operands[1:3], *instruction.operands[4:])
    if shape.sparse:
        others = (*instruction.operands[1:3], *instruction.operands[3:])
    reads = {register for operand in others for register in vector_ids(operand)}
    hold = constants.matrix_read(instruction)
    return Step(
        instruction, Kind.MATRIX, "matrix", cost, constants.slot,
        reads=tuple(sorted(reads)),
        writes=tuple(result),
        addend=(addend.start, len(addend)) if addend else (-1, 0),
        result=(result.start, len(result)),
        hold=hold,
        hold_other=round(hold * constants.matrix_holds_vector),
        result_after=cost + constants.slot * constants.matrix_result_slots,
        useful=useful,
    )  # fmt: skip


def _control(instruction: Instruction, slot: int) -> Step:
    operand = instruction.operands[0] if instruction.operands else None
    if isinstance(operand, WaitCounts):
        waits = tuple(-1 if each is None else each for each in (operand.vmcnt, operand.lgkmcnt))
        return Step(instruction, Kind.WAIT, "scalar", slot, slot, waits=(waits[0], waits[1]))
    number = int(operand.value) if isinstance(operand, Constant) else 0
    if instruction.opcode == "s_barrier":
        return Step(instruction, Kind.BARRIER, "scalar", 0, 0)
    if instruction.opcode == "s_setprio":
        return Step(instruction, Kind.PRIORITY, "scalar", slot, slot, priority=number)
    if instruction.opcode == "s_nop":
        return Step(instruction, Kind.OTHER, "scalar", slot, slot * (number + 1))
    return Step(instruction, Kind.OTHER, "scalar", slot, slot)
