"""How 16-bit tensors become e4m3 with descales, bit for bit the same on a device and on a CPU.

It does not check arguments (`interface`). The order of every sum is fixed here, so that both ways
agree:

- A chunk is `CHUNK` rows of the sequence. Within it, row r of a tile of `ROWS` rows sums rows r, r
  + ROWS, ... in that order; the tile's rows are then added in halves. Chunks are added in order.
  mean = sum / seqlen, but 0 for a channel whose mean is not below `MEAN_LIMIT` in magnitude (a NaN
  or infinite one is not): a sum may leave float32's range though no element does, and below the
  limit x - mean is finite wherever x is.
- amax is the largest |x - mean| in float32; a NaN or infinity in x makes it infinite.
- descale = amax / 448, and codes are (x - mean) * (448 / amax), each rounded to nearest. amax below
  2^-100 counts as 2^-100; amax 0 gives descale 1 and codes 0; infinite amax gives NaN for both.

Memory beside the codes: float32 partial results, one row of channels a chunk of `CHUNK` rows.
"""

from __future__ import annotations

import torch

from zyfa_triton.joint_scale import part_ranges
from zyfa_triton.kernels.quantize_launch import CHUNK, ROWS
from zyfa_triton.problem import FP8

E4M3_MAX = 448.0
NAN_CODE = 0x7F
AMAX_FLOOR = 2.0**-100  # keeps 448 / amax finite
MEAN_LIMIT = 2.0**100  # less than half a unit in the last place of float32's largest number
_LSE_CHUNK = 4096  # queries whose float32 copies exist at once on a CPU


