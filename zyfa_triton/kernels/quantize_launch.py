"""Decides the arguments and grids of the quantising kernels, whoever launches them.

It does not launch: `launch` is a function (kernel, grid, arguments) of the device or interpreter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from zyfa_triton.joint_scale import part_ranges
from zyfa_triton.kernels.family import Launch
from zyfa_triton.kernels.launch import LAUNCH_OPTIONS

ROWS = 64  # rows of a tile, whose sums are added in halves; `zyfa_triton.quantize` has the order
CHUNK = 1024  # rows of the sequence that one program sums
_OPTIONS = {"num_warps": 4, **LAUNCH_OPTIONS}
_LSE_ROWS = 64


def quantize(
    launch: Launch,
    x: torch.Tensor,
    codes: torch.Tensor,
    descale: torch.Tensor,
    mean: torch.Tensor | None,
) -> None:
    """Fills codes, descale ((batch, nheads_k), or one element) and mean (batch, nheads, headdim).

    x: (batch, seqlen, nheads, headdim), not empty.
    """
    _encode(launch, x, codes, descale, mean, _partial_amax(launch, x, mean))


def quantize_parts(
    launch: Launch,
    parts: Sequence[torch.Tensor],
    codes: Sequence[torch.Tensor],
    descales: Sequence[torch.Tensor],
    means: Sequence[torch.Tensor | None],
) -> None:
    """Quantises q_nope, q_rope, k_nope, k_rope with the scales of `joint_scale`, none empty.

    Fills codes, descales ((batch, nheads_k), k_rope's (batch, its heads)) and means.
    """
    found = [_partial_amax(launch, x, mean) for x, mean in zip(parts, means, strict=True)]
    amax = [
        each.reshape(*descale.shape, -1).amax(2)
        for each, descale in zip(found, descales, strict=True)
    ]
    for x, one, descale, mean, partial, wanted in zip(
        parts, codes, descales, means, found, part_ranges(*amax), strict=True
    ):
        partial.view(*descale.shape, -1).copy_(wanted[:, :, None])
        _encode(launch, x, one, descale, mean, partial)


def _partial_amax(launch: Launch, x: torch.Tensor, mean: torch.Tensor | None) -> torch.Tensor:
    """Largest magnitudes (batch, nheads, chunks) of x without its mean, which is filled first."""
    from zyfa_triton.kernels import quantize as kernels

    batch, _, nheads, _ = x.shape
    shape = _shape(x)
    has_mean = mean is not None
    sums = partial_sums(launch, x) if has_mean else None
    amax = x.new_empty((batch, nheads, shape["chunks"]), dtype=torch.float32)
    shape["HAS_MEAN"] = has_mean
    launch(
        kernels.partial_amax,
        _grid(x),
        {"x_ptr": x, "sums_ptr": sums, "mean_ptr": mean, "amax_ptr": amax, **shape},
    )
    return amax


def _encode(
    launch: Launch,
    x: torch.Tensor,
    codes: torch.Tensor,
    descale: torch.Tensor,
    mean: torch.Tensor | None,
    amax: torch.Tensor,
) -> None:
    """Fills codes and descale; amax as `_partial_amax` returns it."""
    from zyfa_triton.kernels import quantize as kernels

    shape = _shape(x) | {"HAS_MEAN": mean is not None}
    launch(
        kernels.to_e4m3,
        _grid(x),
        {
            "x_ptr": x,
            "mean_ptr": mean,
            "amax_ptr": amax,
            "codes_ptr": codes,
            "descale_ptr": descale,
            "heads_a_scale": x.shape[0] * x.shape[2] // descale.numel(),
            **shape,
        },
    )


def partial_sums(launch: Launch, x: torch.Tensor) -> torch.Tensor:
    """Sums of each chunk of rows, float32 (batch, nheads, chunks, headdim)."""
    from zyfa_triton.kernels import quantize as kernels

    batch, seqlen, nheads, headdim = x.shape
    sums = x.new_empty((batch, nheads, -(-seqlen // CHUNK), headdim), dtype=torch.float32)
    launch(kernels.partial_sums, _grid(x), {"x_ptr": x, "sums_ptr": sums, **_shape(x)})
    return sums


def _grid(x: torch.Tensor) -> tuple[int]:
    batch, seqlen, nheads, _ = x.shape
    return (-(-seqlen // CHUNK) * nheads * batch,)


def _shape(x: torch.Tensor) -> dict[str, Any]:
    """What all quantising kernels take of x (batch, seqlen, nheads, headdim)."""
    _, seqlen, nheads, headdim = x.shape
    return {
        "stride_b": x.stride(0),
        "stride_s": x.stride(1),
        "stride_h": x.stride(2),
        "nheads": nheads,
        "seqlen": seqlen,
        "headdim": headdim,
        "chunks": -(-seqlen // CHUNK),
        "CHUNK": CHUNK,
        "ROWS": ROWS,
        "WIDTH": _width(headdim),
        **_OPTIONS,
    }


def add_mean_to_lse(
    launch: Launch, lse: torch.Tensor, q: torch.Tensor, mean: torch.Tensor, softmax_scale: float
) -> None:
    """lse (batch, nheads, seqlen_q) += softmax_scale * q . mean; none of them empty."""
    from zyfa_triton.kernels import quantize as kernels

    batch, seqlen, nheads, headdim = q.shape
    blocks = -(-seqlen // _LSE_ROWS)
    launch(
        kernels.lse_shift,
        (blocks * nheads * batch,),
        {
            "lse_ptr": lse,
            "q_ptr": q,
            "mean_ptr": mean,
            "softmax_scale": softmax_scale,
            "stride_b": q.stride(0),
            "stride_s": q.stride(1),
            "stride_h": q.stride(2),
            "nheads": nheads,
            "group_size": nheads // mean.shape[1],
            "seqlen": seqlen,
            "headdim": headdim,
            "ROWS": _LSE_ROWS,
            "WIDTH": _width(headdim),
            **_OPTIONS,
        },
    )


def _width(headdim: int) -> int:
    """The power of two that holds headdim channels: what tl.arange can span."""
    return 1 << (headdim - 1).bit_length()
