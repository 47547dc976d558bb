"""What a kernel must offer to stand behind the op: one protocol, one entry a kernel in `registry`.

It names no kernel and does not choose between them (`zyfa_triton.tuning`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch

from zyfa_triton.problem import Problem

Config = dict[str, Any]
Launch = Callable[[Any, Any, Mapping[str, Any]], None]
"""A function (jitted kernel, grid, arguments and launch options by name) that enqueues a kernel."""


class Family(Protocol):
    """One kernel behind the op.

    name: as `kernel=` takes it. target: the only target that it is written for, None for any.
    backends: the back ends that can run it, None for all. nature: what it is, for errors.
    reads_parts: whether it takes the rope parts of q and k from tensors of their own.
    """

    name: str
    target: str | None
    backends: tuple[str, ...] | None
    nature: str
    reads_parts: bool

    def misfit(self, problem: Problem, arguments: Mapping[str, Any]) -> str:
        """Why it does not serve a call on its target; "" if it does.

        Args:
            arguments: from `launch.launch_arguments`, whose tensors and strides are looked at.
        """

    def configurations(self, problem: Problem) -> list[Config]:
        """What tuning measures for a problem that fits, the default first. Without "kernel"."""

    def complaint(self, config: Mapping[str, Any], problem: Problem) -> str | None:
        """What is wrong with a configuration that somebody wrote down, or None.

        problem: one of the kind that it was written down for, any of them: of its key
        (`tuning.TuningKey`).
        """

    def constants(
        self, *, headdim: int, p_mode: str, is_causal: bool, settings: Mapping[str, str]
    ) -> dict[str, Any]:
        """What a launch needs beside the configuration.

        settings: what a self-test of this machine found allowed, see `tuning.machine_settings`.
        """

    def launch(
        self,
        launch: Launch,
        problem: Problem,
        arguments: Mapping[str, Any],
        config: Mapping[str, Any],
    ) -> None:
        """Enqueues the call. config: a configuration and `constants`, without "kernel"."""


class QuantisingFamily(Family, Protocol):
    """A kernel that takes 16-bit inputs for a call in FP8 and quantises them on its own."""

    def launch_quantising(
        self,
        launch: Launch,
        problem: Problem,
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
        config: Mapping[str, Any],
    ) -> torch.Tensor | None:
        """Enqueues the call: codes and descales are bit for bit those of `zyfa_triton.quantize`.

        Args:
            problem: of the e4m3 call. q, k, v: of 16 bits, any strides. subtract_v_mean: whether
                V's mean is taken off, and added to the output. Others: as in
                `zyfa_triton.quantize` and `kernels.launch.launch_arguments`.
        Returns:
            The mean of K, float32 (batch, nheads_k, headdim), with subtract_k_mean.
        """
