"""Decides whether a program with registers may be trusted to do what its recipe says.

Needs: registers assigned.
Keeps: everything.
Changes: nothing; raises with every problem found.

What each half register holds is followed over all paths, the back edge included: an operation must
find the values it names, whoever else lives in the same registers. (Of a dword that was filled by
halves, a half that never was is taken as unused.) Further: live-out values and m0 at the exit,
read-only inputs, reserved state, LDS rings, the budget, waits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from asm_overrides.emulator.waits import find_missing_waits
from asm_overrides.isa import registers
from asm_overrides.passes.access import Access, Atom, access, undeclared
from asm_overrides.passes.allocate import Budget
from asm_overrides.passes.flow import successors, used_atoms
from asm_overrides.passes.lines import Line, RegisterProgram
from asm_overrides.program import LoopProgram, Value

LDS_LIMIT = 160 * 1024
"""Bytes of LDS that a workgroup can have."""

_SHOWN = 12

_UNKNOWN = 0
_MIXED = 1


class VerificationError(ValueError):
    """The program breaks its recipe; `problems` lists how."""

    def __init__(self, name: str, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        shown = "\n  ".join(self.problems[:_SHOWN])
        more = f"\n  and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
        super().__init__(f"{name}: {len(problems)} problems:\n  {shown}{more}")


def verify(program: RegisterProgram, budget: Budget | None = None) -> None:
    """Check everything that this pass stands for.

    Raises:
        VerificationError: lists what is wrong.
    """
    problems = find_problems(program, budget or Budget())
    if problems:
        raise VerificationError(program.program.name, problems)


def find_problems(program: RegisterProgram, budget: Budget) -> list[str]:
    """Everything that is wrong, in words."""
    problems = [f"undeclared value {name}" for name in undeclared(program.program)]
    if problems:
        return problems
    problems += lds_problems(program.program)
    problems += _register_problems(program, budget)
    contents = _Contents(program)
    problems += contents.problems()
    problems += _wait_problems(program)
    return problems


def _wait_problems(program: RegisterProgram) -> Iterator[str]:
    """Uses of memory results before their waits, by the emulator's own search."""
    instructions, labels, places = program.instructions()
    try:
        for missing in find_missing_waits(instructions, labels):
            line = program.lines[places[missing.index]]
            yield f"{_where(line)}: {missing.describe(instructions)}"
    except OverflowError as error:
        yield f"waits cannot be proved: {error}"


def lds_problems(program: LoopProgram) -> Iterator[str]:
    """Rings that overlap, are empty or do not fit."""
    rings = sorted(program.rings, key=lambda ring: ring.base)
    for ring in rings:
        if ring.base < 0 or ring.slots < 1 or ring.tile_bytes < 1 or ring.pieces < 1:
            yield f"LDS ring {ring.name} is no ring: {ring}"
        if ring.end > program.lds_bytes:
            yield f"LDS ring {ring.name} ends at {ring.end}, the program asks for less"
    for first, second in pairwise(rings):
        if first.end > second.base:
            yield f"LDS rings {first.name} and {second.name} overlap at byte {second.base}"
    if program.lds_bytes > LDS_LIMIT:
        yield f"{program.lds_bytes} bytes of LDS, there are {LDS_LIMIT}"


def _where(line: Line) -> str:
    return f"{line.op.source or line.stage}: {line.op}"


def _register_problems(program: RegisterProgram, budget: Budget) -> Iterator[str]:
    """Registers outside the budget, written inputs, reserved state."""
    values = {value.name: value for value in program.program.values}
    protected: dict[int, str] = {}
    for name, first in program.registers.items():
        value = values[name]
        run = range(first, first + value.width)
        if value.fixed is None and not budget.of(value.file).issuperset(run):
            yield f"{name} takes {value.file}{run.start}..{run.stop - 1}, outside the budget"
        if value.fixed is not None and value.fixed != first:
            yield f"{name} is in {value.file}{first}, its interface wants {value.file}{value.fixed}"
        if value.read_only and name in program.program.live_in:
            protected.update(dict.fromkeys(_ids(value, first), name))
    for line in program.lines:
        if line.instruction is None:
            continue
        writes = line.instruction.writes
        for name in sorted({protected[each] for each in writes if each in protected}):
            yield f"{_where(line)}: writes the read-only input {name}"
        touched = access(line.op)
        for name in touched.reserved:
            yield f"{_where(line)}: writes {name}, which belongs to the surrounding kernel"
        for each in sorted(writes | line.instruction.reads):
            if registers.AGPR <= each < registers.SGPR:
                yield f"{_where(line)}: touches {registers.register_name(each)}"


def _ids(value: Value, first: int) -> range:
    base = registers.register_id(value.file, first)
    return range(base, base + value.width)


_State = list[int]
"""What each half register holds: a number of `_Contents.atoms`."""


