"""Decides where nops must stand, and how many; the rules are those of emulator/hazards.

Needs: registers assigned, waits inserted; the recipe holds no s_nop.
Keeps: every line and the order.
Changes: s_nop in front of instructions that would come too early on some path, the back edge
    included; at the entry and the exit for whatever instructions may stand around the loop.

Each nop stands directly in front of the instruction that needs it, so that it serves everything
before; from the top down this takes the fewest in straight code. (The rules live beside the
emulator that holds generated code to them; both folders belong to asm_overrides.)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from asm_overrides.emulator.flow import control_flow
from asm_overrides.emulator.hazards import Hazard, find_hazards, required_wait_states
from asm_overrides.isa import Constant, Instruction, Register, parse_instruction, registers
from asm_overrides.passes.lines import Line, RegisterProgram, added_line

PASS = "hazards"
MAX_NOP = 16
"""Wait states of the longest s_nop."""

_REACH = 20
"""No rule but that of a matrix result looks back further; that one does by exactly this."""

_ROUNDS = 8


@dataclass(frozen=True)
class Nop:
    """Wait states that were added at one place.

    Attributes:
        stage: where. states: how many. reason: the rule and both instructions.
    """

    stage: str
    states: int
    reason: str


@dataclass(frozen=True)
class Surroundings:
    """Instructions around the loop, nearest to it: the last of `before`, the first of `after`.

    None stands for the worst: any vector arithmetic but no matrix instruction in front, anything
    behind.
    """

    before: Sequence[Instruction] | None = None
    after: Sequence[Instruction] | None = None


@dataclass(frozen=True)
class NopResult:
    """The program with nops, and what they cost: a wave loses 4 cycles for every state."""

    program: RegisterProgram
    nops: tuple[Nop, ...]

    @property
    def states(self) -> int:
        """Wait states added in all."""
        return sum(nop.states for nop in self.nops)


def insert_nops(program: RegisterProgram, surroundings: Surroundings | None = None) -> NopResult:
    """The program with as many nops as the rules demand.

    Raises:
        ValueError: the recipe holds an s_nop.
    """
    surroundings = surroundings or Surroundings()
    for line in program.lines:
        if line.op.opcode == "s_nop":
            raise ValueError(f"{line.op.source}: the recipe holds {line.op}; nops come from a pass")
    nops: dict[int, tuple[int, str]] = {}
    for _ in range(_ROUNDS):
        candidate, sites = _with_nops(program, nops)
        instructions, labels, places = candidate.instructions()
        hazards = find_hazards(instructions, labels, strict=True)
        if not hazards:
            break
        for index, states, hazard in _fill(instructions, labels, hazards):
            site = sites[places[index]]
            producer = candidate.lines[places[hazard.producer]]
            reason = f"{hazard.required} after `{producer.op}`: {hazard.rule.why}"
            nops[site] = (nops.get(site, (0, ""))[0] + states, reason)
    else:
        raise RuntimeError(f"{program.program.name}: {len(hazards)} hazards are left")
    _at_the_ends(program, nops, surroundings)
    done, _ = _with_nops(program, nops)
    stages = [line.stage for line in program.lines] + ["exit"]
    found = tuple(Nop(stages[site], *nops[site]) for site in sorted(nops))
    return NopResult(done, found)


def _with_nops(
    program: RegisterProgram, nops: dict[int, tuple[int, str]]
) -> tuple[RegisterProgram, list[int]]:
    """The program with nops in front of some lines, and for each new line the old one's index."""
    lines: list[Line] = []
    sites: list[int] = []
    for index, line in enumerate((*program.lines, None)):
        states, reason = nops.get(index, (0, ""))
        stage = line.stage if line is not None else "exit"
        while states > 0:
            count = min(states, MAX_NOP)
            lines.append(added_line(f"s_nop {count - 1}", stage, PASS, reason))
            sites.append(index)
            states -= count
        if line is not None:
            lines.append(line)
            sites.append(index)
    return program.with_lines(lines), sites


