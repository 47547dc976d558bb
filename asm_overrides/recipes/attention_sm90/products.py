"""Decides which matrix products a block takes, and where their tiles lie. It makes no P."""

from __future__ import annotations

from collections.abc import Sequence

from asm_overrides.ptx import Text, hexadecimal, matrix
from asm_overrides.recipes.attention_sm90.parameters import (
    BLOCK_N,
    HEADDIM_FIRST,
    HEADDIM_V,
    ONES_ROWS,
    Interface,
    Parameters,
)

STEP = matrix.DEPTH // 16  # of a descriptor, for 32 bytes along a row
FIRST_BYTES = BLOCK_N * HEADDIM_FIRST  # a place of the ring


class Products:
    """Scores of a block, and P times V with the row sum. Both only start; the loop waits."""

    def __init__(self, t: Text, p: Parameters, at: Interface) -> None:
        self.t, self.at = t, at
        self.rest = p.headdim - HEADDIM_FIRST
        self.has_ones_apart = p.ones == "apart"
        self.never = t.register("pred", "never")
        self.always = t.register("pred", "always")
        self.scratch = t.register("b32", "address")
        self.k = t.register("b64", "k_tiles")
        self.v = t.register("b64", "v_tiles")
        self.k_rest = t.register("b64", "k_rest_tiles") if self.rest else ""
        self.ones = t.register("b64", "ones_tile") if self.has_ones_apart else ""
        self.here = t.register("b64", "tile")
        self.steps = t.registers("b64", "step", 4)

    def constants(self) -> None:
        """Descriptors of the rings' first places."""
        t = self.t
        t.op("setp.ne.u32", self.never, "0", "0")
        t.op("setp.eq.u32", self.always, "0", "0")
        matrix.describe(t, self.k, self.at.k_first, HEADDIM_FIRST, self.scratch)
        matrix.describe(t, self.v, self.at.values, BLOCK_N, self.scratch)
        if self.rest:
            assert self.at.k_rest is not None
            matrix.describe(t, self.k_rest, self.at.k_rest, self.rest, self.scratch)
        if self.has_ones_apart:
            assert self.at.ones is not None
            matrix.describe(t, self.ones, self.at.ones, BLOCK_N, self.scratch)

    def scores(self, s: Sequence[str]) -> None:
        """s = Q K^T for the block of K in place k_slot."""
        matrix.begin(self.t)
        self._along(s, self.at.q[:16], self.k, FIRST_BYTES, self.at.k_slot, self.never)
        if self.rest:
            tile = BLOCK_N * self.rest
            self._along(s, self.at.q[16:], self.k_rest, tile, self.at.k_slot, self.always)
        matrix.commit(self.t)

    def output(self, acc: Sequence[str], sums: Sequence[str], p: Sequence[str]) -> None:
        """acc += P V for the block of V in place v_slot; sums = P ones."""
        t = self.t
        rows = HEADDIM_V
        if not self.has_ones_apart:
            acc, rows = [*acc, *sums], rows + ONES_ROWS
            for register in sums:
                t.op("mov.f32", register, hexadecimal(0.0))
        matrix.begin(t)
        self._along(acc, p, self.v, rows * BLOCK_N, self.at.v_slot, self.always)
        if self.has_ones_apart:
            self._along(sums, p, self.ones, 0, self.at.v_slot, self.never)
        matrix.commit(t)

    def _along(
        self, result: Sequence[str], a: Sequence[str], ring: str, tile: int, slot: str, first: str
    ) -> None:
        """The products along K; first: whether the first one adds to what is there."""
        t = self.t
        t.op("mad.wide.u32", self.here, slot, str(tile // 16), ring)
        for step in range(len(a) // matrix.A_REGISTERS):
            part = a[matrix.A_REGISTERS * step :][: matrix.A_REGISTERS]
            at = self.steps[step]
            t.op("add.s64", at, self.here, str(STEP * step))
            matrix.product(t, result, part, at, accumulate=self.always if step else first)
