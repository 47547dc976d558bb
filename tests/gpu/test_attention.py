"""Accuracy of the op on a device: every length, head grouping and mode, within the error budget."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch

from zyfa_triton import arch, flash_attn_fp8_func, flash_attn_func
from zyfa_triton.problem import FP8
from zyfa_triton.reference import attention_ref
from zyfa_triton.testing import Inputs, check_lse, check_output, expected, make_inputs


class Lengths(NamedTuple):
    q: int
    k: int

    def __str__(self) -> str:
        return f"{self.q}x{self.k}"


LENGTHS = [
    *(Lengths(n, n) for n in (1, 2, 127, 128, 129, 255, 256, 257, 640, 1009)),
    *(Lengths(0, n) for n in (0, 5)),
    *(Lengths(n, 0) for n in (1, 129)),
    *(Lengths(1, n) for n in (2, 64, 1009)),
    Lengths(129, 640),  # fewer queries than keys
    Lengths(640, 129),  # more: with causal, rows without keys
    Lengths(257, 255),
    Lengths(1009, 1),
]
HEADDIMS = (128, 192)


class Heads(NamedTuple):
    nheads: int
    nheads_k: int

    def __str__(self) -> str:
        return f"{self.nheads}h{self.nheads_k}"


def has_block_scale(device: torch.device) -> bool:
    return arch.arch_of(device.index or 0).has_scaled_matrix


def check(
    x: Inputs,
    *,
    causal: bool,
    p_mode: str = "lean",
    block_scale: bool | None = None,
    out_dtype: torch.dtype | None = None,
    softmax_scale: float | None = None,
) -> None:
    """Runs the op on a NaN-filled output and holds it to the budget, lse too."""
    is_fp8 = x.q.dtype == FP8
    shape = (*x.q.shape[:3], x.v.shape[3])
    out_dtype = out_dtype or (torch.bfloat16 if is_fp8 else x.q.dtype)
    out = torch.full(shape, float("nan"), dtype=out_dtype, device=x.q.device)
    result, lse = flash_attn_func(
        x.q,
        x.k,
        x.v,
        softmax_scale,
        causal,
        p_mode=p_mode,
        block_scale="auto" if block_scale is None else block_scale,
        return_lse=True,
        out=out,
        v_mean=x.v_mean,
        **x.descales,
    )
    assert result is out
    if block_scale is None:
        block_scale = is_fp8 and p_mode != "unscaled" and has_block_scale(x.q.device)
    ref, low = expected(
        x, softmax_scale=softmax_scale, causal=causal, p_mode=p_mode, block_scale=block_scale
    )
    check_output(out, ref[0], low[0], is_fp8=is_fp8)
    check_lse(lse, ref[1], low[1], x, softmax_scale)


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("headdim", HEADDIMS)
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_e4m3(e4m3_device: torch.device, lengths: Lengths, headdim: int, causal: bool) -> None:
    x = make_inputs(*lengths, headdim=headdim, dtype=FP8, device=e4m3_device)
    check(x, causal=causal)


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("headdim", HEADDIMS)
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_bfloat16(device: torch.device, lengths: Lengths, headdim: int, causal: bool) -> None:
    check(make_inputs(*lengths, headdim=headdim, device=device), causal=causal)


@pytest.mark.parametrize("lengths", [Lengths(129, 257), Lengths(640, 640)], ids=str)
def test_float16(device: torch.device, lengths: Lengths) -> None:
    check(make_inputs(*lengths, dtype=torch.float16, device=device), causal=True)


@pytest.mark.parametrize("dtype", [FP8, torch.bfloat16], ids=["e4m3", "bf16"])
@pytest.mark.parametrize("heads", [Heads(4, 4), Heads(6, 1), Heads(6, 2), Heads(1, 1)], ids=str)
def test_head_groups(e4m3_device: torch.device, heads: Heads, dtype: torch.dtype) -> None:
    x = make_inputs(
        129, 300, batch=3, nheads=heads.nheads, nheads_k=heads.nheads_k, dtype=dtype,
        device=e4m3_device,
    )  # fmt: skip
    check(x, causal=True)


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("headdim", HEADDIMS)
@pytest.mark.parametrize("lengths", [Lengths(1, 64), Lengths(640, 129), Lengths(257, 640)], ids=str)
def test_the_mean_of_v(
    e4m3_device: torch.device, lengths: Lengths, headdim: int, causal: bool
) -> None:
    x = make_inputs(
        *lengths, batch=2, nheads=6, nheads_k=2, headdim=headdim, dtype=FP8, device=e4m3_device,
        v_mean=True,
    )  # fmt: skip
    for p_mode in ("lean", "exact"):
        check(x, causal=causal, p_mode=p_mode)


@pytest.mark.parametrize("out_dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("block_scale", [False, True], ids=["constant", "block"])
@pytest.mark.parametrize("p_mode", ["lean", "exact"])
def test_modes(
    e4m3_device: torch.device, p_mode: str, block_scale: bool, out_dtype: torch.dtype
) -> None:
    x = make_inputs(257, 300, dtype=FP8, device=e4m3_device, deviation=2.0)
    check(x, causal=True, p_mode=p_mode, block_scale=block_scale, out_dtype=out_dtype)


def test_unscaled_mode(e4m3_device: torch.device) -> None:
    x = make_inputs(257, 300, dtype=FP8, device=e4m3_device)
    check(x, causal=False, p_mode="unscaled", out_dtype=torch.float32)


def test_a_given_softmax_scale(e4m3_device: torch.device) -> None:
    x = make_inputs(129, 129, dtype=FP8, device=e4m3_device)
    check(x, causal=True, softmax_scale=0.2)


def test_bfloat16_error_is_that_of_its_roundings(device: torch.device) -> None:
    x = make_inputs(1009, 1009, device=device)
    out = flash_attn_func(x.q, x.k, x.v, causal=True)
    ref, _ = attention_ref(x.q, x.k, x.v, causal=True)
    error = float((out.double() - ref).norm() / ref.norm())
    assert error < 2.5e-3, error


def test_rows_without_keys_are_zero_with_lse_minus_infinity(e4m3_device: torch.device) -> None:
    for dtype in (FP8, torch.bfloat16):
        x = make_inputs(300, 100, dtype=dtype, device=e4m3_device)
        out, lse = flash_attn_func(x.q, x.k, x.v, causal=True, return_lse=True)
        assert bool((out[:, :200] == 0).all())
        assert bool((lse[:, :, :200] == float("-inf")).all())
        assert bool(lse[:, :, 200:].isfinite().all())
    assert not flash_attn_fp8_func(x.q, x.k, x.v + 5, causal=True)[:, :200].any()


@pytest.mark.parametrize("subtract_k_mean", [False, True], ids=["plain", "k-mean"])
def test_fp8_function_on_inputs_with_a_key_bias(
    e4m3_device: torch.device, subtract_k_mean: bool
) -> None:
    """The mean of K, which the softmax does not see, costs precision unless it is removed."""
    x = make_inputs(500, 500, device=e4m3_device)
    k = x.k + 20 * torch.randn(128, generator=torch.Generator().manual_seed(1)).to(x.k)
    out, lse = flash_attn_fp8_func(
        x.q, k, x.v, causal=True, subtract_k_mean=subtract_k_mean, return_lse=True
    )
    ref, ref_lse = attention_ref(x.q, k, x.v, causal=True)
    error = float((out.double() - ref).norm() / ref.norm())
    if subtract_k_mean:
        assert error < 0.08, error
        assert float((lse.double() - ref_lse).abs().max()) < 0.3
    else:
        assert error > 0.2, error


def test_fp8_function_on_values_with_a_bias(e4m3_device: torch.device) -> None:
    """V's mean takes the range of the codes, and has its share in every sum, unless removed."""
    x = make_inputs(500, 500, device=e4m3_device)
    v = x.v + 20 * torch.randn(128, generator=torch.Generator().manual_seed(1)).to(x.v)
    ref, _ = attention_ref(x.q, x.k, v, causal=True)
    errors = {}
    for subtracts in (True, False):
        out = flash_attn_fp8_func(x.q, x.k, v, causal=True, subtract_v_mean=subtracts)
        assert isinstance(out, torch.Tensor)
        errors[subtracts] = float((out.double() - ref).norm() / ref.norm())
    assert errors[True] < 0.004 and errors[False] > 3 * errors[True], errors


def test_two_runs_give_the_same_bits(e4m3_device: torch.device) -> None:
    for dtype in (FP8, torch.bfloat16):
        x = make_inputs(1009, 1009, dtype=dtype, device=e4m3_device)
        runs = [flash_attn_func(x.q, x.k, x.v, causal=True, return_lse=True) for _ in range(3)]
        for out, lse in runs[1:]:
            assert torch.equal(out, runs[0][0])
            assert torch.equal(lse, runs[0][1])


def test_nan_inputs_reach_the_output_of_their_heads_only(e4m3_device: torch.device) -> None:
    x = make_inputs(130, 130, device=e4m3_device)
    x.k[0, 7, 1, 3] = float("nan")  # key head 1: query heads 2 and 3
    for function in (flash_attn_func, flash_attn_fp8_func):
        out = function(x.q, x.k, x.v)
        assert isinstance(out, torch.Tensor)
        assert bool(out[:, :, :2].isfinite().all()), function.__name__
        assert bool(out[:, :, 2:].isnan().all()), function.__name__
