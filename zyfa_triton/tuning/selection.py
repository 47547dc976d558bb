"""Which kernel a request stands for, and with which configuration it is launched.

A configuration may name a kernel under "kernel"; without one it is Triton's own loops. It does not
measure (`autotune`) and does not know what a loop does (`kernels.pingpong`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from zyfa_triton.kernels import pingpong
from zyfa_triton.problem import Problem
from zyfa_triton.tuning import choice
from zyfa_triton.tuning.configurations import PINGPONG, TRITON, Config, default
from zyfa_triton.tuning.key import TuningKey

PINGPONG_TARGET = "gfx950"


def kernel_of(config: Mapping[str, Any]) -> str:
    """The kernel that a configuration stands for."""
    return str(config.get("kernel", TRITON))


def select(
    kernel: str,
    problem: Problem,
    key: TuningKey,
    arguments: Mapping[str, Any],
    tuned: Callable[[], Config],
) -> Config:
    """The configuration for a requested kernel.

    Args:
        kernel: "auto" takes what tuning found; the others are taken as asked, whatever it found.
        arguments: run-time arguments of the launch.
        tuned: gives the stored, measured or default configuration of the key.
    Raises:
        ValueError: the ping-pong loop is asked for and does not serve this problem.
    """
    misfit = "" if key.target == PINGPONG_TARGET else f"it is {PINGPONG_TARGET} machine code"
    misfit = misfit or pingpong.misfit(problem, arguments)
    if kernel == PINGPONG:
        if misfit:
            raise ValueError(f'kernel: got "pingpong"; {misfit}. Accepted here: "auto", "triton"')
        return pingpong_config()
    config = tuned()
    if kernel_of(config) == PINGPONG and (kernel == TRITON or misfit):
        return default(key)
    return config


def pingpong_config() -> Config:
    """The configuration of the ping-pong loop, as it is stored."""
    return {**pingpong.CONFIG, "kernel": PINGPONG}


def launchable(config: Mapping[str, Any], key: TuningKey) -> Config:
    """A configuration as the launch takes it: the kernel's name becomes its LOOP constexpr.

    The loop's settings are its default ones, or what a self-test of the target found allowed. A
    LOOP of the caller's own (`zyfa_triton.splice.use`) stays.
    """
    result = {"LOOP": "", **config}
    if result.pop("kernel", None) == PINGPONG:
        result["LOOP"] = pingpong.loop_of(
            key.p_mode, is_causal=key.causal, **choice.machine_settings(key.target)
        )
    return result


def tunable(key: TuningKey, arguments: Mapping[str, Any]) -> list[Config]:
    """What tuning measures for these arguments besides `configurations.candidates`."""
    fits = (
        key.target == PINGPONG_TARGET
        and not pingpong.misfit_of_kind(
            is_fp8=key.dtype == "e4m3",
            headdim=key.headdim,
            p_mode=key.p_mode,
            block_scale=key.block_scale,
        )
        and not pingpong.misfit_of_strides(arguments)
    )
    return [pingpong_config()] if fits else []
