"""How candidates are measured: one `triton.autotune` a key, with a progress bar.

It does not decide when to measure (`choice`) and does not keep results (`store`).
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping
from typing import Any

import torch

from zyfa_triton.tuning.configurations import Config, candidates
from zyfa_triton.tuning.key import TuningKey
from zyfa_triton.tuning.selection import launchable, tunable

_LAUNCH_NAMES = ("num_warps", "num_stages")


class NoConfigurationRanError(RuntimeError):
    """Every candidate failed to compile or to fit; holds the last reason."""


def measure(
    kernel: Any,
    key: TuningKey,
    grid: Callable[[Mapping[str, Any]], tuple[int, ...]],
    arguments: Mapping[str, Any],
) -> tuple[Config, dict[str, object]]:
    """The fastest candidate for a key, and where that was found.

    Args:
        kernel: a `@triton.jit` function that may run any number of times.
        arguments: all its arguments and launch options by name, but for those of a configuration.
    """
    import triton

    configs = candidates(key) + tunable(key, arguments)
    configs = configs if len(configs) > 1 else configs * 2  # one alone would not be measured
    bench = _Bench(len(configs), f"tuning {_describe(key)}")
    tuner = triton.autotune(
        configs=[_as_triton(launchable(config, key)) for config in configs], key=[], do_bench=bench
    )(kernel)
    try:
        with bench:
            tuner[grid](**arguments)
    except Exception as error:
        if bench.best is not None:
            raise
        raise NoConfigurationRanError(
            f"none of {len(configs)} configurations runs for {key}: {bench.last_error or error}"
        ) from error
    assert bench.best is not None
    best_index, milliseconds = bench.best
    origin: dict[str, object] = {
        "milliseconds": round(milliseconds, 6),
        "device": torch.cuda.get_device_name(),
        "triton": triton.__version__,
        "date": datetime.date.today().isoformat(),
    }
    return configs[best_index], origin


class _Bench:
    """Triton's benchmark function with a progress bar; a candidate that cannot run takes
    forever."""

    def __init__(self, total: int, title: str) -> None:
        from tqdm import tqdm

        self.bar = tqdm(total=total, desc=title, unit="config", disable=None, leave=False)
        self.index = 0
        self.best: tuple[int, float] | None = None
        self.last_error = ""

    def __enter__(self) -> _Bench:
        return self

    def __exit__(self, *error: object) -> None:
        self.bar.close()

    def __call__(self, call: Callable[[], Any], quantiles: tuple[float, ...]) -> list[float]:
        from triton.compiler.errors import CompilationError
        from triton.runtime.errors import OutOfResources, PTXASError
        from triton.testing import do_bench

        index, self.index = self.index, self.index + 1
        try:
            times: list[float] = do_bench(call, quantiles=quantiles)
        except (OutOfResources, PTXASError, CompilationError) as error:
            self.last_error = str(error)
            times = [float("inf")] * len(quantiles)
        else:
            if self.best is None or times[0] < self.best[1]:
                self.best = index, times[0]
                self.bar.set_postfix_str(f"best {times[0]:.3f} ms")
        self.bar.update()
        return times


def _as_triton(config: Config) -> Any:
    import triton

    others = {name: value for name, value in config.items() if name not in _LAUNCH_NAMES}
    return triton.Config(others, num_warps=config["num_warps"], num_stages=config["num_stages"])


def _describe(key: TuningKey) -> str:
    causal = "causal" if key.causal else "full"
    return (
        f"{key.dtype} {key.headdim}/{key.headdim_v} {causal} {key.p_mode} "
        f"up to {key.seqlen_bucket} keys on {key.target}"
    )
