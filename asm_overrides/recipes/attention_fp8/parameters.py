"""Decides what can be asked of the FP8 attention loop, and where its inputs and outputs stand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

TILE_M_WAVE = 32  # queries a wave
TILE_N = 64  # keys a block: one power of two of P
WAVES = 8
HEADDIM_V = 128
HEADDIM_FIRST = 128  # columns of q and k in the first part; the others are the rope part
LDS_LIMIT = 160 * 1024


@dataclass(frozen=True)
class Parameters:
    """One variant of the loop.

    Attributes:
        headdim: of q and k, 128 or 192; v has 128. Columns from 128 on, the rope part, come through
            pointers and strides of their own.
        causal: whether query i sees keys up to i + seqlen_k - seqlen_q only.
        p_mode: "lean" (codes by one multiply-add) or "exact" (true exponential).
        pack: how Lean codes are put together: "perm" trusts only the low half of what
            v_ashr_pk_u8_i32 writes; "op_sel" trusts that it leaves the other half alone
            (docs/hardware-assumptions.md).
        multiply_add: "plain" (v_fma_f32, which runs beside a matrix instruction) or "packed"
            (v_pk_fma_f32: half the cycles, but none of them beside a matrix instruction).
        row_sum: "sparse" (v_smfmac on ones, 16 cycles a block) or "dense" (scaled v_mfma on ones,
            64 cycles a block).
        slots: tiles in the K and in the V ring; a power of two, at least 4.
    """

    headdim: int = 128
    causal: bool = True
    p_mode: Literal["lean", "exact"] = "lean"
    pack: Literal["perm", "op_sel"] = "perm"
    multiply_add: Literal["plain", "packed"] = "plain"
    row_sum: Literal["sparse", "dense"] = "sparse"
    slots: int = 4

    def __post_init__(self) -> None:
        for name, accepted in {
            "headdim": (128, 192),
            "causal": (True, False),
            "p_mode": ("lean", "exact"),
            "pack": ("perm", "op_sel"),
            "multiply_add": ("plain", "packed"),
            "row_sum": ("sparse", "dense"),
            "slots": (4,),
        }.items():
            if getattr(self, name) not in accepted:
                raise ValueError(f"{name}: got {getattr(self, name)!r}; accepted: {accepted}")

    @property
    def slices(self) -> int:
        """64-wide slices of the head dim, each one matrix instruction deep."""
        return self.headdim // 64

    @property
    def has_rope(self) -> bool:
        """Whether q and k have a second part."""
        return self.headdim > HEADDIM_FIRST

    @property
    def name(self) -> str:
        """Name that tells variants apart."""
        mask = "causal" if self.causal else "full"
        settings = f"{self.pack}_{self.multiply_add}_{self.row_sum}"
        return f"attention_fp8_d{self.headdim}_{mask}_{self.p_mode}_{settings}"


@dataclass(frozen=True)
class Interface:
    """Registers that the surrounding kernel fixes; see docs/hand-scheduling.md.

    Scalars: q_ptr (first row of the workgroup's tile), k_ptr, v_ptr (first key), strides in bytes
    between rows, full_end and end (keys [0, full_end) need no mask, a multiple of 64; nothing is
    seen from end on), scale_log2 (octaves per raw score), row_first (of the tile), seqlen_q,
    seqlen_k; for head dim 192 also q_rope_ptr, k_rope_ptr and their strides. Vectors: thread id,
    accumulator (64), row maximum, row sum.
    """

    q_ptr: int = 20
    k_ptr: int = 22
    v_ptr: int = 24
    stride_q: int = 26
    stride_k: int = 27
    stride_v: int = 28
    full_end: int = 29
    end: int = 30
    scale_log2: int = 31
    row_first: int = 32
    seqlen_q: int = 33
    seqlen_k: int = 34
    stride_q_rope: int = 35
    q_rope_ptr: int = 36
    k_rope_ptr: int = 38
    stride_k_rope: int = 40
    thread: int = 0
    acc_o: int = 64
    row_max: int = 128
    row_sum: int = 129
