"""Decides in which order a warpgroup's products, softmax and barriers follow one another.

For block i of P and block i + 1 of K, each time round:

    scores(i + 1) starts
    P(i) becomes the A operand                       beside scores(i + 1)
    P(i) V starts, with the row sum in 8 columns of ones
    scores(i + 1) is waited for
    P(i + 1) from scores(i + 1)                      beside P(i) V
    P(i) V is waited for; the place of both tiles is given back,
                                                     Lean beside scores(i + 2)

Nothing is under way where the loop jumps back: ptxas would serialise the products.
"""

from __future__ import annotations

from asm_overrides.ptx import Text, matrix
from asm_overrides.recipes.attention_sm90.exact_softmax import Exact
from asm_overrides.recipes.attention_sm90.lean_softmax import Lean
from asm_overrides.recipes.attention_sm90.parameters import ROWS_A_LANE, Interface, Parameters
from asm_overrides.recipes.attention_sm90.places import Places
from asm_overrides.recipes.attention_sm90.products import Products
from asm_overrides.recipes.attention_sm90.rows import ONE, multiply

SUMS = 4  # registers of eight columns of ones: each row's sum twice


def build(p: Parameters, at: Interface, label: str) -> str:
    """The loop as PTX. Every name in it begins with `label`."""
    t = Text(label)
    return _Loop(t, p, at).text()


class _Loop:
    def __init__(self, t: Text, p: Parameters, at: Interface) -> None:
        self.t, self.p, self.at = t, p, at
        self.products = Products(t, p, at)
        self.softmax = (Lean if p.p_mode == "lean" else Exact)(t, at)
        self.left = t.register("s32", "left")
        # exact P has no registers for what is late
        self.places = Places(t, at, p.stages, cluster=p.cluster, is_late=p.p_mode == "lean")
        self.test = t.register("pred", "test")
        self.sums = t.registers("f32", "sum", SUMS)  # of one block
        self.row_sum = self.softmax.row_sum

    def text(self) -> str:
        t, at = self.t, self.at
        t.op("sub.s32", self.left, at.last, at.first)
        t.op("setp.le.s32", self.test, self.left, "0")
        t.op("bra.uni", t.label("end"), when=self.test)
        self._enter()
        t.place("next")
        t.keep_rolled()
        self._block()
        t.op("add.s32", self.left, self.left, "-1")
        t.op("setp.gt.s32", self.test, self.left, "0")
        t.op("bra.uni", t.label("next"), when=self.test)
        if self.p.p_mode == "exact":  # where its softmax never goes
            t.op("bra.uni", t.label("leave"))
            t.place("stop")
            matrix.wait(t, 0)
            t.place("leave")
        self._leave()
        t.place("end")
        return t.render()

    def _enter(self) -> None:
        t, at = self.t, self.at
        self.products.constants()
        self.softmax.enter()
        for row in range(ROWS_A_LANE):
            t.op("mul.rn.f32", self.row_sum[row], at.acc_l[2 * row], at.alpha[row])
        if not self.p.referred:
            multiply(t, at.acc_o, at.alpha)
        self.places.enter()

    def _leave(self) -> None:
        t, at = self.t, self.at
        self.places.catch_up()
        self.softmax.leave()
        for row in range(ROWS_A_LANE):
            t.op("mov.f32", at.acc_l[2 * row], self.row_sum[row])
            t.op("mov.f32", at.acc_l[2 * row + 1], self.row_sum[row])
            t.op("mov.f32", at.alpha[row], ONE)

    def _block(self) -> None:
        t, at, softmax, places = self.t, self.at, self.softmax, self.places
        places.wait_for_k()
        self.products.scores(softmax.s)
        places.catch_up()
        softmax.into_operand()
        places.wait_for_v()
        self.products.output(at.acc_o, self.sums, softmax.operand)
        places.advance()
        matrix.wait(t, 1)
        places.look()
        softmax.block()
        matrix.wait(t, 0)
        places.give_back()
        for row in range(ROWS_A_LANE):
            t.op("add.rn.f32", self.row_sum[row], self.row_sum[row], self.sums[2 * row])
        t.op("bra.uni", t.label("as_it_was"), when=f"!{softmax.grew}")
        softmax.rescale(at.acc_o, self.row_sum)
        t.place("as_it_was")
