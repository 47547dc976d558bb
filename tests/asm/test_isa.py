"""Decides whether the instruction table and parser agree with LLVM's assembler."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from asm_overrides.isa import (
    Constant,
    HardwareField,
    Label,
    ParseError,
    Register,
    WaitCounts,
    opcodes,
    parse,
    parse_instruction,
    registers,
)
from tests.asm import llvm

# One line for each operand form; spellings are those that LLVM prints.
FORMS = """
s_load_dwordx8 s[8:15], s[4:5], 0x20
s_load_dword s0, s[4:5], s7
s_mov_b32 s0, 0xff800000
s_mov_b64 s[10:11], exec
s_and_saveexec_b64 s[0:1], vcc
s_cselect_b64 s[10:11], -1, 0
s_cmpk_lt_u32 s79, 0x41
s_bitcmp0_b32 s94, 7
s_setreg_imm32_b32 hwreg(HW_REG_MODE, 23, 1), 1
s_getreg_b32 s2, hwreg(HW_REG_MODE, 4, 2)
s_waitcnt vmcnt(3) lgkmcnt(0)
s_waitcnt lgkmcnt(1)
s_nop 15
s_barrier
v_add_f32_e32 v1, 0x42fe0000, v141
v_mul_f32_e64 v1, -v2, |v3| clamp mul:2
v_fma_f32 v162, -s12, v162, -|v157|
v_fmamk_f32 v157, v141, 0xc1000000, v153
v_mad_u64_u32 v[140:141], s[18:19], s14, v147, v[136:137]
v_div_scale_f32 v69, vcc, v141, v141, v63
v_cmp_gt_i32_e64 s[78:79], s93, v119
v_cmp_lt_f32_e32 vcc, 0, v141
v_cndmask_b32_e32 v131, v129, v120, vcc
v_pk_fma_f32 v[132:133], v[132:133], s[78:79], v[136:137] op_sel_hi:[1,1,0]
v_pk_mul_f32 v[62:63], v[62:63], v[142:143] op_sel_hi:[1,0]
v_bitop3_b16 v84, v84, v85, s21 bitop3:0xec
v_cvt_scalef32_pk_fp8_f32 v111, v64, v65, 1.0 op_sel:[0,0,0,1]
v_cvt_scalef32_pk_f32_fp8 v[100:101], v73, 1.0 op_sel:[1,0,0]
v_cvt_pk_fp8_f32 v1, v2, v3 op_sel:[0,0,1]
v_mov_b32_dpp v1, v2 quad_perm:[1,0,3,2] row_mask:0xf bank_mask:0xf
v_add_f32_dpp v1, v2, v3 row_ror:8 row_mask:0xf bank_mask:0xf bound_ctrl:1
v_mov_b32_dpp v1, v2 row_half_mirror row_mask:0xf bank_mask:0xf
v_mov_b32_sdwa v1, v2 dst_sel:WORD_1 dst_unused:UNUSED_PRESERVE src0_sel:BYTE_0
v_readlane_b32 s98, v127, 2
v_permlane32_swap_b32_e32 v141, v142
v_accvgpr_write_b32 a90, v2
v_mfma_f32_32x32x64_f8f6f4 v[80:95], v[180:187], v[104:111], v[80:95]
v_mfma_f32_16x16x128_f8f6f4 v[0:3], v[4:7], v[8:15], 0 cbsz:4
v_mfma_scale_f32_32x32x64_f8f6f4 v[0:15], v[16:23], v[24:31], v[0:15], v32, v33 op_sel_hi:[0,0,0]
v_mfma_f32_32x32x16_bf16 a[0:15], v[0:3], v[4:7], a[0:15]
v_smfmac_f32_16x16x128_fp8_fp8 v[0:3], v[4:7], v[8:15], v16
ds_read_b128 v[184:187], v124 offset:4096
ds_read_b64_tr_b8 v[186:187], v127 offset:5184
ds_write2st64_b64 v1, v[2:3], v[4:5] offset0:1 offset1:2
ds_bpermute_b32 v1, v2, v3
ds_swizzle_b32 v1, v2 offset:swizzle(QUAD_PERM,0,1,3,2)
ds_swizzle_b32 v1, v2 offset:swizzle(SWAP,16)
ds_swizzle_b32 v1, v2 offset:swizzle(BROADCAST,8,3)
ds_swizzle_b32 v1, v2 offset:swizzle(BITMASK_PERM,"01pip")
ds_swizzle_b32 v1, v2 offset:0x041f
buffer_load_dwordx4 v131, s[80:83], 0 offen offset:16 lds
buffer_load_dwordx4 v[192:195], v131, s[80:83], 0 offen
buffer_store_dword v32, v83, s[76:79], 0 offen
global_load_dwordx4 v[0:3], v[4:5], off offset:16
global_load_ushort v0, v4, s[2:3]
global_store_dwordx2 v4, v[0:1], s[2:3]
global_load_lds_dwordx4 v[4:5], off
global_atomic_add_f32 v[2:3], v1, off
global_atomic_add v0, v[2:3], v1, off sc0
scratch_load_dwordx4 v[116:119], off, off offset:348
scratch_store_dword off, v104, off offset:112
v_mfma_f32_32x32x8f16 a[0:15], v[0:1], v[2:3], a[0:15]
v_mfma_f32_32x32x4f16 a[0:31], v[0:1], v[2:3], a[0:31]
v_mfma_i32_4x4x4i8 a[0:3], v0, v1, a[0:3]
v_cvt_scalef32_2xpk16_fp6_f32 v[0:5], v[6:21], v[22:37], v38
v_cvt_scalef32_sr_pk32_bf6_f32 v[0:5], v[6:37], v38, v39
v_mqsad_u32_u8 v[0:3], v[4:5], v6, v[8:11]
ds_cmpst_rtn_b64 v[0:1], v2, v[4:5], v[6:7]
ds_add_rtn_f64 v[0:1], v2, v[4:5]
buffer_load_format_d16_xyz v[0:1], v4, s[0:3], 0 offen
buffer_atomic_inc v0, v1, s[0:3], 0 offen
s_atomic_cmpswap_x2 s[0:3], s[4:5], 0x0
s_set_gpr_idx_on s0, gpr_idx(SRC0)
s_sendmsg sendmsg(MSG_INTERRUPT)
s_endpgm
"""


def test_every_opcode_of_the_table_exists_on_gfx950() -> None:
    """LLVM names what it does not know; a complaint about operands means that it does."""
    names = opcodes()
    done = subprocess.run(
        [llvm.tool("llvm-mc"), *llvm.TARGET],
        input="\n".join(f"{name} zzz" for name in names),
        capture_output=True,
        text=True,
    )
    unknown = [
        f"{names[int(line) - 1]}: {message}"
        for line, message in re.findall(r"<stdin>:(\d+):\d+: error: (.*)", done.stderr)
        if "invalid instruction" in message or "not supported" in message
    ]
    assert "error" in done.stderr
    assert not unknown


def test_listing_gives_the_same_instructions_as_the_text(tmp_path: Path) -> None:
    text = "start:\n" + FORMS.replace("s_endpgm", "s_cbranch_scc1 start\ns_endpgm")
    written = parse(text)
    listed = parse(llvm.disassemble(llvm.assemble(text, tmp_path)))
    assert len(written.instructions) == len(FORMS.split("\n")) - 1
    for ours, theirs in zip(written.instructions, listed.instructions, strict=True):
        if ours.spec.port != "branch":
            assert ours.same_as(theirs), (ours.text, theirs.text)
            assert (ours.reads, ours.writes) == (theirs.reads, theirs.writes)
    target = listed.instructions[-2].operands[-1]
    assert isinstance(target, Label)
    assert listed.labels[target.name] == written.labels["start"] == 0


@pytest.mark.parametrize(
    ("text", "operand", "position"),
    [
        ("v_mov_b32_e32 v1, -1.0", Constant(-1.0), 1),
        ("v_mov_b32_e32 v1, 0x7fc00000", Constant(0x7FC00000), 1),
        ("v_mul_f32_e64 v1, -|v2|, v3", Register(2, 1, negate=True, absolute=True), 1),
        ("v_mov_b32_e32 a3, v1", Register(registers.AGPR + 3, 1), 0),
        ("s_mov_b64 s[2:3], vcc", Register(registers.VCC_LO, 2), 1),
        ("s_waitcnt 0xc07f", WaitCounts(None, None, 0), 0),
        (
            "s_setreg_b32 hwreg(HW_REG_MODE, 0, 4), s0",
            HardwareField("HW_REG_MODE", 0, 4),
            0,
        ),
    ],
)
def test_operands(text: str, operand: object, position: int) -> None:
    assert parse_instruction(text).operands[position] == operand


def ids(*names: str) -> set[int]:
    """Register ids from names such as v3, s[4:5], vcc."""
    found: set[int] = set()
    for name in names:
        move = f"v_mov_b64 v[0:1], {name}" if ":" in name else f"v_mov_b32_e32 v0, {name}"
        operand = parse_instruction(move).operands[1]
        assert isinstance(operand, Register)
        found |= set(operand.ids)
    return found


ACCESSES = {
    "v_fmac_f32_e32 v1, v2, v3": (ids("v1", "v2", "v3"), ids("v1")),
    "v_cmp_lt_i32_e32 vcc, v1, v2": (ids("v1", "v2"), ids("vcc_lo", "vcc_hi")),
    "v_div_fmas_f32 v0, v1, v2, v3": (ids("v1", "v2", "v3", "vcc_lo", "vcc_hi"), ids("v0")),
    "s_add_u32 s0, s1, s2": (ids("s1", "s2"), ids("s0") | {registers.SCC}),
    "s_and_saveexec_b64 s[0:1], s[2:3]": (
        ids("s[2:3]", "exec_lo", "exec_hi"),
        ids("s[0:1]", "exec_lo", "exec_hi") | {registers.SCC},
    ),
    "buffer_load_dwordx4 v7, s[8:11], 0 offen lds": (
        ids("v7", "s[8:9]", "s[10:11]", "m0"),
        set(),
    ),
    "v_permlane32_swap_b32_e32 v1, v2": (ids("v1", "v2"), ids("v1", "v2")),
    "v_mfma_f32_32x32x16_bf16 a[0:15], v[0:3], v[4:7], a[0:15]": (
        set(range(8)) | set(range(256, 272)),
        set(range(256, 272)),
    ),
    "ds_write_b64 v1, v[2:3]": (ids("v1", "v2", "v3"), set()),
    "global_store_short_d16_hi v[2:3], v1, off": (ids("v1", "v2", "v3"), set()),
    "ds_read_u16_d16_hi v1, v2": (ids("v1", "v2"), ids("v1")),
    "v_writelane_b32 v1, s2, 3": (ids("v1", "s2"), ids("v1")),
}  # fmt: skip


@pytest.mark.parametrize("text", ACCESSES)
def test_reads_and_writes(text: str) -> None:
    instruction = parse_instruction(text)
    reads, writes = ACCESSES[text]
    implicit = {registers.MODE}
    if not text.startswith("s_") and not text.startswith("v_permlane"):
        implicit |= registers.EXEC
    assert instruction.reads - registers.EXEC - implicit == reads - registers.EXEC
    assert instruction.writes == writes


BAD = {
    "v_frobnicate_b32 v0, v1": "unknown opcode 'v_frobnicate_b32'",
    "v_mov_b32_e32 v0": "takes 2 operands, got 1",
    "v_mov_b32_e32 v[0:1], v2": "has 2 registers, 1 accepted",
    "v_mov_b32_e32 v256, v0": "v256 does not exist",
    "s_add_u32 s0, v1, s2": "must be a scalar register",
    "s_mov_b64 s[1:2], 0": "must start at an even one",
    "v_mov_b32_e32 1, v0": "cannot be written",
    "s_waitcnt foocnt(0)": "unknown wait counter 'foocnt'",
    "v_mov_b32_e32 v0, [v1": "unbalanced brackets",
    "v_mov_b32_e32 v0, v1 v2": "neither a register, a constant nor a label",
}


@pytest.mark.parametrize("text", BAD)
def test_errors_name_the_line_and_the_reason(text: str) -> None:
    with pytest.raises(ParseError, match=r"line 3: ") as caught:
        parse(f"f:\n  s_nop 0\n  {text}\n")
    assert BAD[text] in str(caught.value)


def test_set_symbols_and_sections() -> None:
    program = parse(
        "\t.set base, 0x10\n\t.set size, (base<<2)+3\n\t.text\nf:\n"
        "\ts_mov_b32 s0, size ; comment\n\t.section .rodata\n\t.long 5\n\t.text\n\ts_endpgm\n"
    )
    assert [instruction.opcode for instruction in program.instructions] == ["s_mov_b32", "s_endpgm"]
    assert program.instructions[0].operands[1] == Constant(0x43)
    assert program.instructions[1].line == 9
