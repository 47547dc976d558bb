"""Inspection of machine code: tiny loops whose every instruction has a known purpose."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from asm_overrides.emulator import LoadError
from asm_overrides.inspection import Cost, inspect_text, steady_cost
from asm_overrides.inspection.loops import matrix_loops
from asm_overrides.inspection.matrix import Purpose, classify
from asm_overrides.inspection.operands import vector_reads
from asm_overrides.isa.parse import parse, parse_instruction
from zyfa_triton.cli import main

# 32 queries x 32 keys of head size 128 an iteration: 1,024 scores, so figures count four times
SCORES = """\
v_mfma_f32_32x32x64_f8f6f4 v[0:15], v[64:71], v[80:87], 0
v_mfma_f32_32x32x64_f8f6f4 v[0:15], v[72:79], v[88:95], v[0:15]
"""
MAXIMUM = """\
v_max3_f32 v20, v0, v1, v2
v_max3_f32 v21, v3, v4, v5
v_max_f32_e32 v20, v20, v21
"""
ROW = """\
v_mov_b32_e32 v21, v20
v_permlane32_swap_b32_e32 v20, v21
v_max_f32_e32 v20, v20, v21
v_max_f32_e32 v20, v20, v22
v_mul_f32_e32 v23, s4, v20
"""
PROBABILITIES = """\
v_fma_f32 v0, v0, s4, v23
v_exp_f32_e32 v0, v0
v_pk_fma_f32 v[2:3], v[2:3], s[4:5], v[24:25]
v_cvt_pk_fp8_f32 v30, v0, v2
"""
OUTPUT = """\
v_mfma_f32_32x32x64_f8f6f4 v[112:127], v[96:103], v[30:37], v[112:127]
v_smfmac_f32_16x16x128_fp8_fp8 v[40:43], v[44:47], v[30:37], v48
"""
LOADS = "ds_read_b128 v[64:67], v50\nds_read_b64_tr_b8 v[96:97], v51\ns_barrier\n"
RESCALE = "s_cbranch_vccz keeps\nv_mul_f32_e32 v112, v112, v23\nkeeps:\n"
MASK = "s_cbranch_scc0 unmasked\nv_cndmask_b32_e32 v0, v0, v60, vcc\nunmasked:\n"
HEAD, TAIL = "top:\n", "s_cmp_lt_i32 s0, s1\ns_cbranch_scc1 top\ns_endpgm\n"
LOOP = HEAD + SCORES + LOADS + MASK + MAXIMUM + ROW + RESCALE + PROBABILITIES + OUTPUT + TAIL


def cost(text: str) -> Cost:
    program = parse(text)
    found, others = steady_cost(program.instructions, program.labels)
    assert found is not None and not others
    return found


def purposes(text: str) -> list[Purpose]:
    program = parse(text)
    (loop,) = matrix_loops(program.instructions, program.labels)
    matrices = classify([program.instructions[index] for index in loop.path])
    return [matrices.purposes[place] for place in sorted(matrices.purposes)]


def test_every_cycle_has_its_purpose() -> None:
    found = cost(LOOP)
    assert found.scores == 1024
    assert (found.headdim, found.element_type, found.p_mode) == (128, "fp8", "exact")
    assert (found.mfma_qk, found.mfma_pv, found.mfma_rowsum, found.mfma_other) == (512, 256, 64, 0)
    assert found.softmax_valu == 4 * (3 * 4 + 4 + 8 + 4 + 4)
    assert found.softmax_valu_blocked == 4 * 4
    assert found.other_valu == 4 * (4 * 4 + 20)  # an exchange between lane halves takes 20
    assert found.other_valu_blocked == 0
    assert found.lds == 4 * (16 + 8)
    assert found.barriers == 4
    assert found.softmax_by_opcode == {
        "v_exp_f32": 32,
        "v_max3_f32": 32,
        "v_max_f32": 16,
        "v_fma_f32": 16,
        "v_pk_fma_f32": 16,
        "v_cvt_pk_fp8_f32": 16,
    }
    assert not found.by_accumulators


def test_what_the_steady_state_skips_is_told_apart_by_what_it_changes() -> None:
    mask, rescale = cost(LOOP).aside
    assert (mask.what, mask.valu, mask.mfma, mask.places) == ("mask", 4, 0, 1)
    assert (rescale.what, rescale.valu, rescale.mfma, rescale.places) == ("rescale", 4, 0, 1)
    lines = LOOP.splitlines()
    assert lines[mask.first_line - 1].startswith("v_cndmask")
    assert lines[rescale.first_line - 1].startswith("v_mul_f32_e32 v112")


def test_unrolling_changes_no_figure() -> None:
    body = LOOP.removeprefix(HEAD).removesuffix(TAIL)
    second = body.replace("keeps", "keeps2").replace("unmasked", "unmasked2")
    once, twice = cost(LOOP), cost(HEAD + body + second + TAIL)
    assert twice.scores == 2 * once.scores
    for name in ("mfma_qk", "mfma_pv", "mfma_rowsum", "softmax_valu", "other_valu", "lds"):
        assert getattr(twice, name) == getattr(once, name), name
    assert [aside.places for aside in twice.aside] == [2, 2]


def test_a_branch_round_matrix_work_is_not_taken() -> None:
    text = LOOP.replace(OUTPUT, f"s_cbranch_execz none\n{OUTPUT}none:\n")
    assert cost(text).mfma_pv == 256
    assert [aside.what for aside in cost(text).aside] == ["mask", "rescale"]


def test_a_masked_loop_is_not_the_main_one() -> None:
    masked = LOOP.replace(MASK, "v_cndmask_b32_e32 v0, v0, v60, vcc\n").removesuffix("s_endpgm\n")
    other = LOOP.replace("top", "top2").replace("keeps", "keeps2").replace("unmasked", "unmasked2")
    program = parse(masked + other)
    main_loop, others = steady_cost(program.instructions, program.labels)
    assert main_loop is not None
    assert (main_loop.label, [each.label for each in others]) == ("top2", ["top"])
    assert others[0].softmax_valu == main_loop.softmax_valu + 16


def test_ones_made_within_the_loop_still_make_a_row_sum() -> None:
    text = LOOP.replace(OUTPUT, "v_mov_b32_e32 v44, 0x38383838\n" + OUTPUT)
    assert purposes(text) == [Purpose.QK, Purpose.QK, Purpose.PV, Purpose.ROW_SUM]


def test_scores_of_one_block_and_output_of_the_block_before() -> None:
    text = HEAD + LOADS + OUTPUT + SCORES + MAXIMUM + ROW + PROBABILITIES + TAIL
    assert purposes(text) == [Purpose.PV, Purpose.ROW_SUM, Purpose.QK, Purpose.QK]
    assert cost(text).softmax_valu == cost(LOOP).softmax_valu


def test_a_value_that_scores_start_from_is_no_product_of_q_and_k() -> None:
    offset = "v_mfma_f32_32x32x8_bf16 v[128:143], v[144:145], v[146:147], 0\n"
    first, second = (
        SCORES.splitlines()[0].replace(", 0", ", v[128:143]"),
        SCORES.splitlines()[1],
    )
    other = f"{first}\n{second}\n".replace("v[0:15]", "v[148:163]")
    used = PROBABILITIES.replace("v30, v0, v2", "v30, v0, v148")
    ways = (  # the row's maximum may change in a branch beside the way, or in every iteration
        "",
        "v_cvt_pk_bf16_f32 v146, v23, v23\n",
    )
    for made in ways:
        text = f"{HEAD}{LOADS}{offset}{first}\n{second}\n{other}{MAXIMUM}{ROW}{made}{used}"
        found = cost(text + OUTPUT + TAIL)
        assert (found.scores, found.headdim, found.element_type) == (2048, 128, "fp8"), made
        assert (found.mfma_qk, found.mfma_pv, found.mfma_rowsum) == (512, 128, 32), made
        assert found.mfma_other == 2 * 32, made


def test_code_out_of_line_that_returns_into_a_loop_is_no_loop() -> None:
    # a block behind the loop's end, and one in front of its closing branch: both come back
    behind = LOOP.replace(RESCALE, "s_cbranch_vccnz grows\nkept:\n").replace(
        TAIL, TAIL + "grows:\nv_mul_f32_e32 v112, v112, v23\ns_branch kept\n"
    )
    inside = LOOP.replace(RESCALE, "s_cbranch_vccnz grows\nkept:\n").replace(
        TAIL,
        "s_branch close\ngrows:\nv_mul_f32_e32 v112, v112, v23\ns_branch kept\nclose:\n" + TAIL,
    )
    for text in (behind, inside):
        found = cost(text)
        assert (found.label, found.mfma_qk, found.mfma_pv) == ("top", 512, 256)


def test_accumulators_decide_where_probabilities_pass_through_lds() -> None:
    through_lds = "ds_write_b32 v50, v30\nds_read_b128 v[30:33], v51\n"
    found = cost(LOOP.replace(OUTPUT, through_lds + OUTPUT.splitlines()[0] + "\n"))
    assert found.by_accumulators
    assert (found.mfma_qk, found.mfma_pv, found.mfma_rowsum) == (512, 256, 0)


def test_a_matrix_product_is_no_attention() -> None:
    text = HEAD + "ds_read_b128 v[64:67], v50\n" + OUTPUT.splitlines()[0] + "\n" + TAIL
    found = cost(text)
    assert (found.scores, found.headdim, found.p_mode, found.element_type) == (0, 0, "", "")
    assert (found.mfma_other, found.mfma_qk, found.mfma_pv) == (64, 0, 0)
    assert found.lds == 16


@pytest.mark.parametrize(
    ("extra", "softmax"),
    [
        ("v_max_f32_e32 v0, 0, v0\n", True),  # a bound on a score
        (
            "v_fma_f32 v26, v0, s4, v23\nv_max_f32_e32 v0, v0, v26\n",
            True,
        ),  # the higher of two lines
        ("v_add_f32_e32 v27, v0, v1\n", True),  # a row sum on the vector unit
        ("v_max_f32_e32 v22, v20, v22\n", False),  # the running maximum
        ("v_mul_f32_e32 v112, v112, v23\n", False),  # a rescale that is not skipped
        ("v_add_u32_e32 v50, s6, v50\n", False),  # an address
    ],
)
def test_what_counts_as_once_a_score(extra: str, softmax: bool) -> None:
    before, after = cost(LOOP), cost(LOOP.replace(PROBABILITIES, extra + PROBABILITIES))
    more = 16 * extra.count("\n")
    assert after.softmax_valu - before.softmax_valu == (more if softmax else 0)
    assert after.other_valu - before.other_valu == (0 if softmax else more)


def test_the_higher_of_two_lines_stays_a_score() -> None:
    lines = "v_fma_f32 v26, v0, s4, v23\nv_max_f32_e32 v0, v0, v26\n"
    found = cost(LOOP.replace("v_exp_f32_e32 v0, v0\n", lines))
    assert found.p_mode == "lean"
    assert found.softmax_by_opcode["v_cvt_pk_fp8_f32"] == 16


def test_packed_arithmetic_reads_the_halves_that_it_names() -> None:
    both = parse_instruction("v_pk_mul_f32 v[0:1], v[2:3], v[4:5]")
    low = parse_instruction("v_pk_mul_f32 v[0:1], v[2:3], v[4:5] op_sel_hi:[1,0]")
    high = parse_instruction("v_pk_fma_f32 v[0:1], v[2:3], v[4:5], v[6:7] op_sel:[0,1,0]")
    assert vector_reads(both) == {2, 3, 4, 5}
    assert vector_reads(low) == {2, 3, 4}
    assert vector_reads(high) == {2, 3, 5, 6, 7}


def test_a_rescale_by_a_pair_whose_other_half_is_a_score_is_no_softmax() -> None:
    rescale = "v_pk_mul_f32 v[112:113], v[112:113], v[28:29] op_sel_hi:[1,0]\n"
    text = LOOP.replace(OUTPUT, f"v_mov_b32_e32 v29, v0\n{rescale}{OUTPUT}")
    assert cost(text).softmax_valu == cost(LOOP).softmax_valu + 16  # the move of a score
    assert cost(text).other_valu_blocked == 16


def test_matrix_instructions_below_eight_bits_take_half() -> None:
    narrow = SCORES.replace("v[64:71]", "v[64:67]").replace("v[72:79]", "v[72:75]")
    narrow = narrow.replace("v[80:87]", "v[80:83]").replace("v[88:95]", "v[88:91]")
    narrow = narrow.replace(", 0\n", ", 0 cbsz:4 blgp:4\n")
    narrow = narrow.replace("v[0:15]\n", "v[0:15] cbsz:4 blgp:4\n")
    found = cost(LOOP.replace(SCORES, narrow))
    assert (found.mfma_qk, found.element_type) == (256, "fp4")


def test_code_without_a_kernel_tells_registers_and_not_spills() -> None:
    (found,) = inspect_text(LOOP)
    assert (found.name, found.vgprs, found.spills, found.lds_bytes) == ("", 128, None, None)
    assert inspect_text(LOOP, dynamic_lds=4096)[0].lds_bytes == 4096


def kernel(name: str, body: str) -> str:
    """Text of a kernel with a descriptor."""
    code = body.replace("top", f"{name}_top").replace("keeps", f"{name}_keeps")
    code = code.replace("unmasked", f"{name}_unmasked")
    return (
        f".text\n{name}:\n{code}.section .rodata\n.amdhsa_kernel {name}\n"
        ".amdhsa_next_free_vgpr 128\n.amdhsa_group_segment_fixed_size 512\n.end_amdhsa_kernel\n"
    )


def test_each_kernel_of_a_file_has_its_own_loop() -> None:
    no_sum = LOOP.replace(OUTPUT, OUTPUT.splitlines()[0] + "\n")
    text = kernel("first", no_sum) + kernel("idle", "s_endpgm\n") + kernel("second", LOOP)
    first, second = inspect_text(text)
    assert (first.name, first.cost.label, first.cost.mfma_rowsum) == ("first", "first_top", 0)
    assert (second.name, second.cost.label, second.cost.mfma_rowsum) == ("second", "second_top", 64)
    assert (second.lds_bytes, second.vgprs, second.spills) == (512, 128, None)
    assert not first.others and not second.others


def test_code_without_matrix_loops_is_refused() -> None:
    with pytest.raises(LoadError, match="no loop with matrix instructions"):
        inspect_text("v_mov_b32_e32 v0, 0\ns_endpgm\n")
    with pytest.raises(LoadError, match="no kernel here has a loop with matrix instructions"):
        inspect_text(kernel("idle", "s_endpgm\n"))


def test_command_takes_files_and_writes_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, rows_file = tmp_path / "mine.s", tmp_path / "rows.json"
    source.write_text(LOOP)
    assert main(["inspect", str(source), "--json", str(rows_file)]) == 0
    (row,) = json.loads(rows_file.read_text())
    assert (row["kernel"], row["file"], row["dtype"]) == ("mine", str(source), "fp8")
    assert row["mfma_qk"] == 512 and row["softmax_valu"] == row["steady_state"]["softmax_valu"]
    assert row["spills"] is None and row["lds_bytes"] is None
    printed = capsys.readouterr().out
    assert "skipped in the steady state: rescale, 4 VALU cycles" in printed
    assert "mine" in printed and "32 v_exp_f32" in printed


def test_command_refuses_what_it_cannot_inspect(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = tmp_path / "plain.s"
    plain.write_text("s_endpgm\n")
    assert main(["inspect", str(plain)]) == 2
    assert "no loop with matrix instructions" in capsys.readouterr().err
    assert main(["inspect", str(tmp_path / "absent.s")]) == 2
    assert "cannot read" in capsys.readouterr().err
