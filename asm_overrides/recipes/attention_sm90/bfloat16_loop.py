"""Decides in which order products, softmax and barriers follow one another on bfloat16.

As in `loop`, with two differences. P is the A operand as it is, so that it is written into two sets
of registers by turns and the text holds two blocks, one for each turn. And the row sum is added up,
not a product: ones would have to lie among V's columns.
"""

from __future__ import annotations

from asm_overrides.ptx import Text, matrix
from asm_overrides.recipes.attention_sm90.bfloat16_products import Bfloat16Products
from asm_overrides.recipes.attention_sm90.bfloat16_softmax import Bfloat16Softmax
from asm_overrides.recipes.attention_sm90.parameters import Bfloat16Interface, Bfloat16Parameters
from asm_overrides.recipes.attention_sm90.places import Places
from asm_overrides.recipes.attention_sm90.rows import multiply


def build_bfloat16(p: Bfloat16Parameters, at: Bfloat16Interface, label: str) -> str:
    """The loop as PTX. Every name in it begins with `label`."""
    t = Text(label)
    return _Loop(t, p, at).text()


class _Loop:
    def __init__(self, t: Text, p: Bfloat16Parameters, at: Bfloat16Interface) -> None:
        self.t, self.p, self.at = t, p, at
        self.products = Bfloat16Products(t, p, at)
        self.softmax = Bfloat16Softmax(t, at)
        self.places = Places(t, at, p.stages)
        self.left = t.register("s32", "left")
        self.test = t.register("pred", "test")

    def text(self) -> str:
        t, at = self.t, self.at
        t.op("sub.s32", self.left, at.last, at.first)
        t.op("setp.le.s32", self.test, self.left, "0")
        t.op("bra.uni", t.label("end"), when=self.test)
        self._enter()
        t.place("next")
        t.keep_rolled()
        self._block(0)
        t.op("setp.eq.s32", self.test, self.left, "1")
        t.op("bra.uni", t.label("odd"), when=self.test)
        self._block(1)
        t.op("add.s32", self.left, self.left, "-2")
        t.op("setp.gt.s32", self.test, self.left, "0")
        t.op("bra.uni", t.label("next"), when=self.test)
        t.op("bra.uni", t.label("leave"))
        t.place("odd")
        self.softmax.keep(1)
        t.place("leave")
        self.softmax.leave()
        t.place("end")
        return t.render()

    def _enter(self) -> None:
        at = self.at
        self.products.constants()
        self.softmax.enter()
        if not self.p.referred:
            multiply(self.t, at.acc_o, at.alpha)
        self.places.enter()

    def _block(self, turn: int) -> None:
        """P V of the block whose P is in set `turn`, beside P of the next one into the other."""
        t, at, softmax, places = self.t, self.at, self.softmax, self.places
        places.wait_for_k(str(turn))
        self.products.scores(softmax.s)
        places.wait_for_v(str(turn))
        self.products.output(at.acc_o, softmax.p[turn])
        places.advance()
        matrix.wait(t, 1)
        places.look()
        softmax.block(1 - turn)
        matrix.wait(t, 0)
        places.give_back()
        t.op("bra.uni", t.label(f"as_it_was{turn}"), when=f"!{softmax.grew}")
        softmax.rescale(at.acc_o)
        t.place(f"as_it_was{turn}")
