"""Steady states of whole programs, and the command that shows their schedules."""

from __future__ import annotations

import itertools
import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from asm_overrides.emulator import LoadError
from asm_overrides.timing import SOURCES, Constants, predict, steady_text
from zyfa_triton import schedules
from zyfa_triton.cli import main

ROOT = Path(__file__).resolve().parents[2]
REDRAWN = 5.0
"""Seconds."""

MFMA = "v_mfma_f32_32x32x64_f8f6f4"
FIELDS = {
    "kernel", "dtype", "headdim", "p_mode", "port_bound_share", "useful_share_replay_best",
    "useful_share_replay_worst", "matrix_busy_replay_worst",
}  # fmt: skip

STAGGERED = f"""
  s_cmp_lt_u32 s4, 4
  s_cbranch_scc1 early
  s_barrier
early:
  s_nop 0
loop:
  {MFMA} v[0:15], v[32:39], v[40:47], v[0:15]
  s_barrier
  s_cbranch_vccz keeps
  v_mul_f32 v0, v0, v60
  v_mul_f32 v1, v1, v60
keeps:
  v_mov_b32 v50, v51
  s_barrier
  s_cbranch_scc0 loop
  s_endpgm
"""

TWO_LOOPS = f"""
  s_cbranch_scc1 late
  s_barrier
first:
  {MFMA} v[0:15], v[32:39], v[40:47], v[0:15]
  s_barrier
  v_mov_b32 v50, v51
  s_cbranch_scc0 first
  s_endpgm
late:
  s_barrier
  s_barrier
  s_barrier
second:
  v_mov_b32 v50, v51
  s_barrier
  {MFMA} v[0:15], v[32:39], v[40:47], v[0:15]
  s_cbranch_scc0 second
  s_endpgm
"""


def opcodes(text: str, decisions: dict[int, bool] | None = None) -> list[str]:
    return [each.opcode for each in steady_text(text, decisions=decisions).tracks[0].path]


def test_steady_state_skips_the_rescale_and_knows_the_late_wave() -> None:
    steady = steady_text(STAGGERED)
    assert "v_mul_f32" not in opcodes(STAGGERED)
    assert [track.barriers_before for track in steady.tracks] == [0, 1]
    assert steady.stagger == 1
    assert steady.joined
    assert not steady_text(STAGGERED, waves=4).joined


def test_branches_can_be_decided() -> None:
    line = 1 + STAGGERED.splitlines().index("  s_cbranch_vccz keeps")
    assert opcodes(STAGGERED, decisions={line: False}).count("v_mul_f32") == 2
    with pytest.raises(LoadError, match="decisions"):
        steady_text(STAGGERED, decisions={line + 5: True, line + 6: False})


def test_halves_of_a_workgroup_may_have_a_loop_each() -> None:
    steady = steady_text(TWO_LOOPS)
    assert [track.label for track in steady.tracks] == ["first", "second"]
    assert [track.barriers_before for track in steady.tracks] == [1, 3]


def test_every_constant_has_a_source() -> None:
    assert set(SOURCES) == set(Constants.__dataclass_fields__)
    assert {trust for trust, _ in SOURCES.values()} <= set("DMRF?")


@pytest.mark.parametrize("headdim", [128, 192])
@pytest.mark.parametrize("p_mode", ["lean", "exact"])
def test_our_loop_runs_in_opposite_phases(p_mode: str, headdim: int) -> None:
    prediction = schedules.of_recipe(p_mode=p_mode, headdim=headdim).prediction
    steady, worst = prediction.steady, prediction.worst
    assert steady.stagger == 1
    assert steady.headdim == headdim
    path = steady.tracks[0].path
    idle = sum(worst.idle_matrix().values()) / worst.period
    assert idle == pytest.approx(1 - worst.matrix_busy, abs=2e-4)  # all of it has a cause
    # 64 keys, four times: 4 or 6 products of QK, 4 of PV and a row sum
    products = headdim // 32 + 4
    assert sum(each.spec.port == "mfma" for each in path) == 4 * (products + 1)
    assert len(steady.tracks[0].useful) == 4 * products
    assert not any(each.opcode == "v_cndmask_b32" for each in path)  # no mask


