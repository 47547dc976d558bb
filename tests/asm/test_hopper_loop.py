"""The generated attention loop for Hopper, its PTX executed: codes, sums, outputs, barriers.

What the executor holds it to is in tests/asm/ptx, what it should compute in hopper_loop_contract.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any, Literal

import pytest
import torch

from asm_overrides.recipes.attention_sm90 import Parameters
from tests.asm.hopper_loop_contract import DEPTH, NO_KEY, PARTED, WARP_ROWS, offset_of
from tests.asm.hopper_loop_runs import (
    BLOCK_N,
    ROWS,
    Run,
    Task,
    execute,
    interface,
    octaves_of_one,
    text_of,
)
from tests.asm.hopper_loop_tasks import (
    by_row,
    far_from_zero,
    grown_alone,
    late_peak,
    made,
    maxima_everywhere,
    real,
    sums_about_flat,
    sums_and_growth,
    thresholds,
    with_rest,
    with_small,
)
from zyfa_triton import numerics
from zyfa_triton.kernels.hopper.loop import HopperLoop
from zyfa_triton.kernels.hopper.values import BEHIND
from zyfa_triton.splice import Names

Mode = Literal["lean", "exact"]
MODES: tuple[Mode, ...] = ("lean", "exact")
WAITING = "mbarrier.try_wait"

TASKS = {
    "ascending": made([6.0 * block for block in range(8)], 0.3),
    "never": made([0.0] + [-20.0] * 7, 0.3),
    "once": made([0, -3, -3, 9, -3, -3, 0, 0], 0.3),
    "peaked": made([0.4 * block for block in range(8)], 6),
    "far": made([300.0 * block for block in range(4)], 3, unit=4),
    "far_down": made([-300.0 * block for block in range(4)], 3, unit=4),
    "real_begin": real(448, 4),
    "real_end": real(960, 8, head=1),
}
LEAST = {"peaked": 0.9, "real_begin": 0.9, "real_end": 0.9}  # of rows without growth in the room
LEVEL = made([0.0] * 4, 0.7)
FLAT = with_small(made([0.95 * block for block in range(12)], 0.3))


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Matrices are small: torch's threads would only wait for one another."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def fitted(task: Task, parameters: Parameters) -> Task:
    return with_rest(task) if parameters.headdim > 128 else task


def by_contract(task: Task, p_mode: Mode, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The contract on the whole task, with scores rounded as often as the instruction does."""
    monkeypatch.setattr(numerics, "SLICE", DEPTH)
    seen = task.seqlen_k or task.blocks * BLOCK_N
    q, k, v = (each[None, :, None] for each in (task.q, task.k[:seen], task.v[:seen]))
    return numerics.attention(
        q, k, v, softmax_scale=task.softmax_scale, causal=task.causal,
        options=numerics.HOPPER[p_mode], return_codes=True,
    )  # fmt: skip


def exact_output(task: Task) -> torch.Tensor:
    scores = task.q.double() @ task.k.double().T * task.softmax_scale
    return scores.softmax(1) @ task.v.double()


def compare(run: Run, contract: Any, least: float = 1.0) -> None:
    """Codes, the output and lse of a run that has checked its own state.

    Codes of rows whose reference is their largest score so far, lowered by the row's room; `least`
    of all rows and blocks must be such. In others a key lies within the room.
    """
    task, p_mode = run.task, run.p.p_mode
    largest, compared = torch.full((ROWS, 1), NO_KEY), []
    always = torch.ones(ROWS, dtype=torch.bool)
    for visit in range(task.blocks):
        largest = torch.maximum(largest, task.scores(visit).amax(1, keepdim=True))
        if visit < task.before - 1:
            continue
        index = visit - task.before + 1
        state = run.states[index + 1]
        same = (state.reference == largest).squeeze(1)
        compared.append(same.float().mean())
        always &= same
        first = (task.blocks - 1 - visit) * BLOCK_N
        codes = contract.codes[0, 0, :, first : first + BLOCK_N].int()
        if p_mode == "lean":
            room = offset_of(state.scale, state.reference) - state.offset
            codes = (codes - room.round().int()).clamp(min=0)
        wanted = torch.zeros(ROWS, BLOCK_N, dtype=torch.float64)
        wanted[:, : codes.shape[1]] = numerics.e4m3_values(codes.to(torch.uint8))
        got = torch.from_numpy(run.codes[index])
        assert torch.equal(got[same], wanted[same]), f"codes of visit {visit}"
    assert sum(compared) / len(compared) >= least
    out, lse = run.final.result(octaves_of_one(p_mode))
    size = run.final.add().size / run.final.add().sums
    # room is rounded into the offset, and its power of two is one more factor
    bound = 2.0**-21 * (task.blocks + (6 if p_mode == "lean" else 2)) * size
    assert ((out - contract.out[0, :, 0]).abs() <= bound)[always].all()
    top = (run.final.reference * task.scale).abs().squeeze(1)
    bound = 2.0**-21 * (top + 16) + 2.0**-21 * lse.abs()
    assert ((lse - contract.lse[0, 0]).abs() <= bound)[always].all()


