"""Timing and sensors: order, what is counted, quantiles, and readings inside the windows."""

from __future__ import annotations

import statistics
import time
from itertools import count

import pytest

from tests.unit.bench_fakes import FakeTime
from zyfa_triton.benchmark import sampling, timing
from zyfa_triton.benchmark.sampling import Reading, Sampler, parse_smi, state
from zyfa_triton.benchmark.timing import Candidate, Pacing, Times, interleaved


def candidate(fake: FakeTime, name: str, seconds: float, calls: int = 1) -> Candidate:
    return Candidate(name, lambda: fake.spend(name, seconds * calls), calls)


def test_paths_take_turns_and_settling_is_not_counted() -> None:
    fake = FakeTime()
    both = [candidate(fake, "a", 0.010), candidate(fake, "b", 0.025)]
    pacing = Pacing(rounds=3, settle=0.05, seconds=0.1)
    times = interleaved(both, pacing, fake, clock=fake.clock)
    estimates = ["a"] * 2 + ["b"] * 2
    one_round = ["a"] * (5 + 10) + ["b"] * (2 + 4)
    assert fake.log == estimates + one_round * 3
    assert [len(block) for block in times["a"].blocks] == [10] * 3
    assert [len(block) for block in times["b"].blocks] == [4] * 3
    for begun, ended in times["a"].windows:
        assert ended - begun == pytest.approx(0.1)


def test_a_sample_is_a_replay_over_its_calls() -> None:
    fake = FakeTime()
    times = interleaved([candidate(fake, "a", 0.002, calls=8)], Pacing(1, 0, 0.2), fake)
    assert times["a"].median == pytest.approx(0.002)


def test_settling_calls_do_not_enter_the_median() -> None:
    fake = FakeTime()
    numbers = count()

    def replay() -> None:
        warm = next(numbers) % 24 < 12  # fast while the clock has not settled
        fake.spend("a", 0.005 if warm else 0.010)

    one = Candidate("a", replay, 1)
    times = interleaved([one], Pacing(1, settle=0.05, seconds=0.06), fake)
    assert times["a"].median == pytest.approx(0.010)


def test_long_calls_are_counted_a_few_times_and_short_ones_not_without_end() -> None:
    assert timing.replays_in(0.1, 3.0, timing.MIN_REPLAYS) == timing.MIN_REPLAYS
    assert timing.replays_in(0.1, 0.03, 1) == 4
    assert timing.replays_in(10.0, 1e-6, 1) == timing.MAX_REPLAYS


def test_quantiles_and_median_are_those_of_all_blocks() -> None:
    times = Times(blocks=[[1.0, 2.0, 3.0], [4.0, 5.0, 6.0, 100.0]])
    assert times.median == 4.0
    low, high = times.quantiles
    assert low == pytest.approx(2.2) and high == pytest.approx(5.8)
    assert (low, high) == tuple(
        statistics.quantiles(times.samples, n=5, method="inclusive")[index] for index in (0, 3)
    )


def test_drift_is_seen_within_blocks_not_between_them() -> None:
    assert Times(blocks=[[1.0] * 4, [2.0] * 4]).drift == 0
    assert Times(blocks=[[1.0, 1.0, 1.1, 1.1]] * 2).drift == pytest.approx(0.1)


def test_progress_counts_blocks() -> None:
    fake = FakeTime()
    seen: list[tuple[int, int]] = []
    both = [candidate(fake, "a", 0.1), candidate(fake, "b", 0.1)]
    interleaved(both, Pacing(2, 0, 0), fake, progress=lambda done, of: seen.append((done, of)))
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"rounds": 0}, "rounds"),
        ({"settle": -1.0}, "settle"),
        ({"seconds": float("inf")}, "seconds"),
        ({"seconds": float("nan")}, "seconds"),
    ],
)
def test_pacing_refuses_what_is_no_time(arguments: dict[str, float], name: str) -> None:
    with pytest.raises(ValueError, match=f"{name}: got"):
        Pacing(**arguments)  # type: ignore[arg-type]


def test_state_is_the_median_inside_the_windows() -> None:
    readings = [Reading(when, 1000 + when, 600 + when) for when in range(10)]
    assert state(readings, [(2, 4), (8, 8.5)]) == sampling.State(1003.5, 603.5)
    assert state(readings, [(20, 30)]) == sampling.State(None, None)
    assert state([], [(0, 1)]) == sampling.State()


@pytest.mark.parametrize("line", ["1980, [N/A]", "", "x", "1, 2, 3"])
def test_lines_of_nvidia_smi_without_numbers_are_no_readings(line: str) -> None:
    assert parse_smi(line, 1.0) is None


def test_a_line_of_nvidia_smi() -> None:
    assert parse_smi("1980, 690.12\n", 7.0) == Reading(7.0, 1980.0, 690.12)


def test_a_sampler_reads_beside_the_work_and_stops() -> None:
    numbers = count(1)
    sampler = Sampler(lambda: (float(next(numbers)), 5.0), "test")
    begun = time.perf_counter()
    with sampler:
        while len(sampler.readings) < 3:
            assert time.perf_counter() < begun + 20, "no readings"
            time.sleep(0.005)
    ended = time.perf_counter()
    amount = len(sampler.readings)
    assert all(begun <= one.when <= ended for one in sampler.readings)
    assert [one.clock_mhz for one in sampler.readings] == [float(n) for n in range(1, amount + 1)]
    time.sleep(5 * sampling.INTERVAL)
    assert len(sampler.readings) == amount


def test_a_sensor_that_fails_ends_the_readings_and_says_why() -> None:
    def fail() -> tuple[float, float]:
        raise RuntimeError("driver gone")

    sampler = Sampler(fail, "test")
    begun = time.perf_counter()
    with sampler:
        while "driver gone" not in sampler.source:
            assert time.perf_counter() < begun + 20, "the failure was not noticed"
            time.sleep(0.005)
    assert sampler.readings == []
