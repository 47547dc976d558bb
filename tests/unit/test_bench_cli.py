"""`zyfa bench` without a GPU: reasons, exit status, files, and wrong arguments."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.unit.bench_fakes import FakeTime, fake_card, fake_path
from tests.unit.test_cli import usage_error
from zyfa_triton.benchmark import card, matmul, peers
from zyfa_triton.benchmark.suites import SUITES
from zyfa_triton.cli import main

ROOT = Path(__file__).resolve().parents[2]
QUICK = ["bench", "--seqlen", "96", "--nheads", "2", "--nheads-k", "1"]
SHORT = ["--rounds", "1", "--settle", "0", "--seconds", "0"]


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(card, "found", lambda: None)


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    """A card with two paths, of which "zyfa-bad" is wrong for FP8 problems only."""
    fake = FakeTime()
    paths = (
        fake_path("zyfa-good", fake, 0.002),
        fake_path("zyfa-bad", fake, 0.002, dtype="fp8", change=lambda out, calls: out * 2),
    )
    monkeypatch.setattr(card, "found", lambda: fake_card(fake))
    monkeypatch.setattr(peers, "all_paths", lambda: paths)
    monkeypatch.setattr(
        matmul, "product", lambda dtype, device: lambda: fake.spend("matmul", 0.004)
    )
    return fake


@pytest.mark.parametrize("suite", SUITES)
def test_without_a_gpu_every_path_of_a_suite_has_a_reason(
    suite: str, no_gpu: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "rows.json"
    assert main(["bench", "--suite", suite, "--json", str(target)]) == 1
    rows = json.loads(target.read_text())
    cases = SUITES[suite].cases
    expected = sum(path.dtype in case.dtypes for case in cases for path in peers.all_paths())
    assert len(rows) == expected
    for row in rows:
        assert row["reason"] and "ms_median" not in row and "tflops" not in row
        assert row["environment"]["torch"] == torch.__version__
    assert any(row["path"].startswith("zyfa") for row in rows)
    printed = capsys.readouterr().out
    assert "not timed:" in printed and "needs a GPU" in printed


def test_times_are_printed_and_written(
    fakes: FakeTime, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows, picture, page = (tmp_path / name for name in ("rows.json", "speed.png", "speed.md"))
    files = ["--json", str(rows), "--png", str(picture), "--markdown", str(page)]
    assert main([*QUICK, *SHORT, *files, "--dtype", "bf16", "--activations", "sample"]) == 0
    found = json.loads(rows.read_text())
    assert [(row["path"], row["inputs"]) for row in found] == [
        ("zyfa-good", "gaussian"),
        ("zyfa-good", "prose1k_L14"),
    ]
    assert all(row["ms_median"] == pytest.approx(2.0) for row in found)
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert page.read_text().count("zyfa-good") == 2
    printed = capsys.readouterr().out
    assert "bf16 8192^3 matrix product: 275 TFLOP/s" in printed
    assert "2.000" in printed and "not timed" not in printed


def test_a_wrong_result_of_ours_is_a_failure_and_has_no_time(
    fakes: FakeTime, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "rows.json"
    assert main([*QUICK, *SHORT, "--json", str(target)]) == 1
    (wrong,) = [row for row in json.loads(target.read_text()) if row["path"] == "zyfa-bad"]
    assert wrong["reason"].startswith("wrong: ") and "ms_median" not in wrong
    assert "zyfa-bad (fp8): wrong: " in capsys.readouterr().out


def test_a_shape_of_ones_own_is_what_is_run(
    fakes: FakeTime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "rows.json"
    arguments = ["--batch", "2", "--headdim", "192", "--no-causal", "--dtype", "bf16"]
    assert main([*QUICK, *SHORT, *arguments, "--json", str(target)]) == 0
    (row,) = json.loads(target.read_text())
    assert (row["seqlen"], row["nheads"], row["nheads_k"], row["batch"]) == (96, 2, 1, 2)
    assert (row["headdim"], row["headdim_v"], row["causal"]) == (192, 128, False)


@pytest.mark.parametrize("patterns", [["zyfa-g*"], ["zyfa-good", "zyfa-good"]])
def test_paths_are_chosen_by_pattern(patterns: list[str], fakes: FakeTime, tmp_path: Path) -> None:
    target = tmp_path / "rows.json"
    assert main([*QUICK, *SHORT, "--paths", *patterns, "--json", str(target)]) == 0
    assert [row["path"] for row in json.loads(target.read_text())] == ["zyfa-good"]


def test_verbose_says_what_comes_next(fakes: FakeTime, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*QUICK, *SHORT, "--dtype", "bf16"]) == 0
    assert capsys.readouterr().err == ""
    assert main([*QUICK, *SHORT, "--dtype", "bf16", "--verbose"]) == 0
    assert capsys.readouterr().err.splitlines() == [
        "96 x 2:1, gaussian: zyfa-good (bf16)",
        "96 x 2:1, gaussian: timing 1 of 1",
    ]


def test_list_of_paths(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "paths.json"
    assert main(["bench", "--list-paths", "--json", str(target)]) == 0
    assert [row["path"] for row in json.loads(target.read_text())] == [
        path.name for path in peers.all_paths()
    ]
    printed = capsys.readouterr().out
    for path in peers.all_paths():
        assert path.name in printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--suite", "none"], "invalid choice: 'none'"),
        (["--batch", "2"], "--batch: a shape of your own needs --seqlen and --nheads"),
        (["--quantise"], "--quantise: a shape of your own needs --seqlen and --nheads"),
        (["--seqlen", "64", "--nheads", "4", "--nheads-k", "3"], "--nheads-k: got 3"),
        (["--paths", "zyfa-none"], "--paths: got 'zyfa-none'; accepted: patterns of zyfa-auto"),
        (["--activations", "absent.npz"], "--activations: no such file: absent.npz"),
        (["--no-gaussian"], "--no-gaussian: nothing is left"),
        (["--settle", "-1"], "settle: got -1.0; accepted: 0 and more seconds"),
        (["--rounds", "0"], "0 is below 1"),
        (["--headdim", "64"], "invalid choice: 64"),
        (["--suite", "quick", "--seqlen", "64", "--nheads", "4"], "--suite: beside a shape of"),
        (
            ["--seqlen", "64", "--nheads", "4", "--quantise", "--dtype", "bf16"],
            "--quantise: of FP8 paths",
        ),
        (["--list-paths", "--paths", "zyfa*"], "--paths: of a measurement; --list-paths"),
        (["--list-paths", "--markdown", "x.md"], "--markdown: of a measurement; --list-paths"),
    ],
)
def test_wrong_arguments_are_usage_errors(
    arguments: list[str], message: str, no_gpu: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in usage_error(["bench", *arguments], capsys)


def test_the_script_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "bench" / "attention.py"), "--list-paths"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
    )
    assert done.returncode == 0, done.stderr
    assert "cudnn-fp8" in done.stdout


def test_stored_rows_are_shown_again(
    fakes: FakeTime, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target, document = tmp_path / "rows.json", tmp_path / "rows.md"
    main([*QUICK, *SHORT, "--json", str(target), "--markdown", str(document)])
    first = document.read_text()
    document.unlink()
    capsys.readouterr()
    assert main(["bench", "--rows", str(target), "--markdown", str(document)]) == 0
    assert document.read_text() == first
    assert "zyfa-good" in capsys.readouterr().out
    assert main(["bench", "--rows", str(target), "--paths", "cudnn*"]) == 0
    assert "zyfa-good" not in capsys.readouterr().out


def test_stored_rows_are_written_again_each_with_its_environment(
    fakes: FakeTime, tmp_path: Path
) -> None:
    first, second, both = (tmp_path / f"{name}.json" for name in ("first", "second", "both"))
    main([*QUICK, *SHORT, "--json", str(first)])
    rows = json.loads(first.read_text())
    for row in rows:
        row["environment"] = {"device": "another"}
    second.write_text(json.dumps(rows))
    assert main(["bench", "--rows", str(first), str(second), "--json", str(both)]) == 0
    assert json.loads(both.read_text()) == [*json.loads(first.read_text()), *rows]
    arguments = ["--rows", str(second), "--paths", "zyfa-good", "--json", str(both)]
    assert main(["bench", *arguments]) == 0
    assert json.loads(both.read_text()) == [row for row in rows if row["path"] == "zyfa-good"]


@pytest.mark.parametrize(
    "arguments",
    [
        *("--suite headline", "--activations sample", "--no-gaussian", "--verbose", "--seqlen 128"),
        *("--nheads 2", "--nheads-k 1", "--batch 1", "--headdim 128", "--causal", "--no-causal"),
        *("--quantise", "--dtype fp8", "--rounds 2", "--settle 1", "--seconds 0.5"),
    ],
)
@pytest.mark.parametrize("mode", [["--rows", "rows.json"], ["--list-paths"]])
def test_options_of_a_measurement_are_refused_where_none_is_made(
    mode: list[str], arguments: str, capsys: pytest.CaptureFixture[str]
) -> None:
    option = arguments.split()[0].replace("--no-causal", "--causal")
    message = usage_error(["bench", *mode, *arguments.split()], capsys)
    assert f"error: {option}: of a measurement; {mode[0]} makes none" in message


def test_no_picture_is_said(no_gpu: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*QUICK, "--png", "absent.png"]) == 1
    assert "no picture: nothing was timed" in capsys.readouterr().out


def test_files_that_hold_no_rows_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "rows.json"
    for content in ("[", "[]", "[1]", '[{"path": "x"}]', "3"):
        target.write_text(content)
        message = usage_error(["bench", "--rows", str(target)], capsys)
        assert f"--rows: {target}: " in message and "accepted: what --json wrote" in message
    assert "cannot read" in usage_error(["bench", "--rows", str(tmp_path / "no.json")], capsys)
