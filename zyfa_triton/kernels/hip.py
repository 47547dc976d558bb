"""Decides which calls the BF16 kernel in HIP C++ serves, and how they become its arguments.

What it computes stands in hip/attention_forward.hip; how it is compiled, in `zyfa_triton.hip`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from zyfa_triton import hip
from zyfa_triton.code_object import Kernel
from zyfa_triton.hip.sources import source
from zyfa_triton.kernels.family import Config, Launch
from zyfa_triton.problem import HEADDIMS, Problem

TILE_M, TILE_N, WAVES = 256, 64, 8
ALIGNMENT = 16  # bytes: of every row, which is loaded and stored in pieces of this size
LARGEST_SPAN = 2**31  # bytes between the first and the last row of a tile: a load's offset
CONFIG: Config = {"BLOCK_M": TILE_M, "BLOCK_N": TILE_N, "num_warps": WAVES}
TYPES = {
    "q_ptr": "*bf16",
    "k_ptr": "*bf16",
    "v_ptr": "*bf16",
    "o_ptr": "*bf16",
    "lse_ptr": "*fp32",
    "softmax_scale_log2": "fp32",
    **{f"stride_{tensor}{axis}": "i64" for tensor in "qkvo" for axis in "bsh"},
    **dict.fromkeys(("nheads", "group_size", "seqlen_q", "seqlen_k"), "i32"),
}
"""Arguments in the kernel's order, named as in `launch.launch_arguments`."""


@dataclass(frozen=True)
class Instance:
    """One instance of the template. headdim: of q and k."""

    headdim: int
    causal: bool
    return_lse: bool

    @classmethod
    def of(cls, problem: Problem) -> Instance:
        """The instance for a problem that the kernel serves."""
        return cls(problem.headdim, problem.causal, problem.return_lse)

    @property
    def name(self) -> str:
        """The kernel's symbol."""
        kind = ("causal" if self.causal else "full") + ("_lse" if self.return_lse else "")
        return f"attention_forward_bf16_d{self.headdim}_{kind}"

    @property
    def defines(self) -> dict[str, int]:
        """Preprocessor macros that choose it."""
        return {
            "ZYFA_HEADDIM": self.headdim,
            "ZYFA_CAUSAL": int(self.causal),
            "ZYFA_LSE": int(self.return_lse),
        }

    def assembly(self) -> str:
        """Its gfx950 assembly. Raises hip.HipCompilerError."""
        return hip.assembly(source("attention_forward.hip"), self.defines)


def values_of(arguments: Mapping[str, Any]) -> list[Any]:
    """The kernel's arguments in order; 0 is the pointer to an lse that nobody asked for."""
    return [0 if arguments[name] is None else arguments[name] for name in TYPES]


def grid_of(problem: Problem) -> tuple[int, int, int]:
    """Workgroups in x, y, z."""
    return (-(-problem.seqlen_q // TILE_M) * problem.nheads * problem.batch, 1, 1)


def misfit(problem: Problem, arguments: Mapping[str, Any]) -> str:
    """Why the kernel does not serve a call; "" if it does."""
    unfit = _misfit_of_kind(problem)
    if unfit:
        return unfit
    if problem.out_dtype != torch.bfloat16:
        return f"it writes bfloat16, not {problem.out_dtype}"
    for name in "qkvo":
        tensor = arguments[f"{name}_ptr"]
        steps = [2 * arguments[f"stride_{name}{axis}"] for axis in "bsh"]
        if any(number % ALIGNMENT for number in (tensor.data_ptr(), *steps)):
            return f"{name}'s rows do not all start at multiples of {ALIGNMENT} bytes"
        if name in "kv" and TILE_N * steps[1] >= LARGEST_SPAN:
            return f"{TILE_N} rows of {name} span {LARGEST_SPAN} bytes or more"
    return ""


def _misfit_of_kind(problem: Problem) -> str:
    heads = (problem.headdim, problem.headdim_v)
    if problem.dtype != torch.bfloat16:
        return f"it takes bfloat16 inputs, not {problem.dtype}"
    if heads not in HEADDIMS:
        return f"it is written for head dims {HEADDIMS}, not {heads}"
    return ""


class Launchable:
    """An instance as `Launch` takes a kernel: launchable[grid](**arguments).

    It is compiled when first used and loaded once for each device.
    """

    def __init__(self, instance: Instance) -> None:
        self.__name__ = instance.name
        self._instance = instance
        self._loaded: dict[int, Kernel] = {}

    @staticmethod
    def _device() -> int:
        from triton.runtime.driver import driver

        return int(driver.active.get_current_device())

    def is_loaded(self) -> bool:
        """Whether a launch on the current device neither compiles nor loads."""
        return self._device() in self._loaded

    def __getitem__(self, grid: tuple[int, int, int]) -> Callable[..., None]:
        def launch(**arguments: Any) -> None:
            device = self._device()
            if device not in self._loaded:
                text = self._instance.assembly()
                self._loaded[device] = Kernel(self.__name__, text, list(TYPES.values()), WAVES)
            self._loaded[device].launch(grid, *values_of(arguments))

        return launch


@cache
def launchable(instance: Instance) -> Launchable:
    """The one of this process."""
    return Launchable(instance)


class HipFamily:
    """hip/attention_forward.hip, compiled on the user's machine."""

    name = "hip"
    target: str | None = "gfx950"
    backends: tuple[str, ...] | None = ("device", "emulated")
    nature = "machine code"
    reads_parts = False

    def misfit(self, problem: Problem, arguments: Mapping[str, Any]) -> str:
        """See Family."""
        return misfit(problem, arguments)

    def configurations(self, problem: Problem) -> list[Config]:
        """See Family."""
        return [dict(CONFIG)]

    def complaint(self, config: Mapping[str, Any], problem: Problem) -> str | None:
        """See Family."""
        asked = {name: value for name, value in config.items() if name != "kernel"}
        if asked != CONFIG:
            return f"the kernel in HIP has {CONFIG}, not {asked}"
        return _misfit_of_kind(problem) or None

    def constants(
        self, *, headdim: int, p_mode: str, is_causal: bool, settings: Mapping[str, str]
    ) -> dict[str, Any]:
        """None: everything is in the instance."""
        return {}

    def launch(
        self,
        launch: Launch,
        problem: Problem,
        arguments: Mapping[str, Any],
        config: Mapping[str, Any],
    ) -> None:
        """See Family."""
        launch(launchable(Instance.of(problem)), grid_of(problem), arguments)
