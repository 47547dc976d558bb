"""Decides which kernels and recipes the tests of the splice share; it tests nothing."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from examples import scaled_product as example
from zyfa_triton.compile import TARGET, signature_of
from zyfa_triton.kernels.attention import attention_forward
from zyfa_triton.kernels.attention_loop import AttentionLoop
from zyfa_triton.kernels.launch import LAUNCH_OPTIONS, kernel_constants, launch_arguments
from zyfa_triton.problem import Problem
from zyfa_triton.splice import MatrixLayout

OPTIONS = {**example.OPTIONS, **LAUNCH_OPTIONS}


@dataclass(frozen=True, kw_only=True)
class ProductLoop(example.ScaledProductLoop):
    """The example's loop with lines put before and after its own text."""

    before: str = ""
    after: str = ""

    def text(self, label: str, layout: MatrixLayout) -> str:
        own = super().text(label, layout)
        return "\n".join(part for part in (self.before, own, self.after) if part)


@dataclass(frozen=True, kw_only=True)
class IdleAttentionLoop(AttentionLoop):
    """Uses every register that the interface grants, and the LDS of a real loop; computes zeros."""

    name: str = "idle"
    lds_bytes: int = 98304

    def text(self, label: str, layout: MatrixLayout) -> str:
        lines = [f"v_mov_b32 v{number}, 0" for number in range(64, 130)]
        return "\n".join([*lines, "v_mov_b32 v10, 0", "v_mov_b32 v255, 0", "s_mov_b32 s95, s34"])


def compile_kernel(
    kernel: Any,
    arguments: Mapping[str, Any],
    constants: Mapping[str, Any],
    target: GPUTarget | None = None,
    **options: Any,
) -> Any:
    """Triton's own compiled kernel, through its caches."""
    unspecialised = frozenset(one.name for one in kernel.params if one.do_not_specialize)
    defaults = {each.name: each.default for each in kernel.params if each.has_default}
    signature = signature_of(arguments, defaults | dict(constants), unspecialised)
    source = ASTSource(
        kernel,
        dict(signature.types),
        constexprs=dict(signature.constants),
        attrs={key: [list(mark) for mark in marks] for key, marks in signature.attributes},
    )
    target = target or GPUTarget("hip", TARGET, 64)
    return triton.compile(source, target=target, options=options)


def compile_product(loop: str, kernel: Any = example.scaled_product, **options: Any) -> Any:
    arguments = example.example_arguments(example.BLOCK_M, example.BLOCK_N, 2 * example.BLOCK_K)
    constants = {**example.BLOCKS, "LOOP": loop}
    return compile_kernel(kernel, arguments, constants, **{**OPTIONS, **options})


def attention_case(p_mode: str, causal: bool = True) -> tuple[Problem, dict[str, Any]]:
    """A problem with grouped heads and every descale, and its arguments, seqlen_q and _k odd."""
    generator = torch.Generator().manual_seed(3)
    q, k, v = (
        torch.randn(1, length, heads, 128, generator=generator).to(torch.float8_e4m3fn)
        for length, heads in ((300, 2), (429, 1), (429, 1))
    )
    out = torch.full((1, 300, 2, 128), float("nan"))
    problem = Problem.of(
        q,
        k,
        v,
        causal=causal,
        p_mode=p_mode,
        block_scale=True,
        out_dtype=out.dtype,
        return_lse=True,
    )
    arguments = launch_arguments(
        problem, q, k, v, out, torch.full((1, 2, 300), float("nan")), softmax_scale=0.0884,
        q_descale=torch.full((1, 1), 1.5), k_descale=torch.full((1, 1), 0.75),
        v_descale=torch.full((1, 1), 2.0),
    )  # fmt: skip
    return problem, arguments


def compile_attention(loop: str, p_mode: str = "lean", **options: Any) -> Any:
    problem, arguments = attention_case(p_mode)
    blocks = {"BLOCK_M": 256, "BLOCK_N": 64, "LOOP": loop}
    constants = {**kernel_constants(problem, arguments), **blocks}
    usual = {"num_warps": 8, "num_stages": 2, "waves_per_eu": 2, **LAUNCH_OPTIONS}
    return compile_kernel(attention_forward, arguments, constants, **{**usual, **options})


def instructions(amdgcn: str) -> list[str]:
    """Lines of machine code: no comments, directives or labels that only debuggers read."""
    code = amdgcn.split(".section\t.debug")[0]
    lines = (re.sub(r";.*", "", line).strip() for line in code.splitlines())
    return [line for line in lines if line and not re.match(r"\.(loc|file|Ltmp|Lfunc|cfi)", line)]


def spliced_text(amdgcn: str) -> list[str]:
    """Lines that the splice put in, padding included."""
    _, _, rest = amdgcn.partition(": begin\n")
    text, found, _ = rest.partition("; splice ")
    assert found, "no spliced text in this assembly"
    return [line.partition(";")[0].strip() for line in text.splitlines()]
