"""Decides how the stages of the FP8 attention loop follow one another.

A wave alternates between a matrix stage (scores of block n + 1, output and row sum of block n) and
a vector stage (P of block n + 1). Waves 4 to 7 enter one stage late, so that of the two waves on a
SIMD one is always in its matrix stage; every stage ends at a barrier. While blocks n and n + 1 are
worked on, tiles up to n + slots are on their way.

When a ring slot may be refilled, and which tiles must have landed at which barrier, follows from
counting barriers: K of block j is read in the vector stage of block j - 1, V of block j in the
matrix stage after its P was made, the late waves one barrier later.

K's rope part (head dim 192) comes two tiles at a time, because 64 rows of 64 bytes are half a load
a wave. Both slots of a pair are free one stage later than K's own: the pair of blocks n + 4 and
n + 5, n even, is asked for in the vector stage of block n and there two stages later.
"""

from __future__ import annotations

from asm_overrides.program import M0, Builder, LoopProgram
from asm_overrides.recipes.attention_fp8.parameters import WAVES, Interface, Parameters
from asm_overrides.recipes.attention_fp8.softmax import Softmax
from asm_overrides.recipes.attention_fp8.tiles import WAVE_BYTES, Tiles
from asm_overrides.recipes.attention_fp8.values import (
    D_TILES,
    INPUTS,
    KEY_TILES,
    OUTPUTS,
    ROPE_INPUTS,
    Values,
)

_ONE = 0x38383838  # four e4m3 ones
_PRIO_MATRIX, _PRIO_VECTOR = 1, 0
_SCALED = "v_mfma_scale_f32_32x32x64_f8f6f4"
_SPARSE = "v_smfmac_f32_16x16x128_fp8_fp8"


def build(parameters: Parameters, interface: Interface | None = None) -> LoopProgram:
    """The loop as a symbolic program.

    Args:
        parameters: the variant. interface: registers that the kernel around it fixes.
    """
    b = Builder(parameters.name)
    v = Values(b, parameters, interface or Interface())
    loop = _Loop(b, parameters, v)
    loop.emit()
    inputs = (*INPUTS, *ROPE_INPUTS) if parameters.has_rope else INPUTS
    return b.finish(live_in=inputs, live_out=OUTPUTS)


