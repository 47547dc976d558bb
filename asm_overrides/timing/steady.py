"""Decides which instructions the two waves of a SIMD run over and over; gives them no time.

The way through a loop is that of asm_overrides/inspection/loops.py: no mask, no rescale, unless
branches are decided otherwise. Two waves of a workgroup may stand in different places of one loop,
or in two loops that do the same work (AITER's kernels have one for each half of the workgroup);
which barriers they meet at follows from how many of them each passes before its loop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from asm_overrides.emulator import elf
from asm_overrides.emulator.kernel import Kernel
from asm_overrides.emulator.loader import LoadError, load_code_object, load_text
from asm_overrides.inspection.cost import Cost, cost_of, steady_cost
from asm_overrides.inspection.loops import Loop, matrix_loops, successors
from asm_overrides.inspection.matrix import Purpose, classify
from asm_overrides.isa.instruction import Instruction
from asm_overrides.isa.parse import parse

SIMDS = 4
_ALIKE = 0.05
"""Share by which vector cycles of two loops for the two halves of a workgroup may differ."""
_MOST_COUNTS = 8
"""Different numbers of barriers on the ways to a loop beyond which they say nothing."""


@dataclass(frozen=True)
class Track:
    """What one wave repeats.

    Attributes:
        label: of its loop.
        path: instructions of one iteration, in order.
        useful: places in `path` of matrix instructions that compute Q K^T or P V.
        barriers_before: barriers that the wave passes between the kernel's start and the loop.
    """

    label: str
    path: tuple[Instruction, ...]
    useful: frozenset[int]
    barriers_before: int = 0


@dataclass(frozen=True)
class Steady:
    """Steady state of a kernel on one SIMD.

    Attributes:
        name: of the kernel, "" for code without one.
        tracks: of the two waves.
        joined: whether the waves are of one workgroup, so that barriers join them.
        element_type, headdim, p_mode: as far as the code tells, see inspection.Cost.
    """

    name: str
    tracks: tuple[Track, Track]
    joined: bool
    element_type: str
    headdim: int
    p_mode: str

    @property
    def stagger(self) -> int:
        """Barriers by which the second wave stays behind the first."""
        return self.tracks[1].barriers_before - self.tracks[0].barriers_before


def steady_text(
    text: str, *, waves: int | None = None, decisions: Mapping[int, bool] | None = None
) -> Steady:
    """Steady state of an assembler text (the first kernel of it) or an llvm-objdump listing.

    Args:
        waves: of a workgroup; None takes the metadata's, and 8 where there is none.
        decisions: whether the branch on a line of the text is taken in the steady state.
    Raises:
        LoadError, ParseError: no gfx950 code, or no loop with matrix instructions on such a way.
    """
    if ".amdhsa_kernel" in text:
        return steady_kernel(load_text(text), waves=waves, decisions=decisions)
    program = parse(text)
    return _steady("", program.instructions, program.labels, 0, waves or 8, decisions or {})


def steady_file(
    path: str | Path,
    *,
    waves: int | None = None,
    decisions: Mapping[int, bool] | None = None,
    objdump: str | None = None,
) -> Steady:
    """Steady state of the kernel in a file: text as above, or an ELF code object; OSError.

    objdump: see loader.load_code_object.
    """
    data = Path(path).read_bytes()
    if data.startswith(b"\x7fELF"):
        names = [name[:-3] for name in elf.parse(data).symbols if name.endswith(".kd")]
        if len(names) != 1:
            raise LoadError(f"{path} has {len(names)} kernels; accepted: code objects with one")
        kernel = load_code_object(data, names[0], objdump)
        return steady_kernel(kernel, waves=waves, decisions=decisions)
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise LoadError(f"{path} is neither text nor an ELF code object") from None
    return steady_text(text, waves=waves, decisions=decisions)


def steady_kernel(
    kernel: Kernel, *, waves: int | None = None, decisions: Mapping[int, bool] | None = None
) -> Steady:
    """Steady state of a loaded kernel; see steady_text."""
    number = waves or kernel.waves or 8
    return _steady(
        kernel.name, kernel.instructions, kernel.labels, kernel.entry, number, decisions or {}
    )


def _steady(
    name: str,
    code: Sequence[Instruction],
    labels: Mapping[str, int],
    entry: int,
    waves: int,
    decisions: Mapping[int, bool],
) -> Steady:
    main, _ = steady_cost(code, labels)
    if main is None:
        raise LoadError("no loop with matrix instructions")
    loops = {loop.label: loop for loop in matrix_loops(code, labels, decisions)}
    if main.label not in loops:
        raise LoadError(f"no way round loop {main.label} obeys the decisions {dict(decisions)}")
    joined = waves > SIMDS
    cost = cost_of(code, loops[main.label])
    partner = _partner(code, loops, cost) if joined else None
    first = loops[main.label]
    counts = _barriers_before(code, labels, entry, first)
    if partner is not None:
        others = _barriers_before(code, labels, entry, partner)
        tracks = (_track(code, first, min(counts)), _track(code, partner, min(others)))
    elif joined and len(counts) == 2:
        tracks = (_track(code, first, min(counts)), _track(code, first, max(counts)))
    else:
        tracks = (_track(code, first, 0), _track(code, first, 0))
    return Steady(name, tracks, joined, cost.element_type, cost.headdim, cost.p_mode)


def _track(code: Sequence[Instruction], loop: Loop, barriers_before: int) -> Track:
    path = tuple(code[index] for index in loop.path)
    purposes = classify(path).purposes
    useful = {place for place, each in purposes.items() if each in (Purpose.QK, Purpose.PV)}
    if not useful:  # nothing there looks like attention: all matrix work counts
        useful = set(purposes)
    return Track(loop.label, path, frozenset(useful), barriers_before)


def _partner(code: Sequence[Instruction], loops: Mapping[str, Loop], main: Cost) -> Loop | None:
    """Another loop with the same matrix work and about the same vector work; None without one."""
    found = None
    mine = _figures(code, loops[main.label])
    for label, loop in loops.items():
        matrix, vector, barriers = _figures(code, loop)
        is_alike = abs(vector - mine[1]) <= _ALIKE * mine[1]
        if label != main.label and (matrix, barriers) == (mine[0], mine[2]) and is_alike:
            found = found or loop
    return found


def _figures(code: Sequence[Instruction], loop: Loop) -> tuple[int, int, int]:
    path = [code[index] for index in loop.path]
    return (
        sum(each.spec.cycles for each in path if each.spec.port == "mfma"),
        sum(each.spec.cycles for each in path if each.spec.port in ("valu", "trans")),
        sum(each.opcode == "s_barrier" for each in path),
    )


def _barriers_before(
    code: Sequence[Instruction], labels: Mapping[str, int], entry: int, loop: Loop
) -> list[int]:
    """Numbers of barriers on the ways from the kernel's start to a loop, no loop run twice.

    [0] where the ways are too many to say anything.
    """
    ways: dict[int, set[int]] = {entry: {0}}
    for index in range(entry, loop.first):
        counts = ways.get(index, set())
        if len(counts) > _MOST_COUNTS:
            return [0]
        passed = code[index].opcode == "s_barrier"
        for following in successors(code[index], index, labels):
            if following > index:
                ways.setdefault(following, set()).update(count + passed for count in counts)
    return sorted(ways.get(loop.first, {0}))
