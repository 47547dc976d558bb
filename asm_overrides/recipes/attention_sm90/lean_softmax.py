"""Decides how scores become Lean P in registers: codes, and when and how far references move.

Codes are made as float16 subnormals: a float32 of value code * 2^-24 converts to the float16 whose
bits are the code, so that one conversion of two scores rounds, clamps below at 0 and packs.

Whether a block exceeds the reference shows in its largest code, which packed maxima find in a
quarter of the time that maxima over scores take. If it does, the reference moves up. In a row that
few keys make up, the largest one must get the top code exactly: its rounding would be the row's
error. That takes the scores again. Where many keys share the row, it moves by whole codes and
further than it must, so that it moves seldom, and codes are lowered by subtracting integers.

How much further: codes of 0 begin 15.7 octaves below the top one, and room above a row's largest
key is taken from there. A row whose sum is that of 2^(r + 1) such keys gets r octaves of room. So n
keys that become 0 lose it about n 2^-16.7 of its sum at most, half of what they lose in a row that
its largest key, at the top, makes up alone. A key that takes the row over later, within the room,
has the error of any Lean code: by rounding, 4.4%, and the code's own ratio, up to 6.1%, it weighs
13.5% too little or too much beside the others at most, which moves the output by a quarter of that,
3.5%, of the distance between its value and the others' mean.

Nearly every row's largest key so far is exceeded in the first block of the loop. There, all rows
take the scores again and get room at once, by the sum of the block's own codes; the row sum that
the product keeps is known two blocks later only. Otherwise a lane's two rows part, and so do eight
rows of a warp from its other eight: instructions of those that do not move are not executed. What
is executed seldom costs more than its instructions, because it must be fetched.
"""

from __future__ import annotations

from collections.abc import Sequence

from asm_overrides.ptx import Text, hexadecimal, vector
from asm_overrides.recipes.attention_sm90.parameters import ROWS_A_LANE, SCORES, Interface
from asm_overrides.recipes.attention_sm90.rows import LANES, ONE, QUAD, both, row_of
from asm_overrides.recipes.attention_sm90.softmax import Softmax
from asm_overrides.recipes.lean import CODE_UNIT, CODES_PER_OCTAVE, TOP_CODE

OCTAVES_A_UNIT = 1 / (CODES_PER_OCTAVE * CODE_UNIT)
KEY = 448.0  # what a key at the top adds to its row's sum
FLAT = 6 * KEY  # a row's sum from which on it has room, and its reference may move by codes,
FAR = TOP_CODE + 12  # and the largest code by which: such a key has a third of the row at most
ROOM = 3 * CODES_PER_OCTAVE  # codes above a flat row's largest one, at most
EIGHTHS = 20  # a positive float's bits from here on count its octaves in eighths, rounded down
SUM_OF_TWO = (int(hexadecimal(2 * KEY)[2:], 16) >> EIGHTHS) + 1  # of two such keys, rounded up
# A float16 of an e4m3's bits, seven higher, is its value times 2^-8. Sums of 32 of them are rounded
# 16 times, by 2^-12 each at most; what they may be too large by is taken off.
HALF_BITS = 7
HALF_SUM = (1 - 2.0**-8) * 2.0**8
SMALLEST = hexadecimal(2.0**-126)  # normal: by less a score at the reference is not to be divided


