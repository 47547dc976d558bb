"""The static report: counts in known text, loops found by their branches."""

from __future__ import annotations

import re

import pytest

from asm_overrides.inspection.loops import innermost_loops
from asm_overrides.isa.parse import parse
from zyfa_triton.report import matrix_loops, metadata_integer, report

NESTED = """
s_mov_b32 s0, 0
outer:
s_mov_b32 s1, 0
inner:
v_mfma_f32_32x32x16_bf16 v[0:15], v[16:19], v[20:23], v[0:15]
v_exp_f32_e32 v24, v25
v_add_f32_e32 v24, v24, v25
v_mul_f32_e32 v24, v24, v25
ds_read_b64 v[26:27], v28
s_barrier
s_add_i32 s1, s1, 1
s_cmp_lt_i32 s1, 4
s_cbranch_scc1 inner
s_cbranch_vccnz forward
v_add_f32_e32 v24, v24, v25
forward:
s_cmp_lt_i32 s0, 4
s_cbranch_scc1 outer
tail:
v_add_f32_e32 v24, v24, v25
s_cbranch_scc1 tail
s_endpgm
"""


def test_innermost_loops_are_found_by_their_backward_branches() -> None:
    program = parse(NESTED)
    loops = innermost_loops(program.instructions, program.labels)
    assert [name for name, _, _ in loops] == ["inner", "tail"]
    _, first, last = loops[0]
    assert program.instructions[first].opcode.startswith("v_mfma")
    assert program.instructions[last].opcode == "s_cbranch_scc1"


def test_two_branches_back_to_one_label_are_one_loop() -> None:
    program = parse(
        "top:\nv_add_f32_e32 v0, v0, v1\ns_cbranch_vccnz top\n"
        "v_add_f32_e32 v0, v0, v1\ns_cbranch_scc1 top\ns_endpgm\n"
    )
    assert innermost_loops(program.instructions, program.labels) == [("top", 0, 3)]


def test_cycles_of_a_loop_are_those_of_the_table() -> None:
    program = parse(NESTED)
    (loop,) = matrix_loops(program.instructions, program.labels)
    assert loop.label == "inner"
    assert loop.mfma_cycles == 32
    assert loop.valu_cycles == 4 + 4 + 8
    assert loop.transcendental_instructions == 1
    assert loop.matrix_instructions == 1
    assert loop.lds_instructions == 1
    assert loop.barriers == 1
    assert loop.instructions == 9
    lines = NESTED.splitlines()
    assert lines[loop.first_line - 1].startswith("v_mfma")
    assert lines[loop.last_line - 1] == "s_cbranch_scc1 inner"


def test_metadata_is_read_with_and_without_the_list_dash() -> None:
    text = "amdhsa.kernels:\n  - .agpr_count:     128\n    .vgpr_spill_count: 16\n"
    assert metadata_integer(text, "agpr_count") == 128
    assert metadata_integer(text, "vgpr_spill_count") == 16
    with pytest.raises(ValueError, match=re.escape("no .sgpr_count")):
        metadata_integer(text, "sgpr_count")


def test_text_without_a_kernel_is_refused() -> None:
    with pytest.raises(ValueError, match="amdhsa_kernel"):
        report("s_endpgm\n")
