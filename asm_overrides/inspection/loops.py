"""Decides which loops a program has and which way through one is its steady state.

It counts only in order to choose: of the ways from a loop's first instruction back to it, the
steady state is the one with the most matrix work, and among those with the least other work. What
only some iterations do (a mask on diagonal tiles, a rescale when a row's maximum grew) is skipped
by a branch and so lies beside that way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from asm_overrides.emulator.hazards.facts import matrix_passes
from asm_overrides.isa.instruction import Instruction
from asm_overrides.isa.operands import Label

VALU_PORTS = ("valu", "trans")
_CYCLES_PER_PASS = 4


@dataclass(frozen=True)
class Loop:
    """A loop without a loop inside.

    Attributes:
        label: of its first instruction.
        first, last: indices of the first instruction and of the branch that closes it.
        path: indices of one iteration of the steady state, in order.
    """

    label: str
    first: int
    last: int
    path: tuple[int, ...]

    @property
    def beside(self) -> list[range]:
        """Runs of instructions within the loop that the steady state skips."""
        steps = zip((self.first - 1, *self.path), (*self.path, self.last + 1), strict=True)
        return [range(here + 1, there) for here, there in steps if there > here + 1]


def cycles(instruction: Instruction) -> int:
    """Cycles on its port; matrix instructions with both formats below 8 bits take half."""
    if instruction.spec.port == "mfma":
        return _CYCLES_PER_PASS * matrix_passes(instruction)
    return instruction.spec.cycles


def innermost_loops(
    instructions: Sequence[Instruction], labels: Mapping[str, int]
) -> list[tuple[str, int, int]]:
    """Loops without a loop inside: (label, index of the first instruction, of the closing branch).

    A loop is a branch back to a label that leads to the branch again; several branches back to one
    label are one loop. Code out of line that branches back into a loop is none.
    """
    last_branch: dict[str, int] = {}
    for index, instruction in enumerate(instructions):
        target = _target(instruction, labels)
        if target is None or target[1] > index:
            continue
        if _leads_to(instructions, labels, target[1], index):
            last_branch[target[0]] = index
    loops = sorted((labels[name], last, name) for name, last in last_branch.items())

    def holds_another(first: int, last: int) -> bool:
        return any(
            first <= other_first
            and other_last <= last
            and (other_first, other_last) != (first, last)
            for other_first, other_last, _ in loops
        )

    return [(name, first, last) for first, last, name in loops if not holds_another(first, last)]


def matrix_loops(
    instructions: Sequence[Instruction],
    labels: Mapping[str, int],
    decisions: Mapping[int, bool] | None = None,
) -> list[Loop]:
    """Innermost loops whose steady state holds matrix instructions, in the order of the text.

    decisions: whether the branch on a line of the text is taken; others are chosen as above.
    """
    found = []
    for label, first, last in innermost_loops(instructions, labels):
        path = _steady_path(instructions, labels, first, last, decisions or {})
        if any(instructions[index].spec.port == "mfma" for index in path):
            found.append(Loop(label, first, last, path))
    return found


def _target(instruction: Instruction, labels: Mapping[str, int]) -> tuple[str, int] | None:
    """Label and index that a branch within the program goes to."""
    if instruction.spec.port != "branch" or not instruction.operands:
        return None
    operand = instruction.operands[-1]
    if isinstance(operand, Label) and operand.name in labels:
        return operand.name, labels[operand.name]
    return None


def _leads_to(
    instructions: Sequence[Instruction], labels: Mapping[str, int], first: int, last: int
) -> bool:
    """Whether a way onwards from `first`, without a branch back, comes to `last`."""
    reached = {first}
    for index in range(first, last):
        if index in reached:
            reached.update(
                place for place in successors(instructions[index], index, labels) if place > index
            )
    return last in reached


_Rank = tuple[int, int, int]
_UNREACHED: _Rank = (1, 0, 0)


def _steady_path(
    instructions: Sequence[Instruction],
    labels: Mapping[str, int],
    first: int,
    last: int,
    decisions: Mapping[int, bool],
) -> tuple[int, ...]:
    """Indices of the way from `first` back to it that ranks lowest; () if there is none.

    Ranks compare matrix cycles (more is lower), vector cycles, instructions.
    """
    rank: dict[int, _Rank] = {last + 1: _UNREACHED}
    following: dict[int, int] = {}
    for index in range(last, first - 1, -1):
        best = _UNREACHED
        places = successors(instructions[index], index, labels)
        if len(places) == 2 and instructions[index].line in decisions:
            places = (places[decisions[instructions[index].line]],)
        for place in places:
            if place == first:
                reached: _Rank = (0, 0, 0)
            elif first < place <= last and place > index:
                reached = rank[place]
            else:
                continue  # out of the loop
            if reached < best:
                best, following[index] = reached, place
        rank[index] = _plus(best, instructions[index])
    if first not in following:
        return ()
    path = [first]
    while following[path[-1]] != first:
        path.append(following[path[-1]])
    return tuple(path)


def _plus(rank: _Rank, instruction: Instruction) -> _Rank:
    if rank == _UNREACHED:
        return rank
    port, cost = instruction.spec.port, cycles(instruction)
    matrix, vector, count = rank
    return (
        matrix - cost * (port == "mfma"),
        vector + cost * (port in VALU_PORTS),
        count + 1,
    )


def successors(instruction: Instruction, index: int, labels: Mapping[str, int]) -> tuple[int, ...]:
    """Indices at which a wave may go on: of a branch the next one, then its target."""
    if instruction.opcode in ("s_endpgm", "s_setpc_b64"):
        return ()
    target = _target(instruction, labels)
    if target is None:
        return (index + 1,)
    if instruction.opcode == "s_branch":
        return (target[1],)
    return (index + 1, target[1])
