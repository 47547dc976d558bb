"""Decides which registers each value gets; does not order operations or split values.

Needs: parts of several vector dwords start even within their value; live-in and live-out values,
    and what an interface prescribes, have fixed registers that do not collide.
Keeps: operations and their order; registers of read-only inputs stay theirs throughout.
Changes: nothing in the program; adds the register of each value and the substituted lines.

Values whose live ranges are disjoint may share registers. A value is live where any half of any of
its dwords is, over all paths; a matrix result never shares with its own factors. Wide values are
placed first, each as low as possible. No accumulation registers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from asm_overrides.passes.access import access, undeclared
from asm_overrides.passes.flow import liveness
from asm_overrides.passes.lines import RegisterProgram, number_lines
from asm_overrides.program import LoopProgram, Op, Part, Value

FILE_SIZES = {"v": 256, "s": 102}
FILE_NAMES = {"v": "vector", "s": "scalar"}


@dataclass(frozen=True)
class Budget:
    """Registers that values without a prescribed place may take.

    Attributes:
        vectors, scalars: runs of register numbers, such as (range(10, 256),).
    """

    vectors: tuple[range, ...] = (range(256),)
    scalars: tuple[range, ...] = (range(34, 96),)

    def of(self, file: str) -> frozenset[int]:
        """Register numbers of one file."""
        runs = self.vectors if file == "v" else self.scalars
        return frozenset(each for run in runs for each in run)


@dataclass(frozen=True)
class Pressure:
    """Where most registers of one file are taken.

    Attributes:
        file: "v" or "s". peak: dwords live at once, read-only inputs included.
        available: registers in the budget and in fixed places. used: highest number given + 1.
        op: the operation at the peak. live: (value, dwords) there, widest first.
    """

    file: str
    peak: int
    available: int
    used: int
    op: Op
    live: tuple[tuple[str, int], ...]

    def __str__(self) -> str:
        values = ", ".join(f"{name} {width}" for name, width in self.live)
        return (
            f"{FILE_NAMES[self.file]} registers: {self.peak} live of {self.available} available, "
            f"at {self.op.source or 'the entry'} `{self.op}`: {values}"
        )


class DoesNotFitError(ValueError):
    """No assignment was found; the message holds the pressure report."""


@dataclass(frozen=True)
class Allocation:
    """Result of the pass: the program with registers, and how full each file is."""

    assigned: RegisterProgram
    pressure: tuple[Pressure, ...]


def allocate(program: LoopProgram, budget: Budget | None = None) -> Allocation:
    """Give every value registers.

    Raises:
        ValueError: a Needs is violated.
        DoesNotFitError: the budget is too small for what is live at once or for its fragments.
    """
    budget = budget or Budget()
    _check_declarations(program)
    ranges = _LiveRanges(program)
    registers: dict[str, int] = {}
    for file in ("v", "s"):
        values = [each for each in program.values if each.file == file and ranges.exists(each)]
        registers |= _place(values, ranges, budget)
    pressure = tuple(_pressure(ranges, file, registers, budget) for file in ("v", "s"))
    return Allocation(number_lines(program, registers), pressure)


def _check_declarations(program: LoopProgram) -> None:
    known = {value.name: value for value in program.values}
    for kind, names in (("live_in", program.live_in), ("live_out", program.live_out)):
        for name in sorted(names):
            if name not in known:
                raise ValueError(f"{program.name}: {kind} names {name!r}, which is no value")
            if known[name].fixed is None:
                raise ValueError(f"{program.name}: {kind} value {name!r} has no fixed register")
    if strangers := undeclared(program):
        raise ValueError(f"{program.name}: undeclared values {', '.join(strangers)}")
    for value in program.values:
        last = (value.fixed or 0) + value.width
        if last > FILE_SIZES[value.file]:
            raise ValueError(
                f"{program.name}: {value.name} would end at {value.file}{last - 1}, "
                f"the last register is {value.file}{FILE_SIZES[value.file] - 1}"
            )


class _LiveRanges:
    """Which values are live at each operation, and which pairs may not share registers."""

    def __init__(self, program: LoopProgram) -> None:
        self.program = program
        self.names = [value.name for value in program.values]
        self.bit = {name: 1 << place for place, name in enumerate(self.names)}
        self.alignment = _alignments(program)
        live = liveness(program)
        masks = [live.numbering.values[name] for name in self.names]
        known: dict[int, int] = {}

        def values_of(halves: int) -> int:
            if halves not in known:
                known[halves] = sum(1 << i for i, mask in enumerate(masks) if mask & halves)
            return known[halves]

        self.apart = dict.fromkeys(self.names, 0)
        self.taken: list[int] = []
        self._separated: set[tuple[int, int]] = set()
        entry = values_of(live.before[0])
        for name in program.live_in:
            entry |= self.bit[name]
        self._separate(entry, entry)
        self.entry = entry
        mentioned = entry
        for index, op in enumerate(program.ops):
            touched = access(op)
            written = self._mask(atom[0] for atom in touched.writes)
            around = values_of(live.after[index]) | written
            if touched.instruction is not None and touched.instruction.spec.port == "mfma":
                around |= self._factors(op)
            self._separate(written, around)
            self.taken.append(around | values_of(live.before[index]))
            mentioned |= self._mask(part.value.name for part in op.parts)
        self.mentioned = mentioned | self._mask(program.live_out)
        for value in program.values:
            if value.read_only and value.name in program.live_in:
                self._separate(self.bit[value.name], (1 << len(self.names)) - 1)

    def exists(self, value: Value) -> bool:
        """False for values that nothing uses."""
        return bool(self.bit[value.name] & self.mentioned)

    def listed(self, mask: int) -> Iterator[Value]:
        """Values in a mask."""
        return (value for value in self.program.values if self.bit[value.name] & mask)

    def _mask(self, names: Iterator[str] | frozenset[str]) -> int:
        mask = 0
        for name in names:
            mask |= self.bit.get(name, 0)
        return mask

    def _factors(self, op: Op) -> int:
        """Values that a matrix operation reads other than as addend."""
        result = op.arguments[0]
        parts = [each for each in op.arguments[1:] if isinstance(each, Part) and each != result]
        return self._mask(part.value.name for part in parts)

    def _separate(self, first: int, second: int) -> None:
        """Values of the first mask may not share with values of the second."""
        if not first or (first, second) in self._separated:
            return
        self._separated.add((first, second))
        for one, other in ((first, second), (second, first)):
            for value in self.listed(one):
                self.apart[value.name] |= other & ~self.bit[value.name]


def _alignments(program: LoopProgram) -> dict[str, int]:
    """Alignment that each value's parts need.

    gfx950 wants even registers for runs of several; scalar runs of four or more a multiple of 4.
    """
    found = {value.name: value.align for value in program.values}
    for op in program.ops:
        for part in op.parts:
            if part.count == 1:
                continue
            need = 4 if part.value.file == "s" and part.count >= 4 else 2
            if part.first % need:
                raise ValueError(f"{op.source}: {part} must start at a multiple of {need}")
            found[part.value.name] = max(found[part.value.name], need)
    for value in program.values:
        if value.fixed is not None and value.fixed % found[value.name]:
            raise ValueError(
                f"{program.name}: {value.name} is fixed at {value.file}{value.fixed}, "
                f"its use needs a multiple of {found[value.name]}"
            )
    return found


def _place(values: Sequence[Value], ranges: _LiveRanges, budget: Budget) -> dict[str, int]:
    """Registers of one file's values."""
    fixed = [value for value in values if value.fixed is not None]
    registers = {value.name: value.fixed for value in fixed if value.fixed is not None}
    for place, value in enumerate(fixed):
        for other in fixed[:place]:
            if ranges.apart[value.name] & ranges.bit[other.name] and _overlap(
                value, registers[value.name], other, registers[other.name]
            ):
                raise ValueError(
                    f"{ranges.program.name}: {value.name} and {other.name} are live at once and "
                    f"both fixed in the same registers"
                )
    movable = [value for value in values if value.fixed is None]
    if not movable:
        return registers
    for order in _ORDERS:
        placed = _first_fit(sorted(movable, key=order(ranges)), registers, ranges, budget)
        if placed is not None:
            return placed
    file = movable[0].file
    raise DoesNotFitError(
        f"{ranges.program.name}: {_pressure(ranges, file, registers, budget)}; "
        "no assignment was found"
    )


