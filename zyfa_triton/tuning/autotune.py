"""How candidates are measured: in turns on the call's own tensors, with a progress bar.

What counts is the device's time, of calls that a graph replays: measured with the host's, a short
call is as long as its launch takes, and a kernel that keeps the device busy three times as long can
win. Board power limits the clock, and a rested device is several percent faster than a busy one: it
is kept busy first, and the candidates are measured there and back again. It does not decide what or
when to measure (`choice`, `selection`) and does not keep results (`store`).
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence

import torch

from zyfa_triton.hip import HipCompilerError
from zyfa_triton.kernels.family import Config
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

    running: list[Config] = []
    last_error: Exception | None = None
    title = f"tuning {_describe(key)}"
    bar = tqdm(total=3 * len(configs), desc=title, unit="step", disable=None, leave=False)

    def timed(config: Config) -> float:
        return float(do_bench_cudagraph(lambda: launch(config), return_mode="median"))

    try:
        for config in configs:
            try:
                launch(config)  # compiles, which a capture does not allow
                running.append(config)
            except (OutOfResources, PTXASError, CompilationError, HipCompilerError) as error:
                last_error = error
                bar.update(2)  # it is in neither round
            bar.update()
        there: list[float] = []
        back: list[float] = []
        if running:
            timed(running[0])  # only to keep the device busy
        for round_, order in ((there, running), (back, running[::-1])):
            for config in order:
                round_.append(timed(config))
                bar.set_postfix_str(f"best {min(round_):.3f} ms")
                bar.update()
    finally:
        bar.close()
    milliseconds = [(x + y) / 2 for x, y in zip(there, reversed(back), strict=True)]
    if not running:
        raise NoConfigurationRanError(
            f"none of {len(configs)} configurations runs for {key}: {last_error}"
        ) from last_error
    best = min(range(len(running)), key=milliseconds.__getitem__)
    origin: dict[str, object] = {
        "milliseconds": round(milliseconds[best], 6),
        "device": torch.cuda.get_device_name(),
        "triton": triton.__version__,
        "date": datetime.date.today().isoformat(),
    }
    return running[best], origin


def _describe(key: TuningKey) -> str:
    causal = "causal" if key.causal else "full"
    return (
        f"{key.dtype} {key.headdim}/{key.headdim_v} {causal} {key.p_mode} "
        f"up to {key.seqlen_bucket} keys on {key.target}"
    )
