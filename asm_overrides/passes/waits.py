"""Decides where a wave waits for its memory operations, and for how many; adds nothing else.

Needs: registers assigned; the recipe holds no s_waitcnt; every path to a place has issued the same
    number of pieces of a ring's current tile.
Keeps: every line and the order.
Changes: `publish` and `release` become waits where one is needed; s_waitcnt in front of uses;
    full waits and barriers at the entry and the exit.

Data flow over all paths finds what may be in flight and, for each item, the fewest operations that
were issued behind it on its counter: the highest count that proves it done. Nothing is added where
no path leaves an item in flight, and each wait stands directly in front of what needs it.

`publish` (see program.Op.publishes) concerns LDS-direct loads; `release` with `lds_reads` says that
this wave's reads of those rings have returned, in front of a barrier behind which they are filled
again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from asm_overrides.emulator.waits import COUNTER_LIMITS, is_lds_load
from asm_overrides.isa import Instruction
from asm_overrides.passes.flow import successors
from asm_overrides.passes.lines import Line, RegisterProgram, added_line
from asm_overrides.program import Ring

PASS = "waits"
_COUNTERS = ("vmcnt", "lgkmcnt")
_ROUNDS = 12


@dataclass(frozen=True)
class Boundary:
    """What to assume of the code around the loop.

    Attributes:
        entry: other loads may be in flight and LDS in use: begin with full waits and a barrier.
        exit: nothing may be in flight behind the loop, and no wave may still use LDS.
    """

    entry: bool = True
    exit: bool = True


@dataclass
class _Flight:
    """What may be in flight at one place.

    Attributes:
        items: per counter, line index -> fewest operations issued behind it.
        tiles: ring -> loads issued of its current tile, and for each load in flight, latest first,
            the fewest vmcnt operations issued behind it.
    """

    items: dict[str, dict[int, int]] = field(default_factory=lambda: {c: {} for c in _COUNTERS})
    tiles: dict[str, tuple[int, tuple[int, ...]]] = field(default_factory=dict)

    def copy(self) -> _Flight:
        return _Flight({name: dict(each) for name, each in self.items.items()}, dict(self.tiles))

    def join(self, other: _Flight, where: Line) -> _Flight:
        """What may be in flight where two paths meet."""
        joined = self.copy()
        for counter, items in other.items.items():
            mine = joined.items[counter]
            for index, behind in items.items():
                mine[index] = min(behind, mine.get(index, behind))
        for ring, (issued, there) in other.tiles.items():
            count, here = joined.tiles.get(ring, (issued, ()))
            if count != issued:
                raise ValueError(
                    f"{where.op.source}: `{where.op}` is reached with {count} and with {issued} "
                    f"pieces of a tile of ring {ring!r} issued"
                )
            short, long = sorted((here, there), key=len)
            merged = tuple(map(min, short, long)) + long[len(short) :]
            joined.tiles[ring] = (count, merged)
        return joined


Need = dict[str, int]
"""Counter -> value to which it must fall."""


class _Machine:
    """Steps over the lines of one program."""

    def __init__(self, program: RegisterProgram) -> None:
        self.lines = program.lines
        self.causes: dict[tuple[int, str], int] = {}
        self.rings: Mapping[str, Ring] = {ring.name: ring for ring in program.program.rings}
        self.loaded = [_mask(_loaded(line.instruction)) for line in self.lines]
        instructions = [line.instruction for line in self.lines]
        self.reads = [_mask(each.reads) if each else 0 for each in instructions]
        self.writes = [_mask(each.writes) if each else 0 for each in instructions]

    def start(self) -> _Flight:
        flight = _Flight()
        flight.tiles = dict.fromkeys(self.rings, (0, ()))
        return flight

    def needs(self, flight: _Flight, index: int) -> Need:
        """Waits that must stand in front of a line."""
        line = self.lines[index]
        need: Need = {}
        if line.op.opcode == "release":
            for item in flight.items["lgkmcnt"]:
                if set(self.lines[item].op.lds_reads) & set(line.op.lds_reads):
                    self._require(flight, "lgkmcnt", item, need, index)
        for ring, generations in line.op.publishes:
            self._publish(flight, ring, generations, need)
        if line.instruction is not None:
            for counter in _COUNTERS:
                for item in flight.items[counter]:
                    if self._touches(item, index, counter):
                        self._require(flight, counter, item, need, index)
        return need

    def _touches(self, item: int, index: int, counter: str) -> bool:
        """True if a line uses or overwrites what a load in flight is going to write."""
        loaded = self.loaded[item]
        if loaded & self.reads[index]:
            return True
        if not loaded & self.writes[index]:
            return False
        first, second = self.lines[item].instruction, self.lines[index].instruction
        assert first is not None and second is not None
        same_counter = first.spec.counters == second.spec.counters == (counter,)
        return not (same_counter and first.spec.port == second.spec.port != "smem")

    def _require(self, flight: _Flight, counter: str, item: int, need: Need, index: int) -> None:
        """A line needs an item done; which item decides is noted for the comment."""
        count = flight.items[counter][item]
        if counter == "lgkmcnt" and self._unordered(flight):
            count = 0
        if count < need.get(counter, count + 1):
            need[counter] = count
            self.causes[index, counter] = item

    def _unordered(self, flight: _Flight) -> bool:
        """True if scalar loads, which return in any order, may be in flight."""
        return any(self._port(item) != "lds" for item in flight.items["lgkmcnt"])

    def _port(self, index: int) -> str:
        instruction = self.lines[index].instruction
        return instruction.spec.port if instruction is not None else ""

    def _publish(self, flight: _Flight, ring: str, generations: int, need: Need) -> None:
        issued, behind = flight.tiles[ring]
        pieces = self.rings[ring].pieces
        allowed = generations * pieces
        if issued and generations:
            allowed += issued - pieces
        if len(behind) > allowed:
            count = behind[allowed]
            need["vmcnt"] = min(count, need.get("vmcnt", count))

    def leave(self, flight: _Flight) -> Need:
        """Waits after which nothing that writes registers or LDS is in flight."""
        need: Need = {}
        for counter in _COUNTERS:
            for item in flight.items[counter]:
                instruction = self.lines[item].instruction
                assert instruction is not None
                if self.loaded[item] or is_lds_load(instruction) or instruction.spec.port == "lds":
                    self._require(flight, counter, item, need, len(self.lines))
        return need

    def wait(self, flight: _Flight, need: Need) -> None:
        """Effect of a wait."""
        for counter, count in need.items():
            items = flight.items[counter]
            if counter == "lgkmcnt" and count and self._unordered(flight):
                continue
            flight.items[counter] = {each: n for each, n in items.items() if n < count}
        if "vmcnt" in need:
            for ring, (issued, behind) in flight.tiles.items():
                left = tuple(each for each in behind if each < need["vmcnt"])
                flight.tiles[ring] = (issued, left)

    def issue(self, flight: _Flight, index: int) -> None:
        """Effect of a line's own operation."""
        instruction = self.lines[index].instruction
        if instruction is None:
            return
        for counter in instruction.spec.counters:
            older = {item: n + 1 for item, n in flight.items[counter].items()}
            older[index] = 0
            flight.items[counter] = older
            if counter == "vmcnt":
                self._issue_tile(flight, index)
            if counter == "vmcnt" or not self._unordered(flight):
                limit = COUNTER_LIMITS[counter]
                flight.items[counter] = {item: n for item, n in older.items() if n < limit}

    def _issue_tile(self, flight: _Flight, index: int) -> None:
        filled = set(self.lines[index].op.lds_writes)
        for ring, (issued, behind) in flight.tiles.items():
            older = tuple(n + 1 for n in behind if n + 1 < COUNTER_LIMITS["vmcnt"])
            if ring in filled:
                flight.tiles[ring] = ((issued + 1) % self.rings[ring].pieces, (0, *older))
            else:
                flight.tiles[ring] = (issued, older)


