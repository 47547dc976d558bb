"""Decides what is true: attention in float64, in blocks of queries. It knows no P mode and no
rounding."""

from __future__ import annotations

import math

import torch

_CHUNK_SCORES = 1 << 23


def _head_scale(
    value: float | torch.Tensor | None, batch: int, nheads_k: int, device: torch.device
) -> torch.Tensor:
    tensor = torch.as_tensor(1.0 if value is None else value, device=device).double()
    return tensor.reshape(1, 1).expand(batch, nheads_k) if tensor.numel() == 1 else tensor


def attention_ref(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    softmax_scale: float | None = None,
    causal: bool = False,
    q_descale: float | torch.Tensor | None = None,
    k_descale: float | torch.Tensor | None = None,
    v_descale: float | torch.Tensor | None = None,
    v_mean: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention in float64 on the tensors' own device.

    Args:
        q: (batch, seqlen_q, nheads, headdim), any floating dtype, e4m3 included. k, v: (batch,
        seqlen_k, nheads_k, ...).
        softmax_scale: default 1 / sqrt(headdim). causal: query i sees keys j <= i + seqlen_k -
        seqlen_q. q_descale, k_descale, v_descale: a number, or (batch, nheads_k). v_mean: (batch,
        nheads_k, headdim_v), added to v * v_descale; None is 0.
    Returns:
        out float64 (batch, seqlen_q, nheads, headdim_v) and lse float64 (batch, nheads, seqlen_q),
        natural log. A row that sees no key gives 0 and -inf.
    """
    batch, seqlen_q, nheads, headdim = q.shape
    seqlen_k, nheads_k, headdim_v = k.shape[1], k.shape[2], v.shape[3]
    group = nheads // nheads_k
    scale = softmax_scale if softmax_scale is not None else 1.0 / math.sqrt(headdim)
    scores_scale = _head_scale(q_descale, batch, nheads_k, q.device) * _head_scale(
        k_descale, batch, nheads_k, q.device
    )
    scores_scale = scores_scale * scale
    values_scale = _head_scale(v_descale, batch, nheads_k, q.device)
    out = torch.zeros(batch, seqlen_q, nheads, headdim_v, dtype=torch.float64, device=q.device)
    lse = torch.full((batch, nheads, seqlen_q), -math.inf, dtype=torch.float64, device=q.device)
    if seqlen_k == 0:
        return out, lse
    rows = max(1, _CHUNK_SCORES // (seqlen_k * group))
    keys = torch.arange(seqlen_k, device=q.device)
    for b in range(batch):
        for h in range(nheads_k):
            heads = slice(h * group, (h + 1) * group)
            kh, vh = k[b, :, h].double(), v[b, :, h].double() * values_scale[b, h]
            if v_mean is not None:
                vh = vh + v_mean[b, h].double()
            for first in range(0, seqlen_q, rows):
                last = min(seqlen_q, first + rows)
                qh = q[b, first:last, heads].transpose(0, 1).double()
                scores = (qh @ kh.T) * scores_scale[b, h]
                if causal:
                    last_key = torch.arange(first, last, device=q.device) + (seqlen_k - seqlen_q)
                    scores.masked_fill_(keys[None, :] > last_key[:, None], -math.inf)
                total = torch.logsumexp(scores, -1)
                weights = torch.exp(scores - total[..., None]).nan_to_num(
                    nan=0.0
                )  # rows without keys: -inf - -inf
                out[b, first:last, heads] = (weights @ vh).transpose(0, 1)
                lse[b, heads, first:last] = total
    return out, lse
