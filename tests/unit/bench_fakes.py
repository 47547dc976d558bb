"""A card that computes on the CPU and whose time is counted, not measured, and paths for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from zyfa_triton.benchmark.card import Calls, Card, Recorded
from zyfa_triton.benchmark.gate import Output
from zyfa_triton.benchmark.inputs import Problem, Tensors
from zyfa_triton.benchmark.peers import Call, Path
from zyfa_triton.benchmark.sampling import Reading, Sampler
from zyfa_triton.reference import attention_ref


@dataclass
class FakeTime:
    """Seconds that calls took so far, as they say themselves; the stopwatch and the host's clock.

    log: names of calls in their order.
    """

    now: float = 0.0
    log: list[str] = field(default_factory=list)

    def spend(self, name: str, seconds: float) -> None:
        self.now += seconds
        self.log.append(name)

    def mark(self) -> float:
        return self.now

    def seconds(self, first: Any, second: Any) -> float:
        return float(second) - float(first)

    def synchronize(self) -> None:
        pass

    def clock(self) -> float:
        return self.now


class FakeSampler(Sampler):
    """Readings that are there already; starts no thread."""

    def __init__(self, readings: list[Reading]) -> None:
        super().__init__(lambda: (0.0, 0.0), "fake")
        self.readings = readings

    def __enter__(self) -> FakeSampler:
        return self

    def __exit__(self, *error: object) -> None:
        pass


def fake_card(
    time: FakeTime,
    *,
    readings: list[Reading] | None = None,
    l2_bytes: int = 1 << 20,
    capture: Callable[[Calls], Recorded] | None = None,
    poisoned: list[int] | None = None,
) -> Card:
    """A card on the CPU. Its "graph" makes the calls again at every replay, as a graph does."""

    def record(calls: Calls) -> Recorded:
        results = [call() for call in calls]

        def replay() -> None:
            results[:] = [call() for call in calls]

        return replay, results

    return Card(
        device=torch.device("cpu"),
        l2_bytes=l2_bytes,
        stopwatch=time,
        capture=capture or record,
        poison=(poisoned if poisoned is not None else []).append,
        sampler=lambda: FakeSampler(readings or []),
        clock=time.clock,
    )


def truth(problem: Problem, tensors: Tensors, dtype: str) -> torch.Tensor:
    """fp64 attention, rounded to bfloat16 as a good kernel would."""
    out = attention_ref(
        **tensors.seen(dtype), softmax_scale=problem.softmax_scale, causal=problem.shape.causal
    )[0]
    return out.to(torch.bfloat16)


def fake_path(
    name: str,
    time: FakeTime,
    seconds: float,
    *,
    dtype: str = "bf16",
    change: Callable[[torch.Tensor, int], torch.Tensor] = lambda out, calls: out,
    used: list[Tensors] | None = None,
) -> Path:
    """A path that takes so long. change: what becomes of its right result, by the calls so far."""

    def setup(problem: Problem) -> Call:
        calls = 0
        right = truth(problem, problem.sets[0], dtype)  # every copy holds the same values

        def call(tensors: Tensors) -> Output:
            nonlocal calls
            calls += 1
            time.spend(name, seconds)
            if used is not None:
                used.append(tensors)
            return Output(change(right.clone(), calls))

        return call

    return Path(name, dtype, setup)
