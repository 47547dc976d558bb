"""Allocation: who may share registers with whom, fixed places, alignment, and what does not fit."""

from __future__ import annotations

import random
import re

import pytest

from asm_overrides.passes.access import Atom, access
from asm_overrides.passes.allocate import Budget, DoesNotFitError, allocate
from asm_overrides.passes.lines import RegisterProgram
from asm_overrides.passes.schedule import schedule
from asm_overrides.passes.verify import verify
from asm_overrides.program import VCC, Builder, LoopProgram
from tests.asm.loop_programs import Meaning, Place, looping, straight, walk

SMALL = Budget((range(1, 128),), (range(16, 96),))


def registers(program: LoopProgram, budget: Budget | None = None) -> dict[str, int]:
    return dict(allocate(program, budget).assigned.registers)


def texts(assigned: RegisterProgram) -> list[str]:
    return [line.text for line in assigned.lines]


def test_values_that_are_never_live_at_once_share() -> None:
    b = Builder("sharing")
    thread = b.vector("thread", fixed=0, read_only=True)
    out = b.vector("out", fixed=5)
    first, second, both = b.vector("first"), b.vector("second"), b.vector("both")
    with b.stage("body", "fixed"):
        b.op("v_add_u32", first, thread, 1)
        b.op("v_add_u32", both, first, thread)
        b.op("v_add_u32", second, thread, 2)
        b.op("v_add_u32", out, second, both)
    done = allocate(b.finish(["thread"], ["out"]), Budget((range(1, 5),), ()))
    assert done.assigned.registers == {"thread": 0, "out": 5, "first": 1, "both": 2, "second": 1}
    assert texts(done.assigned) == [
        "v_add_u32 v1, v0, 1",
        "v_add_u32 v2, v1, v0",
        "v_add_u32 v1, v0, 2",
        "v_add_u32 v5, v1, v2",
    ]


def test_what_the_loop_carries_keeps_its_register_round_the_back_edge() -> None:
    b = Builder("carried")
    thread = b.vector("thread", fixed=0, read_only=True)
    out = b.vector("out", fixed=9)
    carried, scratch = b.vector("carried"), b.vector("scratch")
    loop = b.new_label("loop")
    with b.stage("body", "fixed"):
        b.op("v_mov_b32", carried, 0)
        b.label(loop)
        b.op("v_add_u32", carried, carried, thread)
        b.op("v_mov_b32", scratch, 1)
        b.op("v_cmp_eq_u32", VCC, scratch, thread)
        b.op("s_cbranch_vccnz", loop)
        b.op("v_mov_b32", out, 0)
    done = registers(b.finish(["thread"], ["out"]), Budget((range(1, 9),), ()))
    assert done["carried"] != done["scratch"]


def test_a_matrix_result_does_not_share_with_its_factors() -> None:
    b = Builder("factors")
    thread = b.vector("thread", fixed=0, read_only=True)
    out = b.vector("out", 16, fixed=32)
    factor, result = b.vector("factor", 8), b.vector("result", 16)
    with b.stage("body", "fixed"):
        for dword in range(8):
            b.op("v_mov_b32", factor[dword], thread)
        b.op("v_mfma_f32_32x32x64_f8f6f4", result, factor, factor, 0)
        for dword in range(16):
            b.op("v_mov_b32", out[dword], result[dword])
    done = registers(b.finish(["thread"], ["out"]))
    assert done["result"] == 2  # even, and lowest among those that are free
    assert done["factor"] == 18


def test_halves_of_a_dword_are_filled_in_two_steps_without_being_live_before() -> None:
    """The first conversion keeps half of a register that holds nothing: no reason to keep it."""
    b = Builder("halves")
    thread = b.vector("thread", fixed=0, read_only=True)
    out = b.vector("out", fixed=9)
    before, codes = b.vector("before"), b.vector("codes")
    with b.stage("body", "fixed"):
        b.op("v_mov_b32", before, thread)
        b.op("v_add_u32", out, before, before)
        b.op("v_cvt_pk_fp8_f32", codes, thread, thread)
        b.op("v_cvt_pk_fp8_f32", codes, thread, out, modifiers="op_sel:[0,0,1]")
        b.op("v_mov_b32", out, codes)
    done = registers(b.finish(["thread"], ["out"]))
    assert done["codes"] == done["before"]