@pytest.mark.parametrize("p_mode", ["lean", "exact"])
def test_head_dim_192_leaves_the_matrix_pipe_a_tenth_idle_at_most(p_mode: str) -> None:
    worst = schedules.of_recipe(p_mode=p_mode, headdim=192).prediction.worst
    assert worst.useful_share >= 0.90


def test_model_puts_a_wave_that_is_in_step_below_one_that_is_not() -> None:
    text = STAGGERED.replace("s_cbranch_scc1 early", "s_nop 0")  # all waves pass the barrier
    assert steady_text(text).stagger == 0
    in_step = predict(steady_text(text))
    assert in_step.worst.useful_share <= predict(steady_text(STAGGERED)).worst.useful_share


def test_command_writes_rows_picture_and_trace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows_file, picture, trace_file = (tmp_path / name for name in ("r.json", "p.png", "t.json"))
    arguments = ["schedule", "--p-mode", "lean", "exact", "--json", str(rows_file)]
    arguments += ["--png", str(picture), "--cycles", "600", "--trace", str(trace_file)]
    assert main(arguments) == 0
    rows = json.loads(rows_file.read_text())
    assert [row["p_mode"] for row in rows] == ["lean", "exact"]
    for row in rows:
        assert set(row) >= FIELDS
        assert row["kernel"] == "pingpong"
        assert row["useful_share_replay_worst"] <= row["useful_share_replay_best"]
        assert row["useful_share_replay_best"] <= row["port_bound_share"] <= 1
        assert row["useful_share_replay_worst"] < row["matrix_busy_replay_worst"]  # row sums
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "matrix pipe idle" in capsys.readouterr().out
    check_trace(json.loads(trace_file.read_text())["traceEvents"], rows[0])


def check_trace(events: list[dict[str, Any]], row: dict[str, Any]) -> None:
    """Spans of a track do not overlap; matrix time is the row's; instructions name their source."""
    names = {
        (each["pid"], each["tid"]): each["args"]["name"]
        for each in events
        if each["name"] == "thread_name"
    }
    assert set(names.values()) >= {"wave 0", "wave 1", "matrix", "vector", "lds"}
    spans = [each for each in events if each["ph"] == "X"]
    for track, name in names.items():
        mine = sorted(
            (each["ts"], each["ts"] + each["dur"])
            for each in spans
            if (each["pid"], each["tid"]) == track
        )
        assert all(one[1] <= two[0] for one, two in itertools.pairwise(mine)), name
    matrix = [each for each in spans if names[each["pid"], each["tid"]] == "matrix"]
    busy = sum(each["dur"] for each in matrix) / (2 * row["cycles_per_iteration_worst"])
    assert busy == pytest.approx(row["matrix_busy_replay_worst"], abs=0.01)
    assert all("softmax.py:" in e["args"]["source"] for e in spans if "ashr_pk" in e["name"])
    assert all(isinstance(each["args"]["line"], int) for each in spans)


def test_a_changed_recipe_is_drawn_again_within_five_seconds(tmp_path: Path) -> None:
    """Processor time, which a busy machine stretches least; the best of three."""
    picture = str(tmp_path / "a.png")
    command = ("-m", "zyfa_triton", "schedule", "--p-mode", "exact", "--png", picture)

    def seconds() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *command], cwd=ROOT, check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    taken = []
    while len(taken) < 3 and min(taken, default=REDRAWN) >= REDRAWN:
        taken.append(seconds())
    assert min(taken) < REDRAWN, taken


def test_command_reads_files_and_refuses_what_it_cannot(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "loop.s"
    source.write_text(STAGGERED)
    assert main(["schedule", str(source)]) == 0
    assert "loop" in capsys.readouterr().out
    source.write_text("v_mov_b32 v0, 0\ns_endpgm\n")
    assert main(["schedule", str(source)]) == 2
    assert "no loop with matrix instructions" in capsys.readouterr().err
    assert main(["schedule", str(tmp_path / "absent.s")]) == 2
    assert "cannot read" in capsys.readouterr().err
