"""Where a call runs on a GPU: launches the Triton kernels on the tensors' own device.

It chooses nothing but the configuration, through `tuning`, and measures nothing while a CUDA graph
is captured. `launching` enqueues each kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch

from zyfa_triton import env, tuning
from zyfa_triton.arch import Arch, arch_of
from zyfa_triton.backends import BackendUnavailableError, Unavailable
from zyfa_triton.backends.launching import enqueue
from zyfa_triton.kernels import launch as attention_launch
from zyfa_triton.kernels import quantize_launch
from zyfa_triton.kernels.registry import FAMILIES, QUANTISING
from zyfa_triton.problem import Problem, Rope

TRITON_VERSIONS = ((3, 6), (3, 9))  # first and last minor version that this is tested with


@cache
def unavailable() -> Unavailable | None:
    """Why no kernel can be launched in this process."""
    missing = triton_complaint()
    if missing is not None:
        return missing
    if env.is_interpreting():
        return Unavailable(
            "TRITON_INTERPRET=1 makes Triton interpret every kernel of this process",
            "Unset it and start again",
        )
    if not torch.cuda.is_available():
        return Unavailable(
            f"torch {torch.__version__} finds no CUDA or ROCm device",
            "Install a torch build for your GPU and its driver, or use CPU tensors",
        )
    return None


def triton_complaint() -> Unavailable | None:
    """Why Triton cannot be used: not installed, or a version that is not supported."""
    first, last = (f"{major}.{minor}" for major, minor in TRITON_VERSIONS)
    above = f"3.{TRITON_VERSIONS[1][1] + 1}"
    remedy = f'Install Triton {first} to {last}: pip install "triton>={first},<{above}"'
    if find_spec("triton") is None:
        return Unavailable("Triton is not installed", remedy)
    import triton

    version = tuple(int(part) for part in triton.__version__.split(".")[:2])
    if not TRITON_VERSIONS[0] <= version <= TRITON_VERSIONS[1]:
        return Unavailable(f"Triton {triton.__version__} is not supported", remedy)
    return None


def describe() -> str:
    """What it runs on."""
    import triton

    names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    targets = sorted({arch_of(index).name for index in range(torch.cuda.device_count())})
    return f"{', '.join(names)} ({', '.join(targets)}), Triton {triton.__version__}"


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
    """Launches attention. Raises NotWarmedUpError under graph capture, see the module."""
    arch = arch_of(q.device.index)
    _check_arch(problem, arch)
    with torch.cuda.device(q.device):
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
        key = tuning.key_of(problem, arch.name)

        def launch(config: dict[str, Any]) -> None:
            family = FAMILIES[tuning.kernel_of(config)]
            family.launch(enqueue, problem, arguments, tuning.launchable(config, key))

        def measure() -> tuple[dict[str, Any], dict[str, object]]:
            from zyfa_triton.tuning import autotune

            return autotune.measure(key, tuning.measured(kernel, problem, key, arguments), launch)

        def tuned(without: tuning.Kernels) -> dict[str, Any]:
            capturing = torch.cuda.is_current_stream_capturing()
            return tuning.requested(key, without, may_measure=not capturing, measure=measure)

        if config is None:
            config = tuning.select(kernel, problem, key, arguments, tuned)
            tuning.note(config)
        launch(config)


def run_quantising(
    problem: Problem,
    kernel: str,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor | None,
    *,
    softmax_scale: float,
    per_tensor: bool,
    subtract_k_mean: bool,
    subtract_v_mean: bool,
) -> tuple[bool, torch.Tensor | None]:
    """Launches attention of 16-bit inputs in FP8, if its kernel quantises them itself.

    Args:
        problem: the e4m3 one. per_tensor: as in `zyfa_triton.quantize`. subtract_k_mean,
            subtract_v_mean: whether the means of K and V are taken off.
    Returns:
        Whether it was launched; if not, the caller quantises, which is so where the call is to be
        measured too. And the mean of K, with subtract_k_mean.
    """
    arch = arch_of(q.device.index)
    key = tuning.key_of(problem, arch.name)
    serving = [each for each in QUANTISING.values() if each.target == arch.name]
    if not serving:
        return False, None
    wanted = False

    def tuned(without: tuning.Kernels) -> dict[str, Any]:
        nonlocal wanted
        wanted = tuning.is_wanted(key, without)
        return tuning.resolve(key, without)

    # its own, and so well placed; in one part each
    codes = {"q_ptr": q.new_empty(0), "k_ptr": q.new_empty(0), "k_rope_ptr": None}
    config = tuning.select(kernel, problem, key, codes, tuned)
    family = QUANTISING.get(tuning.kernel_of(config))
    if family is None or wanted:
        return False, None
    tuning.note(config)
    with torch.cuda.device(q.device):
        mean = family.launch_quantising(
            enqueue,
            problem,
            q,
            k,
            v,
            out,
            lse,
            softmax_scale=softmax_scale,
            per_tensor=per_tensor,
            subtract_k_mean=subtract_k_mean,
            subtract_v_mean=subtract_v_mean,
            config=tuning.launchable(config, key),
        )
    return True, mean


def quantize(
    x: torch.Tensor, codes: torch.Tensor, descale: torch.Tensor, mean: torch.Tensor | None
) -> None:
    """Fills codes, descale and mean of x, see `zyfa_triton.quantize`."""
    _require_device()
    arch = arch_of(x.device.index)
    if not arch.has_e4m3:
        raise BackendUnavailableError("device", _no_e4m3(arch))
    with torch.cuda.device(x.device):
        quantize_launch.quantize(enqueue, x, codes, descale, mean)


def quantize_parts(
    parts: Sequence[torch.Tensor],
    codes: Sequence[torch.Tensor],
    descales: Sequence[torch.Tensor],
    means: Sequence[torch.Tensor | None],
) -> None:
    """Fills codes, descales and means of q and k in parts, see `zyfa_triton.quantize`."""
    _require_device()
    arch = arch_of(parts[0].device.index)
    if not arch.has_e4m3:
        raise BackendUnavailableError("device", _no_e4m3(arch))
    with torch.cuda.device(parts[0].device):
        quantize_launch.quantize_parts(enqueue, parts, codes, descales, means)


def add_mean_to_lse(
    lse: torch.Tensor, q: torch.Tensor, mean: torch.Tensor, softmax_scale: float
) -> None:
    """lse += softmax_scale * q . mean, in place."""
    _require_device()
    with torch.cuda.device(q.device):
        quantize_launch.add_mean_to_lse(enqueue, lse, q, mean, softmax_scale)


def _require_device() -> None:
    why = unavailable()
    if why is not None:
        raise BackendUnavailableError("device", why)


def _check_arch(problem: Problem, arch: Arch) -> None:
    if problem.is_fp8 and not arch.has_e4m3:
        raise BackendUnavailableError("device", _no_e4m3(arch))


def _no_e4m3(arch: Arch) -> Unavailable:
    return Unavailable(
        f"{arch.name} has no float8_e4m3fn arithmetic",
        "Use bfloat16 or float16 inputs, or a GPU that has it: sm89 and later, gfx950",
    )