class Lean(Softmax):
    """Codes by one multiply-add. The row's state is `offset`."""

    def __init__(self, t: Text, at: Interface) -> None:
        super().__init__(t, at)
        self.codes = at.p
        self.top = t.registers("b32", "top", ROWS_A_LANE)
        self.y = t.registers("b32", "y", 4)
        self.by = t.registers("b32", "by", ROWS_A_LANE)  # codes to lower a row's by
        self.halves = t.registers("b16", "half", 2)
        self.first = t.register("pred", "first")
        self.moves = t.register("pred", "moves")

    def enter(self) -> None:
        """Offsets of the reference."""
        self._set(self.first, True)
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
        t.op("bra.uni", t.label("begin"), when=self.first)
        for pair in range(len(self.codes)):
            self._code(pair)
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
        t.op("bra.uni", t.label("lower"))
        t.place("begin")
        self._begin()
        t.place("lower")
        for row in range(ROWS_A_LANE):
            self._lower(row)
        t.place("settled")

    def into_operand(self) -> None:
        """The A operand: low bytes of four float16 columns of a row."""
        for group in range(SCORES // 8):
            low = self.codes[4 * group :][:4]
            for row in range(ROWS_A_LANE):
                target = self.operand[2 * group + row]
                self.t.op("prmt.b32", target, low[row], low[row + 2], "0x6420")

    def rescale(self, values: Sequence[str], sums: Sequence[str]) -> None:
        """As in both modes, but only rows that have moved."""
        t = self.t
        for row, factor in enumerate(self.factor):
            t.op("setp.neu.f32", self.some, factor, ONE)
            self._unless_any(self.some, f"row_{row}_as_it_was")
            for index, value in enumerate(values):
                if row_of(index) == row:
                    t.op("mul.rn.f32", value, value, factor)
            t.op("mul.rn.f32", sums[row], sums[row], factor)
            t.place(f"row_{row}_as_it_was")

    def _set(self, predicate: str, value: bool) -> None:
        self.t.op(f"setp.{'eq' if value else 'ne'}.u32", predicate, "0", "0")

    def _unless_any(self, predicate: str, label: str) -> None:
        """Goes to a label unless the predicate holds in some lane; it is overwritten."""
        self.t.op("vote.sync.any.pred", predicate, predicate, LANES)
        self.t.op("bra.uni", self.t.label(label), when=f"!{predicate}")

    def _code(self, pair: int) -> None:
        t, at, (a, b) = self.t, self.at, self.x
        first, second = self.s[2 * pair : 2 * pair + 2]
        offset = self.offset[pair & 1]
        t.op("fma.rn.f32", a, first, at.multiplier, offset)
        t.op("fma.rn.f32", b, second, at.multiplier, offset)
        t.op("cvt.rn.relu.f16x2.f32", self.codes[pair], b, a)

    def _grow(self) -> None:
        """The reference moves up to the block's largest score: to its code in rows where that
        counts as exact, else to the score itself. `by` and `factor` of all rows."""
        t = self.t
        low, high, grown, other = self.y
        # both rows in one register: their largest codes, over the lanes that share them
        t.op("prmt.b32", low, *self.top, "0x5410")
        t.op("prmt.b32", high, *self.top, "0x7632")
        t.op("max.u16x2", grown, low, high)
        for lanes in QUAD:
            t.op("shfl.sync.bfly.b32", other, grown, lanes, "0x1f", LANES)
            t.op("max.u16x2", grown, grown, other)
        t.op("and.b32", self.by[0], grown, "0xffff")
        t.op("shr.u32", self.by[1], grown, "16")
        for row, (by, factor) in enumerate(zip(self.by, self.factor, strict=True)):
            t.op("mov.f32", factor, ONE)
            t.op("sub.s32", by, by, str(TOP_CODE))
            t.op("max.s32", by, by, "0")
            t.op("setp.lt.f32", self.some, self.row_sum[row], hexadecimal(FLAT))
            t.op("setp.gt.or.s32", self.some, by, str(FAR - TOP_CODE), self.some)
            t.op("setp.gt.and.s32", self.some, by, "0", self.some)
            self._unless_any(self.some, f"row_{row}_by_codes")
            self._from_scores(row)
            t.op("mov.b32", by, "0")
            t.place(f"row_{row}_by_codes")
            self._add_room(row)

    def _add_room(self, row: int) -> None:
        """by: also the room above a row's largest code, if it is too high.

        As far as the sum allows any: that of six keys allows eleven codes in all, less than FAR.
        """
        t, by, room = self.t, self.by[row], self.y[0]
        t.op("setp.gt.s32", self.moves, by, "0")
        self._room(room, self.row_sum[row])
        t.op("sub.s32", room, room, by)
        t.op("max.s32", room, room, "0")
        t.op("min.s32", room, room, str(ROOM))
        t.op("add.s32", by, by, room, when=self.moves)

    def _room(self, room: str, total: str) -> None:
        """Codes of room that a row's sum allows, by its octaves."""
        self.t.op("mov.b32", room, total)
        self.t.op("shr.u32", room, room, str(EIGHTHS))
        self.t.op("sub.s32", room, room, str(SUM_OF_TWO))

    def _from_scores(self, row: int) -> None:
        """A row's codes anew, with the largest score at the top code exactly."""
        t, offset, before = self.t, self.offset[row], self.factor[row]
        self.maximum_of(row)
        t.op("mov.f32", before, offset)
        self.offset_of(row, self.maximum[row], TOP_CODE * CODE_UNIT)
        t.op("min.f32", offset, offset, before)
        t.op("sub.rn.f32", before, offset, before)
        t.op("mul.rn.f32", before, before, hexadecimal(OCTAVES_A_UNIT))
        t.op("ex2.approx.ftz.f32", before, before)
        for pair in range(row, len(self.codes), ROWS_A_LANE):
            self._code(pair)

    def _begin(self) -> None:
        """The first block: all rows from scores, and `by` the room that its codes allow, with what
        is known of those before."""
        t, total = self.t, self.x[0]
        self._set(self.first, False)
        self._set(self.grew, True)
        for row in range(ROWS_A_LANE):
            self._from_scores(row)
        for row, by in enumerate(self.by):
            self._sum_codes(row)
            t.op("mul.rn.f32", total, self.row_sum[row], self.factor[row])
            t.op("fma.rn.f32", total, self.maximum[row], hexadecimal(HALF_SUM), total)
            self._room(by, total)
            t.op("min.s32", by, by, str(ROOM))
            t.op("setp.ge.f32", self.some, total, hexadecimal(FLAT))  # false for NaN
            t.op("setp.ge.and.f32", self.some, self.at.multiplier, SMALLEST, self.some)
            t.op("selp.b32", by, by, "0", self.some)

    def _sum_codes(self, row: int) -> None:
        """maximum[row]: sum of what a row's codes stand for, times 2^-8; NaN with NaN."""
        t, (packed, value, _, _) = self.t, self.y
        total, other = self.maximum[row], self.others[row]
        mine = self.codes[row::ROWS_A_LANE]
        t.op("shl.b32", packed, mine[0], str(HALF_BITS))
        for code in mine[1:]:
            t.op("shl.b32", value, code, str(HALF_BITS))
            t.op("add.rn.f16x2", packed, packed, value)
        t.op("mov.b32", vector(self.halves), packed)
        t.op("cvt.f32.f16", total, self.halves[0])
        t.op("cvt.f32.f16", other, self.halves[1])
        t.op("add.rn.f32", total, total, other)
        for lanes in QUAD:
            t.op("shfl.sync.bfly.b32", other, total, lanes, "0x1f", LANES)
            t.op("add.rn.f32", total, total, other)

    def _lower(self, row: int) -> None:
        """Lowers a row's codes, and the reference that they are made by, by `by`."""
        t, octaves, by, zero = self.t, self.x[0], self.by[row], self.y[0]
        t.op("setp.ne.u32", self.some, by, "0")
        self._unless_any(self.some, f"row_{row}_lowered")
        t.op("cvt.rn.f32.u32", octaves, by)
        t.op("fma.rn.f32", self.offset[row], octaves, hexadecimal(-CODE_UNIT), self.offset[row])
        t.op("mul.rn.f32", octaves, octaves, hexadecimal(-1.0 / CODES_PER_OCTAVE))
        t.op("ex2.approx.ftz.f32", octaves, octaves)
        t.op("mul.rn.f32", self.factor[row], self.factor[row], octaves)
        t.op("neg.s32", by, by)
        t.op("prmt.b32", by, by, by, "0x1010")
        t.op("mov.b32", zero, "0")
        for code in self.codes[row::ROWS_A_LANE]:
            t.op("add.s16x2", code, code, by)
            t.op("max.s16x2", code, code, zero)
        t.place(f"row_{row}_lowered")
