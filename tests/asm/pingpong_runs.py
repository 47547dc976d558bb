"""Decides how tests run the ping-pong loop and hold it to the contract, for either head dim."""

from __future__ import annotations

import itertools
from typing import Any

import torch

from zyfa_triton import numerics
from zyfa_triton.backends import emulated
from zyfa_triton.kernels.launch import launch_arguments
from zyfa_triton.problem import Problem, Rope
from zyfa_triton.testing import Inputs

Run = tuple[torch.Tensor, torch.Tensor, emulated.Emulation]


def run(
    inputs: Inputs,
    kernel: str,
    *,
    rope: Rope | None = None,
    causal: bool = True,
    p_mode: str = "lean",
    **options: Any,
) -> Run:
    """(out, lse, run) of machine code without findings. Softmax scale 1/sqrt(headdim)."""
    q, k, v = inputs.q, inputs.k, inputs.v
    problem = Problem.of(
        q,
        k,
        v,
        causal=causal,
        p_mode=p_mode,
        block_scale=True,
        out_dtype=torch.bfloat16,
        return_lse=True,
        rope=rope,
    )
    out = torch.full((*q.shape[:3], 128), float("nan"), dtype=torch.bfloat16)
    lse = torch.full((q.shape[0], q.shape[2], q.shape[1]), float("nan"))
    scale = problem.headdim**-0.5
    more = {"v_mean": inputs.v_mean, "rope": rope, **inputs.descales}
    arguments = launch_arguments(problem, q, k, v, out, lse, softmax_scale=scale, **more)
    result = emulated.emulate(problem, arguments, kernel=kernel, **options)
    assert result.findings == []
    assert result.kernel == kernel
    return out, lse, result


def assert_codes(inputs: Inputs, *, causal: bool = True, p_mode: str = "lean") -> None:
    """The loop's codes are the contract's, its outputs those of the contract in bf16."""
    out, lse, result = run(inputs, "pingpong", causal=causal, p_mode=p_mode, capture=True)
    model = numerics.attention(
        inputs.q,
        inputs.k,
        inputs.v,
        softmax_scale=inputs.q.shape[3] ** -0.5,
        causal=causal,
        options=numerics.ContractOptions(p_mode, True),
        return_codes=True,
        v_mean=inputs.v_mean,
        **inputs.descales,
    )
    assert result.codes is not None and model.codes is not None
    assert torch.equal(result.codes, model.codes)
    assert ((out.float() - model.out).abs() <= model.out.abs() * 2.0**-8 + 1e-6).all()
    torch.testing.assert_close(lse, model.lse, atol=4e-6, rtol=1e-6)


def assert_same(*runs: Run) -> None:
    """Outputs and lse of all runs have the same bits."""
    for (out, lse, _), (other, other_lse, _) in itertools.pairwise(runs):
        assert torch.equal(out, other) and torch.equal(lse, other_lse)
