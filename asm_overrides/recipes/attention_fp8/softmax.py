"""Decides how P is made from scores: row maximum, block exponent, codes. Row state per lane.

The arithmetic is that of the numerics contract (zyfa_triton/numerics.py), operation for operation.
Scores come out of the matrix instruction times 2^-40 and codes are made as float32 denormals: the
multiply-add lands on code * 2^-133, whose bits are code * 2^16 rounded to integers, so that an
arithmetic shift with saturation gives the code; negative values and -inf give 0.
"""

from __future__ import annotations

import struct

from asm_overrides.program import VCC, Argument, Builder, Part, Value
from asm_overrides.recipes.attention_fp8.parameters import Parameters
from asm_overrides.recipes.attention_fp8.values import KEY_TILES, Values
from asm_overrides.recipes.lean import CODES_PER_OCTAVE, EXACT_OCTAVES, LOWERED_BY, TOP_CODE

SCORE_SHIFT = 40  # scores are held times 2^-40: the code scale is then a normal float
CODE_SHIFT = 133  # codes are made times 2^-133; float32 denormals step by 2^-149
CODE_FRACTION = 16  # so a code has 149 - 133 fraction bits
OFFSET_GRID = 10  # row offsets lie on a grid of 2^-10 codes
GRID_STEPS = 2.0**OFFSET_GRID  # a code; Lean's row offsets are counted in grid steps
TOP = TOP_CODE + 0.5  # codes are rounded down
EXPONENT_MIN = -120.0
E8M0_BIAS = 127
NEGATIVE_INFINITY = 0xFF800000


def float_bits(value: float) -> int:
    """Bits of a float32 constant, so that the text is exact."""
    return int(struct.unpack("<I", struct.pack("<f", value))[0])


