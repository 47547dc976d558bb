"""Where a call runs as gfx950 machine code on the CPU: Triton compiles, the emulator executes.

It chooses no configuration (`tuning`) and knows no instruction (`asm_overrides.emulator`). A
finding of the emulator is an error here: a result that hardware might not give is none.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from asm_overrides.emulator.banks import BankUse
from asm_overrides.emulator.checks import Observer, RegisterObserver
from asm_overrides.emulator.findings import Finding
from asm_overrides.emulator.launch import ChecksFactory, Progress, Result, WorkgroupId
from asm_overrides.emulator.launch import run as run_kernel
from asm_overrides.emulator.loader import load_text
from asm_overrides.emulator.memory import GlobalMemory
from zyfa_triton import tuning
from zyfa_triton.backends import Unavailable
from zyfa_triton.backends.device import triton_complaint
from zyfa_triton.backends.probabilities import ProbabilityCapture
from zyfa_triton.compile import TARGET, CompiledKernel, compile_call
from zyfa_triton.kernels.launch import launch_arguments, launch_grid
from zyfa_triton.problem import Problem, Rope

_ALIGNMENT = 16
_MOST_PROCESSES = 2


class EmulatorFindingsError(RuntimeError):
    """The machine code ran, but does something that hardware might not forgive."""

    def __init__(self, findings: list[Finding]) -> None:
        shown = "\n".join(f"  {finding}" for finding in findings[:10])
        more = f"\n  and {len(findings) - 10} more" if len(findings) > 10 else ""
        super().__init__(f"the emulator distrusts this machine code:\n{shown}{more}")
        self.findings = findings


@dataclass(frozen=True)
class Emulation:
    """What a run tells besides out and lse.

    kernel: which kernel ran, "triton" also where another one's loop did not fit. findings: what
    hardware might not forgive. codes: P's e4m3 codes as the matrix instructions got
    them, uint8 (batch, nheads, seqlen_q, seqlen_k), or None if not captured. banks: what each
    instruction cost LDS, in order of lines; empty unless counted.
    """

    compiled: CompiledKernel
    kernel: str
    findings: list[Finding]
    wave_instructions: int
    seconds: float
    codes: torch.Tensor | None
    banks: tuple[BankUse, ...] = ()


def unavailable() -> Unavailable | None:
    """Why gfx950 code cannot be made here; executing it needs nothing but NumPy."""
    complaint = triton_complaint()
    if complaint is not None:
        return complaint
    try:
        import triton.backends.amd  # noqa: F401 - only asks whether it is there
    except ImportError:
        return Unavailable("this Triton has no AMD back end", "pip install 'triton>=3.6,<3.10'")
    return None


def describe() -> str:
    """What it runs on."""
    import triton

    return f"{TARGET} machine code of Triton {triton.__version__}, executed on the CPU"


def run(
    problem: Problem,
    kernel: str,
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
    config: dict[str, Any] | None = None,
    rope: Rope | None = None,
) -> None:
    """Fills out and lse; slow: about a second for 256 queries and 1,024 keys of a head.

    Raises EmulatorFindingsError if the machine code is not to be trusted on hardware.
    """
    arguments = launch_arguments(
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
    result = emulate(problem, arguments, kernel=kernel, config=config)
    if result.findings:
        raise EmulatorFindingsError(result.findings)


def emulate(
    problem: Problem,
    arguments: Mapping[str, Any],
    *,
    kernel: str = "auto",
    config: Mapping[str, Any] | None = None,
    seed: int | None = None,
    checks: bool = True,
    capture: bool = False,
    observer: RegisterObserver | None = None,
    count_banks: bool = False,
    processes: int | None = None,
    progress: Progress | None = None,
) -> Emulation:
    """Compiles for the arguments and executes the machine code.

    Args:
        arguments: from `kernels.launch.launch_arguments`, CPU tensors; o_ptr and lse_ptr are
            written in place.
        kernel: which kernel, see `tuning.KERNELS`; config: replaces the configuration that
            follows from it and from tuning for gfx950.
        seed: None runs waves in lockstep, a number interleaves them at random.
        checks: whether the emulator distrusts the code. capture: record P's codes (FP8 only; one
            process; V's rows must differ within each head).
        observer: told the registers of matrix instructions (one process); not beside `capture`.
        count_banks: whether to count LDS bank conflicts.
        processes: how many share the workgroups; default the cores, at most 2.
        progress: called with (workgroups done, workgroups in all) whenever one is done.
    """
    key = tuning.key_of(problem, TARGET)
    if config is None:
        config = tuning.select(
            kernel, problem, key, arguments, lambda without: tuning.resolve(key, without)
        )
    chosen = tuning.launchable(config, key)
    compiled = compile_call(tuning.kernel_of(config), problem, arguments, chosen)
    captured = None
    if capture:
        if observer is not None:
            raise ValueError("observer: got one beside capture=True; accepted: one of the two")
        captured = ProbabilityCapture(
            problem,
            arguments["v_ptr"],
            chosen["BLOCK_M"],
            heads_fastest=chosen.get("HEADS_FASTEST", False),
        )
    result = execute(
        compiled,
        arguments,
        launch_grid(problem)(compiled.config),
        outputs=frozenset(("o_ptr", "lse_ptr")),
        seed=seed,
        checks=checks,
        observer=captured or observer,
        count_banks=count_banks,
        processes=processes,
        progress=progress,
    )
    return Emulation(
        compiled=compiled,
        # a loop of the caller's own is Triton's kernel still
        kernel=compiled.kernel if compiled.kept_own_loop else tuning.kernel_of(config),
        findings=result.findings,
        wave_instructions=result.wave_instructions,
        seconds=result.seconds,
        codes=captured.codes if captured is not None else None,
        banks=result.banks,
    )


def execute(
    compiled: CompiledKernel,
    arguments: Mapping[str, Any],
    grid: Sequence[int],
    *,
    outputs: Collection[str],
    seed: int | None = None,
    checks: bool | ChecksFactory = True,
    observer: Observer | RegisterObserver | None = None,
    workgroups: Iterable[WorkgroupId] | None = None,
    count_banks: bool = False,
    processes: int | None = None,
    progress: Progress | None = None,
) -> Result:
    """Executes compiled code for the arguments that it was compiled for.

    outputs: names of the tensors that it may write, which are written in place; a store to another
    tensor is a finding. checks may be other checks than the emulator's; workgroups: run only these.
    Others as in `emulate`.
    """
    kernel = load_text(compiled.amdgcn)
    memory = GlobalMemory()
    placed = {
        name: _Placed(memory, name, value, writable=name in outputs)
        for name, value in arguments.items()
        if isinstance(value, torch.Tensor)
    }
    values = [
        placed[name].address if name in placed else _scalar(arguments[name])
        for name in compiled.signature.run_time_names
    ]
    result = run_kernel(
        kernel,
        grid=grid,
        kernarg=kernel.pack(values),
        memory=memory,
        num_waves=compiled.num_warps,
        dynamic_lds=compiled.shared,
        seed=seed,
        checks=checks,
        observer=observer,
        workgroups=workgroups,
        count_banks=count_banks,
        processes=processes or min(_MOST_PROCESSES, os.cpu_count() or 1),
        progress=progress,
    )
    for each in placed.values():
        each.write_back(memory)
    return result


def _scalar(value: float | None) -> float:
    """An argument that is no tensor; None is the null pointer."""
    return 0 if value is None else value


class _Placed:
    """A tensor's bytes in the emulator's memory: the span that its strides reach, no more."""

    def __init__(
        self, memory: GlobalMemory, name: str, tensor: torch.Tensor, *, writable: bool
    ) -> None:
        self._span = _span(tensor)
        self._writable = writable
        # the address keeps its remainder, on which the code was specialised
        self._lead = tensor.data_ptr() % _ALIGNMENT
        padded = np.concatenate([np.zeros(self._lead, np.uint8), self._span])
        self._base = memory.alloc(name.removesuffix("_ptr"), padded, readonly=not writable)
        self.address = self._base + self._lead

    def write_back(self, memory: GlobalMemory) -> None:
        """Copy what the kernel stored into the tensor."""
        if self._writable:
            self._span[:] = memory.array(self._base)[self._lead :]


def _span(tensor: torch.Tensor) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The bytes from a tensor's first element to its last, gaps included, as a view."""
    reach = zip(tensor.shape, tensor.stride(), strict=True)
    elements = 1 + sum((size - 1) * stride for size, stride in reach)
    flat = tensor.as_strided((elements,), (1,)).view(torch.uint8)
    result: np.ndarray[Any, np.dtype[np.uint8]] = flat.numpy()
    return result
