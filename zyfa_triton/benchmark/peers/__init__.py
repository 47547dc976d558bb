"""Who takes part in a benchmark: the registry of paths. One file a library.

A path's `setup(problem)` gives a call, or the reason why there is none: a package that is missing,
a card that it is not for, a shape that it refuses. A call takes one copy of the inputs and returns
an `Output`; whatever a path can prepare for a shape once (plans, masks, compilation) is done in
`setup` and not timed. Whatever depends on the values of the inputs is in the call.

It does not run calls, time them or judge them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from zyfa_triton.benchmark.gate import Output
from zyfa_triton.benchmark.inputs import Problem, Tensors

Call = Callable[[Tensors], Output]
Setup = Callable[[Problem], Call | str]


@dataclass(frozen=True)
class Path:
    """One way to compute attention.

    name: ours begin with "zyfa". dtype: of the inputs, "fp8" or "bf16". p_mode: how P is made, of
    ours; empty for others and for 16-bit inputs.
    """

    name: str
    dtype: str
    setup: Setup
    p_mode: str = ""

    @property
    def is_ours(self) -> bool:
        return self.name.startswith("zyfa")


@cache
def all_paths() -> tuple[Path, ...]:
    """Every path that is known, ours first; installed or not."""
    from zyfa_triton.benchmark.peers import aiter, cudnn_fp8, flash3, flex, ours, torch_sdpa

    return tuple(
        path
        for module in (ours, cudnn_fp8, flash3, torch_sdpa, flex, aiter)
        for path in module.PATHS
    )
