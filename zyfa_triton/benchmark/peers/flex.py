"""torch's FlexAttention in BF16, compiled for the shape, with a block mask where causal."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from zyfa_triton.benchmark.gate import Output
from zyfa_triton.benchmark.inputs import Problem, Tensors
from zyfa_triton.benchmark.peers import Call, Path
from zyfa_triton.benchmark.peers.requirements import first_line, no_card


def _is_visible(b: Any, h: Any, q_index: Any, k_index: Any) -> Any:
    return q_index >= k_index


def _setup(problem: Problem) -> Call | str:
    missing = no_card(problem)
    if missing:
        return missing
    shape = problem.shape
    torch.compiler.reset()  # every shape is compiled for itself, and torch counts recompilations
    compiled: Any = torch.compile(flex_attention, dynamic=False)
    try:
        mask = (
            create_block_mask(
                _is_visible, None, None, shape.seqlen, shape.seqlen, problem.device, _compile=True
            )
            if shape.causal
            else None
        )

        def call(tensors: Tensors) -> Output:
            out = compiled(
                *(one.transpose(1, 2) for one in (tensors.q, tensors.k, tensors.v)),
                block_mask=mask,
                scale=problem.softmax_scale,
                enable_gqa=shape.group_size > 1,
            )
            return Output(out.transpose(1, 2))

        call(problem.sets[0])
    except Exception as error:  # the compiler's errors have no common type
        return f"does not compile or run: {first_line(error)}"
    return call


PATHS = (Path("flex-attention", "bf16", _setup),)