_Order = Callable[[_LiveRanges], Callable[[Value], tuple[int, ...]]]


def _by_width(ranges: _LiveRanges) -> Callable[[Value], tuple[int, ...]]:
    return lambda value: (-value.width, -ranges.apart[value.name].bit_count())


def _by_area(ranges: _LiveRanges) -> Callable[[Value], tuple[int, ...]]:
    lengths = {
        name: sum(bool(mask & bit) for mask in ranges.taken) for name, bit in ranges.bit.items()
    }
    return lambda value: (-value.width * lengths[value.name], -value.width)


def _by_start(ranges: _LiveRanges) -> Callable[[Value], tuple[int, ...]]:
    starts = {
        name: next((i for i, mask in enumerate(ranges.taken) if mask & bit), -1)
        for name, bit in ranges.bit.items()
    }
    return lambda value: (starts[value.name], -value.width)


_ORDERS: tuple[_Order, ...] = (_by_width, _by_area, _by_start)


def _first_fit(
    values: Sequence[Value], fixed: dict[str, int], ranges: _LiveRanges, budget: Budget
) -> dict[str, int] | None:
    """Every value as low as possible, in the order given; None if one finds no room."""
    registers = dict(fixed)
    for value in values:
        allowed = budget.of(value.file)
        taken: set[int] = set()
        for other in ranges.listed(ranges.apart[value.name]):
            if other.file == value.file and other.name in registers:
                start = registers[other.name]
                taken.update(range(start, start + other.width))
        free = allowed - taken
        alignment = ranges.alignment[value.name]
        starts = range(0, FILE_SIZES[value.file] - value.width + 1, alignment)
        for start in starts:
            if free.issuperset(range(start, start + value.width)):
                registers[value.name] = start
                break
        else:
            return None
    return registers


