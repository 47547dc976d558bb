"""Decides whether mistakes planted in the generated loop are noticed, on a sample of them.

bench/mutations.py tries them all.
"""

from __future__ import annotations

import re
from functools import cache, partial

import pytest

from asm_overrides.campaign import DYNAMIC, RESULT, STATIC, SURVIVED, VERDICTS, Campaign, count
from asm_overrides.dependent import GUARD_SWAPPED, SWAPPED, swaps
from asm_overrides.mutate import Mutation
from asm_overrides.recipes.attention_fp8.alone import lone_kernel, tasks
from zyfa_triton.kernels.pingpong import PingPongLoop, interface


@cache
def loop_text(headdim: int = 128) -> str:
    loop = PingPongLoop(name="mutated", p_mode="lean", is_causal=True, headdim=headdim)
    return loop.generated(".L").text


def frame(loop: str, headdim: int = 128) -> str:
    recipe = PingPongLoop(name="mutated", p_mode="lean", is_causal=True, headdim=headdim)
    return lone_kernel(loop, recipe.lds_bytes, interface(), headdim=headdim)


@cache
def campaign(headdim: int = 128) -> Campaign:
    framed = partial(frame, headdim=headdim)
    return Campaign(loop_text(headdim), framed, tasks(causal=True, headdim=headdim), seeds=(1,))


@pytest.mark.parametrize("headdim", [128, 192])
def test_a_sample_of_mistakes_is_noticed(headdim: int) -> None:
    chosen = campaign(headdim)
    verdicts = list(chosen.run(chosen.sample(14, seed=7)))
    assert len({each.mutation.kind for each in verdicts}) >= 7
    assert [str(each.mutation) for each in verdicts if each.verdict == SURVIVED] == []


def first(opcode: str) -> int:
    """Line of the first instruction of a kind."""
    lines = loop_text().split("\n")
    return next(n for n, line in enumerate(lines, 1) if line.strip().startswith(opcode + " "))


def removed(line: int, kind: str) -> Mutation:
    text = loop_text().split("\n")[line - 1].partition(";")[0].strip()
    return Mutation(f"{kind}-0", kind, line, text, "")


def test_each_way_of_noticing() -> None:
    judge = campaign().judge
    assert judge(removed(first("s_nop"), "nop-removed")).verdict == STATIC
    lines = loop_text().split("\n")
    publishing = [n for n, line in enumerate(lines, 1) if "waits: landed" in line]
    assert judge(removed(publishing[2], "wait-removed")).verdict == DYNAMIC
    assert judge(removed(first("v_ashr_pk_u8_i32"), "removed")).verdict in (DYNAMIC, RESULT)


def test_what_is_idle_survives() -> None:
    """A wait that nothing needs can be removed unnoticed: the campaign says so."""
    line = first("v_mfma_scale_f32_32x32x64_f8f6f4")
    lines = loop_text().split("\n")
    lines.insert(line, "    s_waitcnt lgkmcnt(15)")
    tasks_run = [task for task in tasks(causal=True) if task.blocks in (1, 2)][:1]
    idle = Campaign("\n".join(lines), frame, tasks_run, seeds=(1,))
    verdict = idle.judge(
        Mutation("wait-removed-0", "wait-removed", line + 1, "s_waitcnt lgkmcnt(15)", "")
    )
    assert verdict.verdict == SURVIVED
    assert count([verdict]) == {"wait-removed": {name: int(name == SURVIVED) for name in VERDICTS}}


def test_a_loop_with_a_mistake_is_no_starting_point() -> None:
    broken = removed(first("s_nop"), "nop-removed").apply(loop_text())
    with pytest.raises(ValueError, match="without a mistake"):
        Campaign(broken, frame, tasks(causal=True)[:1])


def kinds(text: str) -> list[tuple[str, str]]:
    return [(each.kind, re.sub(r"\s.*", "", each.before)) for each in swaps(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("v_mov_b32 v1, v0\nv_add_u32 v2, v1, v0", [(SWAPPED, "v_mov_b32")]),
        ("v_add_u32 v2, v1, v0\nv_mov_b32 v1, v0", [(SWAPPED, "v_add_u32")]),
        ("v_mov_b32 v1, v0\nv_mov_b32 v1, v2", [(SWAPPED, "v_mov_b32")]),
        ("v_mov_b32 v1, v0\nv_mov_b32 v2, v0", []),
        ("s_add_u32 s1, s1, s2\ns_addc_u32 s3, s3, 0", [(SWAPPED, "s_add_u32")]),
        ("s_add_u32 s1, s1, s2\ns_add_u32 s3, s3, s4\ns_endpgm", []),
        ("v_max_f32 v1, v1, v2\nv_max3_f32 v1, v1, v3, v4", []),
        ("v_max_f32 v1, v1, v2\nv_max_f32 v1, v1, v1", [(SWAPPED, "v_max_f32")]),
        ("v_max_f32 v1, v1, v2\nv_min_f32 v1, v1, v3", [(SWAPPED, "v_max_f32")]),
        ("v_sub_u32 v1, v1, v2\nv_add_u32 v1, v1, v3", []),
        ("v_sub_u32 v1, v2, v1\nv_add_u32 v1, v1, v3", [(SWAPPED, "v_sub_u32")]),
        ("v_ceil_f32 v1, v1\nv_max_f32 v1, 0xc2f00000, v1", []),
        ("v_ceil_f32 v1, v1\nv_max_f32 v1, 0x3fc00000, v1", [(SWAPPED, "v_ceil_f32")]),
        ("ds_write_b32 v1, v2\nds_read_b32 v3, v1", [(SWAPPED, "ds_write_b32")]),
        ("ds_read_b32 v2, v1\nds_read_b32 v3, v1", []),
        ("ds_read_b32 v2, v1\ns_waitcnt lgkmcnt(0)\ns_mov_b32 s3, s2", []),
        ("s_waitcnt lgkmcnt(0)\ns_barrier", [(GUARD_SWAPPED, "s_waitcnt")]),
        ("s_barrier\nds_read_b32 v2, v1", [(GUARD_SWAPPED, "s_barrier")]),
        ("s_barrier\nv_mov_b32 v2, v1", []),
    ],
)  # fmt: skip
def test_which_neighbours_depend_on_each_other(text: str, expected: list[tuple[str, str]]) -> None:
    assert kinds(text) == expected


def test_a_wait_belongs_in_front_of_what_a_load_writes() -> None:
    (swap,) = swaps("ds_read_b32 v2, v1\ns_waitcnt lgkmcnt(0)\nv_mov_b32 v3, v2")
    assert (swap.kind, swap.after) == (GUARD_SWAPPED, "v_mov_b32 v3, v2")


def test_an_order_between_instructions_that_a_branch_separates() -> None:
    (swap,) = swaps("loop:\ns_cmp_eq_u32 s0, 0\ns_cbranch_scc0 loop\ns_mov_b32 s0, 1\ns_endpgm")
    assert swap.lines == (2, 3)


def test_swapping_keeps_both_lines() -> None:
    text = "v_mov_b32 v1, v0 ; first\nv_add_u32 v2, v1, v0"
    (swap,) = swaps(text)
    assert swap.apply(text) == "v_add_u32 v2, v1, v0 ; first\nv_mov_b32 v1, v0"
