"""Which workgroup computes which tile: HEADS_FASTEST changes that and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from zyfa_triton import tuning
from zyfa_triton.backends import emulated
from zyfa_triton.kernels.launch import launch_arguments
from zyfa_triton.problem import FP8, Problem
from zyfa_triton.testing import make_inputs


def run(inputs: Any, kernel: str, causal: bool, **config: Any) -> tuple[torch.Tensor, ...]:
    """Codes of P, output and lse, of an output that starts as NaN."""
    q, k, v = inputs.q, inputs.k, inputs.v
    problem = Problem.of(
        q, k, v, causal=causal, p_mode="lean", block_scale=True, out_dtype=torch.bfloat16,
        return_lse=True,
    )  # fmt: skip
    out = torch.full((*q.shape[:3], v.shape[3]), float("nan"), dtype=torch.bfloat16)
    lse = torch.full((q.shape[0], q.shape[2], q.shape[1]), float("nan"))
    arguments = launch_arguments(
        problem, q, k, v, out, lse, softmax_scale=q.shape[3] ** -0.5, **inputs.descales
    )
    key = tuning.key_of(problem, "gfx950")
    selected = tuning.select(kernel, problem, key, arguments, lambda _: tuning.default(key))
    ran = emulated.emulate(problem, arguments, config={**selected, **config}, capture=True)
    assert (ran.findings, ran.kernel) == ([], kernel)
    assert ran.codes is not None
    return ran.codes, out, lse


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("kernel", ["triton", "pingpong"])
def test_every_tile_is_computed_once_in_either_order(kernel: str, causal: bool) -> None:
    # 2 query tiles, 6 heads, 2 entries: as many workgroups as tiles, so none twice if none is left
    inputs = make_inputs(
        batch=2, seqlen_q=300, seqlen_k=300, nheads=6, nheads_k=3, headdim=128, dtype=FP8
    )
    one = run(inputs, kernel, causal, HEADS_FASTEST=False)
    other = run(inputs, kernel, causal, HEADS_FASTEST=True)
    for a, b in zip(one, other, strict=True):
        assert not torch.isnan(a.float()).any()
        assert torch.equal(a, b)
