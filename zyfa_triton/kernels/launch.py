"""Decides how a problem becomes the arguments, constants and grid of `attention_forward`.

It does not choose block sizes (`zyfa_triton.tuning`) and does not launch (`zyfa_triton.backends`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from zyfa_triton.kernels.family import Config, Launch
from zyfa_triton.numerics import code_scale_log2
from zyfa_triton.problem import Problem, Rope

TRITON = "triton"
BLOCK_SCALE_KEYS = 64  # keys that one power of two of P covers: BLOCK_N with block scaling
_ALIGNMENT = 16  # bytes: several channels of V's mean are loaded at once
MAX_TILE = 256  # largest BLOCK_M or BLOCK_N of any configuration
LAUNCH_OPTIONS = {
    "enable_fp_fusion": False
}  # a product and a sum are one rounding only where the kernel says fma


def launch_arguments(
    problem: Problem,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor | None,
    *,
    softmax_scale: float,
    q_descale: torch.Tensor | None,
    k_descale: torch.Tensor | None,
    v_descale: torch.Tensor | None,
    v_mean: torch.Tensor | None = None,
    rope: Rope | None = None,
) -> dict[str, Any]:
    """Run-time arguments of `attention_forward` by name, in its order.

    q, k, v, out: (batch, seqlen, nheads, headdim), unit last stride. lse: float32 (batch, nheads,
    seqlen_q) contiguous.
    Descales: float32 (batch, nheads_k), any strides, or None for 1. v_mean: float32 (batch,
    nheads_k, headdim_v), unit last stride, or None for 0. rope: see `problem.Rope`.
    """
    descales = {"q": q_descale, "k": k_descale, "v": v_descale}
    arguments: dict[str, Any] = {"q_ptr": q, "k_ptr": k, "v_ptr": v, "o_ptr": out, "lse_ptr": lse}
    arguments |= {f"{name}_descale_ptr": descale for name, descale in descales.items()}
    arguments["softmax_scale_log2"] = code_scale_log2(softmax_scale)
    for name, tensor in {"q": q, "k": k, "v": v, "o": out}.items():
        batch, seqlen, nheads, _ = tensor.stride()
        arguments |= {
            f"stride_{name}b": batch,
            f"stride_{name}s": seqlen,
            f"stride_{name}h": nheads,
        }
    for name, descale in descales.items():
        batch, nheads = descale.stride() if descale is not None else (0, 0)
        arguments |= {f"stride_{name}db": batch, f"stride_{name}dh": nheads}
    arguments |= {"nheads": problem.nheads, "group_size": problem.group_size}
    arguments |= {"seqlen_q": problem.seqlen_q, "seqlen_k": problem.seqlen_k}
    parts = rope or (None, None)
    arguments |= dict(zip(("q_rope_ptr", "k_rope_ptr"), parts, strict=True))
    for name, part in zip(("qr", "kr"), parts, strict=True):
        steps = (None, None, None) if part is None else _steps(part)
        arguments |= dict(zip((f"stride_{name}{axis}" for axis in "bsh"), steps, strict=True))
    return arguments | {"v_mean_ptr": None if v_mean is None else _in_rows(v_mean)}


def nominal_arguments(asked: Problem) -> dict[str, Any]:
    """`launch_arguments` of a call with packed, aligned tensors that have no data."""

    def tensor(seqlen: int, heads: int, size: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(asked.batch, seqlen, heads, size, dtype=dtype, device="meta")

    is_fp8 = asked.is_fp8
    descale = torch.empty(asked.batch, asked.nheads_k, device="meta") if is_fp8 else None
    return launch_arguments(
        asked,
        tensor(asked.seqlen_q, asked.nheads, asked.headdim, asked.dtype),
        tensor(asked.seqlen_k, asked.nheads_k, asked.headdim, asked.dtype),
        tensor(asked.seqlen_k, asked.nheads_k, asked.headdim_v, asked.dtype),
        tensor(asked.seqlen_q, asked.nheads, asked.headdim_v, asked.out_dtype),
        None,
        softmax_scale=1 / math.sqrt(asked.headdim),
        q_descale=descale,
        k_descale=descale,
        v_descale=descale,
    )


def _in_rows(mean: torch.Tensor) -> torch.Tensor:
    """V's mean as kernels read it: contiguous, at a multiple of 16 bytes."""
    if mean.is_contiguous() and mean.data_ptr() % _ALIGNMENT == 0:
        return mean
    return mean.clone(memory_format=torch.contiguous_format)


