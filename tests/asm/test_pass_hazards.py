"""Nops: none too few by the emulator's rules, none to spare, and none that the recipe wrote."""

from __future__ import annotations

import re

import pytest

from asm_overrides.emulator.hazards import find_hazards
from asm_overrides.isa import parse
from asm_overrides.passes.allocate import Budget, allocate
from asm_overrides.passes.hazards import NopResult, Surroundings, insert_nops
from asm_overrides.passes.lines import RegisterProgram
from asm_overrides.passes.schedule import schedule
from asm_overrides.passes.waits import Boundary, insert_waits
from asm_overrides.program import M0, VCC, Builder
from tests.asm.loop_programs import looping

SMALL = Budget((range(1, 128),), (range(16, 96),))
ALONE = Surroundings(before=(), after=())


class Small:
    """A builder with what the programs below need."""

    def __init__(self) -> None:
        self.b = Builder("nops")
        self.thread = self.b.vector("thread", fixed=0, read_only=True)
        self.x = [self.b.vector(f"x{i}", fixed=1 + i) for i in range(3)]
        self.acc = self.b.vector("acc", 16, fixed=16)
        self.factor = self.b.vector("factor", 8, fixed=8)

    def product(self) -> None:
        self.b.op("v_mfma_f32_32x32x64_f8f6f4", self.acc, self.factor, self.factor, self.acc)

    def done(self, around: Surroundings = ALONE) -> NopResult:
        program = allocate(self.b.finish(["thread"], []), SMALL).assigned
        return insert_nops(program, around)

    def texts(self, around: Surroundings = ALONE) -> list[str]:
        lines = self.done(around).program.lines
        return [line.text or f"{line.op.label}:" for line in lines]


def test_a_transcendental_result_is_one_state_late() -> None:
    s = Small()
    with s.b.stage("body", "fixed"):
        s.b.op("v_exp_f32", s.x[0], s.thread)
        s.b.op("v_add_f32", s.x[1], s.x[0], s.x[0])
    assert s.texts() == ["v_exp_f32 v1, v0", "s_nop 0", "v_add_f32 v2, v1, v1"]
    (nop,) = s.done().nops
    assert (nop.stage, nop.states) == ("body", 1)
    assert "the transcendental unit's result is not forwarded" in nop.reason


def test_long_waits_are_split_and_other_work_counts() -> None:
    s = Small()
    with s.b.stage("body", "fixed"):
        s.product()
        s.b.op("v_mov_b32", s.x[0], 0)
        s.b.op("v_mov_b32", s.x[1], s.acc[0])
    assert s.texts()[1:] == ["v_mov_b32 v1, 0", "s_nop 15", "s_nop 2", "v_mov_b32 v2, v16"]
    assert s.done().states == 19


def test_one_nop_serves_several() -> None:
    s = Small()
    with s.b.stage("body", "fixed"):
        s.b.op("v_cmp_eq_u32", VCC, s.thread, s.x[0])
        s.b.op("v_exp_f32", s.x[1], s.thread)
        s.b.op("v_cndmask_b32", s.x[2], s.x[0], s.x[1], VCC)
    assert s.texts()[2:] == ["s_nop 0", "v_cndmask_b32 v3, v1, v2, vcc"]


def test_the_back_edge_counts() -> None:
    s = Small()
    loop = s.b.new_label("loop")
    with s.b.stage("body", "fixed"):
        s.b.op("v_mov_b32", s.x[0], 0)
        s.b.label(loop)
        s.b.op("v_add_f32", s.x[1], s.x[0], s.x[0])
        s.b.op("v_exp_f32", s.x[0], s.x[1])
        s.b.op("s_cbranch_vccz", loop)
    assert "s_nop" not in " ".join(s.texts())  # the branch is the one state
    s = Small()
    loop = s.b.new_label("loop")
    with s.b.stage("body", "fixed"):
        s.b.label(loop)
        s.b.op("v_mov_b32", s.x[1], s.acc[0])
        s.b.op("v_mov_b32", s.factor[0], s.x[1])
        s.product()
        s.b.op("s_cbranch_vccz", loop)
    assert s.texts() == [
        "{L}_loop_1:",
        "s_nop 15",
        "s_nop 2",
        "v_mov_b32 v2, v16",
        "v_mov_b32 v8, v2",
        "s_nop 1",
        "v_mfma_f32_32x32x64_f8f6f4 v[16:31], v[8:15], v[8:15], v[16:31]",
        "s_cbranch_vccz {L}_loop_1",
    ]


