"""How right one run of the op is: its error against fp64, and whether it keeps the contract.

It does not choose inputs or print anything. Times are wall-clock times of one run on this machine,
compilation included; they say nothing about the speed of the kernel on its target.
"""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from zyfa_triton import dispatch, flash_attn_func, numerics, quantize_fp8
from zyfa_triton.activations import Activations
from zyfa_triton.kernels.launch import launch_arguments
from zyfa_triton.problem import FP8, Problem
from zyfa_triton.reference import attention_ref

if TYPE_CHECKING:
    from asm_overrides.emulator.launch import Progress
    from zyfa_triton.backends.emulated import Emulation
    from zyfa_triton.compile import CompiledKernel

DTYPES = {"fp8": FP8, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class ContractMatch:
    """How a run compares with the contract model on the same inputs.

    p_codes_equal: whether every code of P is bit-equal; None where P cannot be seen from outside.
    max_output_difference: largest absolute difference of the outputs, the model's rounded to the
    type of the run's.
    """

    p_codes_equal: bool | None
    max_output_difference: float


@dataclass(frozen=True)
class Row:
    """One line of `zyfa run`, as it stands in the JSON.

    rel_err_same_inputs: relative Frobenius error over all heads and rows against fp64 on the inputs
    that the kernel saw (dequantised); rel_err_original_inputs: against fp64 on the inputs before
    quantisation. matches_contract: None for 16-bit inputs, which have no contract. findings: of the
    emulator's checks; None where nothing was checked. lds_cycles: what LDS accesses of all waves
    take; lds_conflict_cycles: the part that bank conflicts add; None where nothing was emulated.
    """

    backend: str
    dtype: str
    p_mode: str
    block_scale: bool
    headdim: int
    seqlen: int
    kernel: str
    rel_err_same_inputs: float
    rel_err_original_inputs: float
    matches_contract: ContractMatch | None
    findings: list[dict[str, Any]] | None
    seconds: float
    nheads: int
    nheads_k: int
    causal: bool
    inputs: str
    lds_cycles: int | None = None
    lds_conflict_cycles: int | None = None

    def as_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


@dataclass(frozen=True)
class Measurement:
    """A row and what it was computed from.

    out: the run's output (1, seqlen, nheads, headdim_v). truth: fp64 on the same inputs.
    codes: P's codes (1, nheads, seqlen, seqlen), uint8, and compiled: the machine code that was
    executed; both only of an emulated FP8 run, compiled of every emulated one.
    """

    row: Row
    out: torch.Tensor
    truth: torch.Tensor
    codes: torch.Tensor | None
    compiled: CompiledKernel | None


@dataclass(frozen=True)
class Inputs:
    """Attention inputs as a kernel gets them, and as they were.

    q, k, v: of the kernel's dtype. Descales: float32 (1, nheads_k) for e4m3, else None.
    """

    original: Activations
    dtype: str
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    q_descale: torch.Tensor | None = None
    k_descale: torch.Tensor | None = None
    v_descale: torch.Tensor | None = None

    @classmethod
    def of(cls, original: Activations, dtype: str) -> Inputs:
        """Inputs of a dtype of `DTYPES`; e4m3 with one scale a key head, K's mean left in."""
        if DTYPES[dtype] != FP8:
            q, k, v = (x.to(DTYPES[dtype]) for x in (original.q, original.k, original.v))
            return cls(original, dtype, q, k, v)
        q, q_descale = quantize_fp8(original.q, nheads_k=original.nheads_k)[:2]
        k, k_descale = quantize_fp8(original.k)[:2]
        v, v_descale = quantize_fp8(original.v)[:2]
        return cls(original, dtype, q, k, v, q_descale, k_descale, v_descale)

    def scales(self) -> dict[str, Any]:
        """Keyword arguments that attention functions share."""
        return {
            "softmax_scale": self.original.softmax_scale,
            "q_descale": self.q_descale,
            "k_descale": self.k_descale,
            "v_descale": self.v_descale,
        }

    def truth(self, causal: bool) -> torch.Tensor:
        """fp64 attention on these inputs, dequantised."""
        return attention_ref(self.q, self.k, self.v, causal=causal, **self.scales())[0]

    def original_truth(self, causal: bool) -> torch.Tensor:
        """fp64 attention on the inputs as they were."""
        original = self.original
        scale = original.softmax_scale
        return attention_ref(
            original.q, original.k, original.v, softmax_scale=scale, causal=causal
        )[0]


def relative_error(out: torch.Tensor, truth: torch.Tensor) -> float:
    """Frobenius norm of the difference over that of the truth; inf where out has a NaN."""
    difference = (out.double() - truth.double()).norm()
    if torch.isnan(difference):
        return float("inf")
    if difference == 0:
        return 0.0
    return float(difference / truth.double().norm())


def row_errors(out: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
    """Relative error of each row: float64, shape of out without its last axis."""
    errors: torch.Tensor = (out.double() - truth).norm(dim=-1) / truth.norm(dim=-1)
    return errors


def measure(
    inputs: Inputs,
    *,
    causal: bool = True,
    p_mode: str = "lean",
    block_scale: bool | str = "auto",
    kernel: str = "auto",
    backend: str = "auto",
    progress: Progress | None = None,
) -> Measurement:
    """Runs the op once and compares.

    progress: emulated runs call it with (workgroups done, workgroups in all).

    Raises ValueError for combinations that the op does not accept, and BackendUnavailableError.
    """
    device = inputs.q.device
    backend = dispatch.choose_backend(backend, device)
    kernel = dispatch.choose_kernel(kernel)
    resolved = dispatch.choose_block_scale(
        block_scale, dtype=inputs.q.dtype, p_mode=p_mode, backend=backend, device=device
    )
    start = time.perf_counter()
    emulation: Emulation | None = None
    if backend == "emulated":
        out, emulation = _emulate(inputs, causal, p_mode, resolved, kernel, progress)
    else:
        result = flash_attn_func(
            inputs.q,
            inputs.k,
            inputs.v,
            causal=causal,
            p_mode=p_mode,  # type: ignore[arg-type]  # checked there
            block_scale=resolved,
            kernel=kernel,
            backend=backend,
            **inputs.scales(),
        )
        assert isinstance(result, torch.Tensor)
        out = result.cpu()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    seconds = time.perf_counter() - start

    codes = emulation.codes if emulation else None
    truth = inputs.truth(causal).cpu()
    row = Row(
        backend=backend,
        dtype=inputs.dtype,
        p_mode=p_mode if inputs.dtype == "fp8" else "exact",
        block_scale=resolved,
        headdim=inputs.q.shape[3],
        seqlen=inputs.q.shape[1],
        kernel=_kernel_that_ran(kernel, emulation),
        rel_err_same_inputs=relative_error(out, truth),
        rel_err_original_inputs=relative_error(out, inputs.original_truth(causal).cpu()),
        matches_contract=_contract_match(inputs, causal, p_mode, resolved, out, codes),
        findings=[dataclasses.asdict(one) for one in emulation.findings] if emulation else None,
        seconds=seconds,
        nheads=inputs.q.shape[2],
        nheads_k=inputs.k.shape[2],
        causal=causal,
        inputs=inputs.original.name,
        lds_cycles=sum(use.cycles for use in emulation.banks) if emulation else None,
        lds_conflict_cycles=sum(use.conflicts for use in emulation.banks) if emulation else None,
    )
    return Measurement(row, out, truth, codes, emulation.compiled if emulation else None)


def _emulate(
    inputs: Inputs,
    causal: bool,
    p_mode: str,
    block_scale: bool,
    kernel: str,
    progress: Progress | None,
) -> tuple[torch.Tensor, Emulation]:
    """Executes gfx950 machine code, with P's codes captured where there are any."""
    emulated = dispatch.available_backend("emulated")
    q, k, v = inputs.q, inputs.k, inputs.v
    is_fp8 = inputs.dtype == "fp8"
    out_dtype = torch.bfloat16 if is_fp8 else q.dtype
    out = torch.full((*q.shape[:3], v.shape[3]), float("nan"), dtype=out_dtype)
    problem = Problem.of(
        q,
        k,
        v,
        causal=causal,
        p_mode=p_mode,
        block_scale=block_scale,
        out_dtype=out_dtype,
        return_lse=False,
    )
    arguments = launch_arguments(problem, q, k, v, out, None, **inputs.scales())
    emulation: Emulation = emulated.emulate(
        problem, arguments, kernel=kernel, capture=is_fp8, count_banks=True, progress=progress
    )
    return out, emulation


def _kernel_that_ran(asked: str, emulation: Emulation | None) -> str:
    if emulation is not None:
        return emulation.kernel
    return "triton" if asked == "auto" else asked


def _contract_match(
    inputs: Inputs,
    causal: bool,
    p_mode: str,
    block_scale: bool,
    out: torch.Tensor,
    codes: torch.Tensor | None,
) -> ContractMatch | None:
    if inputs.dtype != "fp8":
        return None
    model = numerics.attention(
        inputs.q.cpu(),
        inputs.k.cpu(),
        inputs.v.cpu(),
        causal=causal,
        options=numerics.ContractOptions(p_mode, block_scale),
        return_codes=codes is not None,
        **inputs.scales(),
    )
    difference = (out.double() - model.out.to(out.dtype).double()).abs().max().item()
    equal = None if codes is None or model.codes is None else torch.equal(codes, model.codes)
    return ContractMatch(equal, difference)
