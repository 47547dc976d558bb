"""Verification: programs that must not pass, one for each thing that it stands for."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from asm_overrides.passes.allocate import Budget, allocate
from asm_overrides.passes.hazards import insert_nops
from asm_overrides.passes.lines import RegisterProgram, number_lines
from asm_overrides.passes.verify import VerificationError, find_problems, verify
from asm_overrides.passes.waits import insert_waits
from asm_overrides.program import EXEC, M0, VCC, Builder, LoopProgram, Ring
from tests.asm.loop_programs import looping

BUDGET = Budget((range(1, 64),), (range(16, 96),))


def placed(program: LoopProgram, **registers: int) -> RegisterProgram:
    """Allocated, but for values whose registers are given."""
    return number_lines(program, dict(allocate(program, BUDGET).assigned.registers) | registers)


class Carried:
    """A loop that carries a sum and uses a scratch register."""

    def __init__(self) -> None:
        self.b = b = Builder("carried")
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
            b.op("v_mov_b32", out, carried)

    def finish(self) -> LoopProgram:
        return self.b.finish(["thread"], ["out"])


def test_a_correct_program_passes() -> None:
    verify(placed(Carried().finish()), BUDGET)


def fails(program: RegisterProgram, *messages: str, budget: Budget = BUDGET) -> None:
    with pytest.raises(VerificationError) as caught:
        verify(program, budget)
    for message in messages:
        assert re.search(message, str(caught.value)), str(caught.value)


def test_a_carried_value_that_is_overwritten() -> None:
    program = Carried().finish()
    fails(
        placed(program, carried=3, scratch=3),
        r"test_pass_verify\.py:\d+: v_add_u32 carried, carried, thread: reads carried\[0\] \(v3\), "
        r"which holds different things on different paths",
        r"v_mov_b32 out, carried: reads carried\[0\] \(v3\), which holds scratch\[0\]",
    )


def body(name: str = "program") -> Builder:
    b = Builder(name)
    b.vector("thread", fixed=0, read_only=True)
    return b


def test_a_value_that_is_not_defined_on_every_path() -> None:
    b = body()
    x, out = b.vector("x"), b.vector("out", fixed=9)
    skip = b.new_label("skip")
    with b.stage("body", "fixed"):
        b.op("v_mov_b32", out, 0)
        b.op("v_cmp_eq_u32", VCC, 0, out)
        b.op("s_cbranch_vccz", skip)
        b.op("v_mov_b32", x, 0)
        b.label(skip)
        b.op("v_mov_b32", out, x)
    fails(placed(b.finish([], ["out"])), r"reads x\[0\] \(v\d+\), which holds nothing")


def test_flags_count_as_values() -> None:
    b = body()
    out = b.scalar("out", fixed=20)
    with b.stage("body", "fixed"):
        b.op("s_cselect_b32", out, 0, 1)
    fails(placed(b.finish([], ["out"])), r"reads scc \(scc\), which holds nothing")


def test_a_half_that_another_value_overwrote() -> None:
    b = body()
    codes, other, out = b.vector("codes"), b.vector("other"), b.vector("out", fixed=9)
    with b.stage("body", "fixed"):
        b.op("v_mov_b32", other, 0)
        b.op("v_cvt_pk_fp8_f32", codes, other, other)
        b.op("v_cvt_pk_fp8_f32", codes, other, other, modifiers="op_sel:[0,0,1]")
        b.op("v_cvt_pk_fp8_f32", other, other, other)
        b.op("v_mov_b32", out, codes)
    program = b.finish([], ["out"])
    verify(placed(program), BUDGET)
    fails(placed(program, codes=3, other=3), r"reads codes\[0\] \(v3\), which holds other\[0\]")


def test_outputs_must_be_there() -> None:
    b = body()
    out = b.vector("out", 2, fixed=8)
    with b.stage("body", "fixed"):
        b.op("v_mov_b32", out[0], 0)
    fails(placed(b.finish([], ["out"])), r"at the exit out\[1\] is missing: .* holds nothing")


def test_m0_must_be_restored() -> None:
    b = body()
    saved = b.scalar("saved")
    with b.stage("body", "fixed"):
        b.op("s_mov_b32", saved, M0)
        b.op("s_mov_b32", M0, 7)
    fails(placed(b.finish([], [])), "m0 is not restored at the exit")
    with b.stage("restore", "fixed"):
        b.op("s_mov_b32", M0, saved)
    verify(placed(b.finish([], [])), BUDGET)
    with b.stage("too much", "fixed"):
        b.op("s_add_u32", saved, saved, 1)
        b.op("s_mov_b32", M0, saved)
    fails(placed(b.finish([], [])), "m0 is not restored at the exit")


def test_inputs_that_must_not_be_written() -> None:
    b = body()
    pointer = b.scalar("pointer", 2, fixed=20, read_only=True)
    with b.stage("body", "fixed"):
        b.op("s_mov_b32", pointer[1], 0)
    fails(placed(b.finish(["pointer"], [])), "writes the read-only input pointer")
    b = body()
    pointer, other = b.scalar("pointer", 2, fixed=20, read_only=True), b.scalar("other")
    with b.stage("body", "fixed"):
        b.op("s_mov_b32", other, 0)
    fails(placed(b.finish(["pointer"], []), other=21), "writes the read-only input pointer")


@pytest.mark.parametrize(
    ("opcode", "arguments", "name"),
    [
        ("s_mov_b64", (EXEC, -1), "exec_lo"),
        ("s_setreg_imm32_b32", ("hwreg(HW_REG_MODE, 23, 1)", 1), "mode"),
        ("s_mov_b32", ("flat_scratch_lo", 0), "flat_scratch_lo"),
    ],
)
def test_reserved_state(opcode: str, arguments: tuple[object, ...], name: str) -> None:
    b = body()
    with b.stage("body", "fixed"):
        b.op(opcode, *arguments)  # type: ignore[arg-type]
    fails(placed(b.finish([], [])), f"writes {name}, which belongs to the surrounding kernel")


def test_accumulation_registers() -> None:
    b = body()
    out = b.vector("out", fixed=3)
    with b.stage("body", "fixed"):
        b.op("v_accvgpr_read_b32", out, "a0")
    fails(placed(b.finish([], ["out"])), "touches a0")


def test_the_budget_and_the_interface() -> None:
    b = body()
    x, out = b.vector("x"), b.vector("out", fixed=9)
    with b.stage("body", "fixed"):
        b.op("v_mov_b32", x, 0)
        b.op("v_mov_b32", out, x)
    program = b.finish([], ["out"])
    fails(placed(program, x=70), r"x takes v70\.\.70, outside the budget")
    fails(placed(program, out=10), r"out is in v10, its interface wants v9")


def test_lds_rings() -> None:
    b = body()
    b.ring("k", 2, 1024)
    b.ring("v", 2, 1024)
    with b.stage("body", "fixed"):
        b.op("v_mov_b32", b.vector("x"), 0)
    program = b.finish([], [])
    verify(placed(program), BUDGET)
    k, v = program.rings
    overlapping = replace(program, rings=(k, replace(v, base=2047)))
    fails(placed(overlapping), "LDS rings k and v overlap at byte 2047")
    fails(placed(replace(program, lds_bytes=4095)), "LDS ring v ends at 4096")
    fails(placed(replace(program, lds_bytes=163_841)), "163841 bytes of LDS, there are 163840")
    empty = replace(program, rings=(Ring("k", 0, 0, 1024),))
    fails(placed(empty), "LDS ring k is no ring")


def test_missing_waits() -> None:
    b = body()
    x = b.vector("x")
    thread = b._values["thread"]
    b.ring("k", 1, 1024)
    with b.stage("body", "fixed"):
        b.op("ds_read_b32", x, thread, lds_reads=["k"])
        b.op("v_add_u32", x, x, 1)
    program = placed(b.finish(["thread"], []))
    fails(program, r"v_add_u32 x, x, 1: uses v1 before an s_waitcnt lgkmcnt")
    verify(insert_waits(program), BUDGET)


def test_all_problems_are_listed_and_long_lists_are_cut() -> None:
    b = body()
    out = b.vector("out", fixed=9)
    x = [b.vector(f"x{i}") for i in range(20)]
    with b.stage("body", "fixed"):
        for value in x:
            b.op("v_mov_b32", out, value)
    program = placed(b.finish([], ["out"]))
    assert len(find_problems(program, BUDGET)) == 20
    fails(program, "20 problems", "and 8 more")


@pytest.mark.parametrize("seed", range(20))
def test_what_the_passes_make_passes(seed: int) -> None:
    budget = Budget((range(1, 128),), (range(16, 96),))
    assigned = allocate(looping(seed), budget).assigned
    verify(insert_nops(insert_waits(assigned)).program, budget)


@pytest.mark.parametrize("seed", range(20))
def test_two_live_values_in_one_register_are_found(seed: int) -> None:
    """Put a lane on top of another that is read later in the gathering stage."""
    budget = Budget((range(1, 128),), (range(16, 96),))
    program = looping(seed)
    registers = dict(allocate(program, budget).assigned.registers)
    registers["lane1"] = registers["lane2"]
    broken = insert_waits(number_lines(program, registers))
    with pytest.raises(VerificationError, match="lane"):
        verify(broken, budget)
