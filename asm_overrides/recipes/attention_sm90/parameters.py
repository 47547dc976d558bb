"""Decides what can be asked of the Hopper loop, and what it is handed by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

BLOCK_N = 128  # keys of a block
HEADDIM_FIRST = 128  # columns of q and k in the first part; a head dim of 192 has 64 more
HEADDIM_V = 128
ONES_ROWS = 8  # rows of ones behind the rows of V^T: P times them is the row sum
ROWS_A_LANE = 2  # g and g + 8
SCORES = BLOCK_N // 2  # registers of a lane


@dataclass(frozen=True)
class Parameters:
    """One variant of the loop.

    headdim: of q and k, 128 or 192. p_mode: "lean" or "exact". stages: places of the rings, 2 to 8.
    ones: where those for the row sum are: "behind" each tile of V^T, so that one product takes both
    (16 cycles a block more), or "apart", in a product of its own (54; bench/wgmma_rates.py).
    referred: whether acc_o comes referred to row_max, or still to be multiplied by alpha.
    """

    headdim: int = 128
    p_mode: Literal["lean", "exact"] = "lean"
    stages: int = 5
    ones: Literal["behind", "apart"] = "behind"
    referred: bool = True

    def __post_init__(self) -> None:
        for name, accepted in {
            "headdim": (128, 192),
            "p_mode": ("lean", "exact"),
            "stages": tuple(range(2, 9)),
            "ones": ("behind", "apart"),
            "referred": (True, False),
        }.items():
            if getattr(self, name) not in accepted:
                raise ValueError(f"{name}: got {getattr(self, name)!r}; accepted: {accepted}")


@dataclass(frozen=True, kw_only=True)
class Interface:
    """PTX registers and shared addresses that the kernel round the loop hands over.

    Read: first, last (s32): blocks [first, last) are left to do. multiplier, scale_log2 (f32):
    codes times 2^-24 (lean) or octaves (exact), and octaves, of a raw score. q: A operands of the
    head dim, 4 registers for each 32 columns. Addresses (b32): k_first, k_rest (None for head dim
    128), values: rings of tiles, each with its rows of 128 (k_rest: 64) swizzled bytes; values
    holds V^T, with 8 rows of ones behind each tile's 128 unless they are apart, at `ones`. k_full,
    v_full, used: rings of barriers.

    Read and written: k_slot, k_phase, v_slot, v_phase (s32): places of the next block of K and of
    the block of V whose P is at hand. p: that P: float16 pairs whose bits are codes (lean, 32), or
    float32 (exact, 64). acc_o (f32, 64), see `referred`; row_max (2, raw scores); acc_l (4: each
    row's sum twice), not yet multiplied by alpha (2). On leaving alpha is 1.

    The arrival at used[k_slot] of each warp counts once.
    """

    first: str
    last: str
    multiplier: str
    scale_log2: str
    q: Sequence[str]
    k_first: str
    k_rest: str | None
    values: str
    ones: str | None
    k_full: str
    v_full: str
    used: str
    k_slot: str
    k_phase: str
    v_slot: str
    v_phase: str
    p: Sequence[str]
    acc_o: Sequence[str]
    acc_l: Sequence[str]
    row_max: Sequence[str]
    alpha: Sequence[str]