def test_registers_of_a_read_only_input_stay_its_own() -> None:
    b = Builder("input")
    pointer = b.scalar("pointer", 2, fixed=40, read_only=True)
    out = b.vector("out", fixed=1)
    scalars = [b.scalar(f"s{i}", 2) for i in range(3)]
    with b.stage("body", "fixed"):
        b.op("v_mov_b32", out, pointer[0])
        for value in scalars:
            b.op("s_mov_b64", value, 0)
        for value in scalars:
            b.op("v_add_u32", out, value[0], out)
    done = registers(b.finish(["pointer"], ["out"]), Budget((range(8),), (range(36, 46),)))
    assert sorted(done[f"s{i}"] for i in range(3)) == [36, 38, 42]


def test_an_input_that_may_be_written_is_shared_after_its_last_use() -> None:
    b = Builder("used up")
    first = b.vector("first", fixed=0)
    out = b.vector("out", fixed=4)
    later = b.vector("later")
    with b.stage("body", "fixed"):
        b.op("v_mov_b32", out, first)
        b.op("v_mov_b32", later, 1)
        b.op("v_add_u32", out, later, out)
    assert registers(b.finish(["first"], ["out"]), Budget((range(0, 1),), ()))["later"] == 0


def test_alignment_comes_from_the_operands() -> None:
    b = Builder("aligned")
    out = b.vector("out", fixed=63)
    one, pair = b.vector("one"), b.vector("pair", 3)
    s_one, quad = b.scalar("s_one"), b.scalar("quad", 4, align=1)
    with b.stage("body", "fixed"):
        b.op("v_mov_b32", one, 0)
        b.op("s_mov_b32", s_one, 0)
        for dword in range(3):
            b.op("v_mov_b32", pair[dword], 0)
        for dword in range(4):
            b.op("s_mov_b32", quad[dword], 0)
        b.op("v_pk_add_f32", pair[0:2], pair[0:2], pair[0:2])
        b.op("v_add_u32", out, one, pair[2])
        b.op("buffer_load_dword", one, one, quad, 0, modifiers="offen")
        b.op("v_add_u32", out, s_one, one)
    done = registers(b.finish([], ["out"]), Budget((range(1, 8),), (range(33, 44),)))
    assert (done["pair"], done["one"]) == (2, 1)
    assert (done["quad"], done["s_one"]) == (36, 33)


def test_pressure_says_where_and_by_whom() -> None:
    b = Builder("pressure")
    out = b.vector("out", fixed=0)
    big, small = b.vector("big", 6), b.vector("small")
    with b.stage("body", "fixed"):
        b.op("v_mov_b32", small, 0)
        for dword in range(6):
            b.op("v_mov_b32", big[dword], small)
        for dword in range(6):
            b.op("v_add_u32", small, big[dword], small)
        b.op("v_mov_b32", out, small)
    vector, _ = allocate(b.finish([], ["out"]), Budget((range(1, 20),), ())).pressure
    assert (vector.peak, vector.available, vector.used) == (7, 20, 8)
    assert vector.live == (("big", 6), ("small", 1))
    assert str(vector.op) == "v_mov_b32 big[0], small"
    assert re.match(r"test_pass_allocate\.py:\d+$", vector.op.source)


def test_what_does_not_fit_raises_with_the_report() -> None:
    b = Builder("too much")
    out = b.vector("out", fixed=0)
    values = [b.vector(f"value{i}", 2) for i in range(3)]
    with b.stage("body", "fixed"):
        for value in values:
            b.op("v_pk_mov_b32", value, 0, 0)
        for value in values:
            b.op("v_pk_add_f32", value, value, values[0])
        for value in values:
            b.op("v_add_u32", out, value[0], value[1])
    program = b.finish([], ["out"])
    with pytest.raises(
        DoesNotFitError,
        match=r"7 live of 6 available, at .*: value0 2, value1 2, value2 2, out 1",
    ):
        allocate(program, Budget((range(1, 6),), ()))
    assert allocate(program, Budget((range(2, 8),), ())).pressure[0].peak == 7