class _Contents:
    """Follows what every half register holds."""

    def __init__(self, program: RegisterProgram) -> None:
        self.program = program
        self.values = {value.name: value for value in program.program.values}
        self.atoms: list[Atom] = [("nothing", 0), ("different things on different paths", 0)]
        self.number: dict[Atom, int] = {}
        self.found: dict[tuple[int, Atom], str] = {}

    def problems(self) -> list[str]:
        """Reads of something else than what an operation names."""
        lines = self.program.lines
        following = successors([line.op for line in lines])
        entering: dict[int, tuple[_State, int]] = {0: self._entry()}
        work = [0] if lines else []
        steps = [self._step(line) for line in lines]
        while work:
            index = work.pop()
            state, held = list(entering[index][0]), entering[index][1]
            while True:
                held = self._apply(index, steps[index], state, held)
                places = following[index]
                straight = places == (index + 1,) and index + 1 < len(lines)
                if not straight or index + 1 in entering or lines[index + 1].op.label:
                    break
                index += 1
            for place in places:
                joined = self._join(entering.get(place), state, held)
                if joined is not None:
                    entering[place] = joined
                    if place < len(lines):
                        work.append(place)
        found = dict(sorted(self.found.items(), key=lambda item: item[0][0]))
        end = entering.get(len(lines))
        return [*found.values(), *(self._exit(end) if end else ())]

    def _entry(self) -> tuple[_State, int]:
        state = [_UNKNOWN] * (2 * registers.COUNT)
        for name in sorted(self.program.program.live_in):
            for dword in range(self.values[name].width):
                self._store(state, (name, dword), (0, 1))
        self._store(state, ("%m0", 0), (0, 1))
        return state, 1 << registers.M0

    def _register(self, atom: Atom) -> int:
        name, dword = atom
        if name.startswith("%"):
            return _SPECIAL[name]
        return _ids(self.values[name], self.program.registers[name])[dword]

    def _tag(self, atom: Atom) -> int:
        if atom not in self.number:
            self.number[atom] = len(self.atoms)
            self.atoms.append(atom)
        return self.number[atom]

    def _store(self, state: _State, atom: Atom, halves: tuple[int, ...]) -> None:
        place = 2 * self._register(atom)
        for half in halves:
            state[place + half] = self._tag(atom)

    def _step(
        self, line: Line
    ) -> tuple[list[tuple[int, int, Atom]], list[tuple[int, int]], Access]:
        """Reads as (place, tag, atom) and writes as (place, tag) of one line."""
        touched = access(line.op)
        reads = [
            (2 * self._register(atom) + half, self._tag(atom), atom)
            for atom in sorted(used_atoms(touched))
            for half in (0, 1)
        ]
        halves = (0, 1) if touched.half is None else (touched.half,)
        writes = [
            (2 * self._register(atom) + half, self._tag(atom))
            for atom in touched.writes
            for half in halves
        ]
        return reads, writes, touched

    def _apply(
        self,
        index: int,
        step: tuple[list[tuple[int, int, Atom]], list[tuple[int, int]], Access],
        state: _State,
        held: int,
    ) -> int:
        """Effect of a line; returns the registers that hold the entry's m0."""
        reads, writes, touched = step
        for place, tag, atom in reads:
            if state[place] != tag and not (state[place] == _UNKNOWN and state[place ^ 1] == tag):
                self._complain(index, atom, place, state[place])
        for place, tag in writes:
            state[place] = tag
        instruction = self.program.lines[index].instruction
        if touched.instruction is None or instruction is None:
            return held
        copies = False
        if instruction.opcode == "s_mov_b32":
            copies = any(held >> each & 1 for each in instruction.reads)
        for each in instruction.writes:
            held = held | 1 << each if copies else held & ~(1 << each)
        return held

    def _complain(self, index: int, atom: Atom, place: int, found: int) -> None:
        line = self.program.lines[index]
        register = registers.register_name(place // 2)
        name = _atom_text(atom)
        what = _atom_text(self.atoms[found])
        self.found.setdefault(
            (index, atom), f"{_where(line)}: reads {name} ({register}), which holds {what}"
        )

    def _join(
        self, known: tuple[_State, int] | None, state: _State, held: int
    ) -> tuple[_State, int] | None:
        """What holds on both paths; None if nothing new."""
        if known is None:
            return list(state), held
        before, before_held = known
        if before == state and before_held == held:
            return None
        joined = [
            a if a == b else _UNKNOWN if _UNKNOWN in (a, b) else _MIXED
            for a, b in zip(before, state, strict=True)
        ]
        if joined == before and before_held & held == before_held:
            return None
        return joined, before_held & held

    def _exit(self, end: tuple[_State, int]) -> Iterator[str]:
        state, held = end
        for name in sorted(self.program.program.live_out):
            for dword in range(self.values[name].width):
                atom = (name, dword)
                place = 2 * self._register(atom)
                wrong = {state[place], state[place + 1]} - {self._tag(atom)}
                if wrong:
                    what = _atom_text(self.atoms[min(wrong)])
                    yield f"at the exit {_atom_text(atom)} is missing: its register holds {what}"
        if not held >> registers.M0 & 1:
            yield "m0 is not restored at the exit"


_SPECIAL = {
    f"%{registers.register_name(each)}": each for each in range(registers.AGPR, registers.COUNT)
}


def _atom_text(atom: Atom) -> str:
    name, dword = atom
    if name.startswith("%"):
        return name[1:]
    return f"{name}[{dword}]" if " " not in name and name != "nothing" else name
