"""Decides the e4m3 scales of q and k that come in two parts, of which all heads may share one.

The kernel adds both parts' products before it multiplies with q_descale * k_descale, so that for
each key head the product of the scales must be the same in both parts. The scales need not be: with

    q_nope ~ codes * q_descale             q_rope ~ codes * q_descale * k_descale / k_rope_descale
    k_nope ~ codes * k_descale             k_rope ~ codes * k_rope_descale

k_rope is quantised once for all heads that share it, k_nope keeps a scale a head, and q, which has
heads in both parts, makes up for the difference. Whichever part of q needs more room has 448 as its
largest code; the other has smaller codes than it might, which costs a floating-point format no
precision until they fall below 2^-6, and then less than the other part's rounding costs the score.

A part of k whose largest magnitude is below 2^-16 of the other's counts as that, and everything
below 2^-80 as 2^-80, so that quotients stay finite. Where q and k are both as small, or zero, q's
range is larger than it need be: float32 must hold the product of their scales, and a softmax of
scores so small is that of zeros. It reads no tensor but the amax given.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

SMALLEST_RATIO = 2.0**-16
SMALLEST_AMAX = 2.0**-80
SMALLEST_PRODUCT = 2.0**-96  # of the ranges of q and k: their scales' is then 2^-114 or more


class PartRanges(NamedTuple):
    """Magnitudes that become 448, float32: (batch, nheads_k), k_rope's (batch, 1 or nheads_k)."""

    q_nope: torch.Tensor
    q_rope: torch.Tensor
    k_nope: torch.Tensor
    k_rope: torch.Tensor


def part_ranges(
    q_nope: torch.Tensor, q_rope: torch.Tensor, k_nope: torch.Tensor, k_rope: torch.Tensor
) -> PartRanges:
    """Ranges from the largest magnitudes, in the same shapes; infinite stands for inf and NaN.

    A head with an infinite one, a shared k_rope's counted for every head, has infinite ranges of q,
    which become NaN scales and codes; other heads' are what they are without it.
    """
    infinity = torch.full_like(q_nope, float("inf"))
    largest = torch.maximum(torch.maximum(q_nope, q_rope), torch.maximum(k_nope, k_rope))
    broken = largest == infinity
    q_nope, q_rope, k_nope, k_rope = (
        torch.where(amax == float("inf"), 0.0, amax) for amax in (q_nope, q_rope, k_nope, k_rope)
    )
    k_first = torch.maximum(k_nope, k_rope * SMALLEST_RATIO).clamp(min=SMALLEST_AMAX)
    heads = k_nope.reshape(*k_rope.shape, -1).amax(2)
    k_rest = torch.maximum(k_rope, heads * SMALLEST_RATIO).clamp(min=SMALLEST_AMAX)
    ratio = k_rest / k_first
    q_first = torch.maximum(q_nope, q_rope * ratio).clamp(min=SMALLEST_AMAX)
    q_first = torch.maximum(q_first, SMALLEST_PRODUCT / k_first)
    q_rest = q_first / ratio
    return PartRanges(
        torch.where(broken, infinity, q_first),
        torch.where(broken, infinity, q_rest),
        k_first,
        k_rest,
    )
