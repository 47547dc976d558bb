"""The "ptx" kernel: the Hopper kernel with a generated loop over blocks that need no mask.

It decides for which calls there is one; launching is `launch`'s. It imports Triton only to launch.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch

from zyfa_triton import env
from zyfa_triton.kernels.family import Config, Launch
from zyfa_triton.kernels.hopper.launch import GluonFamily, registers_suffice
from zyfa_triton.problem import Problem
from zyfa_triton.splice.errors import SpliceError, SpliceWarning

_BLOCK_N = 128  # what the loop is written for
CLUSTERS = (2, 1)
_Result = TypeVar("_Result")
_refused: set[str] = set()  # LOOPs that do not become a cluster's, so that none is compiled again
_DEEPEST = 2  # so many of the deepest rings that fit are measured


class PtxFamily(GluonFamily):
    """The Gluon kernel whose loop is spliced in as PTX."""

    name = "ptx"
    nature = "PTX"

    def configurations(self, problem: Problem) -> list[Config]:
        """See Family."""
        return [
            {"BLOCK_N": _BLOCK_N, "num_stages": config["num_stages"], "CLUSTER": cluster}
            for config in self.fitting(problem)
            if config["BLOCK_N"] == _BLOCK_N and config["OVERLAP"]
            for cluster in clusters(problem)
        ][: _DEEPEST * len(clusters(problem))]

    def complaint(self, config: Mapping[str, Any], problem: Problem) -> str | None:
        """See Family."""
        if config.get("BLOCK_N") != _BLOCK_N:
            return f"BLOCK_N is {config.get('BLOCK_N')!r}, not {_BLOCK_N} (ptx)"
        cluster, accepted = config.get("CLUSTER"), clusters(problem)
        if type(cluster) is not int or cluster not in accepted:
            return f"CLUSTER is {cluster!r} for {problem.dtype}, not one of {accepted} (ptx)"
        return super().complaint({**config, "OVERLAP": True}, problem)

    def launch(
        self,
        launch: Launch,
        problem: Problem,
        arguments: Mapping[str, Any],
        config: Mapping[str, Any],
    ) -> None:
        """See Family."""

        def run(chosen: Config) -> None:
            super(PtxFamily, self).launch(launch, problem, arguments, chosen)

        _in_a_cluster_or_alone(run, problem, config)

    def launch_quantising(
        self,
        launch: Launch,
        problem: Problem,
        *tensors: Any,
        config: Mapping[str, Any],
        **options: Any,
    ) -> torch.Tensor | None:
        """See QuantisingFamily."""

        def run(chosen: Config) -> torch.Tensor | None:
            return super(PtxFamily, self).launch_quantising(
                launch, problem, *tensors, config=chosen, **options
            )

        return _in_a_cluster_or_alone(run, problem, config)


def clusters(problem: Problem) -> tuple[int, ...]:
    """Accepted values of CLUSTER: workgroups that share K and V. Those of bfloat16 do not."""
    return CLUSTERS if problem.is_fp8 else CLUSTERS[-1:]


def _in_a_cluster_or_alone(
    run: Callable[[Config], _Result], problem: Problem, config: Mapping[str, Any]
) -> _Result:
    """Runs with the configuration's loop. A kernel that does not become a cluster's has no loop of
    Triton's to fall back to: one workgroup alone runs then, with a warning; in strict mode none."""
    chosen = _with_loop(problem, config)
    if chosen["LOOP"] not in _refused:
        try:
            return run(chosen)
        except SpliceError as error:
            if env.strict() or config["CLUSTER"] == 1:
                raise
            _refused.add(chosen["LOOP"])
            warnings.warn(
                f"the ptx kernel does not become a cluster's: {error}. Its workgroups run alone.",
                SpliceWarning,
                stacklevel=2,
            )
    return run(_with_loop(problem, {**config, "CLUSTER": 1}))


def _with_loop(problem: Problem, config: Mapping[str, Any]) -> Config:
    from zyfa_triton.kernels.hopper.loop import loop_of

    if config["CLUSTER"] not in clusters(problem):
        raise ValueError(
            f"CLUSTER is {config['CLUSTER']!r} for {problem.dtype}, not one of {clusters(problem)}"
        )
    overlap = registers_suffice() or not problem.is_fp8
    loop = loop_of(
        problem.headdim,
        problem.p_mode,
        config["num_stages"],
        overlap,
        problem.is_fp8,
        config["CLUSTER"],
    )
    return {**config, "OVERLAP": overlap, "LOOP": loop}
