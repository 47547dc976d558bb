"""Text: what a reader of the generated assembly sees, and that the assembler takes it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from asm_overrides.isa import parse
from asm_overrides.passes.allocate import Budget, allocate
from asm_overrides.passes.emit import emit
from asm_overrides.passes.hazards import insert_nops
from asm_overrides.passes.lines import RegisterProgram
from asm_overrides.passes.schedule import schedule
from asm_overrides.passes.text import op_text, register_text
from asm_overrides.passes.waits import insert_waits
from asm_overrides.program import Builder, LoopProgram, Op
from tests.asm.llvm import assemble, disassemble
from tests.asm.loop_programs import looping

SMALL = Budget((range(1, 128),), (range(16, 96),))


def finished(program: LoopProgram) -> RegisterProgram:
    assigned = allocate(program, SMALL).assigned
    return insert_nops(insert_waits(assigned)).program


def sample() -> LoopProgram:
    b = Builder("sample")
    thread = b.vector("thread", fixed=0, read_only=True)
    out = b.vector("acc", 2, fixed=6)
    x, count = b.vector("x"), b.scalar("count")
    b.ring("k", 1, 256)
    loop = b.new_label("loop")
    with b.stage("setup", "fixed"):
        b.op("s_mov_b32", count, 3, role="iterations")
        b.label(loop)
    with b.stage("body", "vector"):
        b.op("ds_read_b32", x, thread, modifiers="offset:16", lds_reads=["k"], role="K")
        b.op("v_exp_f32", x, -abs(x[0]))
        b.op("v_pk_mul_f32", out, out, 2.0)
    with b.stage("again?", "fixed"):
        b.op("v_add_f32", out[1], 0.1015625, x)
        b.op("s_sub_u32", count, count, 1)
        b.op("s_cbranch_scc0", loop)
    return b.finish(["thread", "acc"], ["acc"])


def test_names_roles_and_lines_stand_beside_the_instructions() -> None:
    text = emit(finished(sample()))
    numbers = re.sub(r"emit\.py:\d+", "emit.py:N", text)
    assert [re.sub(r" +", " ", line).strip() for line in numbers.splitlines()] == [
        "; sample",
        "; s16 count",
        "; v0 thread (in)",
        "; v1 x",
        "; v[6:7] acc (in, out)",
        "; -- entry",
        "s_waitcnt vmcnt(0) lgkmcnt(0) ; waits: what the caller started",
        "s_barrier ; waits: nobody uses LDS any more",
        "; -- setup",
        "s_mov_b32 s16, 3 ; s_mov_b32 count, 3 | iterations [test_pass_emit.py:N]",
        "{L}_loop_1:",
        "; -- body",
        "ds_read_b32 v1, v0 offset:16 ; ds_read_b32 x, thread offset:16 | K [test_pass_emit.py:N]",
        "s_waitcnt lgkmcnt(0) ; waits: for `ds_read_b32 x, thread offset:16`",
        "v_exp_f32 v1, -|v1| ; v_exp_f32 x, -|x| [test_pass_emit.py:N]",
        "v_pk_mul_f32 v[6:7], v[6:7], 2.0 ; "
        "v_pk_mul_f32 acc[0:1], acc[0:1], 2.0 [test_pass_emit.py:N]",
        "; -- again?",
        "s_nop 0 ; hazards: 1 after `v_pk_mul_f32 acc[0:1], acc[0:1], 2.0`: "
        "a result merged into its destination is not forwarded",
        "v_add_f32 v7, 0x3dd00000, v1 ; v_add_f32 acc[1], 0.1015625, x [test_pass_emit.py:N]",
        "s_sub_u32 s16, s16, 1 ; s_sub_u32 count, count, 1 [test_pass_emit.py:N]",
        "s_cbranch_scc0 {L}_loop_1 ; s_cbranch_scc0 {L}_loop_1 [test_pass_emit.py:N]",
        "; -- exit",
        "s_barrier ; waits: LDS is free again",
    ]


def test_labels_get_the_prefix_that_is_asked_for(tmp_path: Path) -> None:
    text = emit(finished(sample()), ".Lattention7")
    assert "{L}" not in text
    assert "s_cbranch_scc0 .Lattention7_loop_1" in text
    assemble(text, tmp_path)


@pytest.mark.parametrize("seed", range(8))
def test_the_assembler_takes_the_text_and_means_the_same(seed: int, tmp_path: Path) -> None:
    program = finished(schedule(looping(seed)))
    ours = program.instructions()[0]
    theirs = parse(disassemble(assemble(emit(program, "L"), tmp_path))).instructions
    assert len(theirs) >= len(ours)
    for mine, other in zip(ours, theirs, strict=False):
        if mine.spec.port != "branch":
            assert mine.opcode == other.opcode
            assert (mine.reads, mine.writes) == (other.reads, other.writes), mine.text


def test_a_pseudo_operation_that_is_left_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"`publish` is left; the wait pass removes it"):
        emit(allocate(looping(1), SMALL).assigned)


def spelled(*arguments: float, opcode: str = "v_mov_b32") -> str:
    return op_text(Op(opcode, arguments), lambda part: register_text("v", part.first, part.count))


def test_constants() -> None:
    assert spelled(1.0, -4.0, 0.5, 0.0, 3) == "v_mov_b32 1.0, -4.0, 0.5, 0, 3"
    assert spelled(-0.0, 126.5) == "v_mov_b32 0x80000000, 0x42fd0000"
    with pytest.raises(ValueError, match=r"0\.1 is not a 32-bit float"):
        spelled(0.1)
    with pytest.raises(ValueError, match="only inline float constants"):
        spelled(3.0, opcode="v_add_f16")
