"""A whole benchmark on a card whose time is counted: what is timed, and what a row then says."""

from __future__ import annotations

import weakref
from pathlib import Path as File
from typing import Any

import pytest
import torch

from tests.unit.bench_fakes import FakeTime, fake_card, fake_path
from zyfa_triton import activations
from zyfa_triton.benchmark import matmul, plot, stamp, table
from zyfa_triton.benchmark import session as sessions
from zyfa_triton.benchmark.card import Calls, Recorded
from zyfa_triton.benchmark.gate import Output
from zyfa_triton.benchmark.inputs import Problem, Tensors
from zyfa_triton.benchmark.peers import Path
from zyfa_triton.benchmark.rows import Row
from zyfa_triton.benchmark.sampling import Reading
from zyfa_triton.benchmark.session import Session
from zyfa_triton.benchmark.shapes import Case, Shape
from zyfa_triton.benchmark.timing import Pacing

SHAPE = Shape(96, 2, 1)
BF16 = Case(SHAPE, ("bf16",))
PACING = Pacing(rounds=2, settle=0.01, seconds=0.02)
FIELDS = (
    "path",
    "dtype",
    "headdim",
    "batch",
    "nheads",
    "nheads_k",
    "seqlen",
    "causal",
    "inputs",
    "ms_median",
    "tflops",
    "rel_err_same_inputs",
    "clock_mhz",
)
FIGURES = FIELDS[9:]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    """Counted time, in which a matrix product of any dtype takes 4 ms."""
    counted = FakeTime()
    monkeypatch.setattr(
        matmul, "product", lambda dtype, device: lambda: counted.spend(f"matmul {dtype}", 0.004)
    )
    return counted


def one(rows: list[Row], path: str) -> Row:
    (row,) = [row for row in rows if row.path == path]
    return row


def run(fake: FakeTime, *paths: Path, cases: Any = (BF16,), **options: Any) -> list[Row]:
    session = Session(paths, PACING, fake_card(fake, **options))
    return session.run(cases, [None])


def test_a_row_has_the_documented_fields(fake: FakeTime) -> None:
    readings = [Reading(0.001 * n, 1500.0, 690.0) for n in range(1000)]
    (row,) = run(fake, fake_path("zyfa-a", fake, 0.002), readings=readings)
    as_json = row.as_json({"device": "fake"})
    assert set(FIELDS) <= set(as_json) and "reason" not in as_json
    assert as_json["ms_median"] == pytest.approx(2.0)
    assert as_json["ms_p20"] == pytest.approx(2.0) == as_json["ms_p80"]
    assert as_json["tflops"] == pytest.approx(SHAPE.flop / 0.002 / 1e12)
    assert as_json["clock_mhz"] == 1500 and as_json["power_w"] == 690
    assert as_json["matmul_tflops"] == pytest.approx(2 * 8192**3 / 0.004 / 1e12)
    assert as_json["share_of_matmul"] == pytest.approx(as_json["tflops"] / as_json["matmul_tflops"])
    assert 1e-4 < as_json["rel_err_same_inputs"] < 4e-3
    assert as_json["environment"] == {"device": "fake"}
    assert as_json["calls_a_sample"] > 1 and as_json["graph"] is True


def test_paths_of_a_case_take_turns(fake: FakeTime) -> None:
    run(fake, fake_path("zyfa-a", fake, 0.01), fake_path("b", fake, 0.01))
    order = [name for name in fake.log if not name.startswith("matmul")]
    turns = [name for name, before in zip(order, [None, *order], strict=False) if name != before]
    # gate and capture of a, then of b; estimates; two rounds
    assert turns == ["zyfa-a", "b"] * 4


def test_every_copy_of_the_inputs_is_used(fake: FakeTime) -> None:
    used: list[Tensors] = []
    (row,) = run(fake, fake_path("zyfa-a", fake, 0.01, used=used), l2_bytes=1 << 18)
    assert row.measured is not None and row.measured.calls_a_sample > 2
    replay = used[-row.measured.calls_a_sample :]
    assert len({tensors.q.data_ptr() for tensors in replay}) == row.measured.calls_a_sample