def empty_outputs(
    x: torch.Tensor, *, nheads_k: int, per_tensor: bool, subtract_mean: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Unfilled codes, descale ((batch, nheads_k) or (1, 1)) and mean ((0,) if not asked for)."""
    batch, _, nheads, headdim = x.shape
    codes = torch.empty(x.shape, dtype=FP8, device=x.device)
    descale = x.new_empty((1, 1) if per_tensor else (batch, nheads_k), dtype=torch.float32)
    mean = x.new_empty((batch, nheads, headdim) if subtract_mean else (0,), dtype=torch.float32)
    return codes, descale, mean


def quantize(
    x: torch.Tensor, *, nheads_k: int, per_tensor: bool, subtract_mean: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Codes, descale and mean of x (batch, seqlen, nheads, headdim), shaped by `empty_outputs`."""
    codes, descale, mean = empty_outputs(
        x, nheads_k=nheads_k, per_tensor=per_tensor, subtract_mean=subtract_mean
    )
    if x.numel() == 0:
        descale.fill_(1.0)
        mean.zero_()
    elif x.device.type == "cuda":
        from zyfa_triton.backends import device

        device.quantize(x, codes, descale, mean if subtract_mean else None)
    else:
        _quantize_on_cpu(x, codes, descale, mean if subtract_mean else None)
    return codes, descale, mean


def empty_part_outputs(
    q_nope: torch.Tensor,
    q_rope: torch.Tensor,
    k_nope: torch.Tensor,
    k_rope: torch.Tensor,
    *,
    subtract_k_mean: bool,
) -> tuple[list[torch.Tensor], list[torch.Tensor], list[torch.Tensor]]:
    """Unfilled codes and descales of the four parts, in order, and means of those of k."""
    nheads_k = k_nope.shape[2]
    found = [
        empty_outputs(x, nheads_k=groups, per_tensor=False, subtract_mean=subtracts)
        for x, groups, subtracts in (
            (q_nope, nheads_k, False),
            (q_rope, nheads_k, False),
            (k_nope, nheads_k, subtract_k_mean),
            (k_rope, k_rope.shape[2], subtract_k_mean),
        )
    ]
    codes, descales, means = ([each[index] for each in found] for index in range(3))
    return codes, descales, means[2:]


def quantize_parts(
    q_nope: torch.Tensor,
    q_rope: torch.Tensor,
    k_nope: torch.Tensor,
    k_rope: torch.Tensor,
    *,
    subtract_k_mean: bool,
) -> tuple[list[torch.Tensor], list[torch.Tensor], list[torch.Tensor]]:
    """Codes, descales and means by `joint_scale`, shaped by `empty_part_outputs`.

    The scale of q_rope is q_descale * k_descale / k_rope_descale: kernels need no more than the
    first descale and that of k_nope.
    """
    parts = (q_nope, q_rope, k_nope, k_rope)
    codes, descales, k_means = empty_part_outputs(*parts, subtract_k_mean=subtract_k_mean)
    if any(part.numel() == 0 for part in parts):
        for descale in descales:
            descale.fill_(1.0)
        for one in codes:
            one.view(torch.uint8).zero_()
        for mean in k_means:
            mean.zero_()
        return codes, descales, k_means
    means = [None, None, *(k_means if subtract_k_mean else (None, None))]
    if q_nope.device.type == "cuda":
        from zyfa_triton.backends import device

        device.quantize_parts(parts, codes, descales, means)
        return codes, descales, k_means
    for x, mean in zip(parts, means, strict=True):
        if mean is not None:
            mean.copy_(_mean(x))
    amax = [
        _amax(x, mean).reshape(*descale.shape, -1).amax(-1)
        for x, mean, descale in zip(parts, means, descales, strict=True)
    ]
    for x, one, descale, mean, wanted in zip(
        parts, codes, descales, means, part_ranges(*amax), strict=True
    ):
        _encode(x, one, descale, mean, wanted)
    return codes, descales, k_means


def add_mean_to_lse(
    lse: torch.Tensor, q: torch.Tensor, mean: torch.Tensor, softmax_scale: float
) -> None:
    """lse (batch, nheads, seqlen_q) += softmax_scale * q . mean of the key head, in float32. -inf
    stays, whatever is added.

    q: (batch, seqlen_q, nheads, headdim), as it was before it was quantised. mean: (batch,
        nheads_k, headdim).
    """
    if lse.numel() == 0:
        return
    if q.device.type == "cuda":
        from zyfa_triton.backends import device

        device.add_mean_to_lse(lse, q, mean, softmax_scale)
        return
    group = q.shape[2] // mean.shape[1]
    per_head = mean.repeat_interleave(group, 1)
    for first in range(0, q.shape[1], _LSE_CHUNK):
        rows = slice(first, first + _LSE_CHUNK)
        shift = torch.einsum("bshd,bhd->bhs", q[:, rows].float(), per_head) * softmax_scale
        lse[:, :, rows] += torch.where(lse[:, :, rows] == float("-inf"), 0.0, shift)


def scale_of(amax: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """descale and its inverse, float32, from amax: decides about 0, tiny and infinite ones."""
    floored = amax.clamp(min=AMAX_FLOOR)
    top = torch.full_like(floored, E4M3_MAX)  # torch would divide a number through a reciprocal
    descale = torch.where(amax == 0, 1.0, floored / top)
    inverse = torch.where(amax == 0, 1.0, top / floored)
    finite = amax < float("inf")
    nan = torch.full_like(amax, float("nan"))
    return torch.where(finite, descale, nan), torch.where(finite, inverse, nan)


def _quantize_on_cpu(
    x: torch.Tensor, codes: torch.Tensor, descale: torch.Tensor, mean: torch.Tensor | None
) -> None:
    if mean is not None:
        mean.copy_(_mean(x))
    _encode(x, codes, descale, mean, _amax(x, mean).reshape(*descale.shape, -1).amax(-1))


def _amax(x: torch.Tensor, mean: torch.Tensor | None) -> torch.Tensor:
    """Largest |x - mean| of each head, (batch, nheads); infinite where x holds a NaN."""
    amax = x.new_empty((x.shape[0], x.shape[2]), dtype=torch.float32)
    for b, h in _heads(x):
        magnitude = _centred(x, mean, b, h).abs()
        amax[b, h] = torch.where(magnitude < float("inf"), magnitude, float("inf")).max()
    return amax


def _encode(
    x: torch.Tensor,
    codes: torch.Tensor,
    descale: torch.Tensor,
    mean: torch.Tensor | None,
    amax: torch.Tensor,
) -> None:
    """Fills codes and descale, whose shape amax has."""
    scale, inverse = scale_of(amax)
    descale.copy_(scale)
    batch, _, nheads, _ = x.shape
    if descale.shape == (1, 1):
        inverse = inverse.expand(batch, nheads)
    else:
        inverse = inverse.repeat_interleave(nheads // descale.shape[1], 1)
    as_bytes = codes.view(torch.uint8)
    for b, h in _heads(x):
        if bool(inverse[b, h].isnan()):
            as_bytes[b, :, h] = NAN_CODE
            continue
        scaled = _centred(x, mean, b, h) * inverse[b, h]
        codes[b, :, h] = scaled.clamp(-E4M3_MAX, E4M3_MAX).to(FP8)


def _heads(x: torch.Tensor) -> list[tuple[int, int]]:
    return [(b, h) for b in range(x.shape[0]) for h in range(x.shape[2])]


def _centred(x: torch.Tensor, mean: torch.Tensor | None, b: int, h: int) -> torch.Tensor:
    head = x[b, :, h].float()
    return head if mean is None else head - mean[b, h]


def _mean(x: torch.Tensor) -> torch.Tensor:
    """(batch, nheads, headdim), summed in the order and limited as the module describes."""
    batch, seqlen, nheads, headdim = x.shape
    total = torch.zeros(batch, nheads, headdim)
    for start in range(0, seqlen, CHUNK):
        tile = torch.zeros(batch, ROWS, nheads, headdim)
        for first in range(start, min(seqlen, start + CHUNK), ROWS):
            rows = x[:, first : min(first + ROWS, seqlen)].float()
            tile[:, : rows.shape[1]] += rows
        while tile.shape[1] > 1:
            half = tile.shape[1] // 2
            tile = tile[:, :half] + tile[:, half:]
        total += tile[:, 0]
    mean = total / torch.full_like(total, seqlen)
    return torch.where(mean.abs() < MEAN_LIMIT, mean, 0.0)
