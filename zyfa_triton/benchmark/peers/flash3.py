"""FlashAttention-3, FP8 and BF16, if its package is there (flash_attn_interface)."""

from __future__ import annotations

from functools import partial
from typing import Any

from zyfa_triton import quantize_fp8
from zyfa_triton.benchmark.gate import Output
from zyfa_triton.benchmark.inputs import Problem, Tensors
from zyfa_triton.benchmark.peers import Call, Path
from zyfa_triton.benchmark.peers.requirements import imported, no_card

MODULES = ("flash_attn_interface", "flash_attn_3.flash_attn_interface")


def _setup(problem: Problem, *, dtype: str) -> Call | str:
    module = imported(*MODULES)
    if isinstance(module, str):
        return module
    missing = no_card(problem, "nvidia")
    if missing:
        return missing
    library: Any = module
    options = {"softmax_scale": problem.softmax_scale, "causal": problem.shape.causal}

    def call(tensors: Tensors) -> Output:
        scales: dict[str, Any] = {}
        if dtype == "bf16":
            q, k, v = tensors.q, tensors.k, tensors.v
        elif problem.case.quantise:
            nheads_k = problem.shape.nheads_k
            q, scales["q_descale"] = quantize_fp8(tensors.q, "tensor", nheads_k=nheads_k)[:2]
            k, scales["k_descale"] = quantize_fp8(tensors.k, "tensor")[:2]
            v, scales["v_descale"] = quantize_fp8(tensors.v, "tensor")[:2]
        else:
            (q, k, v), scales = tensors.codes(), tensors.descales()
        out: Any = library.flash_attn_func(q, k, v, **options, **scales)
        return Output(out[0] if isinstance(out, tuple) else out)  # older ones return lse, too

    return call


PATHS = (
    Path("flash-attention-3", "fp8", partial(_setup, dtype="fp8")),
    Path("flash-attention-3", "bf16", partial(_setup, dtype="bf16")),
)
