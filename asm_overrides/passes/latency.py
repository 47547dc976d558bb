"""Decides how far apart dependent operations should stand; an estimate for ordering, never a proof.

Cycles are those of one SIMD; a slot, in which a wave issues one instruction, has four of them. What
the hardware does not enforce itself is proved by the hazard and wait passes, whatever stands here.
"""

from __future__ import annotations

from dataclasses import dataclass

from asm_overrides.isa import OpSpec, registers
from asm_overrides.passes.access import Access, Atom, access
from asm_overrides.program import Op, Part

SLOT = 4
"""Cycles in which a wave issues one instruction."""


@dataclass(frozen=True)
class Knobs:
    """What may be tuned about an order without changing what it computes.

    Attributes:
        lds_latency, vmem_latency, smem_latency: cycles from issue until a loaded register is used.
        matrix_issue: cycles for which a matrix instruction keeps vector arithmetic from issuing.
        lds_queue: LDS instructions that wait in the queue while the wave goes on.
        lds_spacing: fewest cycles between two LDS reads of a vector stage.
        load_ahead: cycles by which an LDS read goes out before the last moment for its consumer.
        vmem_spacing: fewest cycles between two vector memory operations of a matrix stage.
        window: operations of a vector stage that are looked at together, in program order.
    """

    lds_latency: int = 128
    vmem_latency: int = 800
    smem_latency: int = 200
    matrix_issue: int = 12
    lds_queue: int = 7
    lds_spacing: int = 24
    load_ahead: int = 64
    vmem_spacing: int = 32
    window: int = 48


def spec_of(op: Op) -> OpSpec:
    """Table entry of an operation that is no label and no pseudo operation."""
    instruction = access(op).instruction
    assert instruction is not None
    return instruction.spec


def after_write(producer: Op, consumer: Op, atom: Atom, knobs: Knobs) -> int:
    """Cycles from a write to a read of the same atom."""
    first, second = spec_of(producer), spec_of(consumer)
    if first.port == "lds":
        return knobs.lds_latency
    if first.port in ("vmem", "smem"):
        return knobs.vmem_latency if first.port == "vmem" else knobs.smem_latency
    if first.port == "mfma":
        if second.port == "mfma" and _same_accumulator(producer, consumer):
            return max(first.cycles, SLOT * 3 if first.passes == 2 else 0)
        return SLOT * (first.passes + (4 if first.passes != 2 else 3) + 1)
    if first.port == "salu":
        reaches_m0 = atom[0] == "%m0" and second.port == "vmem"
        return SLOT * (2 if reaches_m0 else 1)
    if first.port not in ("valu", "trans"):
        return SLOT
    return max(first.cycles, SLOT * (1 + _vector_states(first, access(producer), second, atom)))


def after_read(reader: Op, writer: Op, atom: Atom) -> int:
    """Cycles from a read to a write of the same atom."""
    first, second = spec_of(reader), spec_of(writer)
    if first.port == "mfma" and second.port != "mfma" and atom in addend_atoms(reader):
        return SLOT * (1 + {2: 1, 4: 3, 8: 7}.get(first.passes, 15))
    return SLOT


def after_overwrite(producer: Op, writer: Op, atom: Atom, knobs: Knobs) -> int:
    """Cycles from one write to the next of the same atom."""
    if spec_of(producer).port in ("mfma", "lds", "vmem", "smem"):
        if spec_of(producer).port == spec_of(writer).port:
            return spec_of(producer).cycles
        return after_write(producer, writer, atom, knobs)
    return SLOT


def addend_atoms(op: Op) -> frozenset[Atom]:
    """Dwords that a matrix operation adds to."""
    shape = spec_of(op).matrix
    if shape is None:
        return frozenset()
    addend = op.arguments[0 if shape.sparse else 3]
    return _atoms(addend) if isinstance(addend, Part) else frozenset()


def _atoms(part: Part) -> frozenset[Atom]:
    return frozenset((part.value.name, part.first + i) for i in range(part.count))


def _same_accumulator(producer: Op, consumer: Op) -> bool:
    result = producer.arguments[0]
    return isinstance(result, Part) and _atoms(result) == addend_atoms(consumer)


def _vector_states(first: OpSpec, made: Access, second: OpSpec, atom: Atom) -> int:
    """Wait states between vector arithmetic and a reader of its result."""
    scalar = atom in made.writes and _is_scalar(made, atom)
    if scalar:
        if second.port == "vmem":
            return 5
        if second.wait_class == "lane":
            return 4
        return 2 if second.port in ("valu", "trans", "mfma") else 0
    if second.port == "mfma":
        return 2
    if "permlane" in second.opcode:
        return 2
    if second.wait_class == "lane":
        return 1
    if first.port == "trans" and second.port != "trans":
        return 2
    return int(made.half is not None and second.port in ("valu", "trans"))


def _is_scalar(made: Access, atom: Atom) -> bool:
    """True if the atom is a scalar register: vector arithmetic writes those by comparisons."""
    assert made.instruction is not None
    if atom[0].startswith("%"):
        return True
    written = made.instruction.writes
    return all(not registers.is_vector(each) for each in written)
