"""How the op's kernel is compiled for gfx950 without data: a problem by its shape, and no tensors.

It does not choose configurations (`tuning`), write files or print.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from zyfa_triton import dispatch, hip, tuning
from zyfa_triton.compile import TARGET, CompiledKernel, compile_call
from zyfa_triton.kernels.hip import HipFamily
from zyfa_triton.kernels.launch import nominal_arguments
from zyfa_triton.kernels.registry import FAMILIES, KERNELS, misfit
from zyfa_triton.problem import FP8, HEADDIMS, Problem
from zyfa_triton.report import KernelReport, report

_WAVES_OF_A_WORKGROUP, _WAVES_OF_A_SIMD = 16, 8


def problem(
    *,
    dtype: torch.dtype = FP8,
    headdim: int = 128,
    p_mode: str = "lean",
    block_scale: bool | str = "auto",
    causal: bool = True,
    nheads: int = 16,
    nheads_k: int = 16,
    seqlen: int = 4096,
) -> Problem:
    """A problem on gfx950 with packed tensors. Raises ValueError for what the op refuses."""
    widths = dict(HEADDIMS)
    if headdim not in widths:
        accepted = ", ".join(map(str, widths))
        raise ValueError(f"headdim: got {headdim}; accepted: {accepted}")
    if nheads < 1 or nheads_k < 1 or nheads % nheads_k:
        raise ValueError(
            f"nheads: got {nheads} query heads and {nheads_k} key heads; "
            "accepted: a positive multiple of the key heads"
        )
    is_scaled = dispatch.choose_block_scale(
        block_scale, dtype=dtype, p_mode=p_mode, backend="emulated", device=torch.device("cpu")
    )
    return Problem(
        dtype=dtype,
        headdim=headdim,
        headdim_v=widths[headdim],
        nheads=nheads,
        nheads_k=nheads_k,
        batch=1,
        seqlen_q=seqlen,
        seqlen_k=seqlen,
        causal=causal,
        p_mode=p_mode if dtype == FP8 else "exact",
        block_scale=is_scaled,
        out_dtype=torch.bfloat16 if dtype == FP8 else dtype,
        return_lse=False,
        device="cpu",
    )


def kernels_that_serve(asked: Problem) -> tuple[str, ...]:
    """Kernels that a problem with packed, aligned tensors may run and that can be compiled here:
    the one in HIP needs a compiler (`zyfa_triton.hip`)."""
    key, arguments = tuning.key_of(asked, TARGET), nominal_arguments(asked)
    found = dict.fromkeys(
        (tuning.TRITON, *map(tuning.kernel_of, tuning.tunable(asked, key, arguments)))
    )
    if hip.found_compiler() is None:
        found.pop(HipFamily.name, None)
    return tuple(found)


def misfits(asked: Problem) -> dict[str, str]:
    """By kernel, why it does not serve a problem with packed, aligned tensors; "" if it does."""
    arguments = nominal_arguments(asked)
    return {name: misfit(name, TARGET, asked, arguments) for name in KERNELS}


def compile_problem(
    asked: Problem, config: Mapping[str, Any] | None = None, *, kernel: str = "auto"
) -> tuple[CompiledKernel, KernelReport]:
    """Machine code for a problem with packed, aligned tensors, and what it costs.

    Args:
        config: entries that replace those of the tuned or default configuration.
        kernel: see `tuning.KERNELS`.
    Raises:
        ValueError: that kernel does not serve the problem, or has no such configuration.
        RuntimeError: it does not compile here, or the loop asked for by name gave way to Triton's.
    """
    key = tuning.key_of(asked, TARGET)
    arguments = nominal_arguments(asked)
    selected = tuning.select(
        kernel, asked, key, arguments, lambda without: tuning.resolve(key, without)
    )
    chosen = tuning.launchable(selected, key) | dict(config or {})
    name = tuning.kernel_of(selected)
    wrong = FAMILIES[name].complaint(chosen, asked)
    wrong = wrong or _beyond_the_card(chosen)
    if wrong:
        raise ValueError(f"config: {wrong}")
    compiled = compile_call(name, asked, arguments, chosen)
    if kernel != "auto" and compiled.splice and compiled.kept_own_loop:
        raise RuntimeError(f"{kernel}: Triton's own loop was kept ({compiled.splice})")
    return compiled, report(compiled.amdgcn, dynamic_lds=compiled.shared)


def _beyond_the_card(config: Mapping[str, Any]) -> str:
    """What a compute unit of gfx950 has no room for in a configuration; "" if it has."""
    limits = {"num_warps": _WAVES_OF_A_WORKGROUP, "waves_per_eu": _WAVES_OF_A_SIMD}
    for name, most in limits.items():
        if config.get(name, 0) > most:
            return f"{name} is {config[name]}, above {most}"
    return ""
