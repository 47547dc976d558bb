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
_HEADDIMS = (128, 192)
_STAGES = tuple(range(2, 9))
_CLUSTERS = (1, 2)


@dataclass(frozen=True)
class Parameters:
    """One variant of the loop on e4m3.

    headdim: of q and k, 128 or 192. p_mode: "lean" or "exact". stages: places of the rings, 2 to 8.
    ones: where those for the row sum are: "behind" each tile of V^T, so that one product takes both
    (16 cycles a block more), or "apart", in a product of its own (52; bench/wgmma_rates.py).
    referred: whether acc_o comes referred to row_max, or still to be multiplied by alpha. cluster:
    workgroups that share K and V, 1 or 2: places are given back to each.
    """

    headdim: int = 128
    p_mode: Literal["lean", "exact"] = "lean"
    stages: int = 5
    ones: Literal["behind", "apart"] = "behind"
    referred: bool = True
    cluster: int = 1

    def __post_init__(self) -> None:
        _check(
            self,
            headdim=_HEADDIMS,
            p_mode=("lean", "exact"),
            stages=_STAGES,
            ones=("behind", "apart"),
            referred=(True, False),
            cluster=_CLUSTERS,
        )


@dataclass(frozen=True)
class Bfloat16Parameters:
    """One variant of the loop on bfloat16, whose P is the true exponential. See `Parameters`."""

    headdim: int = 128
    stages: int = 2
    referred: bool = True

    def __post_init__(self) -> None:
        _check(self, headdim=_HEADDIMS, stages=_STAGES, referred=(True, False))


def _check(parameters: object, **accepted: tuple[object, ...]) -> None:
    for name, values in accepted.items():
        if getattr(parameters, name) not in values:
            raise ValueError(f"{name}: got {getattr(parameters, name)!r}; accepted: {values}")


@dataclass(frozen=True, kw_only=True)
class Handed:
    """PTX registers and shared addresses that the kernel round either loop hands over.

    Read: first, last (s32): blocks [first, last) are left to do. multiplier (f32): of a raw score.
    Addresses (b32): k_first, k_rest (None for head dim 128), values: rings of tiles, with swizzled
    rows. k_full, v_full, used: rings of barriers.

    Read and written: k_slot, k_phase, v_slot, v_phase (s32): places of the next block of K and of
    the block of V whose P is at hand. p: that P. acc_o (f32, 64), see `referred`; row_max (2, raw
    scores). alpha (2): by which row sums, and acc_o unless it is referred, are still to be
    multiplied; on leaving it is 1.

    The arrival at used[k_slot] of each warp counts once, here and in the other workgroup of a
    cluster.
    """

    first: str
    last: str
    multiplier: str
    k_first: str
    k_rest: str | None
    values: str
    k_full: str
    v_full: str
    used: str
    k_slot: str
    k_phase: str
    v_slot: str
    v_phase: str
    p: Sequence[str]
    acc_o: Sequence[str]
    row_max: Sequence[str]
    alpha: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class Interface(Handed):
    """What the loop on e4m3 is handed.

    multiplier, scale_log2 (f32): codes times 2^-24 (lean) or octaves (exact), and octaves, of a raw
    score. q: A operands of the head dim, 4 registers for each 32 columns. k_first, values: rows of
    128 bytes, k_rest of 64; values holds V^T, with 8 rows of ones behind each tile's 128 unless
    they are apart, at `ones`. p: float16 pairs whose bits are codes (lean, 32), or float32 (exact,
    64). acc_l (4: each row's sum twice).
    """

    scale_log2: str
    q: Sequence[str]
    ones: str | None
    acc_l: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class Bfloat16Interface(Handed):
    """What the loop on bfloat16 is handed.

    multiplier (f32): octaves of a raw score. Tiles of 128 columns are two pieces of 64, one behind
    the other, with rows of 128 bytes. q_first, q_rest (None for head dim 128): addresses of the two
    warpgroups' queries, of which this one is number `warpgroup` (s32). p: bfloat16 pairs (32).
    row_sum (2): each row's, without that of the P at hand, which is in block_sum (2); all lanes of
    a row have the same. On leaving block_sum is 0.
    """

    q_first: str
    q_rest: str | None
    warpgroup: str
    row_sum: Sequence[str]
    block_sum: Sequence[str]
