"""How candidates are measured: one after the other on the call's own tensors, with a progress bar.

What counts is the device's time, of calls that a graph replays: measured with the host's, a short
call is as long as its launch takes, and a kernel that keeps the device busy three times as long can
win. Board power limits the clock, and a card that has rested, or has run what
takes less power, is several percent faster: each candidate runs as long as it is measured before it
is measured. It does not decide what or
when to measure (`choice`, `selection`) and does not keep results (`store`).
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence

import torch

from zyfa_triton.hip import HipCompilerError
from zyfa_triton.kernels.family import Config
from zyfa_triton.splice.errors import SpliceError
from zyfa_triton.tuning.key import TuningKey


class NoConfigurationRanError(RuntimeError):
    """Every candidate failed to compile or to fit; holds the last reason."""


def measure(
    key: TuningKey, configs: Sequence[Config], launch: Callable[[Config], None]
) -> tuple[Config, dict[str, object]]:
    """The fastest candidate for a key, and where that was found.

    Args:
        configs: not empty; any of them may be unable to run.
        launch: enqueues the call with a configuration, any number of times.
    """
    import triton
    from tqdm import tqdm
    from triton.compiler.errors import CompilationError
    from triton.runtime.errors import OutOfResources, PTXASError
    from triton.testing import do_bench_cudagraph

    running: list[tuple[float, Config]] = []
    last_error: Exception | None = None
    title = f"tuning {_describe(key)}"
    bar = tqdm(total=len(configs), desc=title, unit="config", disable=None, leave=False)

    def timed(config: Config) -> float:
        return float(do_bench_cudagraph(lambda: launch(config), return_mode="median"))

    try:
        for config in configs:
            try:
                launch(config)  # compiles, which a capture does not allow
                timed(config)
                running.append((timed(config), config))
            except (
                OutOfResources, PTXASError, CompilationError, HipCompilerError, SpliceError
            ) as error:  # fmt: skip
                last_error = error
            else:
                bar.set_postfix_str(f"best {min(running, key=_milliseconds)[0]:.3f} ms")
            bar.update()
    finally:
        bar.close()
    if not running:
        raise NoConfigurationRanError(
            f"none of {len(configs)} configurations runs for {key}: {last_error}"
        ) from last_error
    milliseconds, best = min(running, key=_milliseconds)
    origin: dict[str, object] = {
        "milliseconds": round(milliseconds, 6),
        "device": torch.cuda.get_device_name(),
        "triton": triton.__version__,
        "date": datetime.date.today().isoformat(),
    }
    return best, origin


def _milliseconds(measured: tuple[float, Config]) -> float:
    return measured[0]


def _describe(key: TuningKey) -> str:
    causal = "causal" if key.causal else "full"
    return (
        f"{key.dtype} {key.headdim}/{key.headdim_v} {causal} {key.p_mode} "
        f"up to {key.seqlen_bucket} keys on {key.target}"
    )
