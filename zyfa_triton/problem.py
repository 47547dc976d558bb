"""What is asked for: the shape, types and numerics of one attention call, as one hashable value.

It does not check arguments (`interface`), and does not decide where the call runs (`dispatch`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

P_MODES = ("lean", "exact", "unscaled")
HEADDIMS = ((128, 128), (192, 128))  # (headdim of q and k, headdim of v)
DTYPES = (torch.bfloat16, torch.float16, torch.float8_e4m3fn)
OUT_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
FP8 = torch.float8_e4m3fn
ROPE_WIDTHS = (128, 64)  # columns of q and k before and in the rope part, where that is apart
Rope = tuple[torch.Tensor, torch.Tensor]
"""The rope parts of q (batch, seqlen_q, nheads, 64) and of k (batch, seqlen_k, nheads_k or 1, 64):
columns of q and k behind those that their tensors have."""


@dataclass(frozen=True)
class Problem:
    """One attention call without its data.

    dtype: of q, k and v. p_mode: "exact" for 16-bit inputs, which know only the true exponential.
    block_scale: resolved; False for 16-bit inputs and for "unscaled". device: "cpu" or "cuda".
    """

    dtype: torch.dtype
    headdim: int
    headdim_v: int
    nheads: int
    nheads_k: int
    batch: int
    seqlen_q: int
    seqlen_k: int
    causal: bool
    p_mode: str
    block_scale: bool
    out_dtype: torch.dtype
    return_lse: bool
    device: str

    @property
    def group_size(self) -> int:
        """Query heads that share one key head."""
        return self.nheads // self.nheads_k

    @property
    def is_fp8(self) -> bool:
        """Whether the inputs are e4m3, so that P is rounded to e4m3 too."""
        return self.dtype == FP8

    @classmethod
    def of(
        cls,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *,
        causal: bool,
        p_mode: str,
        block_scale: bool,
        out_dtype: torch.dtype,
        return_lse: bool,
        dtype: torch.dtype | None = None,
        rope: Rope | None = None,
    ) -> Problem:
        """The problem that checked tensors (batch, seqlen, nheads, headdim) pose.

        dtype: what they will be converted to first, if that is not theirs. Rope parts are columns
        like others: whether they are tensors of their own makes no difference to what is computed.
        """
        dtype = dtype or q.dtype
        is_fp8 = dtype == FP8
        return cls(
            dtype=dtype,
            headdim=q.shape[3] + (rope[0].shape[3] if rope is not None else 0),
            headdim_v=v.shape[3],
            nheads=q.shape[2],
            nheads_k=k.shape[2],
            batch=q.shape[0],
            seqlen_q=q.shape[1],
            seqlen_k=k.shape[1],
            causal=causal,
            p_mode=p_mode if is_fp8 else "exact",
            block_scale=block_scale and is_fp8 and p_mode != "unscaled",
            out_dtype=out_dtype,
            return_lse=return_lse,
            device=q.device.type,
        )
