"""Scheduling: orders that feed the matrix pipe, and nothing computed differently."""

from __future__ import annotations

import random
import re
from itertools import pairwise

import pytest

from asm_overrides.passes.latency import Knobs
from asm_overrides.passes.schedule import plan_stages, schedule
from asm_overrides.program import M0, VCC, Builder, LoopProgram
from tests.asm.loop_programs import Meaning, looping, straight


def order(program: LoopProgram, stage: str) -> list[str]:
    return [str(op) for each in program.stages if each.name == stage for op in each.ops]


def fragments(count: int) -> LoopProgram:
    """Products that take turns with two operands, written one after the other."""
    b = Builder("fragments")
    acc, query = b.vector("acc", 16, align=2), b.vector("query", 8, align=2)
    keys = [b.vector(f"key{i}", 8, align=2) for i in range(2)]
    address = b.vector("address")
    ring = b.ring("k", 2, 4096)
    with b.stage("products", "matrix"):
        for i in range(count):
            for half in range(2):
                b.op(
                    "ds_read_b128",
                    keys[i % 2][4 * half : 4 * half + 4],
                    address,
                    modifiers=f"offset:{64 * i + 16 * half}",
                    lds_reads=[ring.name],
                )
            b.op("v_mfma_f32_32x32x64_f8f6f4", acc, keys[i % 2], query, acc)
    return b.finish([], [])


def test_reads_go_out_before_the_products_and_between_them() -> None:
    assert order(schedule(fragments(4)), "products") == [
        "ds_read_b128 key0[0:3], address offset:0",
        "ds_read_b128 key0[4:7], address offset:16",
        "ds_read_b128 key1[0:3], address offset:64",
        "ds_read_b128 key1[4:7], address offset:80",
        "v_mfma_f32_32x32x64_f8f6f4 acc[0:15], key0[0:7], query[0:7], acc[0:15]",
        "ds_read_b128 key0[0:3], address offset:128",
        "ds_read_b128 key0[4:7], address offset:144",
        "v_mfma_f32_32x32x64_f8f6f4 acc[0:15], key1[0:7], query[0:7], acc[0:15]",
        "ds_read_b128 key1[0:3], address offset:192",
        "ds_read_b128 key1[4:7], address offset:208",
        "v_mfma_f32_32x32x64_f8f6f4 acc[0:15], key0[0:7], query[0:7], acc[0:15]",
        "v_mfma_f32_32x32x64_f8f6f4 acc[0:15], key1[0:7], query[0:7], acc[0:15]",
    ]


def test_matrix_instructions_follow_each_other_at_the_rate_of_their_port() -> None:
    (plan,) = plan_stages(fragments(6), Knobs(lds_latency=112))
    starts = [
        start
        for op, start in zip(plan.stage.ops, plan.starts, strict=True)
        if op.opcode.startswith("v_mfma")
    ]
    assert [b - a for a, b in pairwise(starts)] == [64] * 5
    assert plan.matrix_cycles == 6 * 64
    assert plan.cycles == starts[0] + 6 * 64


def test_reads_are_held_back_until_they_are_needed() -> None:
    """With an operand for each product nothing but the wish for few registers holds a read back."""
    b = Builder("late reads")
    acc, query = b.vector("acc", 16, align=2), b.vector("query", 8, align=2)
    keys = [b.vector(f"key{i}", 8, align=2) for i in range(6)]
    address = b.vector("address")
    b.ring("k", 2, 4096)
    with b.stage("products", "matrix"):
        for key in keys:
            for half in range(2):
                part = key[4 * half : 4 * half + 4]
                b.op("ds_read_b128", part, address, lds_reads=["k"])
            b.op("v_mfma_f32_32x32x64_f8f6f4", acc, key, query, acc)
    program = b.finish([], [])
    (plan,) = plan_stages(program, Knobs(load_ahead=16))
    (eager,) = plan_stages(program, Knobs(load_ahead=100_000))
    last = "ds_read_b128 key5[4:7], address"
    at = dict(zip(map(str, plan.stage.ops), plan.starts, strict=True))
    assert at[last] > dict(zip(map(str, eager.stage.ops), eager.starts, strict=True))[last] + 100
    assert plan.cycles == eager.cycles


