"""Decides how scores become P in registers: row state, growth of the reference, codes.

The arithmetic is that of the numerics contract (zyfa_triton/numerics.py). Lean codes are made as
float16 subnormals: a float32 of value code * 2^-24 converts to the float16 whose bits are the code,
so that one conversion of two scores rounds, clamps below at 0 and packs.

Whether a block exceeds the reference shows in its largest code, which packed maxima find in a
quarter of the time that maxima over scores take. If it does, the reference moves up. In a row that
few keys make up, the largest one must get the top code exactly: its rounding would be the row's
error. That takes the scores again. Where many keys share the row, it moves by whole codes and
further than it must, so that it moves seldom, and codes are lowered by subtracting integers.

How much further: codes of 0 begin 15.75 octaves below the top one, and room above a row's largest
key is taken from there. A row whose sum is that of 2^(r + 1) such keys gets r octaves of room. So n
keys that become 0 lose it n 2^-16.75 of its sum at most, half of what they lose in a row that its
largest key, at the top, makes up alone. A key that takes the row over later, within the room, is
rounded as any other: by 2^(1/16), 4.4%, at most, which moves the output by a quarter of that, 1.1%,
of the distance between its value and the others' mean at most.
"""

from __future__ import annotations

from collections.abc import Sequence

from asm_overrides.ptx import Text, hexadecimal, vector
from asm_overrides.recipes.attention_sm90.parameters import (
    ROWS_A_LANE,
    SCORES,
    Interface,
)
from asm_overrides.recipes.attention_sm90.rows import (
    LANES,
    ONE,
    QUAD,
    both,
    largest,
    multiply,
    row_of,
)
from asm_overrides.recipes.lean import (
    CODE_UNIT,
    CODES_PER_OCTAVE,
    EXACT_OCTAVES,
    LOWERED_BY,
    TOP_CODE,
)

OCTAVES_A_UNIT = 1 / (CODES_PER_OCTAVE * CODE_UNIT)
KEY = 448.0  # what a key at the top adds to its row's sum
FLAT = 6 * KEY  # a row's sum from which on its reference may move by codes, if all of a warp may,
FAR = TOP_CODE + 12  # and the largest code by which: such a key has a third of the row at most
ROOM = 3 * CODES_PER_OCTAVE  # codes above a flat row's largest one, at most
EIGHTHS = 20  # a positive float's bits from here on count its octaves in eighths, rounded down
SUM_OF_TWO = (int(hexadecimal(2 * KEY)[2:], 16) >> EIGHTHS) + 1  # of two such keys, rounded up


class Softmax:
    """What both modes share: factors of a block whose reference grew, and row sums."""

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
        for row, total in enumerate(sums):
            self.t.op("mul.rn.f32", total, total, self.factor[row])