def _mask(ids: frozenset[int]) -> int:
    mask = 0
    for each in ids:
        mask |= 1 << each
    return mask


def _loaded(instruction: Instruction | None) -> frozenset[int]:
    if instruction is None or not instruction.spec.counters:
        return frozenset()
    return instruction.writes if instruction.spec.access != "store" else frozenset()


def insert_waits(program: RegisterProgram, boundary: Boundary | None = None) -> RegisterProgram:
    """The program with waits.

    Raises:
        ValueError: a Needs is violated; names the recipe's line.
    """
    boundary = boundary or Boundary()
    _check(program)
    machine = _Machine(program)
    needs, at_exit = _solve(machine, program)
    uses_lds = program.program.lds_bytes > 0
    lines: list[Line] = []
    if boundary.entry:
        lines.append(_wait_line({"vmcnt": 0, "lgkmcnt": 0}, "entry", "what the caller started"))
        if uses_lds:
            lines.append(added_line("s_barrier", "entry", PASS, "nobody uses LDS any more"))
    for index, line in enumerate(program.lines):
        if needs[index]:
            lines.append(
                _wait_line(needs[index], line.stage, _reason(machine, index, needs[index]))
            )
        if line.op.opcode not in ("publish", "release"):
            lines.append(line)
    if boundary.exit:
        need = machine.leave(at_exit)
        if need:
            lines.append(_wait_line(need, "exit", "nothing is left in flight"))
        if uses_lds:
            lines.append(added_line("s_barrier", "exit", PASS, "LDS is free again"))
    return program.with_lines(lines)


