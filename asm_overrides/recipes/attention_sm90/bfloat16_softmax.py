"""Decides how scores become bfloat16 P in registers: row state, growth of the reference, row sums.

P = 2^(multiplier * (score - reference)), rounded; a row's sum takes P before rounding. Floats have
the same relative precision at any size, so the reference need not be the row's maximum: it moves
there only when some P of the warp exceeds 2^8. Whether one does shows in packed maxima over P's
bits, in half the instructions that maxima over scores take, and P need not wait for them. Only if
one does, the scores are taken again.
"""

from __future__ import annotations

from collections.abc import Sequence

from asm_overrides.ptx import Text, hexadecimal
from asm_overrides.recipes.attention_sm90.parameters import (
    ROWS_A_LANE,
    SCORES,
    Bfloat16Interface,
)
from asm_overrides.recipes.attention_sm90.rows import LANES, ONE, QUAD, both, largest, multiply

OCTAVES = 8  # by which P may exceed the reference
LARGEST = (127 + OCTAVES) << 7  # 2^8 as bfloat16


class Bfloat16Softmax:
    """The row's state is `offset`, and `row_sum`, of this lane's columns.

    p: two sets of registers that take turns: a product reads one while the other is written.
    """

    def __init__(self, t: Text, at: Bfloat16Interface) -> None:
        self.t, self.at = t, at
        self.s = t.registers("f32", "s", SCORES)
        self.p = (list(at.p), t.registers("b32", "other_p", SCORES // 2))
        self.grew = t.register("pred", "grew")
        self.some = t.register("pred", "some")
        self.factor = t.registers("f32", "factor", ROWS_A_LANE)
        self.offset = t.registers("f32", "offset", ROWS_A_LANE)
        self.maximum = t.registers("f32", "maximum", ROWS_A_LANE)
        self.others = t.registers("f32", "others", ROWS_A_LANE)
        self.row_sum = t.registers("f32", "row_sum", ROWS_A_LANE)
        self.sums = t.registers("f32", "sum", ROWS_A_LANE)  # of one block
        self.x = t.registers("f32", "x", 2)
        self.top = t.register("b32", "top")

    def enter(self) -> None:
        """Offsets, and row sums with that of the P at hand, in one lane of each row."""
        t, at = self.t, self.at
        t.op("mov.u32", self.top, "%laneid")
        t.op("and.b32", self.top, self.top, "3")
        t.op("setp.ne.u32", self.some, self.top, "0")
        for row, maximum in enumerate(at.row_max):
            total = self.row_sum[row]
            self._offset_of(self.offset[row], maximum)
            t.op("fma.rn.f32", total, at.row_sum[row], at.alpha[row], at.block_sum[row])
            t.op("mov.f32", total, hexadecimal(0.0), when=self.some)

    def leave(self) -> None:
        """Row sums in all lanes, and the raw score at the reference: 0 where any would do."""
        t, at = self.t, self.at
        t.op("setp.eq.f32", self.some, at.multiplier, hexadecimal(0.0))
        for offset, maximum in zip(self.offset, at.row_max, strict=True):
            t.op("neg.f32", maximum, offset)
            t.op("div.rn.f32", maximum, maximum, at.multiplier)
            t.op("mov.f32", maximum, hexadecimal(0.0), when=self.some)
        for row, total in enumerate(self.row_sum):
            for lanes in QUAD:
                t.op("shfl.sync.bfly.b32", self.x[0], total, lanes, "0x1f", LANES)
                t.op("add.rn.f32", total, total, self.x[0])
            t.op("mov.f32", at.row_sum[row], total)
            t.op("mov.f32", at.block_sum[row], hexadecimal(0.0))
            t.op("mov.f32", at.alpha[row], ONE)

    def keep(self, turn: int) -> None:
        """The P at hand, which is in set `turn`, where the kernel looks for it."""
        for mine, source in zip(self.at.p, self.p[turn], strict=True):
            self.t.op("mov.b32", mine, source)

    def block(self, turn: int) -> None:
        """P of a block from its scores into set `turn`, and `grew` with its factors."""
        t, p = self.t, self.p[turn]
        settled = t.label(f"settled{turn}")
        self._exponentials(p)
        top = self.top
        t.op("max.u16x2", top, p[0], p[1])
        for value in p[2:]:
            t.op("max.u16x2", top, top, value)
        # a half above the largest, or NaN, carries into its highest bit
        t.op("add.u32", top, top, both(0x8000 - LARGEST - 1))
        t.op("and.b32", top, top, both(0x8000))
        t.op("setp.ne.u32", self.some, top, "0")
        t.op("vote.sync.any.pred", self.grew, self.some, LANES)
        t.op("bra.uni", settled, when=f"!{self.grew}")
        self._grow()
        self._exponentials(p)
        t.place(f"settled{turn}")
        for total, mine in zip(self.row_sum, self.sums, strict=True):
            t.op("add.rn.f32", total, total, mine)

    def rescale(self, values: Sequence[str]) -> None:
        """Outputs so far, referred to the new reference."""
        multiply(self.t, values, self.factor)

    def _exponentials(self, p: Sequence[str]) -> None:
        t, (a, b) = self.t, self.x
        for pair, target in enumerate(p):
            row = pair & 1  # a lane's pairs take turns between its rows
            total = self.sums[row]
            for x, score in zip((a, b), self.s[2 * pair :][:2], strict=True):
                t.op("fma.rn.f32", x, score, self.at.multiplier, self.offset[row])
                t.op("ex2.approx.ftz.f32", x, x)
            t.op("cvt.rn.bf16x2.f32", target, b, a)
            if pair < ROWS_A_LANE:
                t.op("add.rn.f32", total, a, b)
            else:
                t.op("add.rn.f32", total, total, a)
                t.op("add.rn.f32", total, total, b)

    def _offset_of(self, target: str, reference: str) -> None:
        """target: what is added to multiplied scores so that `reference` becomes 0."""
        self.t.op("mul.rn.f32", target, self.at.multiplier, reference)
        self.t.op("neg.f32", target, target)

    def _grow(self) -> None:
        """The reference of each row moves up to its largest score."""
        t = self.t
        for row, offset in enumerate(self.offset):
            target, other, factor = self.maximum[row], self.others[row], self.factor[row]
            largest(t, self.s, row, target, other, chains=1)
            self._offset_of(target, target)
            t.op("min.f32", target, target, offset)  # a row of NaN keeps its reference
            t.op("sub.rn.f32", factor, target, offset)
            t.op("ex2.approx.ftz.f32", factor, factor)
            t.op("mul.rn.f32", self.row_sum[row], self.row_sum[row], factor)
            t.op("mov.f32", offset, target)
