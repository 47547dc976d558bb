"""Calls of the Hopper kernels that several test files make, and what they are held to."""

from __future__ import annotations

from typing import Any

import torch

from zyfa_triton import flash_attn_func
from zyfa_triton.problem import FP8
from zyfa_triton.testing import Inputs, check_lse, check_output, expected

KINDS = {"e4m3": (FP8, "lean"), "e4m3-exact": (FP8, "exact"), "bf16": (torch.bfloat16, "exact")}


def attention(x: Inputs, kernel: str, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and lse."""
    result = flash_attn_func(x.q, x.k, x.v, kernel=kernel, return_lse=True, **x.descales, **options)
    assert isinstance(result, tuple)
    return result


def check(
    x: Inputs,
    kernel: str,
    *,
    causal: bool,
    p_mode: str = "lean",
    out_dtype: torch.dtype = torch.bfloat16,
) -> None:
    """Output and lse are within the budget, and every element is written."""
    shape = (*x.q.shape[:3], 128)
    out = torch.full(shape, float("nan"), dtype=out_dtype, device=x.q.device)
    _, lse = attention(x, kernel, causal=causal, p_mode=p_mode, out=out)
    ref, low = expected(x, causal=causal, p_mode=p_mode)
    check_output(out, ref[0], low[0], is_fp8=x.q.dtype == FP8)
    check_lse(lse, ref[1], low[1], x)