def name_of(p: Parameters) -> str:
    referred = f"{'' if p.referred else 'not-'}referred"
    return f"{p.p_mode}-{p.headdim}-{p.ones}-{referred}-{p.cluster}"


VARIANTS = [
    Parameters(
        headdim=headdim, p_mode=p_mode, stages=stages, ones=ones, referred=referred, cluster=cluster
    )
    for stages, cluster, (p_mode, headdim, ones, referred) in zip(
        [2, 3, 6, 5, 3, 2, 5, 4, 5, 2, 4, 6, 2, 5, 3, 4],
        [2, 1, 2, 2, 1, 2, 1, 2, 2, 1, 1, 2, 2, 1, 2, 1],
        product(MODES, (128, 192), ("behind", "apart"), (True, False)),
        strict=True,
    )
]


@pytest.mark.parametrize("parameters", VARIANTS, ids=name_of)
def test_every_variant_on_no_one_two_and_seven_blocks(parameters: Parameters) -> None:
    for before, blocks, base in ((1, 0, 5), (3, 1, 0), (2, 2, 1), (1, 7, 9)):
        levels = [0.35 * block for block in range(before + blocks)]
        task = replace(made(levels, 0.7, seed=blocks), base=base, before=before)
        execute(parameters, fitted(task, parameters))


@pytest.mark.parametrize("p_mode", MODES)
@pytest.mark.parametrize("task", list(TASKS))
def test_codes_are_those_of_the_contract(
    task: str, p_mode: Mode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows whose reference moves move it to their largest score, as the contract does."""
    parameters = Parameters(p_mode=p_mode, stages=3)
    run = execute(parameters, replace(TASKS[task], base=1))
    compare(run, by_contract(run.task, p_mode, monkeypatch), LEAST.get(task, 1.0))
    if p_mode == "lean":
        grown = {"ascending": 7, "never": 1, "once": 2, "far": 3, "far_down": 1}
        if task in grown:
            assert run.states[-1].moves.anew == grown[task] * ROWS // PARTED


@pytest.mark.parametrize("p_mode", MODES)
def test_head_dim_192(p_mode: Mode, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ascending", "real_begin"):
        parameters = Parameters(p_mode=p_mode, headdim=192, stages=2)
        run = execute(parameters, with_rest(TASKS[name]))
        compare(run, by_contract(run.task, p_mode, monkeypatch), LEAST.get(name, 1.0))


def test_many_keys_that_share_a_row_move_it_by_whole_codes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The contract has no such rule: codes are held to the loop's own, the output to its error."""
    run = execute(Parameters(stages=4), FLAT)
    assert run.states[-1].moves.lowered >= 24 and run.states[-1].moves.anew >= 8
    truth = exact_output(FLAT)
    theirs = by_contract(FLAT, "lean", monkeypatch).out[0, :, 0] - truth
    ours = run.final.result(octaves_of_one("lean"))[0] - truth
    assert ours.abs().max() <= 2 * theirs.abs().max()
    assert ours.square().mean() <= 2 * theirs.square().mean()


PLACED = {
    "maxima everywhere": maxima_everywhere(),
    "one row alone": grown_alone(),
    "sums about flat": sums_about_flat(),
    "thresholds": thresholds(),
    "far from zero": far_from_zero(),
    "by row": by_row(made([200, 202.5, 200, 205, 205.2, 209], 3, unit=0.5)),
}


@pytest.mark.parametrize("p_mode", MODES)
@pytest.mark.parametrize("task", list(PLACED))
def test_rows_that_grow_one_by_one(task: str, p_mode: Mode) -> None:
    execute(Parameters(p_mode=p_mode, stages=4), PLACED[task])


@pytest.mark.parametrize("codes", [range(1, 9), range(5, 13), range(13, 21)], ids=str)
@pytest.mark.parametrize("first", [18, 19, 26, 27, 34, 35, 42, 43])
def test_every_sum_and_growth(first: int, codes: range) -> None:
    """Of rows that six keys make up, or fewer, up to what allows all room, by every step of an
    eighth, in either of a lane's rows; by codes up to FAR and from scores above."""
    run = execute(Parameters(stages=4), sums_and_growth(range(first, first + 8), codes))
    assert run.states[-1].moves.asked == 4
    assert run.states[-1].moves.anew == ROWS // PARTED + (
        8 if codes[-1] > 12 else max(21 - first, 0)
    )