def test_a_vector_stage_covers_latencies_and_keeps_its_order_otherwise() -> None:
    b = Builder("exponentials")
    x = [b.vector(f"x{i}") for i in range(4)]
    code = b.vector("code")
    with b.stage("exp", "vector"):
        for value in x:
            b.op("v_exp_f32", value, value)
            b.op("v_add_f32", value, value, 1.0)
        b.op("v_cvt_pk_fp8_f32", code, x[0], x[1])
    (plan,) = plan_stages(b.finish([], []))
    assert [f"{start} {op}" for op, start in zip(plan.stage.ops, plan.starts, strict=True)] == [
        "0 v_exp_f32 x0, x0",
        "8 v_exp_f32 x1, x1",
        "16 v_add_f32 x0, x0, 1.0",
        "20 v_add_f32 x1, x1, 1.0",
        "24 v_exp_f32 x2, x2",
        "32 v_exp_f32 x3, x3",
        "40 v_add_f32 x2, x2, 1.0",
        "44 v_add_f32 x3, x3, 1.0",
        "48 v_cvt_pk_fp8_f32 code, x0, x1",
    ]


def test_reads_for_a_later_stage_fill_gaps() -> None:
    b = Builder("gaps")
    x, y, key = b.vector("x"), b.vector("y"), b.vector("key", 4, align=2)
    acc = b.vector("acc", 16, align=2)
    address = b.vector("address")
    b.ring("k", 2, 4096)
    with b.stage("maximum", "vector"):
        b.op("ds_read_b128", key, address, lds_reads=["k"])
        b.op("v_mov_b32", y, x)
        b.op("v_permlane32_swap_b32", x, y)
    with b.stage("long", "vector"):
        for _ in range(40):
            b.op("v_add_f32", x, x, y)
    with b.stage("products", "matrix"):
        b.op("v_mfma_f32_32x32x16_bf16", acc, key, key, acc)
    assert order(schedule(b.finish([], [])), "maximum") == [
        "v_mov_b32 y, x",
        "ds_read_b128 key[0:3], address",
        "v_permlane32_swap_b32 x, y",
    ]


def test_reads_for_a_later_stage_are_spread_over_the_last_part_of_a_stage() -> None:
    # 60 exponentials of 8 cycles and 4 reads of a slot: 496. The last read is used 3 slots later
    # and goes 128 before that, at 380, the others 24 earlier each; every second slot is a gap.
    b = Builder("spread")
    x = b.vector("x", 60)
    keys = [b.vector(f"key{i}", 4, align=2) for i in range(4)]
    acc = b.vector("acc", 16, align=2)
    address = b.vector("address")
    b.ring("k", 2, 4096)
    with b.stage("codes", "vector"):
        for key in keys:
            b.op("ds_read_b128", key, address, lds_reads=["k"])
        for i in range(60):
            b.op("v_exp_f32", x[i], x[i])
    with b.stage("products", "matrix"):
        for key in keys:
            b.op("v_mfma_f32_32x32x16_bf16", acc, key, key, acc)
    knobs = Knobs(lds_latency=128, lds_spacing=24, load_ahead=0)
    plan = plan_stages(b.finish([], []), knobs)[0]
    reads = [
        start
        for op, start in zip(plan.stage.ops, plan.starts, strict=True)
        if op.opcode == "ds_read_b128"
    ]
    assert reads == [308, 332, 356, 380]


def test_matrix_results_of_an_earlier_stage_are_awaited_with_other_work() -> None:
    b = Builder("late result")
    acc, key = b.vector("acc", 16, align=2), b.vector("key", 4, align=2)
    x, y = b.vector("x"), b.vector("y")
    with b.stage("products", "matrix"):
        b.op("v_mfma_f32_32x32x16_bf16", acc, key, key, acc)
    with b.stage("use", "vector"):
        b.op("v_add_f32", x, acc[0], acc[1])
        b.op("v_add_f32", y, y, 1.0)
    assert order(schedule(b.finish([], [])), "use") == [
        "v_add_f32 y, y, 1.0",
        "v_add_f32 x, acc[0], acc[1]",
    ]


def test_a_carry_is_never_separated_from_its_sum() -> None:
    b = Builder("carries")
    low, high, step, other = (b.scalar(name) for name in ("low", "high", "step", "other"))
    with b.stage("addresses", "vector"):
        b.op("s_add_u32", low, low, step)
        b.op("s_addc_u32", high, high, 0)
        b.op("s_add_u32", other, other, step)
        b.op("s_cmp_lt_i32", other, 7)
        b.op("s_cselect_b32", step, 0, step)
    done = order(schedule(b.finish([], [])), "addresses")
    assert done.index("s_addc_u32 high, high, 0") == done.index("s_add_u32 low, low, step") + 1
    select = done.index("s_cselect_b32 step, 0, step")
    assert done.index("s_cmp_lt_i32 other, 7") == select - 1


