"""What problems share a configuration: the key under which configurations are stored.

It does not hold configurations. Lengths count by powers of two, so that a hundred lengths are at
most `len(BUCKETS)` keys; whether a tensor is one token longer changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from zyfa_triton.problem import Problem

BUCKETS = tuple(1 << n for n in range(8, 18))  # 256 to 131072 keys; shorter and longer ones join
SHORT_QUERIES = 64  # up to here one tile of queries a head is mostly empty
DTYPE_NAMES = {torch.float8_e4m3fn: "e4m3", torch.bfloat16: "bf16", torch.float16: "fp16"}


@dataclass(frozen=True)
class TuningKey:
    """Problems with equal keys run the same compiled kernel.

    target: name of an `Arch`. dtype: a value of `DTYPE_NAMES`. seqlen_bucket: one of `BUCKETS`, by
    seqlen_k. short_queries: seqlen_q <= SHORT_QUERIES.
    """

    target: str
    dtype: str
    headdim: int
    headdim_v: int
    causal: bool
    p_mode: str
    block_scale: bool
    seqlen_bucket: int
    short_queries: bool


def bucket_of(seqlen: int) -> int:
    """The smallest bucket that holds a length; the largest for what is longer."""
    for bucket in BUCKETS:
        if seqlen <= bucket:
            return bucket
    return BUCKETS[-1]


def key_of(problem: Problem, target: str) -> TuningKey:
    """The key of a problem on a target."""
    return TuningKey(
        target=target,
        dtype=DTYPE_NAMES[problem.dtype],
        headdim=problem.headdim,
        headdim_v=problem.headdim_v,
        causal=problem.causal,
        p_mode=problem.p_mode,
        block_scale=problem.block_scale,
        seqlen_bucket=bucket_of(problem.seqlen_k),
        short_queries=problem.seqlen_q <= SHORT_QUERIES,
    )