def _fill(
    instructions: Sequence[Instruction], labels: dict[str, int], hazards: Sequence[Hazard]
) -> list[tuple[int, int, Hazard]]:
    """(index of the instruction, wait states in front of it, why) that cure the hazards."""
    gaps = _Gaps(instructions, labels, hazards)
    forward = sorted(hazards, key=lambda each: (each.producer >= each.consumer, each.consumer))
    reasons: dict[int, Hazard] = {}
    for hazard in forward:
        lack = hazard.required - gaps.distance(hazard)
        if lack > 0:
            gaps.states[hazard.consumer] = gaps.states.get(hazard.consumer, 0) + lack
            reasons[hazard.consumer] = hazard
    gaps.shrink()
    return [(index, states, reasons[index]) for index, states in sorted(gaps.states.items())]


class _Gaps:
    """Wait states chosen in front of instructions, and the distances that follow from them."""

    def __init__(
        self,
        instructions: Sequence[Instruction],
        labels: dict[str, int],
        hazards: Sequence[Hazard],
    ) -> None:
        self.hazards = hazards
        self.own = [_states(instruction) for instruction in instructions]
        self.successors = control_flow(instructions, labels).successors
        self.states: dict[int, int] = {}
        targets = set(labels.values())
        bends = [
            index in targets or instruction.spec.port == "branch"
            for index, instruction in enumerate(instructions)
        ]
        self.straight = {
            id(each): each.producer < each.consumer
            and not any(bends[each.producer + 1 : each.consumer + 1])
            for each in hazards
        }

    def distance(self, hazard: Hazard) -> int:
        """Fewest wait states on any way between the two instructions."""
        work = [(self.states.get(place, 0), place) for place in self.successors[hazard.producer]]
        best, seen = hazard.required, dict[int, int]()
        while work:
            age, place = work.pop()
            if age >= best or seen.get(place, best) <= age:
                continue
            seen[place] = age
            if place == hazard.consumer:
                best = age
                continue
            age += self.own[place]
            work += [(age + self.states.get(next_, 0), next_) for next_ in self.successors[place]]
        return best

    def shrink(self) -> None:
        """Take back what later choices made unnecessary."""
        for site in sorted(self.states):
            concerned = [
                each
                for each in self.hazards
                if not self.straight[id(each)] or each.producer < site <= each.consumer
            ]
            while self.states[site] > 0:
                self.states[site] -= 1
                if any(self.distance(each) < each.required for each in concerned):
                    self.states[site] += 1
                    break
        self.states = {site: states for site, states in self.states.items() if states}


def _at_the_ends(
    program: RegisterProgram, nops: dict[int, tuple[int, str]], around: Surroundings
) -> None:
    """Nops for what stands in front of the loop and behind it."""
    candidate, _ = _with_nops(program, nops)
    instructions, labels, _ = candidate.instructions()
    flow = control_flow(instructions, labels)
    before = _WORST_BEFORE if around.before is None else _numbered(reversed(around.before))
    after = _WORST_AFTER if around.after is None else _numbered(around.after)
    entry, why = _lack_at_entry(instructions, flow.successors, before)
    if entry > 0:
        known, reason = nops.get(0, (0, why))
        nops[0] = (known + entry, reason)
    backward = _backward(instructions, labels, flow.predecessors)
    leave, why = _lack_at_exit(instructions, backward, after)
    if leave > 0:
        nops[len(program.lines)] = (leave, why)


_Neighbours = list[tuple[int, Instruction]]
"""Instructions outside with the wait states between them and the loop."""


def _numbered(instructions: Iterable[Instruction]) -> _Neighbours:
    found: _Neighbours = []
    age = 0
    for instruction in instructions:
        if age > _REACH:
            break
        found.append((age, instruction))
        age += _states(instruction)
    return found


def _states(instruction: Instruction) -> int:
    operand = instruction.operands[0] if instruction.operands else None
    if instruction.opcode == "s_nop" and isinstance(operand, Constant):
        return int(operand.value) + 1
    return 1