def rejected(program: LoopProgram, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        allocate(program)


def test_needs_are_checked() -> None:
    b = Builder("needs")
    pair, x = b.vector("pair", 4), b.vector("x")
    with b.stage("body", "fixed"):
        b.op("v_mov_b32", x, 0)
    rejected(b.finish(["x"], []), "live_in value 'x' has no fixed register")
    rejected(b.finish([], ["x"]), "live_out value 'x' has no fixed register")
    rejected(b.finish([], ["y"]), "live_out names 'y', which is no value")
    b = Builder("odd part")
    pair = b.vector("pair", 4)
    with b.stage("body", "fixed"):
        b.op("v_pk_add_f32", pair[1:3], pair[1:3], pair[1:3])
    rejected(b.finish([], []), "pair[1:2]")
    b = Builder("odd place")
    pair = b.vector("pair", 2, fixed=3)
    with b.stage("body", "fixed"):
        b.op("v_pk_add_f32", pair, pair, pair)
    rejected(b.finish([], []), "pair is fixed at v3, its use needs a multiple of 2")
    b = Builder("beyond")
    b.vector("wide", 8, fixed=250)
    rejected(b.finish([], []), "wide would end at v257, the last register is v255")


def test_fixed_values_must_not_collide() -> None:
    b = Builder("collision")
    first, second = b.vector("first", 2, fixed=4), b.vector("second", fixed=5)
    with b.stage("body", "fixed"):
        b.op("v_mov_b32", second, 0)
        b.op("v_pk_add_f32", first, first, first)
        b.op("v_add_u32", first[0], first[1], second)
    rejected(b.finish(["first"], ["first"]), "second and first are live at once and both fixed")


def test_an_undeclared_value_is_refused() -> None:
    b, other = Builder("mine"), Builder("other")
    stranger = other.vector("stranger")
    with b.stage("body", "fixed"):
        b.op("v_mov_b32", stranger, 0)
    rejected(b.finish([], []), "undeclared values stranger")


def places_of(assigned: RegisterProgram) -> dict[Atom, Place]:
    """Where each dword of each value is kept."""
    files = {value.name: (value.file, value.width) for value in assigned.program.values}
    return {
        (name, dword): (files[name][0], first + dword)
        for name, first in assigned.registers.items()
        for dword in range(files[name][1])
    }


def check_by_walking(assigned: RegisterProgram, seed: int) -> int:
    """Run with values and with registers side by side: every operation must get the same."""
    named, kept = Meaning(), Meaning()
    places = places_of(assigned)
    for name in assigned.program.live_in:
        for (value, dword), place in places.items():
            for half in (0, 1):
                if value == name:
                    named.halves[(value, dword), half] = hash((value, dword, half))
                    kept.halves[place, half] = hash((value, dword, half))
    ops = assigned.program.ops
    steps = 0
    for index in walk(ops, random.Random(seed)):
        op = ops[index]
        if access(op).instruction is None or op.opcode == "s_barrier":
            continue
        assert named.inputs(op, {}) == kept.inputs(op, places), op
        named.run(op, {})
        kept.run(op, places)
        steps += 1
    return steps


@pytest.mark.parametrize("seed", range(40))
def test_registers_hold_what_values_would(seed: int) -> None:
    program = looping(seed)
    if seed % 2:
        program = schedule(program)
    assigned = allocate(program, SMALL).assigned
    for path in range(6):
        assert check_by_walking(assigned, path) > 30


@pytest.mark.parametrize("seed", range(20))
def test_the_verifier_agrees(seed: int) -> None:
    assigned = allocate(straight(seed), SMALL).assigned
    without_memory = [
        line
        for line in assigned.lines
        if line.instruction is None or not line.instruction.spec.counters
    ]
    program = assigned.program.with_stages(
        type(stage)(
            stage.name,
            stage.kind,
            tuple(op for op in stage.ops if any(line.op is op for line in without_memory)),
        )
        for stage in assigned.program.stages
    )
    verify(allocate(program, SMALL).assigned, SMALL)


def test_the_walk_sees_a_wrong_assignment() -> None:
    """The property above can fail."""
    assigned = allocate(looping(1), SMALL).assigned
    wrong = dict(assigned.registers)
    wrong["lane0"] = wrong["lane1"]
    broken = RegisterProgram(assigned.program, wrong, assigned.lines)
    with pytest.raises(AssertionError):
        for path in range(6):
            check_by_walking(broken, path)
