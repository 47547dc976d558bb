"""The demonstration and the commands that need gfx950 machine code, on small cuts of the sample."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from zyfa_triton import activations, demo
from zyfa_triton.cli import main


@pytest.fixture(scope="module")
def shown() -> list[demo.Shown]:
    sample = activations.load(activations.SAMPLE).cut(seqlen=192, heads=1)
    return [demo.show(variant, sample) for variant in demo.VARIANTS]


def test_demonstration_keeps_the_contract_and_finds_no_fault(shown: list[demo.Shown]) -> None:
    rows = [one.measurement.row for one in shown]
    exact, exact_pingpong, lean, lean_pingpong, bf16 = rows
    assert [row.kernel for row in rows] == [variant.kernel for variant in demo.VARIANTS]
    for row in rows[:4]:
        assert row.block_scale
        assert row.matches_contract is not None
        assert row.matches_contract.p_codes_equal is True
    for row in rows:
        assert row.backend == "emulated"
        assert row.findings == []
    assert exact_pingpong.rel_err_same_inputs == exact.rel_err_same_inputs
    assert lean_pingpong.rel_err_same_inputs == lean.rel_err_same_inputs
    assert bf16.rel_err_same_inputs < 2e-3
    assert bf16.rel_err_same_inputs < exact.rel_err_same_inputs < 0.01
    assert lean.rel_err_same_inputs < 0.015


def test_reports_are_of_the_code_that_ran(shown: list[demo.Shown]) -> None:
    exact, _, lean, _, bf16 = (one.report for one in shown)
    # 64 keys of 32 queries: 4 + 4 fp8 products of 32x32x64 and one row sum; bf16 has 16 + 16 of 32
    assert exact.loops[0].mfma_cycles == lean.loops[0].mfma_cycles == 9 * 64
    assert bf16.loops[0].mfma_cycles == 32 * 32
    # a score takes an exponential in one and none in the other; one more rescales the row
    assert exact.loops[0].transcendental_instructions == 33
    assert lean.loops[0].transcendental_instructions == 1
    for one in shown:
        assert one.report.vgpr_spills == 0
        assert 0 < one.report.vgprs <= 256
        assert one.cost.mfma_qk == one.cost.mfma_pv == (512 if one.variant.dtype == "fp8" else 1024)


def test_histogram_counts_each_visible_pair_once(shown: list[demo.Shown]) -> None:
    codes = shown[2].measurement.codes
    assert codes is not None
    counts = demo.visible_codes(codes)
    assert counts.sum().item() == 192 * 193 // 2
    assert counts[127].item() == 0
    assert counts[126].item() > 0  # the largest key of a block
    assert counts.shape == (128,)


def test_picture_is_written(shown: list[demo.Shown], tmp_path: Path) -> None:
    demo.picture(shown, tmp_path / "demo.png")
    assert (tmp_path / "demo.png").read_bytes().startswith(b"\x89PNG")


def test_hidden_pairs_are_not_counted() -> None:
    codes = torch.full((1, 1, 3, 3), 5, dtype=torch.uint8).triu(1)
    assert demo.visible_codes(codes)[0].item() == 6


def test_run_command_emulates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "rows.json"
    arguments = ["run", "--backend", "emulated", "--seqlen", "130", "--heads", "1"]
    assert main([*arguments, "--no-causal", "--json", str(path)]) == 0
    (row,) = json.loads(path.read_text())
    assert row["backend"] == "emulated"
    assert row["matches_contract"]["p_codes_equal"] is True
    assert row["findings"] == []
    assert "equal" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ([], "attention_fp8_d128_lean_block_scale_causal"),
        (["--p-mode", "exact", "--headdim", "192"], "attention_fp8_d192_exact_block_scale_causal"),
        (["--dtype", "bf16", "--no-causal"], "attention_bf16_d128_full"),
    ],
)
def test_compile_command_writes_code_that_the_check_command_passes(
    arguments: list[str], name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compile", *arguments, "-o", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "MFMA cycles" in printed
    report = json.loads((tmp_path / f"{name}.json").read_text())
    assert report["loops"] and report["target"] == "gfx950"
    assert (tmp_path / f"{name}.hsaco").read_bytes().startswith(b"\x7fELF")
    files = [str(tmp_path / f"{name}.{suffix}") for suffix in ("amdgcn", "hsaco")]
    assert main(["check", *files]) == 0


def test_compile_command_takes_another_configuration(tmp_path: Path) -> None:
    arguments = ["compile", "--block-m", "128", "--num-warps", "4", "-o", str(tmp_path)]
    assert main([*arguments, "--json", str(tmp_path / "report.json")]) == 0
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["config"]["BLOCK_M"], report["config"]["num_warps"]) == (128, 4)