def test_a_wrong_result_is_not_timed(fake: FakeTime) -> None:
    wrong = fake_path("zyfa-a", fake, 0.01, change=lambda out, calls: out * 1.1)
    rows = run(fake, wrong, fake_path("b", fake, 0.01))
    row = one(rows, "zyfa-a")
    assert row.is_wrong and row.measured is None
    assert fake.log.count("zyfa-a") == 1, "judged once, and never again"
    as_json = row.as_json({})
    assert as_json["reason"].startswith("wrong: ")
    assert not set(FIGURES) & set(as_json)
    assert one(rows, "b").measured is not None


def test_a_result_that_becomes_wrong_while_timed_has_no_time(fake: FakeTime) -> None:
    late = fake_path(
        "zyfa-a", fake, 0.01, change=lambda out, calls: out if calls < 9 else out.flip(1)
    )
    row = one(run(fake, late), "zyfa-a")
    assert row.is_wrong and isinstance(row.result, str)
    assert row.result.startswith("wrong while timed: ")


def test_memory_is_poisoned_before_each_judgement(fake: FakeTime) -> None:
    poisoned: list[int] = []
    run(fake, fake_path("zyfa-a", fake, 0.01), fake_path("b", fake, 0.01), poisoned=poisoned)
    assert poisoned == [4 * 96 * 2 * 128] * 2  # float32 outputs would fit


def test_what_cannot_be_captured_is_timed_by_calls_and_says_so(fake: FakeTime) -> None:
    def refuse(calls: Calls) -> Recorded:
        raise RuntimeError("cannot be captured")

    (row,) = run(fake, fake_path("zyfa-a", fake, 0.002), capture=refuse)
    assert row.measured is not None
    assert row.measured.graph is False
    assert row.measured.ms_median == pytest.approx(2.0)


def test_what_a_call_owns_lives_as_long_as_its_graph(fake: FakeTime) -> None:
    class Plan:
        pass

    plans: list[weakref.ref[Plan]] = []

    def setup(problem: Problem) -> Any:
        plan = Plan()
        plans.append(weakref.ref(plan))
        right = fake_path("zyfa-a", fake, 0.01).setup(problem)
        assert not isinstance(right, str)

        def call(tensors: Tensors) -> Output:
            assert plan is not None
            return right(tensors)

        return call

    def forget(calls: Calls) -> Recorded:  # as a graph does: results stay, calls do not
        results = [call() for call in calls]

        def replay() -> None:
            assert plans[0]() is not None, "the plan that the graph reads is gone"
            fake.spend("replay", 0.01)

        return replay, results

    (row,) = run(fake, Path("zyfa-a", "bf16", setup), capture=forget)
    assert row.measured is not None


class Refusing:
    """Set-ups that give a reason, raise while being set up, or raise when called."""

    @staticmethod
    def reason(problem: Problem) -> str:
        return "not installed"

    @staticmethod
    def raising(problem: Problem) -> Any:
        raise RuntimeError("no plan\nsecond line")

    @staticmethod
    def failing(problem: Problem) -> Any:
        def call(tensors: Tensors) -> Output:
            raise ValueError("kernel: got x; accepted: y")

        return call


@pytest.mark.parametrize(
    ("setup", "reason"),
    [
        (Refusing.reason, "not installed"),
        (Refusing.raising, "fails: RuntimeError: no plan"),
        (Refusing.failing, "refuses: ValueError: kernel: got x; accepted: y"),
    ],
)
def test_a_path_that_cannot_run_gives_its_reason_and_stops_nobody(
    setup: Any, reason: str, fake: FakeTime
) -> None:
    rows = run(fake, Path("other", "bf16", setup), fake_path("zyfa-a", fake, 0.01))
    assert one(rows, "other").result == reason
    assert not one(rows, "other").is_wrong
    assert one(rows, "zyfa-a").measured is not None


def test_only_paths_of_the_case_s_dtypes_take_part(fake: FakeTime) -> None:
    both = (fake_path("zyfa-a", fake, 0.01), fake_path("zyfa-b", fake, 0.01, dtype="fp8"))
    assert [row.path for row in run(fake, *both, cases=(BF16,))] == ["zyfa-a"]
    rows = run(fake, *both, cases=(BF16, Case(SHAPE, ("fp8", "bf16"), quantise=True)))
    assert [row.path for row in rows] == ["zyfa-a", "zyfa-a", "zyfa-b"]
    assert [row.as_json({})["quantise_included"] for row in rows] == [False, False, True]


