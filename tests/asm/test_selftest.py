"""Probes answer as assumed in the emulator, and a planted wrong assumption fails under its name."""

from __future__ import annotations

import dataclasses
import json
import re
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import numpy as np
import pytest
import torch

from asm_overrides.check import check_text
from asm_overrides.emulator import (
    GlobalMemory,
    Kernel,
    Machine,
    load_code_object,
    load_text,
)
from asm_overrides.emulator import run as run_kernel
from asm_overrides.probes import Probe, all_probes, emulated
from asm_overrides.probes.builder import LANES, UNWRITTEN, Words
from asm_overrides.probes.cycles import CycleProbe, all_cycle_probes
from asm_overrides.timing import DEFAULT
from zyfa_triton import code_object, selftest, tuning
from zyfa_triton.cli import main
from zyfa_triton.kernels import pingpong
from zyfa_triton.problem import FP8
from zyfa_triton.selftest import kernels
from zyfa_triton.tuning import choice, store

PROBE_NAME = re.compile(r"`([a-z0-9]+/[a-z0-9-]+)`")
DOCUMENT = Path(__file__).parents[2] / "docs" / "hardware-assumptions.md"
PROBES = [pytest.param(probe, id=probe.name) for probe in all_probes()]
STREAMS = [pytest.param(each, id=each.probe.name) for each in all_cycle_probes()]

EVERY = [*PROBES, *(pytest.param(one.probe, id=one.probe.name) for one in all_cycle_probes())]

PROBES_OF_SWITCH = {
    "matrix_sum": {"matrix/accumulation", "matrix/accumulation-bf16"},
    "transcendental_flushes_denormals": {"float32/transcendental-denormals"},
    "transcendental_error_ulp": {"float32/transcendental-accuracy"},
    "cvt_pk_u8_rounding": {"conversions/cvt-pk-u8"},
    "fp8_overflow_after_rounding": {"conversions/fp8-overflow"},
    "ashr_pk_keeps_other_half": {"packing/ashr-pk-other-half"},
    "short_results_keep_high_half": {"packing/short-results"},
    "dot2_sum": {"float32/dot2"},
}


def alternatives() -> list[tuple[str, Any]]:
    """Every switch of the emulator with every answer that is not assumed."""
    found: list[tuple[str, Any]] = []
    for name, kind in get_type_hints(Machine).items():
        assumed = getattr(Machine(), name)
        values = get_args(kind) if get_origin(kind) is Literal else (True, False)
        if kind is int:
            values = (-1, 1)
        found += [(name, value) for value in values if value != assumed]
    return found


@pytest.fixture(autouse=True)
def tuning_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A user file of the test's own."""
    path = tmp_path / "tuning.json"
    monkeypatch.setenv("ZYFA_TUNING_FILE", str(path))
    monkeypatch.setattr(choice, "_files", choice._Files())
    return path


@pytest.mark.parametrize("probe", PROBES)
def test_the_emulator_answers_as_assumed(probe: Probe) -> None:
    assert probe.judge(emulated.execute(probe)) == probe.assumed


@pytest.mark.parametrize("probe", PROBES)
def test_the_judge_does_not_take_silence_or_noise_for_the_assumed_answer(probe: Probe) -> None:
    silence = np.full(probe.words, UNWRITTEN, np.uint32)
    noise = np.random.default_rng(0).integers(0, 2**32, probe.words, np.uint32)
    for words in (silence, noise):
        assert probe.judge(words) != probe.assumed


@pytest.mark.parametrize("probe", EVERY)
def test_what_runs_on_a_card_is_fit_for_it(probe: Probe) -> None:
    kinds = {finding.kind for finding in check_text(probe.text, strict=True)}
    assert kinds == set(probe.deliberate)


@pytest.mark.parametrize("probe", PROBES)
def test_the_emulator_distrusts_no_probe(probe: Probe) -> None:
    _, findings = _run(load_text(probe.text), probe)
    assert findings <= probe.deliberate


@pytest.mark.parametrize("probe", PROBES[::4])
def test_the_assembled_code_object_answers_too(probe: Probe) -> None:
    words, _ = _run(load_code_object(code_object.assemble(probe.text)), probe)
    assert probe.judge(words) == probe.assumed


def test_firmware_that_preloads_nothing_is_named() -> None:
    (probe,) = (probe for probe in all_probes() if probe.name == "entry/preload")
    words, _ = _run(load_text(probe.text), probe, preload=False)
    assert probe.judge(words) == "at the symbol"


def _run(kernel: Kernel, probe: Probe, **options: Any) -> tuple[Words, set[str]]:
    memory = GlobalMemory()
    output = memory.alloc("output", np.full(probe.words, UNWRITTEN, np.uint32))
    source = memory.alloc("input", probe.source, readonly=True)
    result = run_kernel(
        kernel,
        grid=(1,),
        kernarg=kernel.pack([output, source]),
        memory=memory,
        num_waves=probe.waves,
        **options,
    )
    return memory.array(output, np.uint32).copy(), {one.kind for one in result.findings}