def test_a_nop_made_unnecessary_by_a_later_choice_is_taken_back() -> None:
    """The select alone would need a nop; the one in front of the move, for what comes round the
    back edge, serves it too."""
    s = Small()
    loop = s.b.new_label("loop")
    with s.b.stage("body", "fixed"):
        s.b.op("v_cmp_eq_u32", VCC, s.thread, s.thread)
        s.b.label(loop)
        s.b.op("v_mov_b32", s.x[1], s.acc[0])
        s.b.op("v_cndmask_b32", s.x[2], s.thread, s.x[1], VCC)
        s.product()
        s.b.op("s_cbranch_execz", loop)
    assert s.texts() == [
        "v_cmp_eq_u32 vcc, v0, v0",
        "{L}_loop_1:",
        "s_nop 15",
        "s_nop 2",
        "v_mov_b32 v2, v16",
        "v_cndmask_b32 v3, v0, v2, vcc",
        "v_mfma_f32_32x32x64_f8f6f4 v[16:31], v[8:15], v[8:15], v[16:31]",
        "s_cbranch_execz {L}_loop_1",
    ]


def test_the_worst_neighbours_are_assumed_unless_they_are_known() -> None:
    s = Small()
    with s.b.stage("body", "fixed"):
        s.b.op("v_permlane32_swap_b32", s.x[0], s.x[1])
        s.product()
    texts = s.texts(Surroundings())
    assert texts[0] == "s_nop 1"
    assert texts[-2:] == ["s_nop 15", "s_nop 3"]
    known = Surroundings(
        before=parse("v_mov_b32 v1, 0\ns_mov_b32 s0, 0\n").instructions,
        after=parse("s_mov_b32 s0, 0\ns_nop 9\nv_mov_b32 v40, v31\n").instructions,
    )
    texts = s.texts(known)
    assert texts[0] == "s_nop 0"
    assert texts[-2:] == [
        "v_mfma_f32_32x32x64_f8f6f4 v[16:31], v[8:15], v[8:15], v[16:31]",
        "s_nop 8",
    ]
    assert "such as `v_mov_b32 v40, v31`" in s.done(known).nops[-1].reason


def test_a_branch_to_the_end_brings_its_hazards_along() -> None:
    s = Small()
    end = s.b.new_label("end")
    with s.b.stage("body", "fixed"):
        s.product()
        s.b.op("s_cbranch_vccz", end)
        for _ in range(25):
            s.b.op("v_mov_b32", s.x[0], 0)
        s.b.label(end)
    assert s.texts(Surroundings(before=()))[-3:] == ["{L}_end_1:", "s_nop 15", "s_nop 2"]


def test_m0_is_fetched_early() -> None:
    s = Small()
    base = s.b.scalar("base", 4)
    s.b.ring("k", 1, 1024)
    with s.b.stage("body", "fixed"):
        for dword in range(4):
            s.b.op("s_mov_b32", base[dword], 0)
        s.b.op("s_mov_b32", M0, 0)
        s.b.op("buffer_load_dwordx4", s.thread, base, 0, modifiers="offen lds", lds_writes=["k"])
    assert s.texts()[-3:-1] == ["s_mov_b32 m0, 0", "s_nop 0"]


def test_nops_of_the_recipe_are_refused() -> None:
    s = Small()
    with s.b.stage("body", "fixed"):
        s.b.op("s_nop", 3)
    with pytest.raises(ValueError, match=re.escape("the recipe holds s_nop 3; nops come from")):
        s.done()


def random_program(seed: int) -> RegisterProgram:
    program = looping(seed)
    if seed % 2:
        program = schedule(program)
    assigned = allocate(program, SMALL).assigned
    return insert_waits(assigned, Boundary(entry=False, exit=False))


@pytest.mark.parametrize("seed", range(30))
def test_nothing_is_left_and_nothing_is_to_spare(seed: int) -> None:
    done = insert_nops(random_program(seed), ALONE).program
    instructions, labels, places = done.instructions()
    assert find_hazards(instructions, labels, strict=True) == []
    for index, instruction in enumerate(instructions):
        if instruction.opcode != "s_nop":
            continue
        states = int(instruction.text.split()[1])
        fewer = list(done.lines)
        if states:
            replaced = parse(f"s_nop {states - 1}\n").instructions[0]
            changed = [*instructions[:index], replaced, *instructions[index + 1 :]]
            assert find_hazards(changed, labels, strict=True), instruction.line
        else:
            del fewer[places[index]]
            rest, targets, _ = done.with_lines(fewer).instructions()
            assert find_hazards(rest, targets, strict=True), instruction.line


def test_scheduling_saves_nops() -> None:
    plain = ordered = 0
    for seed in range(12):
        assigned = allocate(looping(seed), SMALL).assigned
        plain += insert_nops(insert_waits(assigned), ALONE).states
        assigned = allocate(schedule(looping(seed)), SMALL).assigned
        ordered += insert_nops(insert_waits(assigned), ALONE).states
    assert ordered < plain