class Softmax:
    """Row state and P; one method a stage, each emits into the open stage."""

    def __init__(self, b: Builder, p: Parameters, v: Values) -> None:
        self.b, self.p, self.v = b, p, v
        self.scores: list[Part] = [v.acc_s[t][i] for t in range(KEY_TILES) for i in range(16)]
        self.block_max = v.t[0]

    def constants(self) -> None:
        """Scalars and vectors that the whole loop uses."""
        b, v = self.b, self.v
        b.op("v_mov_b32", v.t[0], v.scale_log2)
        self._scaled(v.octaves, 2.0**SCORE_SHIFT, "octaves per held score")
        is_lean = self.p.p_mode == "lean"
        held = CODES_PER_OCTAVE * 2.0 ** (SCORE_SHIFT - CODE_SHIFT) if is_lean else 2.0**SCORE_SHIFT
        for i in range(v.score_scale.width):
            self._scaled(v.score_scale[i], held, "held codes (or octaves) per held score")
        if self.p.p_mode == "lean":
            negated = -CODES_PER_OCTAVE * GRID_STEPS * 2.0**SCORE_SHIFT
            self._scaled(v.minus_code_scale, negated, "minus grid steps per held score")
            b.op("s_mov_b32", v.minus_eight, float_bits(-CODES_PER_OCTAVE * GRID_STEPS))
            b.op("v_mov_b32", v.offset_top, float_bits(TOP * GRID_STEPS))
        else:
            self._scaled(v.minus_code_scale, -(2.0**SCORE_SHIFT), "minus octaves per held score")
        b.op("s_mov_b32", v.slack, float_bits(-LOWERED_BY), role="see not_above in language.py")
        b.op("s_mov_b32", v.byte_select, 0x05040100, role="low halves of two registers")
        b.op("v_mov_b32", v.one_scale, E8M0_BIAS)
        b.op("v_mov_b32", v.s_scale, E8M0_BIAS - SCORE_SHIFT)
        b.op("v_mov_b32", v.row_max, NEGATIVE_INFINITY)
        b.op("v_mov_b32", v.row_sum, 0)
        for i in range(v.acc_o.width):
            b.op("v_mov_b32", v.acc_o[i], 0)
        if self.p.row_sum == "sparse":
            # rows 2 and 3 add zeros for ever; rows 0 and 1 are reset with each block's codes
            for i in range(2, v.acc_sum.width):
                b.op("v_mov_b32", v.acc_sum[i], 0)

    def _scaled(self, target: Part | Value, factor: float, role: str) -> None:
        b, v = self.b, self.v
        b.op("v_mul_f32", v.t[1], float_bits(factor), v.t[0])
        b.op("v_readfirstlane_b32", target, v.t[1], role=role)

    def last_keys(self) -> None:
        """Per lane: the last key its query sees, minus 4 for the upper lane half."""
        b, v = self.b, self.v
        lane, half = v.t[0], v.t[1]
        b.op("s_sub_u32", v.s[0], v.seqlen_k, 1)
        if self.p.causal:
            b.op("v_and_b32", lane, 31, v.thread)
            b.op("s_lshl_b32", v.s[1], v.wave, 5)
            b.op("s_add_u32", v.s[1], v.s[1], v.row_first)
            b.op("s_add_u32", v.s[1], v.s[1], v.seqlen_k)
            b.op("s_sub_u32", v.s[1], v.s[1], v.seqlen_q)
            b.op("v_add_u32", lane, v.s[1], lane, role="row + seqlen_k - seqlen_q")
            b.op("v_min_i32", v.last_key, v.s[0], lane)
        else:
            b.op("v_mov_b32", v.last_key, v.s[0])
        b.op("v_bfe_u32", half, v.thread, 5, 1)
        b.op("v_lshlrev_b32", half, 2, half)
        b.op("v_sub_u32", v.last_key, v.last_key, half)

    def mask(self) -> None:
        """-inf for keys behind the last; register i of tile t: key 32 t + 8 (i/4) + i%4."""
        b, v = self.b, self.v
        limit, low = v.t[4], v.t[5]
        pairs: tuple[Argument, ...] = (*(pair.all for pair in v.mask_pairs), VCC)
        b.op("v_subrev_u32", limit, v.start_n, v.last_key, role="last key within the block")
        b.op("v_mov_b32", low, NEGATIVE_INFINITY)
        for index, score in enumerate(self.scores):
            tile, i = divmod(index, 16)
            key = 32 * tile + 8 * (i // 4) + i % 4
            pair = pairs[index % len(pairs)]
            b.op("v_cmp_gt_i32", pair, key, limit, role=f"key {key} (+4 in the upper half)")
            b.op("v_cndmask_b32", score, score, low, pair)

    def finish_sum(self) -> None:
        """Add the row sum of the block before: sums of rounded P times its power of two."""
        b, v = self.b, self.v
        total, power = v.t[1], v.t[2]
        if self.p.row_sum == "dense":
            b.op("v_add_f32", v.row_sum, v.row_sum, v.acc_sum[0], role="row sum")
            return
        b.op("v_add_f32", total, v.acc_sum[0], v.acc_sum[1], role="row sum of the last block")
        b.op("v_lshlrev_b32", power, 23, v.p_scale, role="2^E")
        b.op("v_fma_f32", v.row_sum, total, power, v.row_sum, role="row sum")

    def row_maximum(self, is_first: bool) -> None:
        """Maximum of the block in both lane halves, and whether any row's maximum grows.

        That of the first block is the row maximum.
        """
        b, v = self.b, self.v
        best, other = self.block_max, v.t[3]
        s = self.scores
        b.op("v_max3_f32", best, s[0], s[1], s[2], role="block maximum")
        for i in range(3, 31, 2):
            b.op("v_max3_f32", best, best, s[i], s[i + 1])
        b.op("v_max_f32", best, best, s[31])
        b.op("v_mov_b32", other, best)
        if not is_first:
            # either half asks for its own keys: the branch looks at both answers
            b.op("v_cmp_gt_f32", VCC, best, v.row_max, role="does the reference move?")
        b.op("v_permlane32_swap_b32", best, other, role="the other half's keys")
        if is_first:
            b.op("v_max_f32", v.row_max, best, other)
        else:
            b.op("v_max_f32", best, best, other)

    def first_reference(self) -> None:
        """The reference that the first row maximum makes: 0 for a row that sees no key."""
        b, v = self.b, self.v
        b.op("v_cmp_eq_f32", VCC, NEGATIVE_INFINITY, v.row_max, role="no key seen yet")
        b.op("v_cndmask_b32", v.reference, v.row_max, 0, VCC)

    def rescale(self) -> None:
        """The row maximum grew somewhere: move the reference, rescale what was accumulated."""
        b, v = self.b, self.v
        alpha = v.t[3]
        b.op("v_mov_b32", alpha, v.row_max)
        b.op("v_max_f32", v.row_max, v.row_max, self.block_max)
        # a row without a key in the first block never sees one: its reference stays 0
        b.op("v_max_f32", v.reference, v.reference, self.block_max)
        b.op("v_sub_f32", alpha, alpha, v.reference)
        b.op("v_mul_f32", alpha, v.octaves, alpha)
        b.op("v_exp_f32", alpha, alpha, role="alpha")
        b.op("v_mul_f32", v.row_sum, v.row_sum, alpha)
        for i in range(v.acc_o.width):
            b.op("v_mul_f32", v.acc_o[i], v.acc_o[i], alpha, role="O *= alpha" if not i else "")

    def codes(self, is_first: bool) -> None:
        """Block exponent, then P in operand order: dword 4 t + j packs registers 4 j to 4 j + 3.

        The first block is the reference: its exponent is 0 in every row that sees a key.
        """
        b, v = self.b, self.v
        if is_first:
            b.op("v_mov_b32", v.p_scale, E8M0_BIAS, role="E8M0 of E = 0")
        else:
            self._exponent()
        if self.p.p_mode == "lean":
            self._lean_codes(is_first)
        else:
            self._exact_codes(is_first)
        if self.p.row_sum == "sparse":
            for i in range(2):
                b.op("v_mov_b32", v.acc_sum[i], 0, role="the next row sum starts at 0")

    def _exponent(self) -> None:
        b, v = self.b, self.v
        exponent, byte = v.t[0], v.t[1]
        b.op("v_sub_f32", exponent, self.block_max, v.reference)
        b.op("v_mul_f32", exponent, v.octaves, exponent)
        b.op("v_ceil_f32", exponent, exponent)
        b.op("v_max_f32", exponent, float_bits(EXPONENT_MIN), exponent, role="E")
        b.op("v_add_f32", byte, float_bits(E8M0_BIAS), exponent)
        b.op("v_cvt_u32_f32", v.p_scale, byte, role="E8M0")

    def _row_offset(self, top: Part) -> Part:
        b, v = self.b, self.v
        offset = v.t[2]
        b.op("v_fma_f32", offset, v.reference, v.minus_code_scale, top)
        b.op("v_fma_f32", offset, abs(offset[0]), v.slack, offset, role="rounded down")
        return offset[0]

    def _lean_codes(self, is_first: bool) -> None:
        b, v = self.b, self.v
        top = v.offset_top
        if not is_first:
            top = v.t[2]
            b.op(
                "v_fma_f32", top, v.t[0], v.minus_eight, v.offset_top, role="126.5 - 8 E, in steps"
            )
        offset = self._row_offset(top[0])
        b.op("v_floor_f32", offset, offset, role="on the grid")
        # the contract adds 128 here: its rounding at huge offsets is taken along
        b.op("v_add_f32", offset, float_bits(128.0 * GRID_STEPS), offset)
        b.op("v_add_f32", offset, float_bits(-128.0 * GRID_STEPS), offset)
        for i in range(v.score_offset.width):
            step = float_bits(2.0 ** -(CODE_SHIFT + OFFSET_GRID))
            b.op("v_mul_f32", v.score_offset[i], step, offset)
        self._multiply_add()
        for dword in range(8):
            a, c, d, e = self.scores[4 * dword : 4 * dword + 4]
            target = v.frag_p[dword]
            role = f"P, keys {32 * (dword // 4) + 8 * (dword % 4)}.."
            if self.p.pack == "op_sel":
                b.op("v_ashr_pk_u8_i32", target, a, c, CODE_FRACTION, role=role)
                b.op("v_ashr_pk_u8_i32", target, d, e, CODE_FRACTION, modifiers="op_sel:[0,0,0,1]")
                continue
            low, high = (v.pairs[2 * (dword % 2) + k] for k in range(2))
            b.op("v_ashr_pk_u8_i32", low, a, c, CODE_FRACTION, role=role)
            b.op("v_ashr_pk_u8_i32", high, d, e, CODE_FRACTION)
            b.op("v_perm_b32", target, high, low, v.byte_select)

    def _multiply_add(self) -> None:
        """Scores times score_scale plus score_offset, in place."""
        b, v = self.b, self.v
        if self.p.multiply_add == "plain":
            for score in self.scores:
                b.op("v_fma_f32", score, score, v.score_scale, v.score_offset)
            return
        for tile in v.acc_s:
            for i in range(0, tile.width, 2):
                pair = tile[i : i + 2]
                b.op("v_pk_fma_f32", pair, pair, v.score_scale, v.score_offset)

    def _exact_codes(self, is_first: bool) -> None:
        b, v = self.b, self.v
        if is_first:
            b.op("v_mov_b32", v.t[2], float_bits(EXACT_OCTAVES), role="8")
        else:
            b.op("v_sub_f32", v.t[2], float_bits(EXACT_OCTAVES), v.t[0], role="8 - E")
        offset = self._row_offset(v.t[2][0])
        for i in range(v.score_offset.width):
            b.op("v_mov_b32", v.score_offset[i], offset)
        self._multiply_add()
        for score in self.scores:
            b.op("v_exp_f32", score, score)
        for dword in range(8):
            a, c, d, e = self.scores[4 * dword : 4 * dword + 4]
            target = v.frag_p[dword]
            b.op("v_cvt_pk_fp8_f32", target, a, c, role=f"P, dword {dword}")
            b.op("v_cvt_pk_fp8_f32", target, d, e, modifiers="op_sel:[0,0,1]")

    def finish(self) -> None:
        """Row maximum in raw scores again."""
        v = self.v
        self.b.op("v_mul_f32", v.row_max, float_bits(2.0**SCORE_SHIFT), v.row_max)