def test_fixed_stages_stay_as_they_are() -> None:
    program = looping(3)
    scheduled = schedule(program)
    for before, after in zip(program.stages, scheduled.stages, strict=True):
        assert before.name == after.name
        if before.kind == "fixed":
            assert before.ops == after.ops
        else:
            assert sorted(map(str, before.ops)) == sorted(map(str, after.ops))


def test_the_same_program_gets_the_same_order() -> None:
    assert schedule(straight(11, "matrix")) == schedule(straight(11, "matrix"))


UNMOVABLE = {
    "label": lambda b: b.label("here"),
    "s_branch": lambda b: b.op("s_branch", "here"),
    "s_barrier": lambda b: b.op("s_barrier"),
    "s_waitcnt": lambda b: b.op("s_waitcnt", "vmcnt(0)"),
    "s_nop": lambda b: b.op("s_nop", 0),
    "publish": lambda b: b.publish(k=0),
}


@pytest.mark.parametrize("what", UNMOVABLE)
@pytest.mark.parametrize("kind", ["matrix", "vector"])
def test_what_cannot_be_moved_is_refused(what: str, kind: str) -> None:
    b = Builder("unmovable")
    b.ring("k", 2, 1024)
    with b.stage("before", "fixed"):
        b.label("there")
    with b.stage("body", kind):  # type: ignore[arg-type]
        b.op("v_mov_b32", b.vector("x"), 0)
        if what == "s_branch":
            b.op("s_branch", "there")
        else:
            UNMOVABLE[what](b)
    with pytest.raises(
        ValueError, match=re.escape(f"{what} in the {kind} stage 'body'; it belongs into a fixed")
    ):
        schedule(b.finish([], []))


def test_priorities_keep_their_place() -> None:
    b = Builder("priorities")
    x, y = b.vector("x"), b.vector("y")
    with b.stage("body", "vector"):
        b.op("v_exp_f32", x, x)
        b.op("s_setprio", 1)
        b.op("v_add_f32", x, x, 1.0)
        b.op("v_add_f32", y, y, 1.0)
    assert order(schedule(b.finish([], [])), "body")[:2] == ["v_exp_f32 x, x", "s_setprio 1"]


def test_m0_reaches_the_load_that_it_was_set_for() -> None:
    b = Builder("m0")
    address, base = b.vector("address"), b.scalar("base", 4)
    b.ring("k", 2, 1024)
    with b.stage("loads", "matrix"):
        for slot in range(3):
            b.op("s_mov_b32", M0, 1024 * slot)
            b.op("buffer_load_dwordx4", address, base, 0, modifiers="offen lds", lds_writes=["k"])
    assert [line.split()[0] for line in order(schedule(b.finish([], [])), "loads")] == [
        "s_mov_b32",
        "buffer_load_dwordx4",
    ] * 3


def meaning(program: LoopProgram) -> tuple[object, ...]:
    state = Meaning()
    for op in program.ops:
        if not op.label and op.opcode not in ("publish", "s_barrier"):
            state.run(op, {})
    values = {key: symbol for key, symbol in state.halves.items() if key[0][0] != "%scc"}
    return values, state.memory


@pytest.mark.parametrize("kind", ["matrix", "vector"])
@pytest.mark.parametrize("seed", range(60))
def test_a_scheduled_program_computes_the_same(seed: int, kind: str) -> None:
    program = straight(seed, kind)
    scheduled = schedule(program, Knobs(window=random.Random(seed).choice((4, 48))))
    assert meaning(scheduled) == meaning(program)


def test_the_interpreter_sees_wrong_orders() -> None:
    """The property above can fail: two dependent operations exchanged change the meaning."""
    b = Builder("exchange")
    x, y = b.vector("x"), b.vector("y")
    with b.stage("body", "fixed"):
        b.op("v_cmp_eq_u32", VCC, x, y)
        b.op("v_cndmask_b32", x, x, y, VCC)
    program = b.finish([], [])
    stage = program.stages[0]
    swapped = program.with_stages([type(stage)(stage.name, stage.kind, stage.ops[::-1])])
    assert meaning(swapped) != meaning(program)
