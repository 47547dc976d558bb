"""Decides which memory instructions must not follow each other at once; see rules.py for the rest.

Consecutive scalar loads, or consecutive vector memory instructions, form a clause that hardware
with page-fault replay (XNACK) may issue again as a whole. No instruction of a clause may therefore
write what one of it reads, and stores stay out of clauses that load. Any other instruction breaks
the clause. Code for targets with `xnack-` is exempt.
"""

from __future__ import annotations

from collections.abc import Sequence

from asm_overrides.emulator.hazards.facts import Facts
from asm_overrides.emulator.hazards.rules import Rule
from asm_overrides.isa import registers
from asm_overrides.isa.instruction import Instruction

CLAUSE = Rule(
    "memory-clause", "any", "defs", "any", "uses", 1, 1,
    "a replayed clause would see its own results as addresses",
)  # fmt: skip

_LOOK_BACK = 5
_LOOK_BACK_WITH_ACCUMULATORS = 19
"""Members of a clause that LLVM remembers; the larger number for programs that use a0."""


def breaks_clause(clause: Sequence[Facts], following: Facts) -> int | None:
    """Place in the clause of an instruction that `following` must be kept apart from, or None.

    Args:
        clause: consecutive memory instructions of one kind, in program order.
    """
    written = [facts.registers("defs") for facts in clause]
    if not any(written):
        return None
    if _stores(following.instruction):
        return max(place for place, ids in enumerate(written) if ids)
    everything = [*clause, following]
    for place, facts in enumerate(everything):
        made = facts.registers("defs")
        if any(made & other.registers("reads") for other in everything):
            return min(place, len(clause) - 1)
    return None


def clause_hazards(facts: Sequence[Facts]) -> list[tuple[int, int]]:
    """(earlier, later) indices of instructions that need something between them."""
    found: list[tuple[int, int]] = []
    clause: list[int] = []
    kind = ""
    accumulates = any(
        registers.AGPR in each.instruction.reads | each.instruction.writes for each in facts
    )
    look_back = _LOOK_BACK_WITH_ACCUMULATORS if accumulates else _LOOK_BACK
    for index, each in enumerate(facts):
        its_kind = clause_kind(each.instruction)
        if its_kind != kind:
            clause, kind = [], its_kind
        if not kind:
            continue
        members = clause[-look_back:]
        place = breaks_clause([facts[i] for i in members], each)
        if place is not None:
            found.append((members[place], index))
            clause = []
        clause.append(index)
    return found


def clause_kind(instruction: Instruction) -> str:
    """Which sort of clause an instruction can be in; empty for none."""
    port = instruction.spec.port
    return port if port in ("smem", "vmem") else ""


def _stores(instruction: Instruction) -> bool:
    lds_load = "lds" in instruction.modifiers or "_load_lds_" in instruction.opcode
    return lds_load or instruction.spec.access in ("store", "atomic")
