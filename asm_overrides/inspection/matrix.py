"""Decides what each matrix instruction of a loop is for, by what flows between them.

A matrix instruction whose result reaches, through vector arithmetic, a data operand of another one
makes scores (Q K^T); the other one consumes P. It sums rows if what P meets does not change from
iteration to iteration (ones), and multiplies V otherwise. Comments and register numbers do not
count.

What scores are added to makes scores, too, unless it meets nothing that the loop loads while they
do: then they start from it (a row's maximum spread over its keys), perhaps several tiles of them.

Where P goes through LDS no register connects the two. Then accumulators decide: scores are made
anew in every iteration, outputs are carried round the loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from asm_overrides.inspection.operands import vector_ids, vector_reads
from asm_overrides.isa import registers
from asm_overrides.isa.instruction import Instruction

Place = int
"""Position within the loop's path."""


class Purpose(Enum):
    """What a matrix instruction computes."""

    QK = "QK"
    PV = "PV"
    ROW_SUM = "row sum"
    OTHER = "other"


@dataclass(frozen=True)
class Matrices:
    """Matrix instructions of a loop's path.

    Attributes:
        purposes: by place. by_accumulators: whether they rest on the weaker rule.
        scores: elements of S that an iteration makes. headdim: length of their dot products; both 0
            without QK.
        score_type: element type of K and Q as the opcode and its modifiers say it, "" without QK.
    """

    purposes: dict[Place, Purpose]
    by_accumulators: bool
    scores: int
    headdim: int
    score_type: str


def classify(path: Sequence[Instruction]) -> Matrices:
    """Purposes of the matrix instructions on one way round a loop."""
    flow = _Flow(path)
    purposes = dict.fromkeys(flow.matrices, Purpose.OTHER)
    makers: set[Place] = set()
    for place in flow.matrices:
        sources = [flow.matrix_sources(place, operand) for operand in (1, 2)]
        if any(sources):
            makers |= sources[0] | sources[1]
            met = 2 if sources[0] else 1  # the operand that is not P
            is_sum = flow.is_invariant(place, met)
            purposes[place] = Purpose.ROW_SUM if is_sum else Purpose.PV
    by_accumulators = not makers
    if by_accumulators:
        makers = _by_accumulators(flow, purposes)
    else:
        makers = _without_offsets(flow, makers, purposes)
    for place in makers:
        purposes[place] = Purpose.QK
    begun = set[Place]().union(*map(flow.addend_definitions, makers))
    chains = [place for place in makers if place not in begun]
    shapes = {place: path[place].spec.matrix for place in makers}
    depth = sum(shape.k for shape in shapes.values() if shape is not None)
    sizes = [shape.m * shape.n * shape.blocks for shape in map(shapes.get, chains) if shape]
    return Matrices(
        purposes,
        by_accumulators and bool(makers),
        sum(sizes),
        depth // len(chains) if chains else 0,
        _element_type(path[min(makers)]) if makers else "",
    )


def _without_offsets(
    flow: _Flow, finished: set[Place], purposes: dict[Place, Purpose]
) -> set[Place]:
    """Makers of scores, given those that finish them; what scores start from has no purpose."""
    makers = flow.with_addends(finished)
    if not any(map(flow.meets_loaded, makers)):
        return makers
    offsets = {place for place in makers - finished if not flow.meets_loaded(place)}
    purposes.update(dict.fromkeys(offsets, Purpose.OTHER))
    return makers - offsets


def _by_accumulators(flow: _Flow, purposes: dict[Place, Purpose]) -> set[Place]:
    """Enter outputs into `purposes`, return the makers of scores; nothing without both."""
    carried = {place for place in flow.matrices if flow.is_carried(place)}
    makers = {place for place in flow.matrices if place not in carried}
    if not carried or not makers:
        return set()
    for place in carried:
        is_sum = any(flow.is_invariant(place, operand) for operand in (1, 2))
        purposes[place] = Purpose.ROW_SUM if is_sum else Purpose.PV
    return makers


