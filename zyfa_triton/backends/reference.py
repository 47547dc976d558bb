"""Where a call runs without a device: the contract model, and for 16 bits exact attention.

It holds no numerics of its own for e4m3 (`numerics`); for 16-bit inputs it computes in float32, in
blocks of queries.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from zyfa_triton import numerics
from zyfa_triton.backends import Unavailable
from zyfa_triton.problem import Problem, Rope

_CHUNK_SCORES = 1 << 22  # float32 scores held at once: 16 MiB


def unavailable() -> Unavailable | None:
    """Always None: torch on a CPU is all that this back end needs."""
    return None


def describe() -> str:
    """What it runs on."""
    return f"torch {torch.__version__} on the CPU, {torch.get_num_threads()} threads"


def run(
    problem: Problem,
    kernel: str,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor | None,
    *,
    softmax_scale: float,
    q_descale: torch.Tensor | None,
    k_descale: torch.Tensor | None,
    v_descale: torch.Tensor | None,
    v_mean: torch.Tensor | None = None,
    config: dict[str, Any] | None = None,
    rope: Rope | None = None,
) -> None:
    """Fills out and lse; `kernel` and `config` make no difference to a model.

    Rope parts are put behind q's and k's columns: the contract sums 64-wide slices either way.
    """
    if rope is not None:
        q, k = (torch.cat(parts, 3) for parts in ((q, rope[0]), (k, _of_heads(rope[1], k))))
    if not problem.is_fp8:
        _exact(problem, q, k, v, out, lse, softmax_scale)
        return
    result = numerics.attention(
        q,
        k,
        v,
        softmax_scale=softmax_scale,
        causal=problem.causal,
        options=numerics.ContractOptions(problem.p_mode, problem.block_scale),
        q_descale=q_descale,
        k_descale=k_descale,
        v_descale=v_descale,
        v_mean=v_mean,
    )
    out.copy_(result.out)
    if lse is not None:
        lse.copy_(result.lse)


def _of_heads(k_rope: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """k_rope for every head of k."""
    return k_rope.expand(-1, -1, k.shape[2], -1)


def _exact(
    problem: Problem,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor | None,
    softmax_scale: float,
) -> None:
    """The true softmax in float32, one key head and one block of queries at a time."""
    group = problem.group_size
    rows = max(1, _CHUNK_SCORES // (problem.seqlen_k * group))
    shift = problem.seqlen_k - problem.seqlen_q
    for batch in range(problem.batch):
        for head_k in range(problem.nheads_k):
            heads = slice(head_k * group, (head_k + 1) * group)
            keys = k[batch, :, head_k].float()
            values = v[batch, :, head_k].float()
            for first in range(0, problem.seqlen_q, rows):
                last = min(problem.seqlen_q, first + rows)
                end = min(problem.seqlen_k, max(0, last + shift)) if problem.causal else None
                queries = q[batch, first:last, heads].transpose(0, 1).float()
                block, block_lse = _rows(
                    queries,
                    keys[:end],
                    values[:end],
                    softmax_scale,
                    first + shift if problem.causal else None,
                )
                out[batch, first:last, heads] = block.transpose(0, 1).to(out.dtype)
                if lse is not None:
                    lse[batch, heads, first:last] = block_lse


def _rows(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    softmax_scale: float,
    last_key: int | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(heads, rows, headdim) against keys; last_key: the last one that row 0 sees, if causal."""
    if k.shape[0] == 0:
        return q.new_zeros(*q.shape[:2], v.shape[1]), q.new_full(q.shape[:2], -math.inf)
    scores = (q @ k.T).mul_(softmax_scale)
    if last_key is not None:
        sees_to = torch.arange(q.shape[1])[:, None] + last_key
        scores.masked_fill_(torch.arange(k.shape[0]) > sees_to, -math.inf)
    row_max = scores.amax(-1, keepdim=True)
    has_keys = row_max != -math.inf
    p = scores.sub_(torch.where(has_keys, row_max, 0.0)).exp_()
    total = p.sum(-1, keepdim=True)
    block_lse = torch.where(has_keys, row_max + total.log(), -math.inf).squeeze(-1)
    return torch.where(has_keys, (p @ v) / total, 0.0), block_lse
