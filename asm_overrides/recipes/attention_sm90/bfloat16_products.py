"""Decides which matrix products a block takes on bfloat16, and where their tiles lie.

A tile of 128 columns lies in shared memory as two pieces of 64 columns, each with its rows of 128
bytes, as the copy engine writes them. It makes no P.
"""

from __future__ import annotations

from collections.abc import Sequence

from asm_overrides.ptx import Text, matrix, vector
from asm_overrides.recipes.attention_sm90.parameters import (
    BLOCK_N,
    HEADDIM_FIRST,
    Bfloat16Interface,
    Bfloat16Parameters,
)

WIDTH = 128  # bytes of a row of a piece
PIECE = WIDTH // 2  # columns
_KEYS = matrix.DEPTH // 2  # of V in one instruction
_STEPS_A_PIECE = WIDTH // matrix.DEPTH


def _units(size: int) -> int:
    return size // matrix.UNIT


def _along_columns(rows: int, columns: int) -> list[int]:
    """Where the operand of each step along a tile's columns begins, in units of a descriptor."""
    pieces = range(columns // PIECE)
    return [
        _units(piece * rows * WIDTH + step * matrix.DEPTH)
        for piece in pieces
        for step in range(_STEPS_A_PIECE)
    ]


class Bfloat16Products:
    """Scores of a block, and P times V. Both only start; the loop waits."""

    def __init__(self, t: Text, p: Bfloat16Parameters, at: Bfloat16Interface) -> None:
        self.t, self.at = t, at
        self.rest = p.headdim - HEADDIM_FIRST
        self.never = t.register("pred", "never")
        self.always = t.register("pred", "always")
        self.scratch = t.register("b32", "address")
        self.q = t.registers("b32", "q_tile", 2)
        self.k = t.registers("b32", "k_tiles", 2)
        self.v = t.register("b32", "v_tiles")
        self.queries = t.register("b32", "queries")
        self.here = t.register("b32", "tile")
        self.high = t.register("b32", "high")
        self.a = t.registers("b64", "a_step", 2 * _STEPS_A_PIECE)
        self.b = t.registers("b64", "b_step", BLOCK_N // _KEYS)

    def constants(self) -> None:
        """Descriptors of this warpgroup's queries and of the rings' first places."""
        t, at = self.t, self.at
        t.op("setp.ne.u32", self.never, "0", "0")
        t.op("setp.eq.u32", self.always, "0", "0")
        for part, (queries, keys, columns) in enumerate(self._parts()):
            tile = _units(2 * matrix.ROWS * columns)
            t.op("shr.u32", self.q[part], queries, "4")
            t.op("mad.lo.u32", self.q[part], at.warpgroup, str(tile), self.q[part])
            t.op("shr.u32", self.k[part], keys, "4")
        bits = matrix.descriptor_bits(WIDTH, BLOCK_N * WIDTH)
        t.op("shr.u32", self.v, at.values, "4")
        t.op("or.b32", self.v, self.v, hex(bits & 0xFFFFFFFF))
        t.op("mov.b32", self.high, hex(bits >> 32))

    def scores(self, s: Sequence[str]) -> None:
        """s = Q K^T for the block of K in place k_slot."""
        t = self.t
        matrix.begin(t)
        for part, (_, _, columns) in enumerate(self._parts()):
            # k_slot / 32 is 0, which ptxas does not know: else it computes the descriptors of all
            # steps before the loop, for which registers do not suffice
            t.op("shr.u32", self.queries, self.at.k_slot, "5")
            t.op("add.u32", self.queries, self.queries, self.q[part])
            self._place(self.at.k_slot, BLOCK_N * columns, self.k[part])
            steps = zip(
                _along_columns(matrix.ROWS, columns), _along_columns(BLOCK_N, columns), strict=True
            )
            for step, (of_q, of_k) in enumerate(steps):
                self._step(self.a[step], self.queries, of_q)
                self._step(self.b[step], self.here, of_k)
                is_first = part == step == 0
                matrix.product(
                    t, s, self.a[step], self.b[step], element="bf16",
                    accumulate=self.never if is_first else self.always,
                )  # fmt: skip
        matrix.commit(t)

    def output(self, acc: Sequence[str], p: Sequence[str]) -> None:
        """acc += P V for the block of V in place v_slot."""
        t = self.t
        matrix.begin(t)
        self._place(self.at.v_slot, BLOCK_N * 2 * len(acc), self.v)
        for step in range(BLOCK_N // _KEYS):
            part = p[matrix.A_REGISTERS * step :][: matrix.A_REGISTERS]
            self._step(self.b[step], self.here, _units(step * _KEYS * WIDTH))
            matrix.product(
                t, acc, part, self.b[step], element="bf16", accumulate=self.always,
                is_transposed=True,
            )  # fmt: skip
        matrix.commit(t)

    def _place(self, slot: str, elements: int, ring: str) -> None:
        """here: the low half of the descriptor of a place of a ring whose tiles have so many
        elements. The high half is the same for all tiles."""
        self.t.op("mad.lo.u32", self.here, slot, str(_units(2 * elements)), ring)

    def _step(self, target: str, tile: str, units: int) -> None:
        """target: the descriptor `units` further than a tile's."""
        t = self.t
        t.op("add.u32", self.scratch, tile, str(units))
        t.op("mov.b64", target, vector([self.scratch, self.high]))

    def _parts(self) -> list[tuple[str, str, int]]:
        """Queries, keys and columns of the parts of the head dim."""
        at = self.at
        parts = [(at.q_first, at.k_first, HEADDIM_FIRST)]
        if self.rest:
            assert at.q_rest is not None and at.k_rest is not None
            parts.append((at.q_rest, at.k_rest, self.rest))
        return parts
