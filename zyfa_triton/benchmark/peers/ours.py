"""This package's op: every kernel that it can be asked for, and what it chooses itself ("auto").

Kernels are those of `dispatch.KERNELS`; one that does not cover a shape or a card says why.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from zyfa_triton import dispatch, flash_attn_fp8_func, flash_attn_func
from zyfa_triton.backends import device as device_backend
from zyfa_triton.benchmark.gate import Output
from zyfa_triton.benchmark.inputs import Problem, Tensors
from zyfa_triton.benchmark.peers import Call, Path
from zyfa_triton.benchmark.peers.requirements import no_card

P_MODES = ("lean", "exact")
# What peers do, and our quantize_fp8 does for those that cannot: the same work for everybody.
QUANTISATION: dict[str, Any] = {
    "granularity": "tensor",
    "subtract_k_mean": False,
    "subtract_v_mean": False,
}


def _setup(problem: Problem, *, kernel: str, dtype: str, p_mode: str) -> Call | str:
    missing = no_card(problem)
    if missing:
        return missing
    why = device_backend.unavailable()
    if why is not None:
        return f"{why.reason}. {why.remedy}"
    options: dict[str, Any] = {
        "softmax_scale": problem.softmax_scale,
        "causal": problem.shape.causal,
        "kernel": kernel,
    }
    if dtype == "fp8":
        options["p_mode"] = p_mode

    def call(tensors: Tensors) -> Output:
        if dtype == "fp8" and problem.case.quantise:
            out = flash_attn_fp8_func(tensors.q, tensors.k, tensors.v, **QUANTISATION, **options)
        elif dtype == "fp8":
            q, k, v = tensors.codes()
            out = flash_attn_func(q, k, v, **tensors.descales(), **options)
        else:
            out = flash_attn_func(tensors.q, tensors.k, tensors.v, **options)
        assert isinstance(out, torch.Tensor)
        return Output(out)

    return call


def _paths() -> tuple[Path, ...]:
    found = []
    for kernel in (dispatch.AUTO, *dispatch.KERNELS):
        for p_mode in P_MODES:
            setup = partial(_setup, kernel=kernel, dtype="fp8", p_mode=p_mode)
            found.append(Path(f"zyfa-{kernel}-{p_mode}", "fp8", setup, p_mode))
        setup = partial(_setup, kernel=kernel, dtype="bf16", p_mode="")
        found.append(Path(f"zyfa-{kernel}", "bf16", setup))
    return tuple(found)


PATHS = _paths()