def test_every_switch_has_a_probe() -> None:
    fields = {field.name for field in dataclasses.fields(Machine)}
    assert set(PROBES_OF_SWITCH) == fields == {name for name, _ in alternatives()}


@pytest.mark.parametrize(("switch", "value"), alternatives())
def test_a_planted_wrong_assumption_fails_under_its_name(switch: str, value: Any) -> None:
    machine = Machine(**{switch: value})
    groups = sorted({probe.name.split("/")[0] + "/" for probe in all_probes()})
    rows = selftest.run(groups, on_card=False, machine=machine)
    assert len(rows) == len(all_probes())
    wrong = {row.name: row.outcome for row in rows if not row.agrees}
    assert set(wrong) == PROBES_OF_SWITCH[switch]
    assert not any(outcome.startswith("none of these") for outcome in wrong.values())


def test_the_command_fails_with_the_right_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    machine = Machine(ashr_pk_keeps_other_half=False)
    monkeypatch.setattr(selftest, "run", partial(selftest.run, machine=machine))
    path = tmp_path / "rows.json"
    assert main(["selftest", "packing", "matrix/scale", "--json", str(path)]) == 1
    shown = capsys.readouterr().out
    assert "NOT as assumed: packing/ashr-pk-other-half;" in shown
    written = json.loads(path.read_text())
    assert {row["name"] for row in written["rows"] if row["agrees"] is False} == {
        "packing/ashr-pk-other-half"
    }
    assert written["on_card"] is False and written["allowed"] == {}


def test_the_command_passes_and_stores_nothing_without_a_card(
    capsys: pytest.CaptureFixture[str], tuning_file: Path
) -> None:
    assert main(["selftest", "packing", "cycles/barrier"]) == 0
    shown = capsys.readouterr().out
    assert "3 of 4 as assumed; 1 need a card" in shown
    assert selftest.NEEDS_A_CARD in shown
    assert not tuning_file.exists()


def test_the_command_asks_all_probes_and_streams(capsys: pytest.CaptureFixture[str]) -> None:
    groups = {name.split("/")[0] for name in selftest.names()} - {"kernels"}
    assert main(["selftest", *sorted(groups)]) == 0
    summary = f"{len(all_probes())} of {len(all_probes()) + len(STREAMS)} as assumed"
    assert summary in capsys.readouterr().out


def test_wrong_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["selftest", "matrices"]) == 2
    assert "NAME: got 'matrices'" in capsys.readouterr().err
    assert main(["selftest", "--backend", "device"]) == 2
    assert "--backend device: torch" in capsys.readouterr().err


@pytest.mark.parametrize("stream", STREAMS)
def test_streams_end_and_are_counted(stream: CycleProbe) -> None:
    """With readings put in the place of the clock, and one round in that of many."""
    elapsed = round(10 * stream.units)
    text = stream.probe.text.replace("s_memtime s[12:13]", "s_mov_b64 s[12:13], 0")
    text = text.replace("s_memtime s[14:15]", f"s_mov_b64 s[14:15], {elapsed:#x}")
    assert "s_memtime" not in text
    rounds = [int(number) for number in re.findall(r"s_mov_b32 s16, (\d+)", text)]
    counted = re.split(r"\.L(?:one|second):", text)[1].split("s_sub_u32 s16")[0]
    lines = [line.split()[0] for line in counted.splitlines() if line.strip()]
    assert stream.units in (lines.count(name) * rounds[-1] for name in set(lines))
    text = re.sub(r"s_mov_b32 s16, \d+", "s_mov_b32 s16, 1", text)
    probe = dataclasses.replace(stream.probe, text=text)
    assert stream.measured(emulated.execute(probe)) == pytest.approx(10)
    assert stream.agrees(stream.cycles * 1.05) and not stream.agrees(stream.cycles * 0.8)
    assert stream.agrees(stream.cycles * 1.2) is stream.at_least


def test_streams_are_held_to_the_constants_of_the_cycle_model() -> None:
    held = {
        stream.probe.name.removeprefix("cycles/"): stream.cycles for stream in all_cycle_probes()
    }
    assert held["mfma-fp8"] == held["valu-beside-mfma"] == 64
    assert held["barrier"] == DEFAULT.barrier == 4
    assert held["permlane"] == DEFAULT.permlane == 20
    assert held["pk-fma-beside-mfma"] == 64 + DEFAULT.packed_after_matrix + 4 * 4 == 92
    assert (held["valu-other-wave"], held["pk-fma-other-wave"]) == (4, 8)


def _rows(other_half: bool) -> list[selftest.Row]:
    machine = Machine(ashr_pk_keeps_other_half=other_half)
    return selftest.run(["packing"], on_card=False, machine=machine)