class Lean(Softmax):
    """Codes by one multiply-add. The row's state is `offset`."""

    def __init__(self, t: Text, at: Interface) -> None:
        super().__init__(t, at)
        self.codes = at.p
        self.top = t.registers("b32", "top", ROWS_A_LANE)
        self.y = t.registers("b32", "y", 4)
        self.room = t.register("b32", "room")
        self.fresh = t.register("b32", "fresh")  # 1 until rows have got room
        self.moves = t.register("pred", "moves")

    def enter(self) -> None:
        """Offsets of the reference."""
        self.t.op("mov.b32", self.fresh, "1")
        for row, maximum in enumerate(self.at.row_max):
            self.offset_of(row, maximum, TOP_CODE * CODE_UNIT)

    def leave(self) -> None:
        """row_max: the raw score at the reference, as it was where the reference has not moved."""
        t, at = self.t, self.at
        moved = t.registers("f32", "moved", ROWS_A_LANE)
        for row, maximum in enumerate(at.row_max):
            t.op("mov.f32", moved[row], self.offset[row])
            self.offset_of(row, maximum, TOP_CODE * CODE_UNIT)
            t.op("setp.neu.f32", self.some, moved[row], self.offset[row])
            t.op("sub.rn.f32", moved[row], hexadecimal(TOP_CODE * CODE_UNIT), moved[row])
            t.op("div.rn.f32", moved[row], moved[row], at.multiplier)
            t.op("mov.f32", maximum, moved[row], when=self.some)

    def block(self) -> None:
        """Codes of a block from its scores, and `grew` with its factors."""
        t = self.t
        self._codes()
        for row in range(ROWS_A_LANE):
            mine = self.codes[row::2]
            t.op("max.u16x2", self.top[row], mine[0], mine[1])
            for code in mine[2:]:
                t.op("max.u16x2", self.top[row], self.top[row], code)
        over = self.y[0]
        t.op("max.u16x2", over, *self.top)
        # a half of 127 or more carries into its highest bit
        t.op("add.u32", over, over, both(0x8000 - TOP_CODE - 1))
        t.op("and.b32", over, over, both(0x8000))
        t.op("setp.ne.u32", self.some, over, "0")
        t.op("vote.sync.any.pred", self.grew, self.some, LANES)
        t.op("bra.uni", t.label("settled"), when=f"!{self.grew}")
        self._grow()
        t.place("settled")

    def into_operand(self) -> None:
        """The A operand: low bytes of four float16 columns of a row."""
        for group in range(SCORES // 8):
            low = self.codes[4 * group :][:4]
            for row in range(ROWS_A_LANE):
                target = self.operand[2 * group + row]
                self.t.op("prmt.b32", target, low[row], low[row + 2], "0x6420")

    def _codes(self) -> None:
        t, at, (a, b) = self.t, self.at, self.x
        for pair, code in enumerate(self.codes):
            first, second = self.s[2 * pair : 2 * pair + 2]
            offset = self.offset[pair & 1]
            t.op("fma.rn.f32", a, first, at.multiplier, offset)
            t.op("fma.rn.f32", b, second, at.multiplier, offset)
            t.op("cvt.rn.relu.f16x2.f32", code, b, a)

    def _grow(self) -> None:
        """The reference moves up to the block's largest score: to its code where that counts as
        exact, else to the score itself."""
        t = self.t
        low, high, grown, other = self.y
        # both rows in one register: their largest codes, over the lanes that share them
        t.op("prmt.b32", low, *self.top, "0x5410")
        t.op("prmt.b32", high, *self.top, "0x7632")
        t.op("max.u16x2", grown, low, high)
        for lanes in QUAD:
            t.op("shfl.sync.bfly.b32", other, grown, lanes, "0x1f", LANES)
            t.op("max.u16x2", grown, grown, other)
        t.op("and.b32", low, grown, "0xffff")
        t.op("shr.u32", high, grown, "16")
        t.op("setp.gt.s32", self.some, low, str(FAR))
        t.op("setp.gt.s32", self.some, high, str(FAR), when=f"!{self.some}")
        for total in self.row_sum:
            t.op("setp.lt.or.f32", self.some, total, hexadecimal(FLAT), self.some)
        t.op("vote.sync.any.pred", self.some, self.some, LANES)
        t.op("bra.uni", t.label("from_scores"), when=self.some)
        self._by_codes()
        t.op("bra.uni", t.label("settled"))
        t.place("from_scores")
        self._from_scores()

    def _by_codes(self) -> None:
        """Lowers the block's codes by as many as the largest one is too high and by the room above
        it: the first time in all rows, then in those whose largest code was too high."""
        t = self.t
        (low, high, zero, either), room = self.y, self.room
        for code, total in zip((low, high), self.row_sum, strict=True):
            t.op("sub.s32", code, code, str(TOP_CODE))
            t.op("max.s32", code, code, "0")
            t.op("mov.b32", room, total)
            t.op("shr.u32", room, room, str(EIGHTHS))
            t.op("sub.s32", room, room, str(SUM_OF_TWO))
            t.op("sub.s32", room, room, code)
            t.op("max.s32", room, room, "0")
            t.op("min.s32", room, room, str(ROOM))
            t.op("or.b32", either, code, self.fresh)
            t.op("setp.ne.u32", self.moves, either, "0")
            t.op("add.s32", code, code, room, when=self.moves)
        t.op("mov.b32", self.fresh, "0")
        octaves = self.x[0]
        for row, codes in enumerate((low, high)):
            t.op("cvt.rn.f32.u32", octaves, codes)
            t.op("fma.rn.f32", self.offset[row], octaves, hexadecimal(-CODE_UNIT), self.offset[row])
            t.op("mul.rn.f32", octaves, octaves, hexadecimal(-1.0 / CODES_PER_OCTAVE))
            t.op("ex2.approx.ftz.f32", self.factor[row], octaves)
            t.op("neg.s32", codes, codes)
            t.op("prmt.b32", codes, codes, codes, "0x1010")
        t.op("mov.b32", zero, "0")
        for pair, code in enumerate(self.codes):
            t.op("add.s16x2", code, code, (low, high)[pair & 1])
            t.op("max.s16x2", code, code, zero)

    def _from_scores(self) -> None:
        """Codes anew, with the largest score at the top code exactly."""
        t = self.t
        for row in range(ROWS_A_LANE):
            self.maximum_of(row)
        for row in range(ROWS_A_LANE):
            before = self.factor[row]
            t.op("mov.f32", before, self.offset[row])
            self.offset_of(row, self.maximum[row], TOP_CODE * CODE_UNIT)
            t.op("min.f32", self.offset[row], self.offset[row], before)
            t.op("sub.rn.f32", before, self.offset[row], before)
            t.op("mul.rn.f32", before, before, hexadecimal(OCTAVES_A_UNIT))
            t.op("ex2.approx.ftz.f32", before, before)
        self._codes()


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
