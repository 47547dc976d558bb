"""The generated Hopper loop on bfloat16, executed on the CPU, and mistakes planted into it."""

from __future__ import annotations

import random
import re
from dataclasses import replace

import pytest
import torch

from tests.asm.hopper_bfloat16_runs import (
    BLOCK_N,
    ROWS,
    SCORES,
    WARP_ROWS,
    Run,
    Task,
    made,
    text_of,
)
from tests.asm.ptx.program import Finding

# Without them nothing changes: a look that found the tile saves waiting again, and nobody jumps to
# the end where blocks are left.
EQUIVALENT = re.compile(r"@L_[kv]_there bra|bra\.uni L_end|setp\.le\.s32 L_test")


def rising(headdim: int, blocks: int, step: float = 0.5) -> Task:
    """Scores that grow along the keys: references move."""
    x = made(headdim, blocks, seed=1)
    x["k"][:, 0] = step * torch.arange(blocks * BLOCK_N)
    x["q"][:, 0] = x["q"][:, 0].abs() + 1
    return Task(**x)


@pytest.mark.parametrize("referred", [True, False], ids=["referred", "late"])
@pytest.mark.parametrize("headdim", [128, 192])
@pytest.mark.parametrize("blocks", [1, 2, 3, 6])
def test_numbers_of_blocks(blocks: int, headdim: int, referred: bool) -> None:
    """Odd ones leave P in the second set of registers; rings wrap."""
    for warpgroup in (0, 1):
        task = Task(**made(headdim, blocks), referred=referred, warpgroup=warpgroup)
        Run(task).check()


@pytest.mark.parametrize("stages", [2, 3])
@pytest.mark.parametrize("looks", [(0,), (5,), (0, 9, 2)], ids=str)
def test_tiles_that_come_late(stages: int, looks: tuple[int, ...]) -> None:
    Run(Task(**made(128, 6), stages=stages, looks=looks)).check()


@pytest.mark.parametrize("step", [0.01, 0.5, 4.0])
@pytest.mark.parametrize("headdim", [128, 192])
def test_references_that_move(headdim: int, step: float) -> None:
    run = Run(rising(headdim, 6, step))
    run.check()
    assert len(run.model.moved) >= 4 if step > 0.1 else not run.model.moved


def spikes(first: int) -> Task:
    """From a block on, one score of each warp exceeds all before by ten octaves, each time in
    another register: all 64 of a lane have their turn, in odd or in even blocks."""
    elements = SCORES // 4
    blocks = first + elements
    x = {name: torch.zeros_like(tensor) for name, tensor in made(128, blocks).items()}
    x["v"] = made(128, blocks)["v"]
    for warp in range(4):
        for half in range(2):
            x["q"][WARP_ROWS * warp + 8 * half, 2 * warp + half] = 1
    for number in range(first, blocks):
        for warp in range(4):
            element = elements * warp + number - first
            half, column = element >> 1 & 1, 8 * (element >> 2) + (element & 1)
            x["k"][BLOCK_N * number + column, 2 * warp + half] = 80 * number
    return Task(**x, referred=False)


@pytest.mark.parametrize("first", [1, 2])
def test_every_register_may_hold_the_largest_score(first: int) -> None:
    run = Run(spikes(first))
    run.check()
    assert len(run.model.moved) == 4 * 16


def test_warps_move_on_their_own() -> None:
    x = made(128, 4)
    x["q"][:, 0] = 0
    x["q"][20, 0], x["k"][2 * BLOCK_N + 5, 0] = 3, 60  # a key for a row of the second warp
    run = Run(Task(**x))
    run.check()
    assert run.model.moved == [1]


def test_peaked_rows_and_large_scores() -> None:
    x = made(128, 5, seed=2)
    Run(Task(**{**x, "k": 12 * x["k"]})).check()
    Run(Task(**{**x, "k": 200 * x["k"]})).check()


def test_nan_stays_in_the_rows_that_see_it() -> None:
    x = made(128, 4)
    x["q"][7, 3] = float("nan")
    run = Run(Task(**x))
    rows = range(ROWS)
    acc, total = run.floats(run.at.acc_o), run.rows(run.at.row_sum)
    for row in rows:
        is_nan = row == 7
        assert bool((acc[row] != acc[row]).all()) == is_nan == bool(total[row] != total[row])


def test_planted_mistakes_are_found() -> None:
    """An instruction left out, one of each kind, drawn at random."""
    tasks = [
        replace(rising(128, 4), referred=False, warpgroup=1, stages=3),
        Task(**made(128, 5), referred=False, base=2),
        spikes(1),
        spikes(2),
    ]
    lines = text_of(tasks[1]).split("\n")
    kinds: dict[str, list[int]] = {}
    for number, line in enumerate(lines):
        if line.endswith(";") and not line.startswith((".reg", ".pragma")):
            kinds.setdefault(re.sub(r"^@\S+ ", "", line).split()[0], []).append(number)
    generator = random.Random(5)
    drawn = [n for many in kinds.values() for n in generator.sample(many, 1)]
    assert len(drawn) > 30
    survivors = [number for number in drawn if not _is_found(tasks, number)]
    unexplained = [lines[number] for number in survivors if not _is_equivalent(lines, number)]
    assert not unexplained, unexplained


def _is_equivalent(lines: list[str], number: int) -> bool:
    if lines[number].startswith("wgmma.fence"):  # the second of a block: nothing was written since
        return lines[number - 1].endswith("_over:") and "_v" in lines[number - 1]
    return EQUIVALENT.search(lines[number]) is not None


def _is_found(tasks: list[Task], number: int) -> bool:
    def without(text: str) -> str:
        lines = text.split("\n")
        lines[number] = ""
        return "\n".join(lines)

    for task in tasks:
        try:
            Run(task, without).check()
        except (AssertionError, Finding):
            return True
    return False