class _Loop:
    def __init__(self, b: Builder, p: Parameters, v: Values) -> None:
        self.b, self.p, self.v = b, p, v
        self.tiles = Tiles(b, p, v)
        self.softmax = Softmax(b, p, v)
        self.done = b.new_label("done")
        self.exits = [b.new_label(f"exit{slot}") for slot in range(p.slots)]

    def emit(self) -> None:
        self._prologue()
        self._stagger()
        loop = self.b.new_label("loop")
        with self.b.stage("loop", "fixed"):
            self.b.label(loop)
        for slot in range(self.p.slots):
            self._block(slot)
        with self.b.stage("back edge", "fixed"):
            self.b.op("s_branch", loop)
        for slot in range(self.p.slots):
            self._exit(slot)
        self._finish()

    def _prologue(self) -> None:
        b, v, p = self.b, self.v, self.p
        with b.stage("setup", "fixed"):
            b.op("s_mov_b32", v.m0_saved, M0)
            b.op("v_lshrrev_b32", v.t[0], 6, v.thread)
            b.op("v_readfirstlane_b32", v.wave, v.t[0], role="wave")
            self.softmax.constants()
            self._sum_operands()
            b.op("s_cmp_lt_i32", v.end, 1, role="no key is seen: nothing to do")
            b.op("s_cbranch_scc1", self.done)
            self.tiles.descriptors()
            self.tiles.lane_addresses()
            self.tiles.load_queries()
            for slot in range(p.slots):
                self.tiles.fetch_k(slot)
                if p.has_rope and slot % 2 == 0:
                    self.tiles.fetch_k_rope(slot // 2)
                if slot < p.slots - 1:
                    self.tiles.fetch_v(slot)
            self.softmax.last_keys()
            b.op("s_mov_b32", v.start_n, 0)
            b.publish(k=p.slots - 1, **self._rope_but(1))
            b.op("s_barrier")
        with b.stage("first scores", "fixed"):
            self.tiles.read_k(0)
            self._scores()
            b.publish(k=p.slots - 2, **self._rope_but(1))
            b.op("s_barrier", role="the second K tile is there")
        self._vector(next_k_slot=1, is_first=True)
        with b.stage("first P is made", "fixed"):
            # for the next barrier of either half: no wave need wait for another here
            b.publish(k=p.slots - 3, v=p.slots - 2, **self._rope_but(0))

    def _rope_but(self, pairs: int) -> dict[str, int]:
        """Of K's rope part, all but the latest `pairs` pairs of tiles, for `publish`."""
        return {"k_rope": pairs} if self.p.has_rope else {}

    def _sum_operands(self) -> None:
        """Ones for the row sum; for the sparse instruction also which of each four keys they meet.

        v_smfmac_f32_16x16x128 takes P's registers as a (128, 16) operand: lanes l and l + 16 give
        the same column, with other keys, though they hold other queries. Rows 0 of A (mod 4) meet
        the keys of lanes below 16 (mod 32), rows 1 those of the others, so D0 + D1 of lane l is the
        sum for query l % 32 (2-gfx950 layout, checked by the emulator). Rows 2 and 3 stay zero.
        """
        b, v = self.b, self.v
        if self.p.row_sum == "dense":
            for i in range(v.sum_ones.width):
                b.op("v_mov_b32", v.sum_ones[i], _ONE)
            return
        lane, index, mask = v.t[0], v.t[1], v.mask_pairs[0]
        b.op("v_and_b32", lane, 3, v.thread)
        b.op("v_mov_b32", index, 0xEEEEEEEE - 2**32)
        b.op("v_cmp_eq_u32", mask, 1, lane)
        b.op("v_mov_b32", v.sum_index, 0x44444444)
        b.op("v_cndmask_b32", v.sum_index, v.sum_index, index, mask, role="which keys")
        b.op("v_bfe_u32", index, v.thread, 2, 1)
        b.op("v_mov_b32", v.t[2], _ONE)
        b.op("v_cmp_gt_u32", mask, 2, lane)
        b.op("v_cndmask_b32", v.t[2], 0, v.t[2], mask, role="rows 0 and 1")
        for half in range(2):
            # ones in registers 0-1 of lanes with l & 4 = 0, in 2-3 of the others
            b.op("v_cmp_eq_u32", mask, half, index)
            for i in range(2):
                b.op("v_cndmask_b32", v.sum_ones[2 * half + i], 0, v.t[2], mask)

    def _stagger(self) -> None:
        """Waves 4 to 7, the second of each SIMD, wait for one more barrier."""
        b, v = self.b, self.v
        early = b.new_label("early")
        with b.stage("stagger", "fixed"):
            b.op("s_cmp_lt_u32", v.fetch_base, WAVES // 2 * WAVE_BYTES)
            b.op("s_cbranch_scc1", early)
            b.op("s_barrier", role="late waves")
            b.label(early)

    def _block(self, slot: int) -> None:
        """Matrix stage of block n (in this slot), vector stage of block n + 1."""
        b, v, p = self.b, self.v, self.p
        with b.stage(f"enough {slot}", "fixed"):
            b.op("s_cmp_ge_i32", v.start_n, v.end, role="no further block")
            b.op("s_cbranch_scc1", self.exits[slot])
            b.op("s_setprio", _PRIO_MATRIX)
        with b.stage(f"matrix {slot}", "matrix"):
            self._scores()
            self.tiles.read_v(slot)
            self._output()
            self.tiles.fetch_v((slot + p.slots - 1) % p.slots)
            self.tiles.fetch_k(slot)
        with b.stage(f"matrix done {slot}", "fixed"):
            b.op("s_setprio", _PRIO_VECTOR)
            # the tile that is read next: of an odd block it is in the pair before the latest
            b.publish(k=p.slots - 2, v=p.slots - 2, **self._rope_but(slot % 2))
            b.op("s_barrier")
        pair = slot // 2 if p.has_rope and slot % 2 == 0 else None
        self._vector(next_k_slot=(slot + 2) % p.slots, rope_pair=pair)
        with b.stage(f"vector done {slot}", "fixed"):
            b.publish(k=p.slots - 3, v=p.slots - 2, **self._rope_but(1 - slot % 2))
            b.op("s_barrier")

    def _vector(
        self, next_k_slot: int, rope_pair: int | None = None, is_first: bool = False
    ) -> None:
        """P of the block at start_n; K operands of the block after it.

        rope_pair: the pair of K's rope part to be filled again, if it is time for one.
        """
        b, v = self.b, self.v
        unmasked = b.new_label("unmasked")
        with b.stage("mask?", "fixed"):
            b.op("s_cmp_lt_i32", v.start_n, v.full_end)
            b.op("s_cbranch_scc1", unmasked)
        with b.stage("mask", "vector"):
            self.softmax.mask()
        with b.stage("unmasked", "fixed"):
            b.label(unmasked)
        with b.stage("row maximum", "vector"):
            if not is_first:
                self.softmax.finish_sum()
            self.softmax.row_maximum(is_first)
        if is_first:
            with b.stage("first reference", "vector"):
                self.softmax.first_reference()
        else:
            self._rescale()
        with b.stage("codes", "vector"):
            # here, not earlier: the other wave reads V in the first half of its matrix stage
            self.tiles.read_k(next_k_slot)
            if rope_pair is not None:
                self.tiles.fetch_k_rope(rope_pair)
            self.softmax.codes(is_first)
            b.op("s_add_u32", v.start_n, v.start_n, 64, role="next block")

    def _rescale(self) -> None:
        b = self.b
        keeps = b.new_label("keeps")
        with b.stage("rescale?", "fixed"):
            b.op("s_cbranch_vccz", keeps, role="no row's maximum grew")
        with b.stage("rescale", "vector"):
            self.softmax.rescale()
        with b.stage("keeps", "fixed"):
            b.label(keeps)

    def _scores(self) -> None:
        """S^T = K Q^T, 32 keys x 32 queries an instruction; held times 2^-40."""
        b, v = self.b, self.v
        for s in range(self.p.slices):
            for t in range(KEY_TILES):
                addend = v.acc_s[t] if s else 0
                b.op(
                    _SCALED,
                    v.acc_s[t],
                    v.frag_k[t][s],
                    v.frag_q[s],
                    addend,
                    v.s_scale,
                    v.one_scale,
                    modifiers="op_sel_hi:[0,0,0]",
                    role=f"S, keys {32 * t}.., slice {s}",
                )

    def _output(self) -> None:
        """O^T += V^T P^T, P's power of two removed by the instruction; and the row sum."""
        b, v = self.b, self.v
        for d in range(D_TILES):
            acc = v.acc_o[16 * d : 16 * d + 16]
            b.op(
                _SCALED,
                acc,
                v.frag_v[d],
                v.frag_p,
                acc,
                v.one_scale,
                v.p_scale,
                modifiers="op_sel_hi:[0,0,0]",
                role=f"O, columns {32 * d}..",
            )
        if self.p.row_sum == "sparse":
            b.op(_SPARSE, v.acc_sum, v.sum_ones, v.frag_p, v.sum_index, role="row sum")
        else:
            b.op(
                _SCALED,
                v.acc_sum,
                v.sum_ones,
                v.frag_p,
                0,
                v.one_scale,
                v.p_scale,
                modifiers="op_sel_hi:[0,0,0]",
                role="row sum",
            )

    def _exit(self, slot: int) -> None:
        """Output of the last block, whose V stands in this slot."""
        b = self.b
        with b.stage(f"exit {slot}", "fixed"):
            b.label(self.exits[slot])
        with b.stage(f"last output {slot}", "matrix"):
            self.tiles.read_v(slot)
            self._output()
        with b.stage(f"leave {slot}", "fixed"):
            self.softmax.finish_sum()
            if slot < self.p.slots - 1:
                b.op("s_branch", f"{self.exits[-1]}_join")
            else:
                b.label(f"{self.exits[-1]}_join")

    def _finish(self) -> None:
        b, v = self.b, self.v
        late = b.new_label("late")
        with b.stage("finish", "fixed"):
            b.op("s_cmp_ge_u32", v.fetch_base, WAVES // 2 * WAVE_BYTES)
            b.op("s_cbranch_scc1", late)
            b.op("s_barrier", role="early waves")
            b.label(late)
            self.softmax.finish()
            b.label(self.done)
            b.op("s_mov_b32", M0, v.m0_saved)
