"""Decides which operation may follow which in a loop program and which halves of values are live.

Half dwords, because 8-bit conversions fill a register in two steps. Registers are unknown here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from asm_overrides.passes.access import Access, Atom, access
from asm_overrides.program import LoopProgram, Op

M0_ATOM: Atom = ("%m0", 0)


def branch_label(op: Op) -> str | None:
    """Label that a branch names, or None for anything else."""
    if op.opcode == "s_branch" or op.opcode.startswith("s_cbranch_"):
        return str(op.arguments[-1])
    return None


def successors(ops: Sequence[Op]) -> list[tuple[int, ...]]:
    """For each operation the indices that may follow; len(ops) is the way out behind the last.

    Raises:
        ValueError: a branch to a label that the program lacks, a label placed twice, or control
            flow other than branches.
    """
    labels: dict[str, int] = {}
    for index, op in enumerate(ops):
        if op.label and labels.setdefault(op.label, index) != index:
            raise ValueError(f"{op.source}: label {op.label} is placed twice")
    following: list[tuple[int, ...]] = []
    for index, op in enumerate(ops):
        target = branch_label(op)
        if op.opcode.startswith(("s_setpc", "s_swappc", "s_getpc", "s_endpgm", "s_call", "s_trap")):
            raise ValueError(f"{op.source}: {op.opcode} leaves the loop; only branches may")
        if target is None:
            following.append((index + 1,))
        elif target not in labels:
            raise ValueError(f"{op.source}: branch to {target}, which is no label of the program")
        elif op.opcode == "s_branch":
            following.append((labels[target],))
        else:
            following.append(tuple(dict.fromkeys((index + 1, labels[target]))))
    return following


class Numbering:
    """Bit positions of atoms: two bits each, the low half first."""

    def __init__(self, program: LoopProgram) -> None:
        self.places: dict[Atom, int] = {}
        self.values: dict[str, int] = {}
        for value in program.values:
            mask = 0
            for dword in range(value.width):
                mask |= self.bits(((value.name, dword),))
            self.values[value.name] = mask

    def bits(self, atoms: Iterable[Atom]) -> int:
        """Both halves of every atom as one mask."""
        mask = 0
        for atom in atoms:
            place = self.places.setdefault(atom, len(self.places))
            mask |= 3 << 2 * place
        return mask

    def used(self, touched: Access) -> int:
        """Halves whose old content matters to an operation."""
        return self.bits(used_atoms(touched))

    def defined(self, touched: Access) -> int:
        """Halves that an operation fills."""
        mask = self.bits(touched.writes)
        if touched.half is None:
            return mask
        low = mask & int("01" * (mask.bit_length() // 2 + 1), 2)
        return low << touched.half


def used_atoms(touched: Access) -> frozenset[Atom]:
    """Atoms whose old content matters to an operation; not those of which it keeps a half."""
    if touched.half is None:
        return touched.reads
    return touched.reads - (touched.writes - _sources(touched))


def _sources(touched: Access) -> frozenset[Atom]:
    """Of a half-writing operation: destination atoms that are sources, too.

    The parser does not say as which operand a register was read, so count the spellings.
    """
    instruction = touched.instruction
    assert instruction is not None
    destination = instruction.operands[0]
    again = any(
        getattr(operand, "first", None) == getattr(destination, "first", -1)
        for operand in instruction.operands[1:]
    )
    return touched.writes if again else frozenset()


@dataclass(frozen=True)
class Liveness:
    """Masks per operation; index len(ops) is the way out.

    Attributes:
        numbering: what the bits mean.
        before, after: halves that are live in front of and behind each operation.
    """

    numbering: Numbering
    before: tuple[int, ...]
    after: tuple[int, ...]


def liveness(program: LoopProgram) -> Liveness:
    """Backward data flow over all paths; m0 is live at the end, because it must be restored."""
    ops = program.ops
    following = successors(ops)
    numbering = Numbering(program)
    touched = [access(op) for op in ops]
    used = [numbering.used(each) for each in touched]
    kept = [~numbering.defined(each) for each in touched]
    end = numbering.bits((M0_ATOM,))
    for name in program.live_out:
        end |= numbering.values[name]
    before = [0] * len(ops) + [end]
    after = [0] * len(ops) + [end]
    changed = True
    while changed:
        changed = False
        for index in range(len(ops) - 1, -1, -1):
            live = 0
            for place in following[index]:
                live |= before[place]
            after[index] = live
            live = live & kept[index] | used[index]
            if live != before[index]:
                before[index] = live
                changed = True
    return Liveness(numbering, tuple(before), tuple(after))
