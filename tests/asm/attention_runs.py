"""Decides how tests put Triton's own attention code into the emulator, whole or with a mistake."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from asm_overrides.emulator import GlobalMemory, Kernel, Result, load_text, run
from zyfa_triton.compile import CompiledKernel, compile_attention
from zyfa_triton.kernels.launch import kernel_constants, launch_arguments, launch_grid
from zyfa_triton.problem import Problem

_FP8 = torch.float8_e4m3fn


@dataclass
class AttentionRun:
    """One attention problem with its compiled gfx950 code.

    Attributes:
        text: assembly as Triton emits it.
        compiled: with signature, dynamic LDS and waves.
    """

    problem: Problem
    tensors: dict[str, torch.Tensor]
    arguments: dict[str, object]
    compiled: CompiledKernel

    @property
    def text(self) -> str:
        return self.compiled.amdgcn

    def kernel(self, text: str | None = None) -> Kernel:
        return load_text(self.text if text is None else text)

    def execute(self, text: str | None = None, **options: object) -> Result:
        """Run this text (the compiled one by default) on the problem's tensors."""
        kernel = self.kernel(text)
        memory = GlobalMemory()
        addresses = {}
        for name, tensor in self.tensors.items():
            data = tensor.contiguous().view(torch.uint8).numpy()
            addresses[name] = memory.alloc(name, data, readonly=name in ("q_ptr", "k_ptr", "v_ptr"))
        names = self.compiled.signature.run_time_names
        values = [addresses.get(name, self.arguments[name]) for name in names]
        options.setdefault("max_wave_instructions", 2_000_000)
        (blocks,) = launch_grid(self.problem)(self.compiled.config)
        result = run(
            kernel,
            grid=(blocks,),
            kernarg=kernel.pack(values),
            memory=memory,
            num_waves=self.compiled.num_warps,
            dynamic_lds=self.compiled.shared,
            **options,
        )
        self.output = memory.array(addresses["o_ptr"], np.uint16).copy()
        return result


def attention_run(
    *,
    dtype: torch.dtype = _FP8,
    headdim: int = 128,
    seqlen_q: int = 128,
    seqlen_k: int = 128,
    causal: bool = True,
    p_mode: str = "lean",
    block_scale: bool = True,
    config: dict[str, int] | None = None,
) -> AttentionRun:
    """Compile a problem with random inputs (seed 0); one head, one batch entry."""
    generator = torch.Generator().manual_seed(0)

    def random(seqlen: int, width: int) -> torch.Tensor:
        return torch.randn(1, seqlen, 1, width, generator=generator).to(dtype)

    q, k, v = random(seqlen_q, headdim), random(seqlen_k, headdim), random(seqlen_k, 128)
    out = torch.zeros(1, seqlen_q, 1, 128, dtype=torch.bfloat16)
    lse = torch.zeros(1, 1, seqlen_q, dtype=torch.float32)
    problem = Problem.of(
        q, k, v, causal=causal, p_mode=p_mode, block_scale=block_scale,
        out_dtype=torch.bfloat16, return_lse=True,
    )  # fmt: skip
    arguments = launch_arguments(
        problem, q, k, v, out, lse, softmax_scale=headdim**-0.5,
        q_descale=None, k_descale=None, v_descale=None,
    )  # fmt: skip
    constants = kernel_constants(problem, arguments)
    chosen = {"BLOCK_M": 128, "BLOCK_N": 64, "num_warps": 4, "num_stages": 2, "waves_per_eu": 2}
    compiled = compile_attention(arguments, constants, chosen | (config or {}))
    tensors = {"q_ptr": q, "k_ptr": k, "v_ptr": v, "o_ptr": out, "lse_ptr": lse}
    return AttentionRun(problem, tensors, arguments, compiled)
