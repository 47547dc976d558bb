"""Which kernel a call runs, where, and whether P gets block scales. What a caller chooses is taken
or refused; only "auto" chooses for itself.

It does not check shapes or types (`interface`), and launches nothing itself.
"""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

from zyfa_triton import arch, backends, env, tuning
from zyfa_triton.backends import BackendUnavailableError, Unavailable
from zyfa_triton.kernels.family import Family
from zyfa_triton.kernels.launch import TRITON, nominal_arguments
from zyfa_triton.kernels.registry import FAMILIES, misfit
from zyfa_triton.problem import FP8, HEADDIMS, Problem, Rope

KERNELS = tuning.KERNELS
BACKENDS = backends.NAMES
AUTO = "auto"
_CPU = torch.device("cpu")


@dataclass(frozen=True)
class Capability:
    """Whether a back end works in this process, on what (detail), or why not and what to do."""

    backend: str
    available: bool
    detail: str = ""
    reason: str = ""
    remedy: str = ""


def check_names(kernel: object, backend: object) -> None:
    """Raises ValueError for a kernel or a back end that does not exist."""
    for name, got, known in (("kernel", kernel, KERNELS), ("backend", backend, BACKENDS)):
        if got not in (AUTO, *known):
            raise ValueError(f"{name}: got {got!r}; accepted: {_quoted((AUTO, *known))}")


def choose_kernel(kernel: str) -> str:
    """The kernel asked for; "auto" is left to the back end, which knows target and configuration.

    Raises ValueError for a name that does not exist.
    """
    check_names(kernel, AUTO)
    return kernel


def choose_backend(backend: str, device: torch.device) -> str:
    """The back end for a request and for the device of the tensors.

    "auto" is "device" for CUDA and ROCm tensors and "reference" for CPU tensors. Raises ValueError
    for a name that does not exist or that does not take tensors of this device.
    """
    check_names(AUTO, backend)
    on_device = device.type == "cuda"
    if backend == AUTO:
        return "device" if on_device else "reference"
    if on_device and backend != "device":
        raise ValueError(
            f"backend: {backend!r} takes CPU tensors, q is on {device}; "
            'accepted for it: "auto", "device", or q.cpu(), k.cpu(), v.cpu()'
        )
    if not on_device and backend == "device":
        raise ValueError(
            f'backend: "device" takes CUDA or ROCm tensors, q is on {device}; '
            f"accepted for it: {_quoted((AUTO, *BACKENDS[1:]))}"
        )
    return backend


def check_combination(
    kernel: object,
    backend: object,
    *,
    dtypes: Iterable[torch.dtype],
    p_mode: str,
    block_scale: bool | str,
) -> None:
    """Raises ValueError for options, right on their own, with which no call could run.

    That is, none whose inputs have one of the dtypes, whatever its shape, strides and device.
    """
    check_names(kernel, backend)
    reasons = []
    for dtype in dtypes:
        scaled = choose_block_scale(
            block_scale, dtype=dtype, p_mode=p_mode, backend=BACKENDS[-1], device=_CPU
        )
        if kernel == AUTO:
            continue
        family = FAMILIES[str(kernel)]
        if backend != AUTO:
            _check_place(family, str(backend))
        scalings = (True, False) if scaled and block_scale == AUTO else (scaled,)
        for (headdim, headdim_v), causal, scaling in itertools.product(
            HEADDIMS, (False, True), scalings
        ):
            problem = Problem(
                dtype=dtype,
                headdim=headdim,
                headdim_v=headdim_v,
                nheads=1,
                nheads_k=1,
                batch=1,
                seqlen_q=1,
                seqlen_k=1,
                causal=causal,
                p_mode=p_mode if dtype == FP8 else "exact",
                block_scale=scaling,
                out_dtype=torch.bfloat16 if dtype == FP8 else dtype,
                return_lse=False,
                device=_CPU.type,
            )
            target = family.target or ""
            reasons.append(misfit(family.name, target, problem, nominal_arguments(problem)))
    if reasons and all(reasons):
        accepted = _quoted((AUTO, TRITON))
        raise ValueError(f'kernel: got "{kernel}"; {reasons[0]}; accepted here: {accepted}')


def choose_block_scale(
    block_scale: bool | str, *, dtype: torch.dtype, p_mode: str, backend: str, device: torch.device
) -> bool:
    """Whether each 64-key block of P carries a power of two.

    "auto": where it costs nothing, that is for e4m3 on gfx950 and on everything that stands for it
    on a CPU. 16-bit inputs and p_mode "unscaled" have none; asking for one raises ValueError.
    """
    if dtype != FP8 or p_mode == "unscaled":
        if block_scale is True:
            why = f"{dtype} inputs" if dtype != FP8 else 'p_mode="unscaled"'
            raise ValueError(f'block_scale: got True; accepted with {why}: "auto", False')
        return False
    if block_scale != AUTO:
        return bool(block_scale)
    if backend != "device":
        return True
    return device.type == "cuda" and arch.arch_of(_index(device)).has_scaled_matrix