def test_what_is_allowed_follows_from_the_answers() -> None:
    assert selftest.settings_from(_rows(True)) == {"pack": "op_sel"}
    assert selftest.settings_from(_rows(False)) == {"pack": "perm"}
    assert selftest.settings_from([]) == {}
    assert set(selftest.needed_for("pack")) <= set(selftest.names())
    assert all(pingpong.settings()[name] == values for name, values in store.ALLOWABLE.items())


def test_the_op_takes_what_is_allowed(tuning_file: Path) -> None:
    key = tuning.TuningKey("gfx950", "e4m3", 128, 128, True, "lean", True, 4096, False)
    config = {**pingpong.CONFIG, "kernel": "pingpong"}
    safe = tuning.launchable(config, key)["LOOP"]
    assert tuning.allow("gfx950", {"pack": "op_sel"}, {"device": "a card"}) == tuning_file
    daring = tuning.launchable(config, key)["LOOP"]
    assert safe != daring and "op_sel" in daring
    exact = dataclasses.replace(key, p_mode="exact")
    assert "op_sel" not in tuning.launchable(config, exact)["LOOP"]
    store.save(tuning_file, key, config, {"device": "a card"})  # keeps what is allowed
    assert store.load_machines(tuning_file)["gfx950"]["settings"] == {"pack": "op_sel"}
    tuning.allow("gfx950", {"pack": "perm"}, {})
    assert tuning.launchable(config, key)["LOOP"] == safe
    assert store.load(tuning_file)[key][store.NONE]["config"]["kernel"] == "pingpong"


@pytest.mark.parametrize(
    ("machines", "complaint"),
    [
        ([], '"machines" must be an object'),
        ({"gfx950": {}}, 'machine gfx950: "settings" must be an object'),
        ({"gfx950": {"settings": {"pack": "loose"}}}, "pack is 'loose'; accepted: pack: perm"),
        ({"gfx950": {"settings": {"speed": "high"}}}, "speed is 'high'; accepted"),
    ],
)
def test_a_file_with_other_machines_is_refused(
    tuning_file: Path, machines: object, complaint: str
) -> None:
    tuning_file.write_text(json.dumps({"version": 1, "entries": [], "machines": machines}))
    with pytest.raises(store.TuningFileError, match=re.escape(complaint)):
        choice.machine_settings("gfx950")


def test_whole_kernels_are_compared() -> None:
    case = kernels.cases()[-1]
    assert case.dtype == torch.bfloat16
    row = kernels.check(case, on_card=False)
    assert row.agrees and row.outcome == kernels.BUDGET


@pytest.mark.parametrize("on_card", [False, True])
def test_a_kernel_that_is_off_is_noticed(monkeypatch: pytest.MonkeyPatch, on_card: bool) -> None:
    case = kernels.cases()[0]
    assert case.dtype == FP8

    def run(case: kernels.Case, inputs: Any, backend: str) -> kernels.Pair:
        ref, _ = kernels.testing.expected(inputs, causal=True, block_scale=True)
        out = ref[0].to(torch.bfloat16)
        if backend == "device":
            out[0, 3, 0, 5] += 2**-9
        elif not on_card:
            out[:] += 0.1
        return out, ref[1].float()

    monkeypatch.setattr(kernels, "_run", run)
    row = kernels.check(case, on_card=on_card)
    assert row.agrees is False
    if on_card:
        assert re.fullmatch(
            r"1 of 25600 of out differ, by up to 2.0e-03; within the error budget", row.outcome
        )
    else:
        assert row.outcome.startswith("emulated: out: ")


def table_rows() -> list[list[str]]:
    """Cells of the document's tables of five columns."""
    lines = [line for line in DOCUMENT.read_text().splitlines() if line.startswith("| ")]
    cells = [line.strip("| ").split(" | ") for line in lines]
    return [row for row in cells if len(row) == 5 and row[0] != "question"]


def test_the_document_and_the_probes_agree() -> None:
    named: list[str] = []
    for row in table_rows():
        found = re.findall(PROBE_NAME, row[-1])
        assert found or row[-1] == "-" or row[-1].startswith("none: "), row
        named += found
    assert set(named) == {probe.name for probe in all_probes()}
    assert len(table_rows()) > 30


def test_every_switch_is_described_beside_its_probe() -> None:
    for switch, names in PROBES_OF_SWITCH.items():
        (row,) = (row for row in table_rows() if f"`{switch}`" in row[0])
        assert names == set(re.findall(PROBE_NAME, row[-1]))


def test_names_are_unique_and_lanes_are_full_waves() -> None:
    names = selftest.names()
    assert len(set(names)) == len(names)
    assert all(probe.words % LANES == 0 for probe in all_probes())


@pytest.mark.slow
def test_the_whole_command_in_less_than_two_minutes(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "rows.json"
    assert main(["selftest", "--json", str(path)]) == 0
    shown = capsys.readouterr().out
    rows = json.loads(path.read_text())["rows"]
    assert [row["name"] for row in rows] == list(selftest.names())
    assert all(row["name"] in shown for row in rows)
    assert sum(row["seconds"] for row in rows) < 120
