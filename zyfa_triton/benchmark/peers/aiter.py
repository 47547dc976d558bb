"""AMD's AITER, FP8 with one scale a tensor and BF16, on AMD GPUs. Never run by this project."""

from __future__ import annotations

from functools import partial
from typing import Any

from zyfa_triton import quantize_fp8
from zyfa_triton.benchmark.gate import Output
from zyfa_triton.benchmark.inputs import Problem, Tensors
from zyfa_triton.benchmark.peers import Call, Path
from zyfa_triton.benchmark.peers.requirements import imported, no_card


def _setup(problem: Problem, *, dtype: str) -> Call | str:
    missing = no_card(problem, "amd")
    module = missing or imported("aiter")
    if isinstance(module, str):
        return module
    library: Any = module
    options = {"softmax_scale": problem.softmax_scale, "causal": problem.shape.causal}

    def call(tensors: Tensors) -> Output:
        if dtype == "bf16":
            out: Any = library.flash_attn_func(tensors.q, tensors.k, tensors.v, **options)
        else:
            codes, scales = _codes(problem, tensors)
            out = library.flash_attn_fp8_pertensor_func(*codes, *scales, **options)
        return Output(out[0] if isinstance(out, tuple) else out)

    return call


def _codes(problem: Problem, tensors: Tensors) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """e4m3 q, k and v, and their scales as tensors of one element."""
    if problem.case.quantise:
        nheads_k = problem.shape.nheads_k
        pairs = [
            quantize_fp8(tensors.q, "tensor", nheads_k=nheads_k)[:2],
            quantize_fp8(tensors.k, "tensor")[:2],
            quantize_fp8(tensors.v, "tensor")[:2],
        ]
    else:
        pairs = list(zip(tensors.codes(), tensors.descales().values(), strict=True))
    return tuple(code for code, _ in pairs), tuple(scale.flatten()[:1] for _, scale in pairs)


PATHS = (
    Path("aiter", "fp8", partial(_setup, dtype="fp8")),
    Path("aiter", "bf16", partial(_setup, dtype="bf16")),
)