def test_scores_without_a_trend_seldom_move_the_reference() -> None:
    """Gaussian scores: once, to get room, and seldom after that. A block in which one warp moves
    it holds up the four that share a product."""
    for seed in range(4):
        run = execute(Parameters(stages=3), made([0.0] * 17, 1 / math.log(2.0), seed=seed))
        moves = run.states[-1].moves
        assert moves.anew == ROWS // PARTED and moves.lowered <= ROWS // PARTED + 2


@pytest.mark.parametrize(
    ("blocks", "peaks", "grown", "background"),
    [(18, 8, 12.875, 0), (50, 8, 12.875, 0), (50, 8, 11, -2), (50, 8, 11, -1), (50, 64, 11, -2),
     (50, 16, 10.5, -2.5), (50, 5, 10.25, -3)],
)  # fmt: skip
def test_many_small_keys_under_a_late_peak_are_not_lost(
    blocks: int, peaks: int, grown: float, background: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Room above a row's largest key costs small keys less than Lean codes cost anyway: n keys that
    become code 0 under a largest key that is the whole row are n 2^-15.75 of it."""
    task = late_peak(blocks, peaks, grown, float(background))
    run = execute(Parameters(stages=3), task)
    out = run.final.result(octaves_of_one("lean"))[0]
    theirs = by_contract(task, "lean", monkeypatch).out[0, :, 0]
    lost = (exact_output(task) - out.double()).max().item()
    theirs_lost = (exact_output(task) - theirs.double()).max().item()
    assert 0.01 < exact_output(task).max() < 0.5
    assert lost <= max(theirs_lost, 0) + blocks * BLOCK_N * 2.0**-16.75


def test_rows_with_a_few_keys_keep_their_largest_code() -> None:
    """A row that one key makes up gets that key's value, however often its reference moved."""
    task = made([0.4 * block for block in range(8)], 6)
    k = task.k.float()
    k[2 * BLOCK_N + 7] = 20 * task.q.float().sign()[0]
    run = execute(Parameters(stages=5), replace(task, k=k.to(torch.float8_e4m3fn)))
    out = run.final.result(octaves_of_one("lean"))[0]
    value = task.v[2 * BLOCK_N + 7].float()
    assert torch.allclose(out, value.expand_as(out), rtol=2.0**-18, atol=0)


@pytest.mark.parametrize("softmax_scale", [1e-30, 3e-38, 1e-38, 1e-40])
def test_scores_of_almost_nothing(softmax_scale: float) -> None:
    """All keys count alike: lse is the logarithm of their number."""
    task = replace(made([0.0] * 5, 1.0), softmax_scale=softmax_scale)
    out, lse = execute(Parameters(stages=3), task).final.result(octaves_of_one("lean"))
    assert torch.allclose(lse.float(), torch.full((ROWS,), math.log(5 * BLOCK_N)), atol=1e-4)
    assert torch.allclose(out, task.v.float().mean(0).expand_as(out), atol=1e-4)


@pytest.mark.parametrize("p_mode", MODES)
def test_warps_may_part(p_mode: Mode) -> None:
    """Only the third warp's rows grow."""
    task = TASKS["ascending"]
    q = -task.q.float()
    q[2 * WARP_ROWS : 3 * WARP_ROWS] *= -1
    run = execute(Parameters(p_mode=p_mode, stages=3), replace(task, q=q.to(task.q.dtype)))
    assert run.threads.count("mul.rn.f32 o0,") == 7
    assert run.threads.count("sub.s32 L_left") == 4


@pytest.mark.parametrize("stages", [2, 3, 4, 5])
def test_rings_wrap(stages: int) -> None:
    """Wherever in a ring and in which phase the loop begins."""
    for base in range(2 * stages):
        p_mode = MODES[base & 1]
        execute(Parameters(p_mode=p_mode, stages=stages), replace(LEVEL, base=base))


@pytest.mark.parametrize(
    ("looks", "waits"), [((0,), 0), ((1,), 0), ((3,), None), ((9,), None), ((0, 14), None)]
)
def test_tiles_that_come_at_once_and_late(looks: tuple[int, ...], waits: int | None) -> None:
    """A tile that is there when it is looked at costs no wait; any other is waited for."""
    task = replace(FLAT, looks=looks)
    run = execute(Parameters(stages=3), task)
    found = run.threads.count(WAITING)
    assert found > 0 if waits is None else found == waits


@pytest.mark.parametrize("p_mode", MODES)
def test_a_row_that_has_seen_no_key(p_mode: Mode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Row 0 sees none of the block before the loop; the loop's blocks are seen by all."""
    task = made([0.35 * block for block in range(5)], 0.7)
    hidden = task.k.float()
    hidden[4 * BLOCK_N + 63 :] = 0
    task = replace(task, k=hidden.to(task.k.dtype), causal=True, seqlen_k=4 * BLOCK_N + 63)
    first = task.states(p_mode)[0]
    assert first.reference[0] < -1e29 and (first.reference[1:] > -1e29).all()
    for referred in (True, False):
        run = execute(Parameters(p_mode=p_mode, stages=3, referred=referred), task)
    out, _ = run.final.result(octaves_of_one(p_mode))
    theirs = by_contract(task, p_mode, monkeypatch).out[0, :, 0]
    assert torch.allclose(out[0], theirs[0], rtol=0.1, atol=0.02)
    if p_mode == "exact":
        compare(run, by_contract(task, p_mode, monkeypatch))


@pytest.mark.parametrize("p_mode", MODES)
@pytest.mark.parametrize("block", [0, 2, 3])
def test_nan_in_k_comes_out_as_nan(block: int, p_mode: Mode) -> None:
    """Before the loop, in the middle, in the last block, whose P is left to the kernel."""
    k = FLAT.k.float()
    key = (FLAT.blocks - 1 - block) * BLOCK_N + 77
    k[key, 3] = float("nan")
    task = replace(FLAT, k=k.to(torch.float8_e4m3fn))
    run = execute(Parameters(p_mode=p_mode, stages=3), task)
    assert torch.isnan(torch.from_numpy(run.codes[block])[:, 77]).all()
    out, lse = run.final.result(octaves_of_one(p_mode))
    assert out.isnan().all() and lse.isnan().all()


@pytest.mark.parametrize("p_mode", MODES)
def test_nan_in_q_and_v_stays_where_it_is(p_mode: Mode) -> None:
    q, v = FLAT.q.float(), FLAT.v.float()
    q[21, 5] = float("nan")
    v[300, 9] = float("nan")
    task = replace(FLAT, q=q.to(torch.float8_e4m3fn), v=v.to(torch.float8_e4m3fn))
    run = execute(Parameters(p_mode=p_mode, stages=2), task)
    out, _ = run.final.result(octaves_of_one(p_mode))
    expected = torch.zeros(out.shape, dtype=torch.bool)
    expected[21], expected[:, 9] = True, True
    assert torch.equal(out.isnan(), expected)


@pytest.mark.parametrize("p_mode", MODES)
@pytest.mark.parametrize("overlap", [True, False])
def test_it_is_the_text_that_the_kernel_is_given(p_mode: Mode, overlap: bool) -> None:
    """With these registers for what the kernel carries, the splice's text is the one run here."""
    ones: Literal["behind", "apart"] = "behind" if BEHIND.value else "apart"
    parameters = Parameters(headdim=192, p_mode=p_mode, stages=3, ones=ones, referred=overlap)
    recipe = HopperLoop(name="x", headdim=192, p_mode=p_mode, stages=3, overlap=overlap)
    at = interface(parameters)
    carried = {each.name: getattr(at, each.name) for each in recipe.carried}
    lists = {name: (at,) if isinstance(at, str) else tuple(at) for name, at in carried.items()}
    assert {each.name: each.registers for each in recipe.carried} == {
        name: len(registers) for name, registers in lists.items()
    }
    names = Names(
        "L", at.first, at.last, {"multiplier": at.multiplier, "scale_log2": at.scale_log2},
        {name: getattr(at, name) for name in recipe.memory}, lists, {},
        {"q_first": tuple(at.q[:16]), "q_rest": tuple(at.q[16:])},
    )  # fmt: skip
    assert recipe.text(names) == text_of(parameters)
