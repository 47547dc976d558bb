"""Decides how many bits change between matrix instructions that follow each other on a pipe.

What a pipe works on changes with every instruction, and charging wires costs energy: fewer changed
bits, a higher clock. Only bits of registers are counted, between the same register numbers of an
operand: not what the pipe does with them inside, and not what reads or writes them elsewhere.

Which instructions follow each other depends on how the two waves of a SIMD interleave. Two orders
are counted, between which a real one lies: each wave by itself, as if the other one came rarely in
between, and both by turns.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asm_overrides.inspection.loops import cycles, matrix_loops
from asm_overrides.inspection.matrix import Purpose, classify
from asm_overrides.isa.instruction import Instruction

OPERANDS = ("a", "b", "c", "d")
LANES = 64
SIMDS = 4
"""Waves of a workgroup are dealt out to so many SIMDs in turn."""
_MOST_REGISTERS = 32
_MOST_WAVES = 16
_BITS = np.array([bin(number).count("1") for number in range(1 << 16)], np.uint8)

Words = NDArray[np.uint32]
Order = str
OWN: Order = "own"
"""Each wave's matrix instructions follow each other."""
TURNS: Order = "turns"
"""Those of a SIMD's two waves follow each other by turns."""


@dataclass
class Toggles:
    """Sums over matrix instructions.

    Attributes:
        instructions: how many. matrix_cycles: of the pipe.
        bits: of an operand's registers, by operand. changed: those that differ from what the pipe
            had of that operand before.
    """

    instructions: int = 0
    matrix_cycles: int = 0
    bits: Counter[str] = field(default_factory=Counter)
    changed: Counter[str] = field(default_factory=Counter)

    def __add__(self, other: Toggles) -> Toggles:
        return Toggles(
            self.instructions + other.instructions,
            self.matrix_cycles + other.matrix_cycles,
            self.bits + other.bits,
            self.changed + other.changed,
        )

    def share(self, operand: str) -> float:
        """Part of an operand's bits that changed: 0.5 if they are drawn at random."""
        return self.changed[operand] / self.bits[operand] if self.bits[operand] else 0.0


def purposes_by_line(
    instructions: Sequence[Instruction], labels: Mapping[str, int]
) -> dict[int, Purpose]:
    """Purpose of each matrix instruction on a steady way round a loop, by line of the text."""
    found: dict[int, Purpose] = {}
    for loop in matrix_loops(instructions, labels):
        path = [instructions[index] for index in loop.path]
        for place, purpose in classify(path).purposes.items():
            found.setdefault(path[place].line, purpose)
    return found


class ToggleCount:
    """Counts while the emulator runs (asm_overrides.emulator.checks.RegisterObserver).

    Every pipe starts with zeros in each workgroup. An operand of fewer registers than the one
    before leaves the bits of the others as they are.
    """

    def __init__(self) -> None:
        self._counts: dict[tuple[Order, int], Toggles] = {}
        self._workgroup: tuple[int, int, int] | None = None
        self._begin()

    def _begin(self) -> None:
        """A workgroup starts."""
        shape = (_MOST_REGISTERS, _MOST_WAVES, LANES)
        self._own = {name: np.zeros(shape, np.uint32) for name in OPERANDS}
        self._shared = {name: np.zeros(shape, np.uint32) for name in OPERANDS}
        self._waiting: list[deque[tuple[Instruction, list[Words]]]] = [
            deque() for _ in range(_MOST_WAVES)
        ]
        self._next = [0] * SIMDS  # which of a SIMD's waves has its turn: 0 or 1

    def by_purpose(self, order: Order, purposes: Mapping[int, Purpose]) -> dict[Purpose, Toggles]:
        """Sums of a run that has ended, by purpose.

        Args:
            purposes: by line, see purposes_by_line; OTHER is what is not there.
        """
        self._flush()
        found: dict[Purpose, Toggles] = {}
        for (name, line), count in self._counts.items():
            if name == order:
                purpose = purposes.get(line, Purpose.OTHER)
                found[purpose] = found.get(purpose, Toggles()) + count
        return found

    def total(self, order: Order) -> Toggles:
        """Sum of a run that has ended."""
        return sum(self.by_purpose(order, {}).values(), Toggles())

    def on_matrix_registers(
        self,
        workgroup: tuple[int, int, int],
        waves: slice,
        instruction: Instruction,
        operands: tuple[Words, ...],
    ) -> None:
        """See asm_overrides.emulator.checks.RegisterObserver."""
        if workgroup != self._workgroup:
            self._flush()
            self._workgroup = workgroup
            self._begin()
        registers = operands[3].shape[0]
        a, b, c, d = operands
        full = (a, b, np.broadcast_to(c, (max(len(c), registers), *d.shape[1:])), d)
        self._count(OWN, instruction, full, self._own, waves)
        for index, wave in enumerate(range(waves.start, waves.stop)):
            words = [each[:, index : index + 1].copy() for each in full]
            self._waiting[wave].append((instruction, words))
        for simd in range(SIMDS):
            self._take_turns(simd)

    def _take_turns(self, simd: int) -> None:
        """Count what is known of a SIMD's order; its first wave begins."""
        while self._waiting[simd + SIMDS * self._next[simd]]:
            self._count_next(simd, self._next[simd])
            self._next[simd] ^= 1

    def _flush(self) -> None:
        """At the end a wave whose partner has nothing more goes on alone."""
        for simd in range(SIMDS):
            for second in (0, 1):
                while self._waiting[simd + SIMDS * second]:
                    self._count_next(simd, second)

    def _count_next(self, simd: int, second: int) -> None:
        instruction, words = self._waiting[simd + SIMDS * second].popleft()
        self._count(TURNS, instruction, words, self._shared, slice(simd, simd + 1))

    def _count(
        self,
        order: Order,
        instruction: Instruction,
        operands: Sequence[NDArray[Any]],
        held: Mapping[str, Words],
        pipes: slice,
    ) -> None:
        found = self._counts.setdefault((order, instruction.line), Toggles())
        number = pipes.stop - pipes.start
        found.instructions += number
        found.matrix_cycles += number * cycles(instruction)
        for name, words in zip(OPERANDS, operands, strict=True):
            before = held[name][: len(words), pipes]
            changed = np.bitwise_xor(words, before)
            found.changed[name] += int(_BITS[changed.view(np.uint16)].sum(dtype=np.int64))
            found.bits[name] += 32 * changed.size
            before[:] = words
