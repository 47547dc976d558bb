"""Decides how long a steady-state loop takes on one SIMD and what keeps its pipes idle; no results.

steady.py finds what the two waves repeat, ports.py adds up ports, replay.py issues instruction by
instruction, phases.py scans offsets of the waves, trace.py writes what Perfetto shows, constants.py
holds what the model rests on. docs/cycle-model.md says how far to trust it.
"""

from asm_overrides.timing.constants import DEFAULT, SOURCES, Constants
from asm_overrides.timing.phases import Prediction, predict
from asm_overrides.timing.ports import PortBound, port_bound
from asm_overrides.timing.replay import Event, Replay, replay
from asm_overrides.timing.steady import Steady, Track, steady_file, steady_kernel, steady_text
from asm_overrides.timing.trace import chrome_trace

__all__ = [
    "DEFAULT",
    "SOURCES",
    "Constants",
    "Event",
    "PortBound",
    "Prediction",
    "Replay",
    "Steady",
    "Track",
    "chrome_trace",
    "port_bound",
    "predict",
    "replay",
    "steady_file",
    "steady_kernel",
    "steady_text",
]
