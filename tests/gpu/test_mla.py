"""q and k in two parts on a device: the bits of one tensor each, within the error budget, captured
by a graph, quantised as on the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from zyfa_triton import (
    arch,
    flash_attn_func,
    flash_attn_mla_fp8_func,
    flash_attn_mla_func,
    quantize_mla_fp8,
    tuning,
    warmup,
)
from zyfa_triton.problem import FP8
from zyfa_triton.reference import attention_ref
from zyfa_triton.testing import Inputs, make_inputs


def parts_of(x: Inputs, *, shared: bool) -> tuple[torch.Tensor, ...]:
    """q_nope, q_rope, k_nope, k_rope, v with strides of their own."""
    (q_nope, q_rope), (k_nope, k_rope) = (each.split((128, 64), 3) for each in (x.q, x.k))
    k_rope = k_rope[:, :, :1] if shared else k_rope
    return (q_nope.contiguous(), q_rope, k_nope, k_rope.contiguous(), x.v)


def together(parts: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    q_nope, q_rope, k_nope, k_rope, v = parts
    rope = k_rope.expand(-1, -1, k_nope.shape[2], -1)
    return torch.cat((q_nope, q_rope), 3), torch.cat((k_nope, rope), 3), v


@pytest.mark.parametrize("shared", [True, False], ids=["shared", "a-head"])
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "full"])
@pytest.mark.parametrize(
    ("dtype", "p_mode"),
    [(FP8, "lean"), (FP8, "exact"), (torch.bfloat16, "exact"), (torch.float16, "exact")],
    ids=str,
)
def test_parts_give_the_bits_of_one_tensor(
    e4m3_device: torch.device, dtype: torch.dtype, p_mode: str, causal: bool, shared: bool
) -> None:
    """By each kernel that serves such a call here."""
    kernels = ["triton"]
    if arch.arch_of(0).name == "sm90" and dtype != torch.float16:
        kernels += ["gluon", "ptx"]
    for lengths in ((1, 1), (16, 300), (129, 300), (300, 129), (640, 640)):
        x = make_inputs(
            *lengths, batch=2, nheads=8, nheads_k=2, headdim=192, dtype=dtype, device=e4m3_device
        )
        parts = parts_of(x, shared=shared)
        for kernel in kernels:
            options: dict[str, Any] = {"causal": causal, "p_mode": p_mode, "kernel": kernel}
            options |= {"return_lse": True, **x.descales}
            out, lse = flash_attn_mla_func(*parts, **options)
            whole, whole_lse = flash_attn_func(*together(parts), **options)
            assert torch.equal(out, whole) and torch.equal(lse, whole_lse), (lengths, kernel)


def test_parts_take_the_kernel_that_one_tensor_takes(e4m3_device: torch.device) -> None:
    x = make_inputs(300, 4096, headdim=192, dtype=FP8, device=e4m3_device)
    with tuning.observed() as seen:
        flash_attn_mla_func(*parts_of(x, shared=True), causal=True)
        flash_attn_func(x.q, x.k, x.v, causal=True)
    assert seen[0] == seen[1]


@pytest.mark.parametrize("subtract_v_mean", [False, True], ids=["plain", "v-mean"])
@pytest.mark.parametrize("subtract_k_mean", [False, True], ids=["plain", "k-mean"])
def test_fp8_function(
    e4m3_device: torch.device, subtract_k_mean: bool, subtract_v_mean: bool
) -> None:
    x = make_inputs(500, 700, nheads=6, nheads_k=2, headdim=192, device=e4m3_device)
    parts = parts_of(x, shared=True)
    out, lse = flash_attn_mla_fp8_func(
        *parts, causal=True, subtract_k_mean=subtract_k_mean, subtract_v_mean=subtract_v_mean,
        return_lse=True,
    )  # fmt: skip
    ref, ref_lse = attention_ref(*together(parts), causal=True)
    error = float((out.double() - ref).norm() / ref.norm())
    assert error < 0.08, error
    assert float((lse.double() - ref_lse).abs().max()) < 0.3


def test_quantised_parts_have_the_bits_of_the_cpu(e4m3_device: torch.device) -> None:
    for lengths in ((1, 1), (70, 1030), (1009, 2500)):
        x = make_inputs(*lengths, batch=2, nheads=6, headdim=192, device=e4m3_device)
        parts = [4 * each for each in parts_of(x, shared=True)[:4]]
        parts[1][0, 0, 5, 3] = float("nan")
        parts[2][0, 0, 0, 3] = float("nan")  # k has finite scales in any case
        codes, *descales = quantize_mla_fp8(*parts)
        cpu_codes, *cpu_descales = quantize_mla_fp8(*(part.cpu() for part in parts))
        found = [*codes, *descales]
        for ours, cpu in zip(found, [*cpu_codes, *cpu_descales], strict=True):
            assert torch.equal(ours.cpu().view(torch.uint8), cpu.view(torch.uint8)), lengths


@pytest.mark.parametrize("quantises", [False, True], ids=["bf16", "fp8"])
def test_a_captured_call_replays(e4m3_device: torch.device, quantises: bool) -> None:
    x = make_inputs(200, 300, headdim=192, device=e4m3_device)
    q_nope, q_rope, k_nope, k_rope, v = parts = parts_of(x, shared=True)
    function = flash_attn_mla_fp8_func if quantises else flash_attn_mla_func
    warmup(q_nope, k_nope, v, rope=(q_rope, k_rope), causal=True, quantize=quantises)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = function(*parts, causal=True)
    k_rope.mul_(2)
    graph.replay()
    assert torch.equal(out, function(*parts, causal=True))
