"""Calls of the Hopper kernels that several test files make, and what they are held to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from zyfa_triton import flash_attn_fp8_func, flash_attn_func
from zyfa_triton.problem import FP8
from zyfa_triton.reference import attention_ref
from zyfa_triton.testing import Inputs, check_lse, check_output, expected, make_inputs

KINDS = {"e4m3": (FP8, "lean"), "e4m3-exact": (FP8, "exact"), "bf16": (torch.bfloat16, "exact")}


def attention(x: Inputs, kernel: str, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and lse."""
    options |= {"v_mean": x.v_mean, **x.descales}
    result = flash_attn_func(x.q, x.k, x.v, kernel=kernel, return_lse=True, **options)
    assert isinstance(result, tuple)
    return result


def check_mean(device: torch.device, kernel: str) -> None:
    """V's mean on every kind of call: rows without keys, shared tiles, output types, strides."""
    for p_mode, headdim, shape, heads, out_dtype in (
        ("lean", 128, (300, 700), (4, 2), torch.bfloat16),
        ("lean", 192, (640, 129), (6, 2), torch.float32),
        ("exact", 128, (640, 129), (4, 4), torch.float16),
        ("exact", 192, (257, 900), (16, 2), torch.bfloat16),
        ("lean", 128, (3, 1009), (16, 2), torch.bfloat16),  # query heads share a tile
        ("exact", 128, (50, 300), (6, 1), torch.float32),
    ):
        for causal in (True, False):
            x = make_inputs(
                *shape, batch=2, nheads=heads[0], nheads_k=heads[1], headdim=headdim, dtype=FP8,
                device=device, v_mean=True,
            )  # fmt: skip
            check(x, kernel, causal=causal, p_mode=p_mode, out_dtype=out_dtype)
            out, _ = attention(x, kernel, causal=causal, p_mode=p_mode)
            without = max(shape[0] - shape[1], 0) if causal else 0
            assert not out[:, :without].any()
            assert x.v_mean is not None
            wide = torch.full((2, heads[1] + 1, 131), float("nan"), device=device)
            wide[:, 1:, 3:] = x.v_mean
            same, _ = attention(
                replace(x, v_mean=wide[:, 1:, 3:]), kernel, causal=causal, p_mode=p_mode
            )
            assert torch.equal(out, same)


def check_gain(device: torch.device, kernel: str) -> None:
    """V of mean 3 and deviation 1, 8,192 keys: less than half the error when the mean is taken off.

    Against fp64 on V as it was given. With the mean, each 32 keys lose about 2^-14 of a sum that it
    makes up (`testing.EPS_ACCUMULATION`), 0.8 % of a row in the end; without it what is left is
    mostly the output's rounding.
    """
    x = make_inputs(1024, 8192, nheads=4, nheads_k=2, device=device)
    v = x.v + 3
    ref, _ = attention_ref(x.q, x.k, v)
    errors = {}
    for subtracts in (True, False):
        out = flash_attn_fp8_func(x.q, x.k, v, kernel=kernel, subtract_v_mean=subtracts)
        assert isinstance(out, torch.Tensor)
        errors[subtracts] = float((out.double() - ref).norm() / ref.norm())
    assert errors[True] < 0.5 * errors[False], errors


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
