"""Decides how long a loop, a workgroup and a launch take and what keeps pipes idle; no results.

steady.py finds what the two waves repeat, ports.py adds up ports, replay.py issues instruction by
instruction, phases.py scans offsets of the waves, trace.py writes what Perfetto shows. route.py
records what waves execute from a kernel's start to its end, workgroup.py times that by numbers of
tiles, launch.py deals workgroups out to the card. constants.py holds what the model rests on;
docs/cycle-model.md says how far to trust it.
"""

from asm_overrides.timing.constants import DEFAULT, SOURCES, Constants
from asm_overrides.timing.launch import MI355X, ORDERS, Card, Makespan, makespan
from asm_overrides.timing.phases import Prediction, predict
from asm_overrides.timing.ports import PortBound, port_bound
from asm_overrides.timing.replay import Event, Replay, replay, replay_once
from asm_overrides.timing.route import Route, RouteRecorder, extended
from asm_overrides.timing.steady import Steady, Track, steady_file, steady_kernel, steady_text
from asm_overrides.timing.trace import chrome_trace
from asm_overrides.timing.workgroup import Routes, WorkgroupModel, WorkgroupTime

__all__ = [
    "DEFAULT",
    "MI355X",
    "ORDERS",
    "SOURCES",
    "Card",
    "Constants",
    "Event",
    "Makespan",
    "PortBound",
    "Prediction",
    "Replay",
    "Route",
    "RouteRecorder",
    "Routes",
    "Steady",
    "Track",
    "WorkgroupModel",
    "WorkgroupTime",
    "chrome_trace",
    "extended",
    "makespan",
    "port_bound",
    "predict",
    "replay",
    "replay_once",
    "steady_file",
    "steady_kernel",
    "steady_text",
]