def _overlap(first: Value, start: int, second: Value, other: int) -> bool:
    return start < other + second.width and other < start + first.width


def _pressure(
    ranges: _LiveRanges, file: str, registers: dict[str, int], budget: Budget
) -> Pressure:
    """The fullest moment of one file."""
    ever = 0
    for value in ranges.program.values:
        if value.read_only and value.name in ranges.program.live_in:
            ever |= ranges.bit[value.name]
    moments = [ranges.entry, *ranges.taken]
    ops = [Op("entry"), *ranges.program.ops]

    def live(mask: int) -> list[Value]:
        return [value for value in ranges.listed(mask | ever) if value.file == file]

    size_of = {mask: sum(value.width for value in live(mask)) for mask in set(moments)}
    sizes = [size_of[mask] for mask in moments]
    place = sizes.index(max(sizes))
    inside = set(budget.of(file))
    used = 0
    for value in ranges.program.values:
        if value.file == file and value.name in registers:
            run = range(registers[value.name], registers[value.name] + value.width)
            used = max(used, run.stop)
            inside.update(run if value.fixed is not None else ())
    fullest = sorted(live(moments[place]), key=lambda value: (-value.width, value.name))
    return Pressure(
        file,
        sizes[place],
        len(inside),
        used,
        ops[place],
        tuple((value.name, value.width) for value in fullest),
    )
