"""What is asked of the card itself: events, graph capture, the size of its L2, poisoned memory.

It decides nothing about measuring (`timing`). A session takes all of it as one `Card`, so that
tests can hand it another.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from zyfa_triton.benchmark.sampling import Sampler, sampler
from zyfa_triton.benchmark.timing import Stopwatch

DEFAULT_L2_BYTES = 64 << 20
_NAN_BYTE = 0xFF  # a NaN in bfloat16, float16, float32 and e4m3
_POISONED = 4


Calls = Sequence[Callable[[], Any]]
Recorded = tuple[Callable[[], object], list[Any]]  # a replay of all calls, and their results


@dataclass(frozen=True)
class Card:
    """What a session needs of a card.

    capture: makes one graph of calls that have run before; raises where that does not go. poison:
    see the function. sampler: made once for a session.
    """

    device: torch.device
    l2_bytes: int
    stopwatch: Stopwatch
    capture: Callable[[Calls], Recorded]
    poison: Callable[[int], None]
    sampler: Callable[[], Sampler]
    clock: Callable[[], float] = time.perf_counter


def found() -> Card | None:
    """The current CUDA or ROCm device; None where torch finds none."""
    if not torch.cuda.is_available():
        return None
    device = torch.device("cuda", torch.cuda.current_device())
    properties = torch.cuda.get_device_properties(device)
    return Card(
        device=device,
        l2_bytes=int(getattr(properties, "L2_cache_size", 0)) or DEFAULT_L2_BYTES,
        stopwatch=EventStopwatch(),
        capture=captured,
        poison=lambda size: poison(device, size),
        sampler=lambda: sampler(device),
    )


class EventStopwatch:
    """A `timing.Stopwatch` of CUDA or HIP events on the current stream."""

    def mark(self) -> Any:
        make: Any = torch.cuda.Event  # untyped in torch
        event = make(enable_timing=True)
        event.record()
        return event

    def seconds(self, first: Any, second: Any) -> float:
        return float(first.elapsed_time(second)) / 1e3

    def synchronize(self) -> None:
        torch.cuda.synchronize()


def poison(device: torch.device, size: int) -> None:
    """Makes the next allocations of up to so many bytes hold NaN.

    torch hands out freed memory again. A path that leaves part of its output unwritten must not
    inherit another path's right result.
    """
    torch.cuda.empty_cache()
    blocks = [
        torch.full((size,), _NAN_BYTE, dtype=torch.uint8, device=device) for _ in range(_POISONED)
    ]
    del blocks


def captured(calls: Calls) -> Recorded:
    """One CUDA graph of all calls, and their results in it. Each call must have run once before.

    The graph does not keep alive what the calls own and it reads; whoever replays it must. Raises
    what the calls raise where they cannot be captured.
    """
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        results = [call() for call in calls]
    return graph.replay, results


def called(calls: Calls) -> Recorded:
    """The same without a graph: the host makes every call of every replay."""
    results: list[Any] = [None] * len(calls)

    def replay() -> None:
        for index, call in enumerate(calls):
            results[index] = call()

    return replay, results