def _steps(part: torch.Tensor) -> tuple[int, int, int]:
    """Strides of a rope part; a single head is every head's."""
    batch, seqlen, nheads, _ = part.stride()
    return batch, seqlen, nheads if part.shape[2] > 1 else 0


def kernel_constants(problem: Problem, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Compile-time constants that follow from the problem; BLOCK_M and BLOCK_N come from the
    configuration."""
    names = ("q", "k", "v", "o", *(("qr", "kr") if arguments["k_rope_ptr"] is not None else ()))
    widest = max(abs(arguments[f"stride_{name}s"]) for name in names)
    return {
        "IS_CAUSAL": problem.causal,
        "IS_FP8": problem.is_fp8,
        "P_MODE": problem.p_mode,
        "BLOCK_SCALE": problem.block_scale,
        "HEAD_DIM": problem.headdim,
        "HEAD_DIM_V": problem.headdim_v,
        "INDEX_64": MAX_TILE * widest + problem.headdim >= 2**31,
    }


def launch_grid(problem: Problem) -> Callable[[Mapping[str, Any]], tuple[int]]:
    """The grid as Triton wants it: a function of the configuration. Never called for an empty
    output."""

    def grid(meta: Mapping[str, Any]) -> tuple[int]:
        m_blocks = -(-problem.seqlen_q // meta["BLOCK_M"])
        return (m_blocks * problem.nheads * problem.batch,)

    return grid


class TritonFamily:
    """`attention_forward` with its own loops: the specification, and it serves every problem."""

    name = TRITON
    target: str | None = None
    backends: tuple[str, ...] | None = None
    nature = "Triton code"
    reads_parts = True

    def misfit(self, problem: Problem, arguments: Mapping[str, Any]) -> str:
        """See Family."""
        return ""

    def configurations(self, problem: Problem) -> list[Config]:
        """None here: which tiles a target runs is `tuning.configurations`."""
        return []

    def complaint(self, config: Mapping[str, Any], problem: Problem) -> str | None:
        """See Family."""
        return complaint_of_tiles(config, block_scale=problem.block_scale)

    def constants(
        self, *, headdim: int, p_mode: str, is_causal: bool, settings: Mapping[str, str]
    ) -> dict[str, Any]:
        """See Family. A LOOP of the caller's own (`zyfa_triton.splice.use`) replaces this one."""
        return {"LOOP": ""}

    def launch(
        self,
        launch: Launch,
        problem: Problem,
        arguments: Mapping[str, Any],
        config: Mapping[str, Any],
    ) -> None:
        """See Family."""
        launch_attention(launch, problem, arguments, config)


def launch_attention(
    launch: Launch, problem: Problem, arguments: Mapping[str, Any], config: Mapping[str, Any]
) -> None:
    """Enqueues `attention_forward`."""
    from zyfa_triton.kernels.attention import attention_forward

    constants = kernel_constants(problem, arguments)
    everything = {**arguments, **constants, **LAUNCH_OPTIONS, **config}
    launch(attention_forward, launch_grid(problem), everything)


def complaint_of_tiles(config: Mapping[str, Any], *, block_scale: bool) -> str | None:
    """What `attention_forward` cannot be compiled with in a written-down configuration, or None."""
    for name in ("BLOCK_M", "BLOCK_N", "num_warps", "num_stages"):
        value = config.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            return f"{name} is {value!r}, not a positive integer"
    for name in ("BLOCK_M", "BLOCK_N", "num_warps"):
        if config[name] & (config[name] - 1):
            return f"{name} is {config[name]}, not a power of two"
    if not (16 <= config["BLOCK_M"] <= MAX_TILE and 16 <= config["BLOCK_N"] <= MAX_TILE):
        return f"BLOCK_M and BLOCK_N must lie in 16 to {MAX_TILE}"
    if block_scale and config["BLOCK_N"] != BLOCK_SCALE_KEYS:
        return f"BLOCK_N is {config['BLOCK_N']}; with block_scale it is {BLOCK_SCALE_KEYS}"
    return None
