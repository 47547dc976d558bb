"""Decides in which order a warpgroup's products, softmax and barriers follow one another.

For block i of P and block i + 1 of K, each time round:

    scores(i + 1) starts
    P(i) becomes the A operand                       beside scores(i + 1)
    P(i) V starts, with the row sum in 8 columns of ones
    scores(i + 1) is waited for
    P(i + 1) from scores(i + 1)                      beside P(i) V
    P(i) V is waited for; the place of both tiles is given back

The barriers of the next tiles are looked at beside the softmax, so that a tile that is there costs
no wait. Nothing is under way where the loop jumps back: ptxas would serialise the products.
"""

from __future__ import annotations

from asm_overrides.ptx import Text, barrier, matrix
from asm_overrides.recipes.attention_sm90.parameters import ROWS_A_LANE, Interface, Parameters
from asm_overrides.recipes.attention_sm90.products import Products
from asm_overrides.recipes.attention_sm90.softmax import ONE, Exact, Lean, row_of

BARRIER_BYTES = "8"
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
        self.k_there, self.v_there = t.register("pred", "k_there"), t.register("pred", "v_there")
        self.once = t.register("pred", "once")
        self.test = t.register("pred", "test")
        self.lane = t.register("b32", "lane")
        self.k_barrier, self.v_barrier = t.registers("b32", "full", 2)
        self.used = t.register("b32", "used")
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
        self._leave()
        t.place("end")
        return t.render()

    def _enter(self) -> None:
        t, at = self.t, self.at
        self.products.constants()
        self.softmax.enter()
        t.op("mov.u32", self.lane, "%laneid")
        t.op("setp.eq.u32", self.once, self.lane, "0")
        for row in range(ROWS_A_LANE):
            t.op("mul.rn.f32", self.row_sum[row], at.acc_l[2 * row], at.alpha[row])
        if not self.p.referred:
            for index, value in enumerate(at.acc_o):
                t.op("mul.rn.f32", value, value, at.alpha[row_of(index)])
        self._look()

    def _leave(self) -> None:
        t, at = self.t, self.at
        self.softmax.leave()
        for row in range(ROWS_A_LANE):
            t.op("mov.f32", at.acc_l[2 * row], self.row_sum[row])
            t.op("mov.f32", at.acc_l[2 * row + 1], self.row_sum[row])
            t.op("mov.f32", at.alpha[row], ONE)

    def _block(self) -> None:
        t, at, softmax = self.t, self.at, self.softmax
        barrier.wait(t, "k", self.k_there, self.k_barrier, at.k_phase)
        self.products.scores(softmax.s)
        softmax.into_operand()
        barrier.wait(t, "v", self.v_there, self.v_barrier, at.v_phase)
        self.products.output(at.acc_o, self.sums, softmax.operand)
        t.op("mad.lo.u32", self.used, at.k_slot, BARRIER_BYTES, at.used)
        self._advance()
        matrix.wait(t, 1)
        self._look()
        softmax.block()
        matrix.wait(t, 0)
        barrier.arrive(t, self.used, when=self.once)
        for row in range(ROWS_A_LANE):
            t.op("add.rn.f32", self.row_sum[row], self.row_sum[row], self.sums[2 * row])
        t.op("bra.uni", t.label("as_it_was"), when=f"!{softmax.grew}")
        softmax.rescale(at.acc_o, self.row_sum)
        t.place("as_it_was")

    def _advance(self) -> None:
        """Places of the next tiles: V's is where K's was."""
        t, at = self.t, self.at
        t.op("mov.b32", at.v_slot, at.k_slot)
        t.op("mov.b32", at.v_phase, at.k_phase)
        t.op("add.s32", at.k_slot, at.k_slot, "1")
        t.op("setp.eq.s32", self.test, at.k_slot, str(self.p.stages))
        t.op("mov.b32", at.k_slot, "0", when=self.test)
        t.op("xor.b32", at.k_phase, at.k_phase, "1", when=self.test)

    def _look(self) -> None:
        """Whether the next tiles are there."""
        t, at = self.t, self.at
        t.op("mad.lo.u32", self.k_barrier, at.k_slot, BARRIER_BYTES, at.k_full)
        t.op("mad.lo.u32", self.v_barrier, at.v_slot, BARRIER_BYTES, at.v_full)
        barrier.look(t, self.k_there, self.k_barrier, at.k_phase)
        barrier.look(t, self.v_there, self.v_barrier, at.v_phase)
