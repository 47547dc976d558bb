"""The "ptx" kernel: the Hopper kernel with a generated loop over blocks that need no mask.

It decides for which calls there is one; launching is `launch`'s. It imports Triton only to launch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from zyfa_triton.kernels.family import Config, Launch
from zyfa_triton.kernels.hopper.launch import GluonFamily, registers_suffice
from zyfa_triton.problem import Problem

_BLOCK_N = 128  # what the loop is written for
_DEEPEST = 2  # so many of the deepest rings that fit are measured


class PtxFamily(GluonFamily):
    """The Gluon kernel whose loop is spliced in as PTX."""

    name = "ptx"
    nature = "PTX"

    def configurations(self, problem: Problem) -> list[Config]:
        """See Family."""
        return [
            {name: config[name] for name in ("BLOCK_N", "num_stages")}
            for config in self.fitting(problem)
            if config["BLOCK_N"] == _BLOCK_N and config["OVERLAP"]
        ][:_DEEPEST]

    def complaint(self, config: Mapping[str, Any], *, block_scale: bool) -> str | None:
        """See Family."""
        if config.get("BLOCK_N") != _BLOCK_N:
            return f"BLOCK_N is {config.get('BLOCK_N')!r}, not {_BLOCK_N} (ptx)"
        return super().complaint({**config, "OVERLAP": True}, block_scale=block_scale)

    def launch(
        self,
        launch: Launch,
        problem: Problem,
        arguments: Mapping[str, Any],
        config: Mapping[str, Any],
    ) -> None:
        """See Family."""
        super().launch(launch, problem, arguments, _with_loop(problem, config))

    def launch_quantising(
        self,
        launch: Launch,
        problem: Problem,
        *tensors: Any,
        config: Mapping[str, Any],
        **options: Any,
    ) -> torch.Tensor | None:
        """See QuantisingFamily."""
        return super().launch_quantising(
            launch, problem, *tensors, config=_with_loop(problem, config), **options
        )


def _with_loop(problem: Problem, config: Mapping[str, Any]) -> Config:
    from zyfa_triton.kernels.hopper.loop import loop_of

    overlap = registers_suffice() or not problem.is_fp8
    loop = loop_of(problem.headdim, problem.p_mode, config["num_stages"], overlap, problem.is_fp8)
    return {**config, "OVERLAP": overlap, "LOOP": loop}
