"""Decides which operations of a stage keep their order, and how far apart they should stand."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from asm_overrides.passes.access import Atom, access
from asm_overrides.passes.latency import (
    SLOT,
    Knobs,
    after_overwrite,
    after_read,
    after_write,
    spec_of,
)
from asm_overrides.program import Op

PINNED = frozenset(("s_setprio",))
"""Operations that keep their place among all others."""

_ANY_RING = "*"


@dataclass
class Graph:
    """Dependences of a stage: later[i][j] is the distance in cycles from i to j."""

    later: list[dict[int, int]]
    earlier: list[set[int]] = field(default_factory=list)

    def add(self, first: int, second: int, cycles: int) -> None:
        if first != second:
            self.later[first][second] = max(cycles, self.later[first].get(second, 0))
            self.earlier[second].add(first)


def dependences(ops: Sequence[Op], dead: Sequence[frozenset[Atom]], knobs: Knobs) -> Graph:
    """Dependences through registers, LDS and memory.

    Args:
        dead: for each operation, what it writes and nobody reads (scc mostly); such writes may
            change places with each other.
    """
    graph = Graph([{} for _ in ops], [set() for _ in ops])
    writer: dict[Atom, int] = {}
    idle_writers: dict[Atom, list[int]] = defaultdict(list)
    readers: dict[Atom, list[int]] = defaultdict(list)
    for index, op in enumerate(ops):
        touched = access(op)
        for atom in touched.reads:
            if atom in writer:
                wait = after_write(ops[writer[atom]], op, atom, knobs)
                graph.add(writer[atom], index, wait)
        for atom in touched.writes:
            for each in readers[atom]:
                graph.add(each, index, after_read(ops[each], op, atom))
            if atom in writer:
                wait = after_overwrite(ops[writer[atom]], op, atom, knobs)
                graph.add(writer[atom], index, wait)
            if atom in dead[index]:
                idle_writers[atom].append(index)
                continue
            for each in idle_writers.pop(atom, ()):
                graph.add(each, index, SLOT)
            writer[atom] = index
            readers[atom] = []
        for atom in touched.reads:
            readers[atom].append(index)
    _order_memory(ops, graph)
    _order_pinned(ops, graph)
    return graph


def _order_pinned(ops: Sequence[Op], graph: Graph) -> None:
    """Priorities keep their place among all others."""
    for index, op in enumerate(ops):
        if op.opcode in PINNED:
            for other in range(len(ops)):
                graph.add(min(index, other), max(index, other), SLOT)


def _order_memory(ops: Sequence[Op], graph: Graph) -> None:
    """Stores keep their place among accesses to the same memory.

    A ring's LDS-direct loads and its readers are free of each other: a tile is read only behind
    the barrier that publishes it, and no barrier stands in a movable stage.
    """
    accesses = [(index, _memory(op)) for index, op in enumerate(ops)]
    accesses = [(index, each) for index, each in accesses if each]
    for place, (index, here) in enumerate(accesses):
        for other, there in accesses[:place]:
            if any(_conflict(a, b) for a in there for b in here):
                graph.add(other, index, SLOT)


_Memory = tuple[str, str]
"""("read" | "write" | "fill", "memory" or a ring's name)."""


def _memory(op: Op) -> list[_Memory]:
    spec = spec_of(op)
    if spec.port == "special" or not spec.access:
        return []
    instruction = access(op).instruction
    assert instruction is not None
    if spec.port == "lds":
        kind = "read" if spec.access == "load" else "write"
        rings = op.lds_reads if kind == "read" else op.lds_writes
        return [(kind, ring) for ring in rings or (_ANY_RING,)]
    found = [("read" if spec.access == "load" else "write", "memory")]
    if "lds" in instruction.modifiers or "_load_lds_" in op.opcode:
        found += [("fill", ring) for ring in op.lds_writes or (_ANY_RING,)]
    return found


def _conflict(first: _Memory, second: _Memory) -> bool:
    if (first[1] == "memory") != (second[1] == "memory"):
        return False
    if first[1] != second[1] and _ANY_RING not in (first[1], second[1]):
        return False
    kinds = {first[0], second[0]}
    if kinds == {"read", "fill"}:
        return _ANY_RING in (first[1], second[1])
    return kinds != {"read"}
