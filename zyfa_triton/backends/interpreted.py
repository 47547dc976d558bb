"""What an interpreting process computes: the kernels on CPU tensors, by Triton's interpreter.

It decides nothing about processes (`interpreter`). It works only where TRITON_INTERPRET=1 was set
before Triton was imported, because Triton's own library is made of kernels too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from zyfa_triton.backends.interpreter_repairs import repaired_interpreter
from zyfa_triton.kernels import launch as attention_launch
from zyfa_triton.kernels import quantize_launch
from zyfa_triton.problem import Problem


def attention(
    problem: Problem,
    config: Mapping[str, Any],
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor | None,
    softmax_scale: float,
    q_descale: torch.Tensor | None,
    k_descale: torch.Tensor | None,
    v_descale: torch.Tensor | None,
    v_mean: torch.Tensor | None,
    q_rope: torch.Tensor | None,
    k_rope: torch.Tensor | None,
) -> None:
    """Fills out and lse with what `attention_forward` computes."""
    from zyfa_triton.kernels.attention import attention_forward

    rope = None if q_rope is None or k_rope is None else (q_rope, k_rope)
    if problem.dtype == torch.bfloat16:
        # The interpreter keeps bfloat16 as bit patterns, and tl.dot would multiply those.
        q, k, v = (_widened(tensor) for tensor in (q, k, v))
        if rope is not None:
            rope = (_widened(rope[0]), _widened(rope[1]))
        problem = replace(problem, dtype=torch.float32)
    arguments = attention_launch.launch_arguments(
        problem,
        q,
        k,
        v,
        out,
        lse,
        softmax_scale=softmax_scale,
        q_descale=q_descale,
        k_descale=k_descale,
        v_descale=v_descale,
        v_mean=v_mean,
        rope=rope,
    )
    arguments |= attention_launch.kernel_constants(problem, arguments)
    blocks = {name: config[name] for name in ("BLOCK_M", "BLOCK_N")}
    with repaired_interpreter():
        attention_forward[attention_launch.launch_grid(problem)](**arguments, **blocks)


def quantize(
    x: torch.Tensor, codes: torch.Tensor, descale: torch.Tensor, mean: torch.Tensor | None
) -> None:
    """Fills codes, descale and mean with what the quantising kernels compute."""
    quantize_launch.quantize(_launch, x, codes, descale, mean)


def quantize_parts(*tensors: torch.Tensor | None) -> None:
    """Fills codes, descales and means of the parts of q and k: four tensors of each in a row."""
    parts, codes, descales, means = (tensors[first : first + 4] for first in range(0, 16, 4))
    quantize_launch.quantize_parts(
        _launch,
        [each for each in parts if each is not None],
        [each for each in codes if each is not None],
        [each for each in descales if each is not None],
        means,
    )


def add_mean_to_lse(
    lse: torch.Tensor, q: torch.Tensor, mean: torch.Tensor, softmax_scale: float
) -> None:
    """lse += softmax_scale * q . mean, by the kernel."""
    quantize_launch.add_mean_to_lse(_launch, lse, q, mean, softmax_scale)


def _launch(kernel: Any, grid: tuple[int, ...], arguments: Mapping[str, Any]) -> None:
    with repaired_interpreter():
        kernel[grid](**arguments)


def _widened(tensor: torch.Tensor) -> torch.Tensor:
    """A float32 copy with the same strides, so that the kernel's addressing is still exercised."""
    reach = sum(s * (n - 1) for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    flat = tensor.as_strided((reach + 1,), (1,)).float()
    return flat.as_strided(tensor.shape, tensor.stride())


# name -> function, and which of its arguments it writes to
FUNCTIONS: dict[str, tuple[Callable[..., None], tuple[int, ...]]] = {
    "attention": (attention, (5, 6)),
    "quantize": (quantize, (1, 2, 3)),
    "quantize_parts": (quantize_parts, tuple(range(4, 16))),
    "add_mean_to_lse": (add_mean_to_lse, (0,)),
}
