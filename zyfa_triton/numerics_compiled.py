"""The numerics contract of causal self-attention, compiled with torch.compile: its bits, sooner.

For measurements that need the contract on whole models. `numerics` is the contract; this file
repeats its steps in a form that is compiled into two loops a block, and a test holds every bit of
both to each other. Left out is what `numerics` does about sums that lie halfway between two float32
numbers, which happens once in about 2^29 values. It needs a C++ compiler.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

import torch

from zyfa_triton import numerics
from zyfa_triton.numerics import ContractOptions

ROWS = 256  # queries of each head that are computed together

Step = Callable[..., tuple[torch.Tensor, torch.Tensor]]


def causal_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    softmax_scale: float,
    options: ContractOptions,
    q_descale: torch.Tensor,
    k_descale: torch.Tensor,
    v_descale: torch.Tensor,
    v_mean: torch.Tensor | None = None,
) -> torch.Tensor:
    """What `numerics.attention(causal=True)` returns as `out`, float32, bit for bit.

    Args:
        q, k, v: e4m3 on the CPU, (batch, seqlen, heads, headdim); one seqlen, a multiple of ROWS.
            headdim of q and k is a multiple of 64.
        q_descale, k_descale, v_descale: float32 (batch, nheads_k). v_mean: float32 (batch,
            nheads_k, headdim) or None.
    Raises:
        ValueError: a seqlen, or options beside p_mode, block_scale and row_sum, that are not done
            here.
    """
    batch, seqlen, nheads, _ = q.shape
    nheads_k, headdim_v = k.shape[2], v.shape[3]
    if seqlen % ROWS or k.shape[1] != seqlen:
        raise ValueError(
            f"seqlen: got {seqlen} of q and {k.shape[1]} of k; accepted: equal multiples of {ROWS}"
        )
    done_here = ContractOptions(
        options.p_mode, block_scale=options.block_scale, row_sum=options.row_sum
    )
    if options != done_here:
        raise ValueError(f"options: got {options}; accepted: any p_mode, block_scale and row_sum")
    group = nheads // nheads_k
    scale = torch.tensor(numerics.code_scale_log2(softmax_scale)) * q_descale * k_descale
    out = torch.empty(batch, seqlen, nheads, headdim_v)
    step = _compiled_step(options)
    ones = torch.ones(seqlen, 1, dtype=torch.float64)
    for b in range(batch):
        for h in range(nheads_k):
            heads = slice(h * group, (h + 1) * group)
            keys = _slices(k[b, :, h].double())
            values = torch.cat([v[b, :, h].double(), ones], 1)  # the last column sums P
            for first in range(0, seqlen, ROWS):
                rows = slice(first, first + ROWS)
                queries = _slices(q[b, rows, heads].double().flatten(0, 1))
                o = _chunk(step, queries, keys, values, scale[b, h], first, group)
                o, factor = o[:, :-1], (1.0 / o[:, -1:]) * v_descale[b, h]
                o = o * factor if v_mean is None else _fma(o, factor, v_mean[b, h].expand_as(o))
                out[b, rows, heads] = o.view(ROWS, group, headdim_v)
    return out


def _slices(x: torch.Tensor) -> list[torch.Tensor]:
    return [part.contiguous() for part in torch.split(x, numerics.SLICE, -1)]


def _chunk(
    step: Step,
    queries: list[torch.Tensor],
    keys: list[torch.Tensor],
    values: torch.Tensor,
    scale_log2: torch.Tensor,
    first: int,
    group: int,
) -> torch.Tensor:
    """O and, in the last column, L of ROWS * group rows, of which row r is query first + r //
    group."""
    rows = ROWS * group
    last_key = torch.arange(first, first + ROWS).repeat_interleave(group)[:, None]
    m, o = torch.full((rows, 1), -math.inf), torch.zeros(rows, values.shape[1])
    for start in range(0, first + ROWS, numerics.TILE_N):
        block = slice(start, start + numerics.TILE_N)
        visible = last_key - start
        m, o = step(
            queries, [part[block] for part in keys], values[block], visible, m, o, scale_log2
        )
    return o


@functools.cache
def _compiled_step(options: ContractOptions) -> Step:
    """One block of 64 keys: m (rows, 1) and o (rows, headdim_v + 1) after it."""
    lean, unscaled = options.p_mode == "lean", options.p_mode == "unscaled"
    octaves = numerics.EXACT_OCTAVES if options.p_mode == "exact" else 0.0
    sums_unrounded = unscaled or options.row_sum == "unrounded"

    def step(
        queries: Sequence[torch.Tensor],
        keys: Sequence[torch.Tensor],
        values: torch.Tensor,
        visible: torch.Tensor,
        m: torch.Tensor,
        o: torch.Tensor,
        c: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        scores = (queries[0] @ keys[0].T).float()
        for q, k in zip(queries[1:], keys[1:], strict=True):
            scores = (scores.double() + q @ k.T).float()
        scores = torch.where(torch.arange(numerics.TILE_N) <= visible, scores, -math.inf)
        block_max = scores.amax(-1, keepdim=True)
        m_new = torch.maximum(m, block_max)  # a causal row sees a key of its first block: finite
        alpha = _exp2((m - m_new) * c)
        exponent = torch.zeros_like(m_new)
        if options.block_scale:
            exponent = ((block_max - m_new) * c).ceil().clamp(*numerics.EXPONENT_RANGE)
        if lean:
            p = _e4m3_values(_lean_codes(scores, c, m_new, exponent, options.block_scale))
        else:
            offset = _fma(-c.expand_as(m_new), m_new, octaves - exponent)
            unrounded = _exp2(_fma(scores, c, offset if unscaled else _down(offset)))
            p = _to_e4m3(unrounded.clamp(max=448.0))
        pv = p.double() @ values
        if sums_unrounded:
            pv = torch.cat([pv[:, :-1], unrounded.double().sum(-1, keepdim=True)], 1)
        return m_new, ((o * alpha).double() + torch.exp2(exponent.double()) * pv).float()

    compiled: Step = torch.compile(step, dynamic=False)
    return compiled


def _lean_codes(
    scores: torch.Tensor,
    c: torch.Tensor,
    reference: torch.Tensor,
    exponent: torch.Tensor,
    block_scale: bool,
) -> torch.Tensor:
    """Codes 0 to 126 as float32 integers."""
    a = 8.0 * c
    top = numerics.TOP_CODE + 0.5
    offset = _down(_fma(-a.expand_as(reference), reference, top - 8.0 * exponent))
    offset = (offset * 1024.0).floor() * 2.0**-10 + numerics.CODE_OFFSET
    x = _fma(scores, a, offset)
    if not block_scale:
        shift, slope = numerics.CODE_OFFSET + 0.5, numerics.SMALL_CODE_SLOPE
        start = numerics.SMALL_CODE_START + shift - slope * shift
        x = torch.maximum(x, _fma(x, torch.full_like(x, slope), torch.full_like(x, start)))
    return x.clamp(min=numerics.CODE_OFFSET).floor() - numerics.CODE_OFFSET


def _fma(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    return (a.double() * b.double() + c.double()).float()


def _down(x: torch.Tensor) -> torch.Tensor:
    return _fma(x.abs(), torch.full_like(x, -(2.0**-22)), x)


def _exp2(x: torch.Tensor) -> torch.Tensor:
    y = torch.exp2(x.double()).float()
    return torch.where(y < 2.0**-126, torch.zeros_like(y), y)


def _e4m3_values(codes: torch.Tensor) -> torch.Tensor:
    """Value of codes 0 to 126: float32 with the bits moved up, and multiples of 2^-9 below 8."""
    moved = (codes.to(torch.int32) << 20) + ((127 - 7) << 23)
    return torch.where(codes < 8, codes * 2.0**-9, moved.view(torch.float32))


def _to_e4m3(p: torch.Tensor) -> torch.Tensor:
    """p, 0 to 448, rounded to the nearest e4m3 value, to the even one in between; float32."""
    bits = p.view(torch.int32)
    kept = ((bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20) << 20
    multiple_of_2_to_minus_9 = (p + 1.5 * 2.0**14) - 1.5 * 2.0**14
    return torch.where(p < 2.0**-6, multiple_of_2_to_minus_9, kept.view(torch.float32))