def test_captured_inputs_of_another_head_dim_are_a_reason(fake: FakeTime) -> None:
    case = Case(Shape(64, 1, 1, headdim=192), ("bf16",))
    session = Session([fake_path("zyfa-a", fake, 0.01)], PACING, fake_card(fake))
    real = activations.load(activations.SAMPLE)
    rows = session.run([case], [None, real])
    assert rows[0].measured is not None and rows[0].inputs == "gaussian"
    assert rows[1].inputs == "prose1k_L14"
    assert "the shape 192/128" in str(rows[1].result)


def test_rows_are_handed_out_after_each_case(fake: FakeTime) -> None:
    seen: list[tuple[int, int, int]] = []
    session = Session([fake_path("zyfa-a", fake, 0.01)], PACING, fake_card(fake))
    session.run([BF16, BF16], [None], lambda rows, done, of: seen.append((len(rows), done, of)))
    assert seen == [(1, 1, 2), (2, 2, 2)]


def test_without_a_matrix_product_there_is_no_share(
    fake: FakeTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matmul, "product", lambda dtype, device: "no e4m3 product: none")
    session = Session([fake_path("zyfa-a", fake, 0.01)], PACING, fake_card(fake))
    (row,) = session.run([BF16], [None])
    assert session.rates == (sessions.Rate("bf16", None, reason="no e4m3 product: none"),)
    assert row.measured is not None and row.measured.share_of_matmul is None


@pytest.mark.parametrize("dtype", ["bf16", "fp8"])
def test_the_matrix_product_multiplies(dtype: str) -> None:
    call = matmul.product(dtype, torch.device("cpu"), 64)
    if isinstance(call, str):
        assert call.startswith("no e4m3 product: ")
    else:
        assert call().shape == (64, 64)


def test_the_card_s_names_and_the_code_s_digest(tmp_path: File) -> None:
    found = stamp.environment()
    assert {"date", "device", "driver", "torch", "triton", "commit", "dirty", "source"} <= set(
        found
    )
    (tmp_path / "a.py").write_text("1")
    before = stamp.source_digest(tmp_path)
    (tmp_path / "a.py").write_text("2")
    assert stamp.source_digest(tmp_path) != before


def rows_to_show(fake: FakeTime) -> list[Row]:
    wrong = fake_path("zyfa-bad", fake, 0.01, change=lambda out, calls: out * 2)
    paths = (fake_path("zyfa-a", fake, 0.002), wrong, Path("other", "bf16", Refusing.reason))
    cases = (BF16, Case(SHAPE, ("bf16",), quantise=True))
    return run(fake, *paths, cases=cases)


def test_the_table_shows_times_and_the_list_every_reason(fake: FakeTime) -> None:
    rows = rows_to_show(fake)
    cells = table.cells(rows)
    assert [line[:5] for line in cells] == [
        ("96 x 2:1", "gaussian", "zyfa-a", "bf16", "2.000"),
        ("96 x 2:1, quantising", "gaussian", "zyfa-a", "bf16", "2.000"),
    ]
    reasons = table.reasons(rows)
    assert "other (bf16): not installed [96 x 2:1; 96 x 2:1, quantising]" in reasons
    assert len([text for text in reasons if text.startswith("zyfa-bad (bf16): wrong: ")]) == 1
    lines = table.markdown(rows).splitlines()
    assert len(lines) == 2 + len(cells)
    assert len({line.count("|") for line in lines}) == 1


def test_the_picture_has_a_bar_for_each_time(fake: FakeTime, tmp_path: File) -> None:
    pytest.importorskip("matplotlib")
    rows = rows_to_show(fake)
    target = tmp_path / "speed.png"
    plot.picture(rows, target, {"device": "fake", "date": "2026-01-02T03:04:05"})
    data = target.read_bytes()
    assert data.startswith(b"\x89PNG") and len(data) > 5000
    figure = plot.figure_of(rows, {"device": "fake", "date": "2026-01-02T03:04:05"})
    titles = [axes.get_title() for axes in figure.axes]
    assert titles == ["gaussian", "gaussian, quantising in the time"]
    for axes in figure.axes:
        (bar,) = axes.patches
        assert bar.get_height() == pytest.approx(SHAPE.flop / 0.002 / 1e12)


def test_a_picture_of_nothing_is_refused(fake: FakeTime, tmp_path: File) -> None:
    rows = run(fake, Path("other", "bf16", Refusing.reason))
    with pytest.raises(ValueError, match="nothing to draw"):
        plot.picture(rows, tmp_path / "speed.png", {"device": None, "date": "2026-01-02"})
