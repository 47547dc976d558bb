"""Quantisation on a device: bit for bit what the CPU computes, in any layout."""

from __future__ import annotations

import pytest
import torch

from zyfa_triton import quantize_fp8
from zyfa_triton.quantize import add_mean_to_lse
from zyfa_triton.testing import LAYOUTS, make_inputs


def assert_same_bits(x: torch.Tensor, **options: object) -> None:
    ours = quantize_fp8(x, **options)
    cpu = quantize_fp8(x.cpu(), **options)
    for name, device_result, cpu_result in zip(
        ("codes", "descale", "mean"), ours, cpu, strict=False
    ):
        same = device_result.contiguous().view(torch.uint8).cpu() == cpu_result.contiguous().view(
            torch.uint8
        )
        assert bool(same.all()), f"{name}: {int((~same).sum())} of {same.numel()} bytes differ"


@pytest.mark.parametrize("subtract_mean", [False, True], ids=["plain", "mean"])
@pytest.mark.parametrize("granularity", ["head", "tensor"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_bits_are_those_of_the_cpu(
    e4m3_device: torch.device, dtype: torch.dtype, granularity: str, subtract_mean: bool
) -> None:
    for seqlen, headdim in ((1, 128), (63, 192), (1009, 128), (2500, 192)):
        x = make_inputs(seqlen, 1, batch=2, nheads=6, headdim=headdim, dtype=dtype).q * 3 + 1
        assert_same_bits(
            x.to(e4m3_device), granularity=granularity, nheads_k=2, subtract_mean=subtract_mean
        )


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(e4m3_device: torch.device, layout: str) -> None:
    x = make_inputs(300, 300, batch=2, device=e4m3_device, layout=layout)
    for tensor in (x.q, x.k, x.v):
        assert_same_bits(tensor, subtract_mean=True)


def test_zero_tiny_huge_and_broken_heads(e4m3_device: torch.device) -> None:
    x = make_inputs(130, 1, nheads=6, dtype=torch.float32, device=e4m3_device).q
    x[:, :, 0] = 0.0
    x[:, :, 1] *= 1e-36
    x[:, :, 2] *= 1e36
    x[0, 5, 3, 7] = float("inf")
    x[0, 5, 4, 7] = float("nan")
    assert_same_bits(x)
    codes, descale = quantize_fp8(x)
    assert descale[0, 0] == 1
    assert bool(codes[:, :, 3:5].float().isnan().all())
    assert bool(descale[0, 3:5].isnan().all())
    assert bool(codes[:, :, [0, 1, 2, 5]].float().isfinite().all())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_means_that_are_left_in(e4m3_device: torch.device, dtype: torch.dtype) -> None:
    top = torch.finfo(dtype).max
    x = make_inputs(1030, 1, dtype=dtype, device=e4m3_device).q
    x[0, :, 1, 5] = top  # an infinite sum
    x[0, :, 1, 6] = -1.5 * top / 1030  # a finite one
    x[0, 0, 1, 6] = top  # and top - mean would be infinite
    x[0, 1029, 3, 127] = float("nan")
    assert_same_bits(x, subtract_mean=True)
    codes, _, mean = quantize_fp8(x, subtract_mean=True)
    assert bool((mean[0, 1, 5:7] == 0).all())
    assert bool(codes[:, :, :3].float().isfinite().all())


def test_empty_tensors(e4m3_device: torch.device) -> None:
    x = torch.empty(2, 0, 4, 128, dtype=torch.bfloat16, device=e4m3_device)
    codes, descale, mean = quantize_fp8(x, subtract_mean=True)
    assert codes.shape == (2, 0, 4, 128)
    assert bool((descale == 1).all())
    assert bool((mean == 0).all())


def test_lse_correction(device: torch.device) -> None:
    x = make_inputs(333, 1, batch=2, nheads=6, headdim=192, device=device, layout="transposed")
    mean = torch.randn(2, 2, 192, device=device)
    lse = torch.randn(2, 6, 333, device=device)
    lse[0, 0, 3] = float("-inf")
    x.q[0, 3, 0, 0] = 3e38
    mean[0, 0, 0] = 2.0**99  # their product is infinite, and -inf stays
    expected = lse.double() + 0.1 * torch.einsum(
        "bshd,bhd->bhs", x.q.double(), mean.double().repeat_interleave(3, 1)
    )
    add_mean_to_lse(lse, x.q, mean, 0.1)
    torch.testing.assert_close(lse.double(), expected, rtol=1e-5, atol=1e-5)
