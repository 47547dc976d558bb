"""How candidates are measured: one after the other on the call's own tensors, with a progress bar.

What counts is the device's time, of calls that a graph replays: measured with the host's, a short
call is as long as its launch takes, and a kernel that keeps the device busy three times as long can
win. Board power limits the clock, and a card that has rested, or has run what takes less power, is
several percent faster: each candidate first runs for as long as it is then measured. It does not
decide what or when to measure (`choice`, `selection`) and does not keep results (`store`).
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


def cannot_run() -> tuple[type[Exception], ...]:
    """What a configuration that does not run here raises when it is launched first."""
    from triton.compiler.errors import CompilationError
    from triton.runtime.errors import OutOfResources, PTXASError

    return OutOfResources, PTXASError, CompilationError, HipCompilerError, SpliceError


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
    from triton.testing import do_bench_cudagraph

    best: tuple[float, Config] | None = None
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
                milliseconds = timed(config)
            except cannot_run() as error:
                last_error = error
            else:
                if best is None or milliseconds < best[0]:
                    best = milliseconds, config
                    bar.set_postfix_str(f"best {milliseconds:.3f} ms")
            bar.update()
    finally:
        bar.close()
    if best is None:
        raise NoConfigurationRanError(
            f"none of {len(configs)} configurations runs for {key}: {last_error}"
        ) from last_error
    origin: dict[str, object] = {
        "milliseconds": round(best[0], 6),
        "device": torch.cuda.get_device_name(),
        "triton": triton.__version__,
        "date": datetime.date.today().isoformat(),
    }
    return best[1], origin


def _describe(key: TuningKey) -> str:
    causal = "causal" if key.causal else "full"
    return (
        f"{key.dtype} {key.headdim}/{key.headdim_v} {causal} {key.p_mode} "
        f"up to {key.seqlen_bucket} keys on {key.target}"
    )