_F8F6F4 = ("fp8", "bf8", "fp6", "bf6", "fp4")


def _element_type(instruction: Instruction) -> str:
    shape = instruction.spec.matrix
    assert shape is not None
    if shape.a_type != "f8f6f4":
        return shape.a_type
    code = instruction.modifiers.get("cbsz", 0)
    return _F8F6F4[code] if isinstance(code, int) and code < len(_F8F6F4) else "f8f6f4"


class _Flow:
    """Which instruction defined what an instruction reads, round the loop."""

    def __init__(self, path: Sequence[Instruction]) -> None:
        self.path = path
        self.matrices = [
            place for place, instruction in enumerate(path) if instruction.spec.matrix is not None
        ]
        defined: dict[int, Place] = {}
        self._definitions: list[dict[int, Place]] = []
        for lap in range(2):  # the first finds what the second carries over from the lap before
            for place, instruction in enumerate(path):
                if lap:
                    reads = vector_reads(instruction)
                    self._definitions.append({r: defined[r] for r in reads if r in defined})
                for register in instruction.writes:
                    if register < registers.SGPR:
                        defined[register] = place

    def matrix_sources(self, place: Place, operand: int) -> set[Place]:
        """Matrix instructions whose results reach an operand through vector arithmetic."""
        found: set[Place] = set()
        for definition in self._reached(self._operand_definitions(place, operand)):
            if self.path[definition].spec.matrix is not None:
                found.add(definition)
        return found

    def is_invariant(self, place: Place, operand: int) -> bool:
        """Whether an operand rests on nothing that the loop loads or multiplies."""
        definitions = self._operand_definitions(place, operand)
        return all(
            self._is_arithmetic(self.path[each]) and self.path[each].spec.matrix is None
            for each in self._reached(definitions)
        )

    def meets_loaded(self, place: Place) -> bool:
        """Whether a data operand of a matrix instruction rests on what the loop loads."""
        return any(
            self.path[each].spec.matrix is None and not self._is_arithmetic(self.path[each])
            for operand in (1, 2)
            for each in self._reached(self._operand_definitions(place, operand))
        )

    def is_carried(self, place: Place) -> bool:
        """Whether a matrix instruction adds to what it left an iteration before."""
        seen: set[Place] = set()
        work = list(self.addend_definitions(place))
        while work:
            each = work.pop()
            if each == place:
                return True
            if each not in seen:
                seen.add(each)
                if self.path[each].spec.matrix is not None:
                    work += self.addend_definitions(each)
                elif self._is_arithmetic(self.path[each]):
                    work += self._definitions[each].values()
        return False

    def addend_definitions(self, place: Place) -> set[Place]:
        """What defined the accumulator that a matrix instruction adds to."""
        shape = self.path[place].spec.matrix
        return self._operand_definitions(place, 0 if shape is not None and shape.sparse else 3)

    def with_addends(self, places: Iterable[Place]) -> set[Place]:
        """Matrix instructions and those that began their accumulators."""
        found: set[Place] = set()
        work = list(places)
        while work:
            place = work.pop()
            if place not in found:
                found.add(place)
                addends = self.addend_definitions(place)
                work += [each for each in addends if self.path[each].spec.matrix is not None]
        return found

    def _operand_definitions(self, place: Place, operand: int) -> set[Place]:
        definitions = self._definitions[place]
        ids = vector_ids(self.path[place].operands[operand])
        return {definitions[each] for each in ids if each in definitions}

    def _reached(self, definitions: Iterable[Place]) -> set[Place]:
        """Definitions and, through vector arithmetic, what they rest on."""
        found: set[Place] = set()
        work = list(definitions)
        while work:
            place = work.pop()
            if place not in found:
                found.add(place)
                if self._is_arithmetic(self.path[place]):
                    work += self._definitions[place].values()
        return found

    @staticmethod
    def _is_arithmetic(instruction: Instruction) -> bool:
        """Moves between lanes count: they leave LDS storage alone."""
        port = instruction.spec.port
        return port in ("valu", "trans") or (port == "lds" and not instruction.spec.access)
