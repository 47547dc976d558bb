"""Which problems tuning measures, and how their kernels are compiled in several processes at once.

Triton keeps what it compiled on disk, so that measuring finds it there and a device does not wait
for compilers. It measures nothing.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import torch

from zyfa_triton import dispatch
from zyfa_triton.arch import arch_of
from zyfa_triton.kernels.family import Config
from zyfa_triton.kernels.launch import launch_arguments
from zyfa_triton.problem import Problem
from zyfa_triton.testing import Inputs, make_inputs
from zyfa_triton.tuning import autotune, selection
from zyfa_triton.tuning.key import DTYPES, key_of

TOKENS = 16384  # of a call with as many queries as keys: short sequences come several at a time


@dataclass(frozen=True)
class Usual:
    """One problem that tuning measures.

    dtype: a value of `DTYPE_NAMES`. seqlen: of the keys, and of the queries unless `queries` says
    otherwise. heads: of the queries, and of the keys unless `heads_k` says otherwise. Others: as in
    `zyfa_triton.flash_attn_func`.
    """

    dtype: str
    headdim: int
    headdim_v: int
    causal: bool
    p_mode: str
    seqlen: int
    heads: int
    queries: int | None = None
    heads_k: int | None = None

    def __str__(self) -> str:
        kind = "causal" if self.causal else "full"
        text = f"{self.dtype} {self.headdim}/{self.headdim_v} {kind} {self.p_mode} {self.seqlen}"
        return text if self.queries is None else f"{text}, {self.queries} queries"

    def inputs(self, device: torch.device | str = "cuda") -> Inputs:
        """Tensors of such a call. Without several short sequences the device would be filled once
        or twice, and its last tiles, which keep few multiprocessors busy, would decide."""
        return make_inputs(
            self.seqlen if self.queries is None else self.queries,
            self.seqlen,
            batch=max(TOKENS // self.seqlen, 1) if self.queries is None else 1,
            nheads=self.heads,
            nheads_k=self.heads if self.heads_k is None else self.heads_k,
            headdim=self.headdim,
            headdim_v=self.headdim_v,
            dtype=DTYPES[self.dtype],
            device=device,
        )


def compile_ahead(problems: Iterable[Usual], jobs: int) -> int:
    """Compiles all candidates of the problems; the shortest stands for other lengths.

    Args:
        jobs: processes, each with a context of its own on the device.
    Returns:
        How many configurations were compiled or found in Triton's cache; those that do not fit the
        device are not counted.
    """
    shortest: dict[Usual, Usual] = {}
    for problem in problems:
        kind = replace(problem, seqlen=0)
        shortest[kind] = min(problem, shortest.get(kind, problem), key=lambda each: each.seqlen)
    work = [(problem, config) for problem in shortest.values() for config in _candidates(problem)]
    spawn = multiprocessing.get_context("spawn")  # a forked process cannot use the device
    with ProcessPoolExecutor(max_workers=jobs, mp_context=spawn) as pool:
        return sum(pool.map(_launch_once, *zip(*work, strict=True)))


def _candidates(usual: Usual) -> list[Config]:
    """What the device back end would measure for a problem."""
    x = usual.inputs()
    problem, arguments = _call(usual, x)
    key = key_of(problem, arch_of(x.q.device.index).name)
    return selection.measured("auto", problem, key, arguments)


def _call(usual: Usual, x: Inputs) -> tuple[Problem, dict[str, Any]]:
    out = x.q.new_empty((*x.q.shape[:3], usual.headdim_v), dtype=torch.bfloat16)
    scaled = dispatch.choose_block_scale(
        "auto", dtype=x.q.dtype, p_mode=usual.p_mode, backend="device", device=x.q.device
    )
    problem = Problem.of(
        x.q,
        x.k,
        x.v,
        causal=usual.causal,
        p_mode=usual.p_mode,
        block_scale=scaled,
        out_dtype=out.dtype,
        return_lse=False,
    )
    descales: dict[str, Any] = {
        f"{name}_descale": x.descales.get(f"{name}_descale") for name in "qkv"
    }
    arguments = launch_arguments(problem, x.q, x.k, x.v, out, None, softmax_scale=1.0, **descales)
    return problem, arguments


def _launch_once(usual: Usual, config: Config) -> bool:
    """Whether the configuration runs; in a process of the pool."""
    from zyfa_triton.backends import device

    x = usual.inputs()
    problem, arguments = _call(usual, x)
    try:
        device.run(
            problem,
            "auto",
            x.q,
            x.k,
            x.v,
            arguments["o_ptr"],
            None,
            softmax_scale=1.0,
            q_descale=arguments["q_descale_ptr"],
            k_descale=arguments["k_descale_ptr"],
            v_descale=arguments["v_descale_ptr"],
            config=config,
        )
        torch.cuda.synchronize()
    except autotune.cannot_run():
        return False  # measuring leaves it out too
    return True
