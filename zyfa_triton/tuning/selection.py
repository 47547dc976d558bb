"""Which kernel a request stands for, and with which configuration it is launched.

A configuration may name a kernel under "kernel"; without one it is Triton's own loops. It does not
measure (`autotune`) and does not know what a kernel does (`kernels.registry`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from zyfa_triton.kernels.family import Config
from zyfa_triton.kernels.launch import TRITON
from zyfa_triton.kernels.registry import FAMILIES, kernel_of, misfit, misfits
from zyfa_triton.problem import Problem
from zyfa_triton.tuning import choice
from zyfa_triton.tuning.configurations import candidates, default
from zyfa_triton.tuning.key import TuningKey
from zyfa_triton.tuning.store import Kernels

_AUTO = "auto"
_only: ContextVar[Sequence[str] | None] = ContextVar("zyfa_tuning_only", default=None)


@contextmanager
def only(kernels: Sequence[str] | None) -> Iterator[None]:
    """What is measured inside is these kernels against the configuration that a call would take
    anyway; everything with None."""
    token = _only.set(kernels)
    try:
        yield
    finally:
        _only.reset(token)


def select(
    kernel: str,
    problem: Problem,
    key: TuningKey,
    arguments: Mapping[str, Any],
    tuned: Callable[[Kernels], Config],
) -> Config:
    """The configuration for a requested kernel.

    Args:
        kernel: "auto" takes what tuning found among the kernels that serve this call; the others
            are taken as asked, with what tuning found for them.
        arguments: run-time arguments of the launch.
        tuned: gives the stored, measured or default configuration of the key without the kernels
            that it is given, see `ruled_out`. One of those stands for nothing found: the default
            of the kernel asked for is taken, Triton's with "auto".
    Raises:
        ValueError: a kernel is asked for by name and does not serve this problem.
    """
    if kernel not in (_AUTO, TRITON):
        why = misfit(kernel, key.target, problem, arguments)
        if why:
            raise ValueError(f'kernel: got "{kernel}"; {why}. Accepted here: "auto", "{TRITON}"')
    without = ruled_out(kernel, problem, key, arguments)
    config = tuned(without)
    if kernel_of(config) not in without:
        return config
    if kernel in (_AUTO, TRITON):
        return default(key)
    return {**FAMILIES[kernel].configurations(problem)[0], "kernel": kernel}


def ruled_out(
    kernel: str, problem: Problem, key: TuningKey, arguments: Mapping[str, Any]
) -> Kernels:
    """Kernels of the target that do not come into question: with "auto" those that do not serve the
    call, else all but the one asked for."""
    if kernel == _AUTO:
        return misfits(key.target, problem, arguments)
    return frozenset(name for name in _of_target(key.target) if name != kernel)


def _of_target(target: str) -> list[str]:
    return [name for name, family in FAMILIES.items() if family.target in (None, target)]


def launchable(config: Mapping[str, Any], key: TuningKey) -> Config:
    """A configuration as the launch takes it: constants of its kernel in place of the name.

    The ping-pong loop's settings are its default ones, or what a self-test of the target found
    allowed. What the configuration holds itself stays.
    """
    result = dict(config)
    family = FAMILIES[str(result.pop("kernel", TRITON))]
    constants = family.constants(
        headdim=key.headdim,
        p_mode=key.p_mode,
        is_causal=key.causal,
        settings=choice.machine_settings(key.target),
    )
    return {**constants, **result}


def tunable(problem: Problem, key: TuningKey, arguments: Mapping[str, Any]) -> list[Config]:
    """What tuning measures for a call besides `configurations.candidates`."""
    return [
        {**config, "kernel": name}
        for name, family in FAMILIES.items()
        if not misfit(name, key.target, problem, arguments)
        for config in family.configurations(problem)
    ]


def measured(
    kernel: str, problem: Problem, key: TuningKey, arguments: Mapping[str, Any]
) -> list[Config]:
    """All that tuning compares for a call that asks for a kernel: what `select` may then take."""
    without = ruled_out(kernel, problem, key, arguments)
    everything = [*candidates(key), *tunable(problem, key, arguments)]
    everything = [config for config in everything if kernel_of(config) not in without]
    kernels = _only.get()
    if kernels is None:
        return everything
    present = select(kernel, problem, key, arguments, lambda without: choice.resolve(key, without))
    wanted = [config for config in everything if kernel_of(config) in kernels]
    return [present, *(config for config in wanted if config != present)]
