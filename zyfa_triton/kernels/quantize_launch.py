"""Decides the arguments and grids of the quantising kernels, whoever launches them.

It does not launch: `launch` is a function (kernel, grid, arguments) of the device or interpreter.
"""

from __future__ import annotations

from typing import Any

import torch

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
    from zyfa_triton.kernels import quantize as kernels

    batch, seqlen, nheads, _ = x.shape
    chunks = -(-seqlen // CHUNK)
    grid = (chunks * nheads * batch,)
    shape = _shape(x)
    has_mean = mean is not None
    sums = partial_sums(launch, x) if has_mean else None
    amax = x.new_empty((batch, nheads, chunks), dtype=torch.float32)
    shape["HAS_MEAN"] = has_mean
    launch(
        kernels.partial_amax,
        grid,
        {"x_ptr": x, "sums_ptr": sums, "mean_ptr": mean, "amax_ptr": amax, **shape},
    )
    scales = descale.numel()
    launch(
        kernels.to_e4m3,
        grid,
        {
            "x_ptr": x,
            "mean_ptr": mean,
            "amax_ptr": amax,
            "codes_ptr": codes,
            "descale_ptr": descale,
            "heads_a_scale": batch * nheads // scales,
            **shape,
        },
    )


def partial_sums(launch: Launch, x: torch.Tensor) -> torch.Tensor:
    """Sums of each chunk of rows, float32 (batch, nheads, chunks, headdim)."""
    from zyfa_triton.kernels import quantize as kernels

    batch, seqlen, nheads, headdim = x.shape
    chunks = -(-seqlen // CHUNK)
    sums = x.new_empty((batch, nheads, chunks, headdim), dtype=torch.float32)
    grid = (chunks * nheads * batch,)
    launch(kernels.partial_sums, grid, {"x_ptr": x, "sums_ptr": sums, **_shape(x)})
    return sums


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
