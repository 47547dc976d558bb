"""Decides what a loop is said to cost: cycles by purpose for 32 queries x 128 keys of one wave.

Counted on each port from the instruction table, without overlap, waits and stalls. Loads that write
LDS directly count as memory; only ds_ instructions count on LDS.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from asm_overrides.inspection import vector
from asm_overrides.inspection.loops import VALU_PORTS, Loop, cycles, matrix_loops
from asm_overrides.inspection.matrix import Matrices, Purpose, classify
from asm_overrides.inspection.operands import PACKED_F32, vector_reads
from asm_overrides.isa.instruction import Instruction

SCORES = 32 * 128
"""Scores of the block for which costs are given."""

BLOCKED = PACKED_F32
"""Vector arithmetic that cannot run beside a matrix instruction (LLVM unpacks it for that)."""

Figure = int | float


@dataclass(frozen=True)
class Aside:
    """Code within a loop that its steady state skips.

    Attributes:
        what: "mask" if it overwrites scores, "rescale" if it overwrites outputs, else "other".
        valu, mfma: cycles of one execution.
        places: how many copies of it the loop has; first_line: of the first one.
    """

    what: str
    valu: int
    mfma: int
    places: int
    first_line: int


@dataclass(frozen=True)
class Cost:
    """Steady state of a loop, one wave.

    Attributes:
        label, first_line, last_line: where the loop stands.
        scores: elements of S that an iteration makes; 0 if nothing there looks like attention, and
            then every figure is for one iteration.
        element_type, headdim: of Q and K.
        p_mode: "exact" if softmax takes exponentials of scores, else "lean"; "" without scores.
        by_accumulators: purposes of matrix instructions rest on the weaker rule (see matrix.py).
        mfma_qk, mfma_pv, mfma_rowsum, mfma_other: matrix cycles by purpose.
        softmax_valu: vector cycles of work that is done once a score; other_valu: the rest.
        softmax_valu_blocked, other_valu_blocked: the part of each that cannot run beside a matrix
            instruction.
        lds: cycles of LDS instructions. barriers: how many.
        softmax_by_opcode: softmax_valu by opcode.
        aside: code that the steady state skips.
    """

    label: str
    first_line: int
    last_line: int
    scores: int
    element_type: str
    headdim: int
    p_mode: str
    by_accumulators: bool
    mfma_qk: Figure
    mfma_pv: Figure
    mfma_rowsum: Figure
    mfma_other: Figure
    softmax_valu: Figure
    softmax_valu_blocked: Figure
    other_valu: Figure
    other_valu_blocked: Figure
    lds: Figure
    barriers: Figure
    softmax_by_opcode: Mapping[str, Figure]
    aside: tuple[Aside, ...]

    @property
    def valu(self) -> Figure:
        """All vector cycles."""
        return self.softmax_valu + self.other_valu


def steady_cost(
    instructions: Sequence[Instruction], labels: Mapping[str, int]
) -> tuple[Cost | None, tuple[Cost, ...]]:
    """Cost of a kernel's main loop, and of its other loops with matrix instructions.

    The main loop is the one that makes scores with the fewest vector cycles (the tiles that need no
    mask), or else the one with the most matrix cycles. None without any.
    """
    costs = [cost_of(instructions, loop) for loop in matrix_loops(instructions, labels)]
    attention = [cost for cost in costs if cost.scores]
    if attention:
        main = min(attention, key=lambda cost: cost.valu)
    elif costs:
        main = max(costs, key=lambda cost: cost.mfma_other)
    else:
        return None, ()
    return main, tuple(cost for cost in costs if cost is not main)


def cost_of(instructions: Sequence[Instruction], loop: Loop) -> Cost:
    """Cost of one loop."""
    path = [instructions[index] for index in loop.path]
    matrices = classify(path)
    softmax, before = vector.walk(path, matrices.purposes)
    per_block = _Scale(matrices.scores)

    def total(which: Iterable[int]) -> Figure:
        return per_block(sum(cycles(path[place]) for place in which))

    def matrix(purpose: Purpose) -> Figure:
        return total(place for place, each in matrices.purposes.items() if each is purpose)

    def blocked(places: Iterable[int]) -> list[int]:
        return [place for place in places if path[place].opcode in BLOCKED]

    other = {place for place, each in enumerate(path) if each.spec.port in VALU_PORTS} - softmax
    by_opcode: Counter[str] = Counter()
    for place in softmax:
        by_opcode[path[place].opcode] += cycles(path[place])
    return Cost(
        label=loop.label,
        first_line=instructions[loop.first].line,
        last_line=instructions[loop.last].line,
        scores=matrices.scores,
        element_type=matrices.score_type,
        headdim=matrices.headdim,
        p_mode=_p_mode(path, matrices, softmax),
        by_accumulators=matrices.by_accumulators,
        mfma_qk=matrix(Purpose.QK),
        mfma_pv=matrix(Purpose.PV),
        mfma_rowsum=matrix(Purpose.ROW_SUM),
        mfma_other=matrix(Purpose.OTHER),
        softmax_valu=total(softmax),
        softmax_valu_blocked=total(blocked(softmax)),
        other_valu=total(other),
        other_valu_blocked=total(blocked(other)),
        lds=total(place for place, each in enumerate(path) if each.spec.port == "lds"),
        barriers=per_block(sum(each.opcode == "s_barrier" for each in path)),
        softmax_by_opcode={name: per_block(count) for name, count in by_opcode.most_common()},
        aside=tuple(_asides(instructions, loop, before)),
    )


class _Scale:
    """From one iteration to 32 queries x 128 keys; whole numbers stay whole."""

    def __init__(self, scores: int) -> None:
        self._factor = Fraction(SCORES, scores) if scores else Fraction(1)

    def __call__(self, count: int) -> Figure:
        scaled = count * self._factor
        return int(scaled) if scaled.denominator == 1 else round(float(scaled), 2)


def _p_mode(path: Sequence[Instruction], matrices: Matrices, softmax: Iterable[int]) -> str:
    if not matrices.scores:
        return ""
    return "exact" if any(path[place].spec.port == "trans" for place in softmax) else "lean"


def _asides(
    instructions: Sequence[Instruction], loop: Loop, before: Sequence[vector.Registers]
) -> list[Aside]:
    """What the steady state skips, equal copies as one, in the order of the text."""
    found: dict[tuple[str, int, int], list[int]] = {}
    for run in loop.beside:
        code = [instructions[index] for index in run]
        valu = sum(cycles(each) for each in code if each.spec.port in VALU_PORTS)
        mfma = sum(cycles(each) for each in code if each.spec.port == "mfma")
        if valu or mfma:
            after = next((p for p, index in enumerate(loop.path) if index >= run.stop), 0)
            key = (_what(code, before[after]), valu, mfma)
            found.setdefault(key, []).append(code[0].line)
    return [
        Aside(what, valu, mfma, len(lines), lines[0]) for (what, valu, mfma), lines in found.items()
    ]


def _what(code: Sequence[Instruction], held: vector.Registers) -> str:
    """Which values a run of vector instructions changes in place."""
    counts: Counter[str] = Counter()
    for each in code:
        if each.spec.port in VALU_PORTS:
            changed = vector_reads(each) & each.writes
            tags = {held[register].tag for register in changed if register in held}
            counts["mask"] += vector.Tag.SCORE in tags
            counts["rescale"] += vector.Tag.OUTPUT in tags
    best, count = max(counts.items(), key=lambda item: item[1], default=("other", 0))
    return best if count else "other"