def _backward(
    instructions: Sequence[Instruction],
    labels: dict[str, int],
    predecessors: Sequence[tuple[int, ...]],
) -> list[tuple[int, int]]:
    """(index, wait states up to the exit) of instructions from which the exit is near."""
    count = len(instructions)
    ends = [
        index
        for index, instruction in enumerate(instructions)
        if (index == count - 1 and instruction.opcode != "s_branch")
        or (instruction.spec.port == "branch" and _goes_to(instruction, labels) == count)
    ]
    return _walk(instructions, ends, predecessors)


def _goes_to(instruction: Instruction, labels: dict[str, int]) -> int | None:
    return labels.get(str(instruction.operands[-1]))


def _walk(
    instructions: Sequence[Instruction], starts: Iterable[int], edges: Sequence[tuple[int, ...]]
) -> list[tuple[int, int]]:
    """Instructions within reach of a place, with the fewest wait states passed on the way."""
    nearest: dict[int, int] = {}
    work = [(0, start) for start in starts]
    while work:
        age, index = work.pop()
        if age > _REACH or nearest.get(index, _REACH + 1) <= age:
            continue
        nearest[index] = age
        work += [(age + _states(instructions[index]), place) for place in edges[index]]
    return sorted(nearest.items())


def _lack_at_entry(
    instructions: Sequence[Instruction],
    successors: Sequence[tuple[int, ...]],
    before: _Neighbours,
) -> tuple[int, str]:
    inside = _walk(instructions, [0] if instructions else [], successors)
    return _worst(
        (required_wait_states(outer, instructions[index]) - age - distance, outer, index)
        for index, age in inside
        for distance, outer in before
    )


def _lack_at_exit(
    instructions: Sequence[Instruction], inside: list[tuple[int, int]], after: _Neighbours
) -> tuple[int, str]:
    return _worst(
        (required_wait_states(instructions[index], outer) - age - distance, outer, index)
        for index, age in inside
        for distance, outer in after
    )


def _worst(lacks: Iterable[tuple[int, Instruction, int]]) -> tuple[int, str]:
    lack, outer = 0, ""
    for states, instruction, _ in lacks:
        if states > lack:
            lack, outer = states, instruction.text
    return lack, f"for the code around the loop, such as `{outer}`"


def _anything(text: str, encoding: str = "", scalar_source: bool = False) -> Instruction:
    """An instruction that stands for all of its kind: its operands are whole register files."""
    instruction = parse_instruction(text)
    vectors = Register(registers.VGPR, 256)
    scalars = Register(registers.SGPR, registers.SGPR_COUNT)
    everything = frozenset((*vectors.ids, *scalars.ids, *registers.VCC, registers.M0))
    operands = [
        operand if not isinstance(operand, Register) else vectors if operand.is_vector else scalars
        for operand in instruction.operands
    ]
    if scalar_source:
        operands[-1] = scalars
    return Instruction(
        instruction.opcode,
        tuple(operands),
        instruction.modifiers,
        instruction.spec,
        encoding or instruction.encoding,
        0,
        text,
        None,
        instruction.reads | everything,
        instruction.writes | everything,
    )


_WORST_BEFORE: _Neighbours = [
    (0, _anything("v_cmp_eq_u32 s[0:1], v0, v0")),
    (0, _anything("v_exp_f32 v0, v0")),
    (0, _anything("v_add_u32 v0, v0, v0")),
    (0, _anything("s_mov_b32 m0, s0")),
]

_WORST_AFTER: _Neighbours = [
    (0, _anything("v_add_u32 v0, v0, v0")),
    (0, _anything("v_add_u32 v0, s0, v0")),
    (0, _anything("v_permlane32_swap_b32 v0, v0")),
    (0, _anything("v_readfirstlane_b32 s0, v0")),
    (0, _anything("v_mov_b32 v0, v0", encoding="dpp")),
    (0, _anything("v_readlane_b32 s0, v0, s0")),
    (0, _anything("global_store_dword v0, v0, s[0:1]")),
    (0, _anything("ds_write_b32 v0, v0")),
    (0, _anything("v_mfma_f32_32x32x16_bf16 v[0:15], v[0:3], v[0:3], v[0:15]")),
]