def _check(program: RegisterProgram) -> None:
    rings = {ring.name for ring in program.program.rings}
    for line in program.lines:
        op = line.op
        if op.opcode == "s_waitcnt":
            raise ValueError(f"{op.source}: the recipe holds {op}; waits come from this pass")
        named = {name for name, _ in op.publishes} | {*op.lds_reads, *op.lds_writes}
        if named - rings:
            raise ValueError(
                f"{op.source}: `{op}` names the ring {min(named - rings)!r}, there are "
                f"{sorted(rings)}"
            )
        if any(generations < 0 for _, generations in op.publishes):
            raise ValueError(f"{op.source}: publish wants generations >= 0, got {op.publishes}")


def _solve(machine: _Machine, program: RegisterProgram) -> tuple[list[Need], _Flight]:
    """Needs of every line and what may be in flight behind the last, as a fixed point."""
    lines = program.lines
    following = successors([line.op for line in lines])
    leaders = _leaders(following)
    entering: dict[int, dict[int, _Flight]] = {0: {-1: machine.start()}}
    needs: list[Need] = [{} for _ in lines]
    arrived: dict[int, _Flight] = {}
    rounds = 0
    changed = True
    while changed:
        changed = False
        rounds += 1
        for leader in leaders:
            if leader not in entering or leader == len(lines):
                continue
            flight = _joined(entering[leader], lines[leader])
            if rounds > _ROUNDS and leader in arrived:
                # Waits that depend on each other round a loop: keep what was ever possible.
                flight = flight.join(arrived[leader], lines[leader])
            if arrived.get(leader) == flight:
                continue
            arrived[leader] = flight.copy()
            changed = True
            last = _run(machine, flight, leader, leaders, needs, len(lines))
            for place in following[last]:
                entering.setdefault(place, {})[last] = flight
    if len(lines) not in entering:
        return needs, machine.start()
    return needs, _joined(entering[len(lines)], lines[-1])


def _leaders(following: Sequence[tuple[int, ...]]) -> list[int]:
    """Beginnings of basic blocks in program order, the way out included."""
    leaders = {0, len(following)}
    for index, places in enumerate(following):
        if places != (index + 1,):
            leaders.update(places)
            leaders.add(index + 1)
    return sorted(leaders)


def _joined(flights: Mapping[int, _Flight], where: Line) -> _Flight:
    first, *rest = flights.values()
    joined = first.copy()
    for each in rest:
        joined = joined.join(each, where)
    return joined


def _run(
    machine: _Machine,
    flight: _Flight,
    leader: int,
    leaders: Sequence[int],
    needs: list[Need],
    count: int,
) -> int:
    """Walk one basic block; returns its last line."""
    index = leader
    ends = set(leaders)
    while True:
        needs[index] = machine.needs(flight, index)
        machine.wait(flight, needs[index])
        machine.issue(flight, index)
        if index + 1 in ends or index + 1 == count:
            return index
        index += 1


def _reason(machine: _Machine, index: int, need: Need) -> str:
    op = machine.lines[index].op
    if op.opcode == "publish":
        rings = ", ".join(
            f"{ring} but for the latest {generations} tiles" if generations else f"{ring}"
            for ring, generations in op.publishes
        )
        return f"landed: {rings}"
    if op.opcode == "release":
        return f"read: {', '.join(op.lds_reads)}"
    causes = [machine.causes[index, counter] for counter in _COUNTERS if counter in need]
    return "for " + ", ".join(f"`{machine.lines[item].op}`" for item in causes)


def _wait_line(need: Need, stage: str, note: str) -> Line:
    counts = " ".join(f"{name}({need[name]})" for name in _COUNTERS if name in need)
    return added_line(f"s_waitcnt {counts}", stage, PASS, note)
