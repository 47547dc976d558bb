"""Clock and power of a card while something runs: read beside it, in a thread or by nvidia-smi.

It sets nothing: clocks and limits stay as they are. Sources, the first that works:

1. NVML through pynvml (package nvidia-ml-py): SM clock and instantaneous power.
2. nvidia-smi, in a loop of its own.
3. On ROCm: torch, through amdsmi.
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

INTERVAL = 0.01
_NVIDIA_SMI_MS = 20
_POWER_INSTANT = 186  # NVML_FI_DEV_POWER_INSTANT, milliwatts; older cards have an average only


@dataclass(frozen=True)
class Reading:
    """At `when` (time.perf_counter): SM clock in MHz and board power in watts."""

    when: float
    clock_mhz: float
    power_w: float


@dataclass(frozen=True)
class State:
    """Medians of the readings in some windows of time; None where there was no reading."""

    clock_mhz: float | None = None
    power_w: float | None = None


Sensor = Callable[[], tuple[float, float]]


def state(readings: Iterable[Reading], windows: Iterable[tuple[float, float]]) -> State:
    """The state of the card inside the windows."""
    spans = list(windows)
    inside = [one for one in readings if any(a <= one.when <= b for a, b in spans)]
    if not inside:
        return State()
    return State(
        statistics.median(one.clock_mhz for one in inside),
        statistics.median(one.power_w for one in inside),
    )


class Sampler:
    """Reads a sensor every INTERVAL seconds between enter and exit. source: where from, or why not.

    readings: grows while it runs.
    """

    def __init__(self, sensor: Sensor, source: str) -> None:
        self.source = source
        self.readings: list[Reading] = []
        self._sensor = sensor
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Sampler:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(timeout=2.0)

    def _run(self) -> None:
        while not self._stop.wait(INTERVAL):
            try:
                clock, power = self._sensor()
            except Exception as error:
                self.source += f" (stopped: {error})"
                return
            self.readings.append(Reading(time.perf_counter(), clock, power))


class _SmiSampler(Sampler):
    """Lines of a looping nvidia-smi, which comes without a Python package."""

    def __init__(self, uuid: str) -> None:
        super().__init__(lambda: (0.0, 0.0), "nvidia-smi")
        self._process = subprocess.Popen(
            [
                "nvidia-smi",
                f"--id={uuid}",
                "--query-gpu=clocks.sm,power.draw.instant",
                "--format=csv,noheader,nounits",
                f"--loop-ms={_NVIDIA_SMI_MS}",
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._process.terminate()
        self._process.wait()
        super().__exit__(kind, error, _)

    def _run(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            reading = parse_smi(line, time.perf_counter())
            if reading is not None:
                self.readings.append(reading)


def parse_smi(line: str, when: float) -> Reading | None:
    """One line "1980, 690.12"; None where a field is not a number ("[N/A]")."""
    fields = line.split(",")
    try:
        clock, power = (float(one) for one in fields)
    except ValueError:
        return None
    return Reading(when, clock, power)


def sampler(device: Any) -> Sampler:
    """A sampler for a CUDA or ROCm device; without readings, and saying so, where none works."""
    import torch

    if torch.version.hip:
        try:
            torch.cuda.clock_rate(device)
        except Exception as error:
            return Sampler(_no_sensor, f"none: {error}")
        return Sampler(
            lambda: (float(torch.cuda.clock_rate(device)), float(torch.cuda.power_draw(device))),
            "amdsmi through torch",
        )
    uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
    try:
        return Sampler(_nvml_sensor(uuid), "NVML")
    except Exception as error:
        if shutil.which("nvidia-smi"):
            return _SmiSampler(uuid)
        return Sampler(_no_sensor, f"none: no nvidia-smi, and pynvml: {error}")


def _no_sensor() -> tuple[float, float]:
    raise RuntimeError("no sensor")


def _nvml_sensor(uuid: str) -> Sensor:
    import pynvml

    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)

    def power() -> float:
        (value,) = pynvml.nvmlDeviceGetFieldValues(handle, [_POWER_INSTANT])
        if value.nvmlReturn == pynvml.NVML_SUCCESS:
            return float(value.value.uiVal) / 1e3
        return float(pynvml.nvmlDeviceGetPowerUsage(handle)) / 1e3

    def read() -> tuple[float, float]:
        clock = pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM)
        return float(clock), power()

    read()
    return read