def load_backend(name: str) -> ModuleType:
    """The module of a back end, imported on first use. It may be unable to run."""
    return importlib.import_module(f"zyfa_triton.backends.{name}")


def available_backend(name: str) -> ModuleType:
    """The module of a back end that can run. Raises BackendUnavailableError otherwise."""
    module = load_backend(name)
    why: Unavailable | None = module.unavailable()
    if why is not None:
        raise BackendUnavailableError(name, why)
    return module


def capabilities() -> list[Capability]:
    """What each back end can do in this process, in the order of `BACKENDS`. Launches nothing."""
    return [_capability(name) for name in BACKENDS]


def run(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor | None,
    *,
    softmax_scale: float,
    causal: bool,
    q_descale: torch.Tensor | None,
    k_descale: torch.Tensor | None,
    v_descale: torch.Tensor | None,
    p_mode: str,
    block_scale: bool | str,
    kernel: str,
    backend: str,
    v_mean: torch.Tensor | None = None,
    config: dict[str, Any] | None = None,
    rope: Rope | None = None,
) -> None:
    """Computes attention of checked tensors into `out` and `lse`, which nothing has filled yet.

    v_mean: added to the rows of out that see a key; e4m3 only. rope: further columns of q and k, in
    tensors of their own.
    """
    env.check()
    kernel = choose_kernel(kernel)
    backend = choose_backend(backend, q.device)
    if kernel in FAMILIES:
        _check_place(FAMILIES[kernel], backend)
    module = available_backend(backend)
    problem = Problem.of(
        q,
        k,
        v,
        causal=causal,
        p_mode=p_mode,
        block_scale=choose_block_scale(
            block_scale, dtype=q.dtype, p_mode=p_mode, backend=backend, device=q.device
        ),
        out_dtype=out.dtype,
        return_lse=lse is not None,
        rope=rope,
    )
    if out.numel() == 0:
        return
    if problem.seqlen_k == 0:
        out.zero_()
        if lse is not None:
            lse.fill_(float("-inf"))
        return
    module.run(
        problem,
        kernel,
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
        config=config,
        rope=rope,
    )


def run_quantising(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor | None,
    *,
    softmax_scale: float,
    causal: bool,
    per_tensor: bool,
    subtract_k_mean: bool,
    subtract_v_mean: bool,
    p_mode: str,
    block_scale: bool | str,
    kernel: str,
    backend: str,
) -> tuple[bool, torch.Tensor | None]:
    """Attention of checked 16-bit tensors in FP8, where a kernel quantises them itself.

    Returns:
        Whether it did; if not, nothing was done, and the caller quantises and calls `run`. And the
        mean of K, float32 (batch, nheads_k, headdim), with subtract_k_mean.
    """
    env.check()
    kernel = choose_kernel(kernel)
    if choose_backend(backend, q.device) != "device" or out.numel() == 0 or k.shape[1] == 0:
        return False, None
    module = available_backend("device")
    scaled = choose_block_scale(
        block_scale, dtype=FP8, p_mode=p_mode, backend="device", device=q.device
    )
    problem = Problem.of(
        q,
        k,
        v,
        causal=causal,
        p_mode=p_mode,
        block_scale=scaled,
        out_dtype=out.dtype,
        return_lse=lse is not None,
        dtype=FP8,
    )
    return module.run_quantising(  # type: ignore[no-any-return]
        problem,
        kernel,
        q,
        k,
        v,
        out,
        lse,
        softmax_scale=softmax_scale,
        per_tensor=per_tensor,
        subtract_k_mean=subtract_k_mean,
        subtract_v_mean=subtract_v_mean,
    )


def _check_place(family: Family, backend: str) -> None:
    """Raises ValueError where a back end cannot run a kernel."""
    if family.backends is not None and backend not in family.backends:
        raise ValueError(
            f'kernel: got "{family.name}", which is {family.nature}, with backend {backend!r}; '
            f"accepted with it: {_quoted(family.backends)}"
        )


def _capability(name: str) -> Capability:
    module = load_backend(name)
    why: Unavailable | None = module.unavailable()
    if why is not None:
        return Capability(name, available=False, reason=why.reason, remedy=why.remedy)
    return Capability(name, available=True, detail=module.describe())


def _index(device: torch.device) -> int:
    return torch.cuda.current_device() if device.index is None else device.index


def _quoted(names: tuple[str, ...]) -> str:
    return ", ".join(f'"{name}"' for name in names)
