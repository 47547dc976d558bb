"""Whether a result is right: the error budget of `zyfa_triton.testing` on rows of the real problem.

It does not run a path. The budget is that of the tests: err(out) <= 2 err(low) + 2 eps |ref|, for
the largest error and the root mean square, with ref in float64 on the inputs that the path saw.
Two things are for large problems and for others' kernels:

- Rows. Where all rows would be more than MAX_SCORES scores, evenly spread ones are looked at, in
  every head and batch entry, besides the first and the last and those next to multiples of 128.
  Each row is divided by the root mean square of its reference before the budget is applied: late
  rows average over many keys and are small, and must not hide behind early ones.
- low. For 16-bit inputs P is rounded to that type. For e4m3 inputs P is 2^8 times the true
  exponential, rounded to e4m3, with row sums taken before rounding: the scheme of
  FlashAttention-3 and others. One budget holds for all paths, ours with Lean probabilities too.

Hopper accumulates e4m3 products with few bits, truncated; over many thousand keys that is more than
P's rounding, in every kernel that leaves the sum to the matrix instruction. What it loses is
computed from the partial sums of these inputs (`testing.EPS_ACCUMULATION`) and allowed there.

A wrong constant factor can hide in the noise of FP8, so the part of the result that lies along the
reference is held to `testing.GAIN` besides. An output that is itself e4m3 (cuDNN's on Hopper) is
allowed the unit roundoff of e4m3, no more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch

from zyfa_triton.arch import arch_of
from zyfa_triton.benchmark.inputs import Problem
from zyfa_triton.benchmark.shapes import Shape
from zyfa_triton.measure import relative_error
from zyfa_triton.problem import FP8
from zyfa_triton.testing import ACCUMULATED_KEYS, EPS_ACCUMULATION, check_gain, check_output

MAX_SCORES = 1 << 32
P_SCALE = 256.0
_CHUNK_SCORES = 1 << 26  # half a GiB of float64; partial sums take four times as much
_TILE = 128


@dataclass(frozen=True)
class Output:
    """What a path returned: (batch, seqlen, nheads, headdim_v), to be multiplied with descale."""

    out: torch.Tensor
    descale: float = 1.0


@dataclass(frozen=True)
class Verdict:
    """Errors of a result, and what is wrong with it; empty where nothing is.

    rel_err: Frobenius norm of the difference from fp64 over that of fp64, over the rows looked at.
    """

    rel_err: float
    complaint: str = ""


class References(NamedTuple):
    """What a result is judged by, float64 (batch, rows, nheads, headdim_v) each.

    lost: size of what truncated accumulation loses on average; None where sums are not truncated.
    """

    ref: torch.Tensor
    low: torch.Tensor
    lost: torch.Tensor | None


class Gate:
    """References of one problem for the paths of one dtype; computed when first needed."""

    def __init__(self, problem: Problem, dtype: str) -> None:
        self.problem = problem
        self.dtype = dtype
        self.rows = sampled_rows(problem.shape).to(problem.device)
        self.truncates = dtype == "fp8" and truncates_sums(problem.device)

    @cached_property
    def _references(self) -> References:
        seen = self.problem.sets[0].seen(self.dtype)
        return reference_rows(
            **seen,
            rows=self.rows,
            softmax_scale=self.problem.softmax_scale,
            causal=self.problem.shape.causal,
            truncates=self.truncates,
        )

    @property
    def model_error(self) -> float:
        """Relative error of `low`, the plain scheme that the budget allows twice of."""
        return relative_error(self._references.low, self._references.ref)

    def judge(self, output: Output) -> Verdict:
        """Holds a result to the budget."""
        out, shape = output.out, self.problem.shape
        wanted = (shape.batch, shape.seqlen, shape.nheads, shape.headdim_v)
        if tuple(out.shape) != wanted:
            return Verdict(math.inf, f"shape {tuple(out.shape)}, not {wanted}")
        ref, low, lost = self._references
        sampled = out[:, self.rows]
        values = sampled.double() * output.descale
        norms = ref.square().mean(-1, keepdim=True).sqrt()
        norms = torch.where(norms == 0, 1.0, norms)
        complaint = ""
        try:
            check_output(
                values / norms,
                ref / norms,
                low / norms,
                is_fp8=self.dtype == "fp8",
                out_dtype=out.dtype,
                accumulation=None if lost is None else lost / norms,
            )
            check_gain(
                values / norms, ref / norms, accumulation=None if lost is None else lost / norms
            )
        except AssertionError as error:
            complaint = str(error)
        return Verdict(relative_error(values, ref), complaint)


def truncates_sums(device: torch.device) -> bool:
    """Whether the card sums e4m3 products with few bits: Hopper does."""
    return device.type == "cuda" and arch_of(device.index or 0).name == "sm90"


def sampled_rows(shape: Shape) -> torch.Tensor:
    """Indices of the query rows that are looked at, ascending."""
    per_row = shape.seqlen * shape.nheads * shape.batch
    count = max(2 * _TILE, MAX_SCORES // per_row)
    if count >= shape.seqlen:
        return torch.arange(shape.seqlen)
    spread = torch.linspace(0, shape.seqlen - 1, count, dtype=torch.float64).round().long()
    middle = shape.seqlen // 2 // _TILE * _TILE
    edges = torch.tensor([1, _TILE - 1, _TILE, _TILE + 1, middle - 1, middle, middle + 1])
    rows: torch.Tensor = torch.unique(torch.cat([spread, edges]))
    return rows


def reference_rows(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    rows: torch.Tensor,
    softmax_scale: float,
    causal: bool,
    q_descale: torch.Tensor | None = None,
    k_descale: torch.Tensor | None = None,
    v_descale: torch.Tensor | None = None,
    truncates: bool = False,
) -> References:
    """What query rows, in ascending order, are judged by. truncates: with `lost`.

    The tensors are (batch, seqlen, heads, headdim) with as many queries as keys, descales (batch,
    nheads_k).
    """
    batch, seqlen, nheads, _ = q.shape
    nheads_k = k.shape[2]
    group = nheads // nheads_k
    ref = torch.empty(batch, len(rows), nheads, v.shape[3], dtype=torch.float64, device=q.device)
    low = torch.empty_like(ref)
    lost = torch.empty_like(ref) if truncates else None
    ones = torch.ones(batch, nheads_k, dtype=torch.float64, device=q.device)
    q_scale, k_scale, values_scale = (
        ones if one is None else one.double() for one in (q_descale, k_descale, v_descale)
    )
    scores_scale = q_scale * k_scale * softmax_scale
    step = max(1, _CHUNK_SCORES // (seqlen * group))
    for b in range(batch):
        for head in range(nheads_k):
            heads = slice(head * group, (head + 1) * group)
            keys = k[b, :, head].double() * scores_scale[b, head]
            values = v[b, :, head].double() * values_scale[b, head]
            for first in range(0, len(rows), step):
                part = slice(first, first + step)
                chosen = rows[part]
                last = int(chosen[-1]) + 1 if causal else seqlen
                queries = q[b, chosen][:, heads].transpose(0, 1).double()
                scores = queries @ keys[:last].T
                if causal:
                    hidden = torch.arange(last, device=q.device) > chosen[:, None]
                    scores.masked_fill_(hidden, -math.inf)
                p = scores.sub_(scores.amax(-1, keepdim=True)).exp_()
                p /= p.sum(-1, keepdim=True)
                ref[b, part, heads] = (p @ values[:last]).transpose(0, 1)
                if lost is not None:
                    lost[b, part, heads] = lost_in_sums(p, values[:last]).transpose(0, 1)
                low[b, part, heads] = (rounded(p, q.dtype) @ values[:last]).transpose(0, 1)
    return References(ref, low, lost)


def rounded(p: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Probabilities (..., keys) as the plain scheme rounds them: relative to the row's largest.

    Overwrites p.
    """
    largest = p.amax(-1, keepdim=True)
    scale = P_SCALE if dtype == FP8 else 1.0
    return p.mul_(scale / largest).float().to(dtype).double().mul_(largest / scale)


def lost_in_sums(p: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """EPS_ACCUMULATION of every partial sum of p @ values, added up: (..., headdim_v).

    p: (..., keys). values: (keys, headdim_v). Partial sums are those after each ACCUMULATED_KEYS.
    """
    padding = -p.shape[-1] % ACCUMULATED_KEYS
    p = torch.nn.functional.pad(p, (0, padding))
    values = torch.nn.functional.pad(values, (0, 0, 0, padding))
    steps = values.view(-1, ACCUMULATED_KEYS, values.shape[-1])
    weights = p.reshape(-1, len(steps), ACCUMULATED_KEYS).transpose(0, 1)
    added = weights @ steps  # (steps, rows, headdim_v)
    larger = added.cumsum(0).abs_()
    larger = torch.maximum(larger, added.abs_(), out=larger)
    return (larger.sum(0) * EPS_ACCUMULATION).view(*p.shape[:-1], -1)
