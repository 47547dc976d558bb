"""torch's scaled_dot_product_attention in BF16: its FlashAttention-2 and its cuDNN back end."""

from __future__ import annotations

import warnings
from functools import partial

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from zyfa_triton.benchmark.gate import Output
from zyfa_triton.benchmark.inputs import Problem, Tensors
from zyfa_triton.benchmark.peers import Call, Path
from zyfa_triton.benchmark.peers.requirements import first_line, no_card


def _setup(problem: Problem, *, backend: SDPBackend) -> Call | str:
    vendor = "nvidia" if backend == SDPBackend.CUDNN_ATTENTION else ""
    missing = no_card(problem, vendor)
    if missing:
        return missing
    shape = problem.shape

    def call(tensors: Tensors) -> Output:
        with sdpa_kernel(backend):
            out = torch.nn.functional.scaled_dot_product_attention(
                tensors.q.transpose(1, 2),
                tensors.k.transpose(1, 2),
                tensors.v.transpose(1, 2),
                is_causal=shape.causal,
                scale=problem.softmax_scale,
                enable_gqa=shape.group_size > 1,
            )
        return Output(out.transpose(1, 2))

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            call(problem.sets[0])
        except RuntimeError as error:  # its reasons come as warnings
            texts = [str(one.message).splitlines()[0] for one in said]
            name = backend.name.lower()
            wanted = [text for text in texts if "internally" not in text.lower()]
            return f"{name} refuses: {'; '.join(dict.fromkeys(wanted)) or first_line(error)}"
    return call


PATHS = (
    Path("torch-flash", "bf16", partial(_setup, backend=SDPBackend.FLASH_ATTENTION)),
    Path("torch-cudnn", "bf16", partial(_setup, backend=SDPBackend.CUDNN_ATTENTION)),
)
