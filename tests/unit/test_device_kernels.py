"""The kernels compile for Hopper and gfx950 on a machine that has neither, and fit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from zyfa_triton import quantize, tuning
from zyfa_triton.compile import signature_of
from zyfa_triton.kernels import launch, quantize_launch
from zyfa_triton.kernels.attention import attention_forward
from zyfa_triton.problem import FP8, Problem
from zyfa_triton.testing import make_inputs

SM90, GFX950 = GPUTarget("cuda", 90, 32), GPUTarget("hip", "gfx950", 64)
SM90_SHARED_BYTES = 227 * 1024


def compiled(
    kernel: Any, arguments: Mapping[str, Any], options: Mapping[str, Any], target: GPUTarget
) -> Any:
    """What Triton's launcher would compile for these arguments on the target."""
    constants = {p.name: arguments.get(p.name, p.default) for p in kernel.params if p.is_constexpr}
    at_run_time = {p.name: arguments[p.name] for p in kernel.params if p.name not in constants}
    free = frozenset(p.name for p in kernel.params if p.do_not_specialize)
    signature = signature_of(at_run_time, constants, free)
    source = ASTSource(
        kernel,
        dict(signature.types),
        constexprs=dict(signature.constants),
        attrs={
            # pointer_range is AMD's
            index: [list(m) for m in marks if target.backend == "hip" or m[0] == "tt.divisibility"]
            for index, marks in signature.attributes
        },
    )
    return triton.compile(source, target=target, options=dict(options))


@pytest.mark.parametrize("columns", ["128", "192", "128+64"])
@pytest.mark.parametrize(
    ("dtype", "p_mode", "block_scale"),
    [
        (FP8, "lean", False),
        (FP8, "exact", False),
        (FP8, "unscaled", False),
        (FP8, "lean", True),
        (torch.bfloat16, "exact", False),
    ],
    ids=str,
)
def test_attention_for_hopper_uses_its_matrix_instruction_and_fits(
    dtype: torch.dtype, p_mode: str, block_scale: bool, columns: str
) -> None:
    x = make_inputs(100, 100, headdim=192 if columns == "192" else 128, dtype=dtype)
    rope = None
    if columns == "128+64":  # parts, with one head of k's rope part
        rope = (x.q[..., :64].contiguous(), x.k[:, :, :1, :64].contiguous())
    out = torch.empty(1, 100, 4, 128, dtype=torch.bfloat16)
    problem = Problem.of(
        x.q, x.k, x.v, causal=True, p_mode=p_mode, block_scale=block_scale,
        out_dtype=out.dtype, return_lse=True, rope=rope,
    )  # fmt: skip
    arguments = launch.launch_arguments(
        problem, x.q, x.k, x.v, out, torch.empty(1, 4, 100), softmax_scale=0.1, rope=rope,
        **x.descales,
    )  # fmt: skip
    arguments |= launch.kernel_constants(problem, arguments)
    config = tuning.default(tuning.key_of(problem, "sm90"))
    arguments |= {name: config.pop(name) for name in ("BLOCK_M", "BLOCK_N")}
    kernel = compiled(attention_forward, arguments, config | launch.LAUNCH_OPTIONS, SM90)
    assert kernel.metadata.shared <= SM90_SHARED_BYTES
    assert "wgmma.mma_async" in kernel.asm["ptx"]
    assert ".local" not in kernel.asm["ptx"]


@pytest.mark.parametrize("target", [SM90, GFX950], ids=["sm90", "gfx950"])
def test_quantising_kernels_compile(target: GPUTarget) -> None:
    seen = []

    def launch_it(kernel: Any, grid: tuple[int, ...], arguments: Mapping[str, Any]) -> None:
        options = {name: arguments[name] for name in ("num_warps", *launch.LAUNCH_OPTIONS)}
        seen.append(kernel.__name__)
        assert compiled(kernel, arguments, options, target).metadata.shared <= 64 * 1024

    for nheads, nheads_k in ((4, 2), (1, 1)):
        x = make_inputs(300, 300, nheads=nheads, nheads_k=nheads_k, headdim=192)
        outputs = quantize.empty_outputs(
            x.q, nheads_k=nheads_k, per_tensor=False, subtract_mean=True
        )
        quantize_launch.quantize(launch_it, x.q, *outputs)
        mean = torch.zeros(1, nheads_k, 192)
        quantize_launch.add_mean_to_lse(launch_it, torch.zeros(1, nheads, 300), x.q, mean, 0.1)
        parts = [*x.q.split((128, 64), 3), *x.k.split((128, 64), 3)]
        codes, descales, means = quantize.empty_part_outputs(*parts, subtract_k_mean=True)
        quantize_launch.quantize_parts(launch_it, parts, codes, descales, (None, None, *means))
    ranges = ["partial_amax"] * 2 + ["partial_sums", "partial_amax"] * 2
    of_parts = [*ranges, *["to_e4m3"] * 4]
    assert seen == ["partial_sums", "partial_amax", "to_e4m3", "lse_shift", *of_parts] * 2
