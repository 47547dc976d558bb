"""What both ways to make P from scores share: offsets, maxima, factors where a reference grew.

The arithmetic is that of the numerics contract (zyfa_triton/numerics.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from asm_overrides.ptx import Text, hexadecimal
from asm_overrides.recipes.attention_sm90.parameters import (
    ROWS_A_LANE,
    SCORES,
    Interface,
)
from asm_overrides.recipes.attention_sm90.rows import largest, multiply
from asm_overrides.recipes.lean import LOWERED_BY


class Softmax:
    """Registers of scores and of a block whose reference grew."""

    def __init__(self, t: Text, at: Interface) -> None:
        self.t, self.at = t, at
        self.s = t.registers("f32", "s", SCORES)
        self.operand = t.registers("b32", "operand", SCORES // 4)
        self.grew = t.register("pred", "grew")
        self.factor = t.registers("f32", "factor", ROWS_A_LANE)
        self.offset = t.registers("f32", "offset", ROWS_A_LANE)
        self.x = t.registers("f32", "x", 2)
        self.maximum = t.registers("f32", "maximum", ROWS_A_LANE)
        self.others = t.registers("f32", "others", ROWS_A_LANE)
        self.row_sum = t.registers("f32", "row_sum", ROWS_A_LANE)
        self.some = t.register("pred", "some")

    def offset_of(self, row: int, maximum: str, top: float) -> None:
        """offset[row]: what is added to multiplied scores so that `maximum` becomes `top`."""
        t, (minus, size) = self.t, self.x
        t.op("neg.f32", minus, self.at.multiplier)
        t.op("fma.rn.f32", self.offset[row], minus, maximum, hexadecimal(top))
        t.op("abs.f32", size, self.offset[row])
        t.op("fma.rn.f32", self.offset[row], size, hexadecimal(-LOWERED_BY), self.offset[row])

    def maximum_of(self, row: int) -> None:
        """maximum[row]: the largest score of a row in this block, in all of its lanes."""
        largest(self.t, self.s, row, self.maximum[row], self.others[row], chains=2)

    def rescale(self, values: Sequence[str], sums: Sequence[str]) -> None:
        """Outputs and row sums so far, referred to the new reference."""
        multiply(self.t, values, self.factor)
        for total, factor in zip(sums, self.factor, strict=True):
            self.t.op("mul.rn.f32", total, total, factor)
