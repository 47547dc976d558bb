"""Decides how a replay reads as a Chrome trace (Perfetto, chrome://tracing); draws nothing.

One track for each wave (instructions and what held them) and one for each port. A microsecond of
the trace is a cycle.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from asm_overrides.timing.replay import BARRIER, Event, Replay
from asm_overrides.timing.steps import Kind

WAVES_PID, PORTS_PID = 1, 2
PORTS = ("matrix", "vector", "lds")
_ITERATIONS = 2


def chrome_trace(replay: Replay, notes: Mapping[int, str] | None = None) -> dict[str, object]:
    """Trace of two iterations, as an object to be written as JSON.

    notes: what is said about a line of the assembler text, such as the line that generated it.
    """
    known = notes or {}
    begin = replay.begin
    end = begin + round(_ITERATIONS * replay.period)
    rows = list(_names())
    for event in replay.events:
        if begin <= event.start and event.ready < end:
            rows += _wave_rows(replay, event, begin, known)
            rows += _port_rows(replay, event, begin, known)
    return {"traceEvents": rows, "displayTimeUnit": "ns", "otherData": {"unit": "1 us = 1 cycle"}}


def _names() -> Iterator[dict[str, object]]:
    for pid, name in ((WAVES_PID, "waves"), (PORTS_PID, "ports")):
        yield {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}}
    for wave in (0, 1):
        yield _thread(WAVES_PID, 2 * wave, f"wave {wave}")
        yield _thread(WAVES_PID, 2 * wave + 1, f"wave {wave} held by")
    for number, port in enumerate(PORTS):
        yield _thread(PORTS_PID, number, port)


def _thread(pid: int, tid: int, name: str) -> dict[str, object]:
    return {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name}}


def _wave_rows(
    replay: Replay, event: Event, begin: int, notes: Mapping[int, str]
) -> Iterator[dict[str, object]]:
    step = replay.step(event)
    if event.start > event.ready:
        yield _span(
            WAVES_PID, 2 * event.wave + 1, event.cause, event.ready - begin,
            event.start - event.ready, replay, event, notes,
        )  # fmt: skip
    if event.cause != BARRIER:
        yield _span(
            WAVES_PID, 2 * event.wave, step.instruction.opcode, event.start - begin, step.next,
            replay, event, notes,
        )  # fmt: skip


def _port_rows(
    replay: Replay, event: Event, begin: int, notes: Mapping[int, str]
) -> Iterator[dict[str, object]]:
    step = replay.step(event)
    if step.port in PORTS and step.kind is not Kind.OTHER:
        name = f"wave {event.wave}: {step.instruction.opcode}"
        tid = PORTS.index(step.port)
        at = event.served - begin
        yield _span(PORTS_PID, tid, name, at, step.cycles, replay, event, notes)


def _span(
    pid: int,
    tid: int,
    name: str,
    at: int,
    cycles: int,
    replay: Replay,
    event: Event,
    notes: Mapping[int, str],
) -> dict[str, object]:
    instruction = replay.step(event).instruction
    return {
        "ph": "X",
        "name": name,
        "pid": pid,
        "tid": tid,
        "ts": at,
        "dur": cycles,
        "args": {
            "instruction": instruction.text,
            "line": instruction.line,
            "source": notes.get(instruction.line, ""),
            "wave": event.wave,
            "iteration": event.iteration,
        },
    }
