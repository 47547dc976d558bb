"""Run with TRITON_INTERPRET=1: the Hopper kernel's preparing passes against `quantize_fp8`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from zyfa_triton import quantize_fp8
from zyfa_triton.backends.interpreter_repairs import repaired_interpreter
from zyfa_triton.kernels.hopper import preparation
from zyfa_triton.problem import FP8, Problem
from zyfa_triton.testing import make_inputs

TILE = 128


def transposed(codes: torch.Tensor) -> torch.Tensor:
    """Bytes of V^T in tiles, by the definition in `prepare`, keys beyond the end zero."""
    batch, seqlen, nheads, headdim = codes.shape
    padded = -(-seqlen // TILE) * TILE
    rows = torch.zeros(batch, padded, nheads, headdim, dtype=torch.uint8)
    rows[:, :seqlen] = codes.view(torch.uint8)
    order = [16 * i + 8 * g + 2 * t + e for i in range(padded // 16) for t in range(4)
             for g in range(2) for e in range(2)]  # fmt: skip
    tiles = rows[:, order].permute(0, 2, 1, 3).reshape(batch, nheads, -1, TILE, headdim)
    return tiles.transpose(3, 4)


def interpret(kernel: Any, grid: Any, arguments: Mapping[str, Any]) -> None:
    options = ("num_warps", "enable_fp_fusion")
    with repaired_interpreter():
        kernel[grid](**{name: it for name, it in arguments.items() if name not in options})


def check(
    seqlen_q: int, seqlen_k: int, headdim: int, k_mean: bool, v_mean: bool, whole: bool
) -> None:
    x = make_inputs(seqlen_q, seqlen_k, batch=2, headdim=headdim, layout="transposed")
    k, v, granularity = x.k + 3, x.v - 5, "tensor" if whole else "head"
    k[0, :, 1, 7] = 3e38  # a sum of these is infinite, and is not subtracted
    v[1, :, 0, 9] = -3e38
    options: dict[str, Any] = {"causal": True, "p_mode": "lean", "block_scale": False}
    options |= {"out_dtype": torch.bfloat16, "return_lse": True}
    problem = Problem.of(x.q, k, v, dtype=FP8, **options)
    ours = preparation.quantise(interpret, problem, x.q, k, v, whole, k_mean, v_mean)
    q_codes, q_descale = quantize_fp8(x.q, granularity, nheads_k=2)  # type: ignore[arg-type, misc]
    k_codes, k_descale, *of_k = quantize_fp8(k, granularity, subtract_mean=k_mean)  # type: ignore[arg-type]
    v_codes, v_descale, *of_v = quantize_fp8(v, granularity, subtract_mean=v_mean)  # type: ignore[arg-type]
    for got, want in ((ours.q, q_codes), (ours.k, k_codes), (ours.v, transposed(v_codes))):
        assert torch.equal(got.view(torch.uint8), want.view(torch.uint8))
    for got, want in zip(ours.descales, (q_descale, k_descale, v_descale), strict=True):
        assert torch.equal(got, want)
    for mean, wanted in ((ours.k_mean, of_k), (ours.v_mean, of_v)):
        assert (mean is not None) == bool(wanted)
        if mean is not None:
            assert torch.equal(mean, wanted[0])
    assert ours.k_mean is None or ours.k_mean[0, 1, 7] == 0
    assert ours.v_mean is None or ours.v_mean[1, 0, 9] == 0
    assert int(ours.counter[0]) == 0

    fp8 = Problem.of(q_codes, k_codes, v_codes, **options)
    counter = torch.ones(1, dtype=torch.int32)
    strided = v_codes.transpose(1, 2).contiguous().transpose(1, 2)
    result = preparation.transposed_values(interpret, fp8, strided, counter)
    assert torch.equal(result.view(torch.uint8), transposed(v_codes))
    assert int(counter) == 0


if __name__ == "__main__":
    check(70, 300, 128, False, False, False)
    check(5, 129, 192, True, True, False)
    check(64, 64, 128, True, False, True)
    check(3, 1100, 128, False, True, True)
    print("equal")
