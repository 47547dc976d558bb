"""What problems share a configuration: the key under which configurations are stored.

It does not hold configurations. Lengths count by powers of two, so that a hundred lengths are at
most `len(BUCKETS)` keys; whether a tensor is one token longer changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from zyfa_triton.problem import HEADDIMS, P_MODES, Problem

BUCKETS = tuple(1 << n for n in range(8, 18))  # 256 to 131072 keys; shorter and longer ones join
SHORT_QUERIES = 64  # up to here one tile of queries a head is mostly empty
DTYPE_NAMES = {torch.float8_e4m3fn: "e4m3", torch.bfloat16: "bf16", torch.float16: "fp16"}


@dataclass(frozen=True)
class TuningKey:
    """Problems with equal keys share a configuration: what was measured of one serves the others.

    How many kernels that is compiled into depends on more than the key: on the types of the outputs
    and on what a kernel specialises on, such as few queries or offsets that need 64 bits.

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


ACCEPTED: dict[str, tuple[object, ...]] = {
    "dtype": tuple(DTYPE_NAMES.values()),
    "headdim": tuple(headdim for headdim, _ in HEADDIMS),
    "headdim_v": tuple(dict.fromkeys(headdim_v for _, headdim_v in HEADDIMS)),
    "p_mode": P_MODES,
    "seqlen_bucket": BUCKETS,
}
"""Values of a key's fields, where not every one of the type is one."""
DTYPES = {name: dtype for dtype, name in DTYPE_NAMES.items()}


def problem_of(key: TuningKey) -> Problem:
    """A problem that has the key: of one head, whose output is bfloat16."""
    return Problem(
        dtype=DTYPES[key.dtype],
        headdim=key.headdim,
        headdim_v=key.headdim_v,
        nheads=1,
        nheads_k=1,
        batch=1,
        seqlen_q=1 if key.short_queries else key.seqlen_bucket,
        seqlen_k=key.seqlen_bucket,
        causal=key.causal,
        p_mode=key.p_mode,
        block_scale=key.block_scale,
        out_dtype=torch.bfloat16,
        return_lse=False,
        device="cuda",
    )


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
