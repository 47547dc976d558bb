"""Decides which values the loop keeps, by name; does not place or compute them."""

from __future__ import annotations

from asm_overrides.program import Builder, Value
from asm_overrides.recipes.attention_fp8.parameters import (
    HEADDIM_V,
    TILE_N,
    WAVES,
    Interface,
    Parameters,
)

D_TILES = HEADDIM_V // 32
KEY_TILES = TILE_N // 32


class Values:
    """Every named register of the loop; attributes carry the names."""

    def __init__(self, b: Builder, p: Parameters, at: Interface) -> None:
        self._inputs(b, p, at)
        # row state: one query a lane, both lane halves alike
        self.acc_o = b.vector("acc_o", 16 * D_TILES, fixed=at.acc_o)
        self.row_max = b.vector("row_max", fixed=at.row_max)
        self.row_sum = b.vector("row_sum", fixed=at.row_sum)
        self.reference = b.vector("reference")
        # matrix operands
        self.frag_q = [b.vector(f"frag_q{s}", 8, align=2) for s in range(p.slices)]
        self.frag_k = [
            [b.vector(f"frag_k{t}{s}", 8, align=2) for s in range(p.slices)]
            for t in range(KEY_TILES)
        ]
        self.frag_v = [b.vector(f"frag_v{d}", 8, align=2) for d in range(D_TILES)]
        self.acc_s = [b.vector(f"acc_s{t}", 16, align=2) for t in range(KEY_TILES)]
        self.frag_p = b.vector("frag_p", 8, align=2)
        self.p_scale = b.vector("p_scale")
        self.one_scale = b.vector("one_scale")
        self.s_scale = b.vector("s_scale")
        if p.row_sum == "sparse":
            self.sum_ones = b.vector("sum_ones", 4, align=2)
            self.sum_index = b.vector("sum_index")
            self.acc_sum = b.vector("acc_sum", 4, align=2)
        else:
            self.sum_ones = b.vector("sum_ones", 8, align=2)
            self.acc_sum = b.vector("acc_sum", 16, align=2)
        # addresses
        self.k_lane = [b.vector(f"k_lane{c}") for c in range(2 * p.slices)]
        self.v_lane = [b.vector(f"v_lane{d}") for d in range(D_TILES)]
        self.k_fetch = b.vector("k_fetch")
        self.v_fetch = b.vector("v_fetch")
        if p.has_rope:
            self.k_rope_fetch = b.vector("k_rope_fetch")
        self.last_key = b.vector("last_key")  # last key that this lane's query sees, minus 4 * half
        # scratch
        self.t = [b.vector(f"t{i}") for i in range(6)]
        lanes = 2 if p.multiply_add == "packed" else 1  # elements that one multiply-add takes
        self.score_offset = b.vector("score_offset", lanes, align=lanes)
        self.pairs = [b.vector(f"pair{i}") for i in range(4)]
        self.offset_top = b.vector("offset_top")
        self._scalars(b, p, lanes)

    def _inputs(self, b: Builder, p: Parameters, at: Interface) -> None:
        def scalar(name: str, width: int = 1) -> Value:
            return b.scalar(name, width, fixed=getattr(at, name), read_only=True)

        self.q_ptr, self.k_ptr, self.v_ptr = (scalar(f"{n}_ptr", 2) for n in "qkv")
        self.stride_q, self.stride_k, self.stride_v = (scalar(f"stride_{n}") for n in "qkv")
        self.full_end, self.end = scalar("full_end"), scalar("end")
        self.scale_log2, self.row_first = scalar("scale_log2"), scalar("row_first")
        self.seqlen_q, self.seqlen_k = scalar("seqlen_q"), scalar("seqlen_k")
        if p.has_rope:
            self.q_rope_ptr, self.k_rope_ptr = (scalar(f"{n}_rope_ptr", 2) for n in "qk")
            self.stride_q_rope, self.stride_k_rope = (scalar(f"stride_{n}_rope") for n in "qk")
        self.thread = b.vector("thread", fixed=at.thread, read_only=True)

    def _scalars(self, b: Builder, p: Parameters, lanes: int) -> None:
        self.q_desc, self.k_desc, self.v_desc = (b.scalar(f"{n}_desc", 4) for n in "qkv")
        self.k_step, self.v_step = b.scalar("k_step"), b.scalar("v_step")
        if p.has_rope:
            self.k_rope_desc = b.scalar("k_rope_desc", 4)
            self.k_rope_step = b.scalar("k_rope_step")
        self.wave = b.scalar("wave")
        self.fetch_base = b.scalar("fetch_base")  # this wave's first byte within a tile
        self.start_n = b.scalar("start_n")  # first key of the block whose P is made next
        self.octaves = b.scalar("octaves")  # octaves per score as the matrix instruction leaves it
        self.score_scale = b.scalar("score_scale", lanes)  # what a score is multiplied with
        self.minus_code_scale = b.scalar("minus_code_scale")
        self.slack = b.scalar("slack")
        self.minus_eight = b.scalar("minus_eight")
        self.byte_select = b.scalar("byte_select")
        self.m0_saved = b.scalar("m0_saved")
        self.s = [b.scalar(f"s{i}") for i in range(3)]
        self.mask_pairs = [b.scalar(f"mask{i}", 2) for i in range(3)]


INPUTS = (
    *("q_ptr", "k_ptr", "v_ptr", "stride_q", "stride_k", "stride_v", "full_end", "end"),
    *("scale_log2", "row_first", "seqlen_q", "seqlen_k", "thread"),
)
ROPE_INPUTS = ("q_rope_ptr", "k_rope_ptr", "stride_q_rope", "stride_k_rope")
OUTPUTS = ("acc_o", "row_max", "row_sum")
assert WAVES == 8
