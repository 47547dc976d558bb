"""Decides which instruction may follow which in a program; does not say what either does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from asm_overrides.isa.instruction import Instruction
from asm_overrides.isa.operands import Label

_ENDS = frozenset(("s_endpgm", "s_endpgm_saved", "s_trap"))
_INDIRECT = frozenset(("s_setpc_b64", "s_swappc_b64", "s_call_b64", "s_rfe_b64"))


@dataclass(frozen=True)
class ControlFlow:
    """Edges between instruction indices of one program.

    Attributes:
        successors, predecessors: per instruction, the indices reached from it and reaching it.
        leaders: indices at which a basic block begins, in order.
        reachable: per instruction, whether any path from the entry reaches it.
    """

    successors: tuple[tuple[int, ...], ...]
    predecessors: tuple[tuple[int, ...], ...]
    leaders: tuple[int, ...]
    reachable: tuple[bool, ...]


def branch_target(instruction: Instruction, labels: Mapping[str, int]) -> int | None:
    """Index that a direct branch goes to, or None for anything else.

    Args:
        labels: name -> index of the instruction that follows the label.
    Raises:
        ValueError: a branch to a place outside the program.
    """
    if instruction.opcode != "s_branch" and not instruction.opcode.startswith("s_cbranch"):
        return None
    target = instruction.operands[-1]
    if isinstance(target, Label) and target.offset == 0 and target.name in labels:
        return labels[target.name]
    raise ValueError(f"line {instruction.line}: branch target {target} is outside the program")


def control_flow(
    instructions: Sequence[Instruction], labels: Mapping[str, int], entry: int = 0
) -> ControlFlow:
    """Edges of a program; indirect jumps and ends have no successor.

    Raises:
        ValueError: a branch to a place outside the program.
    """
    count = len(instructions)
    successors: list[tuple[int, ...]] = []
    predecessors: list[list[int]] = [[] for _ in range(count)]
    leaders = {entry}
    for index, instruction in enumerate(instructions):
        following = (index + 1,) if index + 1 < count else ()
        target = branch_target(instruction, labels)
        if instruction.opcode in _ENDS or instruction.opcode in _INDIRECT:
            reached: tuple[int, ...] = ()
        elif target is None:
            reached = following
        elif instruction.opcode == "s_branch":
            reached = (target,)
        else:
            reached = tuple(dict.fromkeys((*following, target)))
        if target is not None or not reached:
            leaders.update(reached)
            leaders.update(following)
        reached = tuple(place for place in reached if place < count)
        successors.append(reached)
        for place in reached:
            predecessors[place].append(index)
    reachable = [False] * count
    work = [entry] if count else []
    while work:
        index = work.pop()
        if not reachable[index]:
            reachable[index] = True
            work.extend(successors[index])
    return ControlFlow(
        tuple(successors),
        tuple(map(tuple, predecessors)),
        tuple(sorted(place for place in leaders if place < count)),
        tuple(reachable),
    )
