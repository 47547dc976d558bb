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
from zyfa_triton.kernels.registry import FAMILIES, kernel_of, misfit
from zyfa_triton.problem import Problem
from zyfa_triton.tuning import choice
from zyfa_triton.tuning.configurations import candidates, default
from zyfa_triton.tuning.key import TuningKey

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
    tuned: Callable[[], Config],
) -> Config:
    """The configuration for a requested kernel.

    Args:
        kernel: "auto" takes what tuning found, and Triton's loops where that kernel does not serve
            this call; the others are taken as asked, whatever tuning found.
        arguments: run-time arguments of the launch.
        tuned: gives the stored, measured or default configuration of the key.
    Raises:
        ValueError: a kernel is asked for by name and does not serve this problem.
    """
    if kernel not in (_AUTO, TRITON):
        why = misfit(kernel, key.target, problem, arguments)
        if why:
            raise ValueError(f'kernel: got "{kernel}"; {why}. Accepted here: "auto", "{TRITON}"')
        return stored_or_default(kernel, problem, key)
    config = tuned()
    found = kernel_of(config)
    if found != TRITON and (kernel == TRITON or misfit(found, key.target, problem, arguments)):
        return default(key)
    return config


def stored_or_default(kernel: str, problem: Problem, key: TuningKey) -> Config:
    """What tuning stored for a key if that names this kernel, else the kernel's default."""
    stored = choice.resolve(key)
    if kernel_of(stored) == kernel:
        return stored
    return {**FAMILIES[kernel].configurations(problem)[0], "kernel": kernel}


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


def measured(problem: Problem, key: TuningKey, arguments: Mapping[str, Any]) -> list[Config]:
    """All that tuning compares for a call."""
    kernels, others = _only.get(), tunable(problem, key, arguments)
    if kernels is None:
        return [*candidates(key), *others]
    present = choice.resolve(key)
    if misfit(kernel_of(present), key.target, problem, arguments):
        present = default(key)
    wanted = [config for config in others if kernel_of(config) in kernels]
    return [present, *(config for config in wanted if config != present)]
