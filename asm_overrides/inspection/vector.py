"""Decides which vector instructions work once a score: row maximum, multiply-add, exponential,
conversion, packing. Everything else (row state, rescale, addresses) is other work.

Values carry a tag from the matrix instruction on that made them:

    score    of one score, or of a few that are packed: S, P and everything between
    partial  a maximum or sum of several scores of a lane; the reduction counts as once a score
    row      of a whole row: what a partial becomes when it meets anything but scores and partials,
             and what is made of it
    output   of O or of a row sum that a matrix instruction made

Whoever reads a score works once a score; a row's own values are few (one a lane and block).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

from asm_overrides.inspection.loops import VALU_PORTS
from asm_overrides.inspection.matrix import Place, Purpose
from asm_overrides.inspection.operands import vector_reads
from asm_overrides.isa.instruction import Instruction


class Tag(IntEnum):
    """What a register holds; higher ones win where two meet."""

    ROW = 1
    OUTPUT = 2
    PARTIAL = 3
    SCORE = 4


@dataclass(frozen=True)
class Held:
    """A register's tag and, for scores and partials, which scores it was made of."""

    tag: Tag
    scores: frozenset[int] = frozenset()


Registers = dict[int, Held]

_MAXIMUM = re.compile(r"v_(pk_)?(max3?|maximum3?)_")
_SUM = re.compile(r"v_(pk_)?add_f")
_ACROSS_LANES = re.compile(r"v_permlane|ds_")
_LAPS = 4
"""Laps round a loop after which its tags have settled: one a tag that can follow another."""


def walk(
    path: Sequence[Instruction], purposes: Mapping[Place, Purpose]
) -> tuple[set[Place], list[Registers]]:
    """Places that work once a score, and what registers hold in front of every place."""
    held: Registers = {}
    for _ in range(_LAPS):
        softmax: set[Place] = set()
        before: list[Registers] = []
        for place, instruction in enumerate(path):
            before.append(dict(held))
            if _step(instruction, purposes.get(place), held):
                softmax.add(place)
    return softmax, before


def _step(instruction: Instruction, purpose: Purpose | None, held: Registers) -> bool:
    """Update registers by one instruction; whether it is vector work done once a score."""
    if purpose is Purpose.QK:
        # a tile's registers tell its scores apart, and the tile does not outlive the next one
        for register in instruction.writes:
            held[register] = Held(Tag.SCORE, frozenset((register,)))
        return False
    is_vector = instruction.spec.port in VALU_PORTS
    result, once_a_score = None, False
    if purpose is not None:
        result = None if purpose is Purpose.OTHER else Held(Tag.OUTPUT)
    elif is_vector or (instruction.spec.port == "lds" and not instruction.spec.access):
        result, once_a_score = _combined(instruction, held)
    for register in instruction.writes:
        if result is None:
            held.pop(register, None)
        else:
            held[register] = result
    return once_a_score and is_vector


def _combined(instruction: Instruction, held: Registers) -> tuple[Held | None, bool]:
    """What a vector instruction makes, and whether it works once a score."""
    sources = [held[register] for register in vector_reads(instruction) if register in held]
    if not sources:
        return None, False
    highest = max(source.tag for source in sources)
    if highest < Tag.PARTIAL:
        return Held(highest), False
    across = instruction.encoding == "dpp" or _ACROSS_LANES.match(instruction.opcode) is not None
    made_of = {source.scores for source in sources if source.tag >= Tag.PARTIAL}
    if _SUM.match(instruction.opcode):
        is_reduction = len(sources) > 1
    else:  # the larger of two functions of one score is still one score's
        is_reduction = _MAXIMUM.match(instruction.opcode) is not None and len(made_of) > 1
    if is_reduction and not across and all(source.tag >= Tag.PARTIAL for source in sources):
        return Held(Tag.PARTIAL, frozenset().union(*made_of)), True
    if highest == Tag.PARTIAL:
        return Held(Tag.ROW), False
    scores = [source.scores for source in sources if source.tag == Tag.SCORE]
    return Held(Tag.SCORE, frozenset().union(*scores)), True
