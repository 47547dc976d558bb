"""Decides how scores become exact P in registers: 2^x of every score, rounded to e4m3."""

from __future__ import annotations

from collections.abc import Sequence

from asm_overrides.ptx import Text, vector
from asm_overrides.recipes.attention_sm90.parameters import ROWS_A_LANE, SCORES, Interface
from asm_overrides.recipes.attention_sm90.rows import LANES, ONE, both, row_of
from asm_overrides.recipes.attention_sm90.softmax import Softmax
from asm_overrides.recipes.lean import EXACT_OCTAVES


class Exact(Softmax):
    """2^x of every score. The row's state is row_max.

    Codes wait as two a register and are joined to four only for the product: what the product reads
    must not be what the next block's conversion writes.
    """

    def __init__(self, t: Text, at: Interface) -> None:
        super().__init__(t, at)
        self.codes = t.registers("b32", "code", SCORES // 2)
        self.half = t.register("b16", "half")
        self.signs = t.register("b32", "signs")

    def enter(self) -> None:
        """Codes of the P at hand."""
        self._round(self.at.p)

    def leave(self) -> None:
        """The P at hand as float32, rounded."""
        t = self.t
        pair = t.register("b32", "pair")
        halves = t.registers("b16", "value", 2)
        for index, code in enumerate(self.codes):
            t.op("cvt.u16.u32", self.half, code)
            t.op("cvt.rn.f16x2.e4m3x2", pair, self.half)
            t.op("mov.b32", vector(halves), pair)
            for value, source in zip(self.at.p[2 * index :][:2], halves, strict=True):
                t.op("cvt.f32.f16", value, source)

    def block(self) -> None:
        """Codes of a block from its scores, and `grew` with its factors."""
        t, at = self.t, self.at
        for row in range(ROWS_A_LANE):
            self.maximum_of(row)
        for row, before in enumerate(at.row_max):
            maximum, step = self.maximum[row], self.x[0]
            t.op("max.f32", maximum, maximum, before)
            self.offset_of(row, maximum, EXACT_OCTAVES)
            t.op("sub.rn.f32", step, before, maximum)
            t.op("mul.rn.f32", step, step, at.scale_log2)
            t.op("ex2.approx.ftz.f32", self.factor[row], step)
            t.op("mov.f32", before, maximum)
        t.op("setp.neu.f32", self.some, self.factor[0], ONE)
        t.op("setp.neu.or.f32", self.some, self.factor[1], ONE, self.some)
        t.op("vote.sync.any.pred", self.grew, self.some, LANES)
        for index, score in enumerate(self.s):
            t.op("fma.rn.f32", score, score, at.multiplier, self.offset[row_of(index)])
            t.op("ex2.approx.ftz.f32", score, score)
        self._round(self.s)
        self._keep_the_wait_behind()

    def _keep_the_wait_behind(self) -> None:
        """A branch that needs all codes and is never taken: no code has a sign.

        ptxas moves the wait for P V, which follows, up to where nothing stops it, and the softmax
        then runs beside nothing. In Lean's the vote on the largest code does.
        """
        t = self.t
        t.op("or.b32", self.signs, self.codes[0], self.codes[1])
        for code in self.codes[2:]:
            t.op("or.b32", self.signs, self.signs, code)
        t.op("and.b32", self.signs, self.signs, both(0x8080))
        t.op("setp.ne.u32", self.some, self.signs, "0")
        t.op("bra.uni", t.label("stop"), when=self.some)

    def into_operand(self) -> None:
        """The A operand: four columns of a row from two pairs."""
        for group in range(SCORES // 8):
            for row in range(ROWS_A_LANE):
                low = self.codes[4 * group + row]
                high = self.codes[4 * group + row + 2]
                self.t.op("prmt.b32", self.operand[2 * group + row], low, high, "0x5410")

    def _round(self, values: Sequence[str]) -> None:
        t = self.t
        for index, code in enumerate(self.codes):
            low, high = values[2 * index :][:2]
            t.op("cvt.rn.satfinite.e4m3x2.f32", self.half, high, low)
            t.op("cvt.u32.u16", code, self.half)
