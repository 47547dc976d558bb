"""Routes of waves, replays of whole programs, and times of workgroups by their tiles."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest

from asm_overrides.isa.instruction import Instruction
from asm_overrides.isa.parse import parse
from asm_overrides.timing import (
    DEFAULT,
    RouteRecorder,
    WorkgroupModel,
    extended,
    replay_once,
)
from asm_overrides.timing.phases import SKEWS
from asm_overrides.timing.steps import Step, compile_steps
from asm_overrides.timing.workgroup import SETTLED
from zyfa_triton import schedules
from zyfa_triton.cli import main
from zyfa_triton.launches import Attention, LaunchModel, key_tiles

MFMA = "v_mfma_f32_32x32x64_f8f6f4"
KERNELS = [("pingpong", "lean"), ("pingpong", "exact"), ("triton", "lean")]


@cache
def model(kernel: str, p_mode: str, causal: bool = True) -> LaunchModel:
    return LaunchModel(kernel, p_mode, causal=causal, nheads=2)


def steps(text: str) -> list[Step]:
    return compile_steps(parse(text).instructions, frozenset(), DEFAULT)


def starts(first: str, second: str) -> tuple[list[int], list[int]]:
    events = replay_once((steps(first), steps(second)))
    one, two = ([event.start for event in events if event.wave == wave] for wave in (0, 1))
    return one, two


def test_a_program_is_replayed_to_its_end() -> None:
    # No second iteration: wave 0 at 0 and 8 (wave 1 has the port at 4), wave 1 at 4 alone.
    assert starts("v_mov_b32 v0, v1\nv_mov_b32 v2, v3", "v_mov_b32 v0, v1") == ([0, 8], [4])


def test_a_wave_that_has_ended_holds_no_barrier() -> None:
    # Wave 0 is at its second barrier at 16, when wave 1 has none left: it goes on 4 later, and at
    # once if wave 1 ends last (at 24, the end of eight states of a nop from 4 on).
    assert starts("s_barrier\ns_nop 2\ns_barrier\ns_nop 0", "s_barrier") == ([4, 4, 20, 20], [4])
    late = starts("s_barrier\ns_barrier\ns_nop 0", "s_barrier\ns_nop 7\ns_nop 0")
    assert late == ([4, 8, 8], [4, 4, 36])


def test_what_a_round_adds_is_repeated() -> None:
    short, long = (0, 1, 2, 3, 1, 2, 4, 9), (0, 1, 2, 3, 1, 2, 3, 1, 2, 4, 9)
    assert extended(short, long, 0) == short
    assert extended(short, long, 1) == long
    assert extended(short, long, 3) == (0, *(1, 2, 3) * 4, 1, 2, 4, 9)


@pytest.mark.parametrize("long", [(0, 1, 2, 9), (0, 1, 2, 1, 8), (0, 5, 1, 2, 6, 9)])
def test_routes_that_differ_otherwise_are_refused(long: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="more than one round"):
        extended((0, 1, 2, 9), long, 2)


def test_a_recorder_takes_one_workgroup() -> None:
    recorder = RouteRecorder()
    recorder.on_instruction(_Group(0, 2), parse("s_nop 0").instructions[0], 7)
    recorder.on_instruction(_Group(1, 2), parse("s_nop 0").instructions[0], 8)
    assert (recorder.route(0), recorder.route(1)) == ((7,), (7, 8))
    with pytest.raises(ValueError, match="one workgroup"):
        recorder.on_start(None)  # type: ignore[arg-type]


class _Group:
    def __init__(self, first: int, end: int) -> None:
        self.first, self.end = first, end


PROGRAM: Sequence[Instruction] = parse(
    f"s_nop 4\n{MFMA} v[0:15], v[32:39], v[40:47], v[0:15]\nv_exp_f32 v50, v51\ns_nop 0"
).instructions


def test_phases_of_a_workgroup_worked_by_hand() -> None:
    # A nop of 20 cycles, then a matrix instruction a tile, with an exponential where there is a
    # mask; a last nop. Both waves do the same: their two matrix instructions of a tile take the
    # pipe for 2 * 64. The first starts at 20, so with 16 + 1 tiles the last ends at 20 + 17 * 128.
    # Wave 1's last one starts 64 before that, its exponential comes 12 behind that start and holds
    # its wave for 4, as the nop does: the end is 64 - 20 before the last matrix cycle.
    def record(full: int, masked: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        route = (0, *(1,) * full, *(1, 2) * masked, 3)
        return route, route

    tiny = WorkgroupModel(PROGRAM, record, most_masked=1, skew=(0, 0))
    passage = tiny.passage(16, 1)
    assert (passage.first_matrix, passage.last_matrix) == (20, 20 + 17 * 128)
    assert passage.end == 20 + 17 * 128 - 64 + 20
    assert tiny.tile == 128
    time = tiny.time(100, 0)
    assert (time.prologue, time.full, time.masked, time.ramp) == (20, 12800, 0, 0)
    assert time.cycles == tiny.cycles(100, 0) == 20 + 12800 + time.epilogue
    assert time.epilogue == -64 + 8  # the matrix pipe works on behind the last instruction


@pytest.mark.parametrize("tiles", [(0, 0), (-1, 1), (4, 5)])
def test_tiles_that_no_workgroup_has_are_refused(tiles: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="tiles: got"):
        model("pingpong", "lean").model(0).time(*tiles)


@pytest.mark.parametrize(("kernel", "p_mode"), KERNELS)
def test_routes_made_longer_are_those_that_the_emulator_takes(kernel: str, p_mode: str) -> None:
    for every in (0, 1):
        made = model(kernel, p_mode).model(every)
        assert made.routes(20, 4) == made.record(20, 4)


@pytest.mark.parametrize("every", [0, 1])
@pytest.mark.parametrize(("kernel", "p_mode"), KERNELS)
def test_times_are_those_of_the_whole_replay(kernel: str, p_mode: str, every: int) -> None:
    made = model(kernel, p_mode).model(every)
    for full, masked in ((0, 4), (4, 2), (SETTLED + 8, 4), (64, 4)):
        passage = made.passage(full, masked)
        assert made.cycles(full, masked) == passage.end, (full, masked)
        assert made.time(full, masked).cycles == pytest.approx(passage.end)
        epilogue = passage.end - passage.last_matrix
        assert made.time(full, masked).epilogue == pytest.approx(epilogue)


def test_times_without_a_mask_know_where_the_ring_stands() -> None:
    made = model("pingpong", "lean", causal=False).model(0)
    for full, masked in ((3, 1), (41, 0), (42, 1), (43, 0)):
        assert made.cycles(full, masked) == made.passage(full, masked).end, (full, masked)


@pytest.mark.parametrize("p_mode", ["lean", "exact"])
def test_a_tile_costs_what_it_does_in_the_steady_state(p_mode: str) -> None:
    made = model("pingpong", p_mode).model(0)
    assert made.skew in SKEWS
    worst = schedules.of_recipe(p_mode=p_mode).prediction.worst
    assert made.tile * 4 == worst.period
    assert made.masked_tile > made.tile
    assert model("pingpong", p_mode).model(1).tile > made.tile


@pytest.mark.parametrize("p_mode", ["lean", "exact"])
def test_rescales_of_every_other_tile_cost_half_of_those_of_every_tile(p_mode: str) -> None:
    cycles = [model("pingpong", p_mode).model(every).cycles(60, 4) for every in (0, 1, 2)]
    assert cycles[2] == pytest.approx((cycles[0] + cycles[1]) / 2, rel=0.01)


def test_triton_rescales_every_tile() -> None:
    triton = model("triton", "lean")
    assert triton.model(1).cycles(20, 4) == triton.model(0).cycles(20, 4)


@pytest.mark.parametrize(
    ("seqlen", "causal"),
    [(1, True), (256, True), (300, True), (1000, True), (64, False), (100, False)],
)
def test_tiles_are_the_kernel_s(seqlen: int, causal: bool) -> None:
    # as _tile_range in zyfa_triton.kernels.attention: bounds in keys, tiles of 64
    for m_block in range(-(-seqlen // 256)):
        full, masked = key_tiles(m_block, seqlen, causal)
        first_row_sees = min(256 * m_block + 1, seqlen)
        last_row_sees = min(256 * (m_block + 1), seqlen)
        if causal:
            assert 64 * full <= first_row_sees < 64 * (full + 1)
            assert 64 * (full + masked - 1) < last_row_sees <= 64 * (full + masked)
        else:
            assert (full, masked) == (seqlen // 64, int(seqlen % 64 > 0))


def test_a_launch_adds_up() -> None:
    asked = Attention(2048, nheads=2)
    launch = model("pingpong", "lean").launch(asked, rescales=0.5)
    calm, growing = (model("pingpong", "lean").model(every) for every in (0, 1))
    halves = [(calm.cycles(4 * m, 4) + growing.cycles(4 * m, 4)) / 2 for m in range(8)]
    assert launch.costs == pytest.approx(halves)
    assert sum(launch.shares().values()) == pytest.approx(1)
    # 16 entries of 2 heads of 8 tiles: one workgroup a compute unit, so the longest one decides
    row = launch.as_json()
    assert row["cycles"] == round(halves[7])
    assert row["balances"]["by_entry"] == pytest.approx(sum(halves) / 8 / halves[7], abs=1e-4)
    assert row["matrix_share"] > row["peak_share"]  # half of a diagonal tile is not attended


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ({"seqlen": 0}, "seqlen"),
        ({"seqlen": 8, "batch": 0}, "batch"),
        ({"seqlen": 8, "nheads_k": 3}, "nheads_k"),
    ],
)
def test_calls_that_are_none_are_refused(arguments: dict[str, int], what: str) -> None:
    with pytest.raises(ValueError, match=f"{what}: got"):
        Attention(**arguments)


def test_a_share_of_rescales_is_a_share() -> None:
    with pytest.raises(ValueError, match=r"rescales: got 1\.5"):
        model("pingpong", "lean").launch(Attention(256, nheads=2), rescales=1.5)
    with pytest.raises(ValueError, match="asked: got"):
        model("pingpong", "lean").launch(Attention(256, nheads=4))
    with pytest.raises(ValueError, match=r"headdim, causal\) \(2, 2, 192, True\)"):
        model("pingpong", "lean").launch(Attention(256, nheads=2, headdim=192))


def test_head_dim_192_is_a_quarter_more_to_do_and_takes_less_than_that_longer() -> None:
    """The matrix pipe has 10 instructions a tile instead of 8, the vector pipe no more."""
    wide = LaunchModel("pingpong", "lean", nheads=2, headdim=192)
    launches = [
        model("pingpong", "lean").launch(Attention(1024, nheads=2), rescales=0),
        wide.launch(Attention(1024, nheads=2, headdim=192), rescales=0),
    ]
    assert launches[1].asked.flop == 1.25 * launches[0].asked.flop
    for narrow_cycles, cycles in zip(*(each.costs for each in launches), strict=True):
        assert narrow_cycles < cycles < 1.25 * narrow_cycles


def test_command_predicts_launches(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "rows.json"
    lengths = ["--seqlens", "1024", "4096", "--nheads", "2", "--rescales", "0"]
    assert main(["schedule", *lengths, "--clock", "1.2", "--json", str(file)]) == 0
    shown = capsys.readouterr().out
    assert "by_entry" in shown
    assert "idle" in shown
    rows = json.loads(file.read_text())
    assert [row["seqlen"] for row in rows] == [1024, 4096]
    for row in rows:
        assert row["milliseconds"] == pytest.approx(row["cycles"] / 1.2e6, abs=1e-4)
        assert row["order"] == "by_entry"
        assert row["balances"]["by_entry"] >= row["balances"]["by_head"]
        assert sum(row["time_shares"].values()) == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["loop.s"], "--seqlens: predicts launches"),
        (["--row-sum", "dense"], "--row-sum: got dense"),
        (["--png", "x.png"], "--png and --trace"),
        (["--rescales", "2"], "rescales: got 2.0"),
        (["--p-mode", "unscaled"], "unscaled"),
    ],
)
def test_command_refuses_what_no_launch_has(
    arguments: list[str], what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["schedule", *arguments, "--seqlens", "256", "--nheads", "2"]) == 2
    assert what in capsys.readouterr().err
