"""One call of a Hopper kernel, as racecheck is to see it.

python -m tests.gpu.race_calls KERNEL KIND HEADDIM WORKGROUPS; fails unless the result is right.

What it is compared with is computed on the CPU: torch's own kernels on the device would be checked,
too, and take minutes.
"""

from __future__ import annotations

import sys
from unittest import mock

import torch

from tests.gpu.hopper_calls import KINDS
from tests.gpu.race_start import patch_triton
from zyfa_triton import flash_attn_fp8_func
from zyfa_triton.backends import device
from zyfa_triton.kernels.hopper import launch
from zyfa_triton.kernels.registry import FAMILIES
from zyfa_triton.problem import FP8, Problem
from zyfa_triton.reference import attention_ref
from zyfa_triton.testing import check_lse, check_output, expected, make_inputs

QUANTISING = "quantising"
LENGTHS = (300, 900)  # blocks of keys with and without masks, more than the rings have places


def main(kernel: str, kind: str, headdim: str, workgroups: str) -> None:
    """workgroups: of the attention kernel, or 0 for as many as it takes."""
    patch_triton()
    several = int(workgroups)
    with mock.patch.object(
        launch, "_multiprocessors", (lambda _: several) if several else launch._multiprocessors
    ):
        if kind == QUANTISING:
            check_quantising(kernel, int(headdim))
        else:
            check(kernel, kind, int(headdim))


def check(kernel: str, kind: str, headdim: int) -> None:
    dtype, p_mode = KINDS[kind]
    x = make_inputs(*LENGTHS, headdim=headdim, dtype=dtype)
    q, k, v = x.q.cuda(), x.k.cuda(), x.v.cuda()
    problem = Problem.of(
        q, k, v, causal=True, p_mode=p_mode, block_scale=False, out_dtype=torch.bfloat16,
        return_lse=True,
    )  # fmt: skip
    alone = [c for c in FAMILIES[kernel].configurations(problem) if c.get("CLUSTER", 1) == 1]
    out = torch.empty(*q.shape[:3], 128, dtype=torch.bfloat16, device="cuda")
    lse = torch.empty(q.shape[0], q.shape[2], q.shape[1], device="cuda")
    scales = {name: None if scale is None else scale.cuda() for name, scale in x.descales.items()}
    device.run(
        problem, kernel, q, k, v, out, lse, softmax_scale=headdim**-0.5,
        config={**alone[0], "kernel": kernel}, **scales,
    )  # fmt: skip
    ref, low = expected(x, causal=True, p_mode=p_mode)
    check_output(out.cpu(), ref[0], low[0], is_fp8=dtype == FP8)
    check_lse(lse.cpu(), ref[1], low[1], x)


def check_quantising(kernel: str, headdim: int) -> None:
    """16-bit inputs, quantised within the call."""
    x = make_inputs(*LENGTHS, headdim=headdim)
    out = flash_attn_fp8_func(x.q.cuda(), x.k.cuda(), x.v.cuda(), causal=True, kernel=kernel)
    assert isinstance(out, torch.Tensor)
    ref, _ = attention_ref(x.q, x.k, x.v, causal=True)
    error = float((out.cpu().double() - ref).norm() / ref.norm())
    assert error < 0.08, error


if __name__ == "__main__":
    main(*sys.argv[1:])
