"""Decides whether undefined registers are reported where they matter, and only there."""

from __future__ import annotations

import pytest

from asm_overrides.emulator.findings import Finding
from tests.asm.program import execute

STORE = "global_store_dword v62, {}, s[4:5]"
BRANCH = "s_cbranch_scc1 .Lnext\ns_nop 0\n.Lnext:\ns_nop 0"


def findings(*lines: str, **options: object) -> list[Finding]:
    return execute("\n".join(lines), checks=True, **options).result.findings  # type: ignore[arg-type]


def stored(register: str) -> str:
    return STORE.format(register)


HARMLESS = {
    "defined": ["v_mov_b32_e32 v1, 0", stored("v1")],
    "computed and dropped": ["v_add_f32_e32 v1, v2, v3", "v_mov_b32_e32 v1, 0", stored("v1")],
    "moved and dropped": ["v_mov_b32_e32 v1, v2", "v_accvgpr_write_b32 a0, v2"],
    "the other side is selected": [
        "s_mov_b64 vcc, 0", "v_mov_b32_e32 v1, 0", "v_cndmask_b32_e32 v2, v1, v3, vcc",
        stored("v2"),
    ],
    "low dword of a wide sum": [
        "v_mov_b32_e32 v2, 0", "v_mad_u64_u32 v[4:5], s[8:9], v2, 3, v[2:3]", stored("v4"),
    ],
    "half of a packed pair": [
        "v_mov_b32_e32 v2, 0", "v_pk_add_f32 v[4:5], v[2:3], v[2:3] op_sel_hi:[0,0]", "s_nop 0",
        stored("v4"), stored("v5"),
    ],
    "bytes that are not selected": [
        "v_mov_b32_e32 v2, 0", "v_perm_b32 v4, v3, v2, 0x03020100", stored("v4"),
    ],
    "both halves of a conversion": [
        "v_mov_b32_e32 v2, 0", "v_cvt_pk_fp8_f32 v4, v2, v2",
        "v_cvt_pk_fp8_f32 v4, v2, v2 op_sel:[0,0,1]", "s_nop 0", stored("v4"),
    ],
    "one lane written and read": [
        "s_mov_b32 s8, 1", "v_writelane_b32 v4, s8, 5", "s_nop 4", "v_readlane_b32 s9, v4, 5",
        "v_mov_b32_e32 v5, 0", "s_nop 4", "s_cmp_eq_u32 s9, 1", BRANCH,
    ],
    "a mask bit that is zero anyway": [
        "v_cmp_lt_f32_e64 s[8:9], v2, v3", "s_mov_b64 s[10:11], 0",
        "s_and_b64 vcc, s[8:9], s[10:11]", BRANCH.replace("scc1", "vccnz"),
    ],
    "inactive lanes": [
        "s_mov_b64 exec, 0xff", "v_mov_b32_e32 v1, 0", stored("v1"), "s_mov_b64 exec, -1",
    ],
    "spilt and reloaded": [
        "v_mov_b32_e32 v1, 0", "scratch_store_dword off, v1, off offset:4",
        "scratch_load_dword v2, off, off offset:4", "s_waitcnt vmcnt(0)", stored("v2"),
    ],
    "a lane exchange": [
        "v_mov_b32_e32 v2, 0", "v_mov_b32_e32 v3, 0", "s_nop 1", "v_permlane32_swap_b32_e32 v2, v3",
        stored("v2"), stored("v3"),
    ],
}  # fmt: skip

HARMFUL = {
    "stored": ([stored("v1")], "what is stored"),
    "stored after arithmetic": (
        ["v_mov_b32_e32 v2, 0", "v_add_f32_e32 v1, v2, v3", stored("v1")], "what is stored"),
    "stored after a move": (["v_mov_b32_e32 v1, v3", stored("v1")], "what is stored"),
    "address": (["v_mov_b32_e32 v1, 0", "global_store_dword v2, v1, s[4:5]"], "an address"),
    "LDS address": (["ds_read_b32 v1, v2", "s_waitcnt lgkmcnt(0)"], "an address"),
    "LDS data": (["v_mov_b32_e32 v2, 0", "ds_write_b32 v2, v3"], "what is stored"),
    "base pointer": (["global_load_dword v1, v62, s[20:21]", "s_waitcnt vmcnt(0)"], "an address"),
    "branch on a scalar": (["s_cmp_eq_u32 s20, 0", BRANCH], "a branch"),
    "branch on a vector": (
        ["v_cmp_lt_f32_e32 vcc, v2, v3", BRANCH.replace("scc1", "vccnz")], "a branch"),
    "EXEC": (["v_cmp_lt_f32_e64 s[8:9], v2, v3", "s_and_saveexec_b64 s[10:11], s[8:9]",
              "s_mov_b64 exec, -1"], "EXEC"),
    "the undefined side is selected": (
        ["s_mov_b64 vcc, -1", "v_mov_b32_e32 v1, 0", "v_cndmask_b32_e32 v2, v1, v3, vcc",
         stored("v2")], "what is stored"),
    "high dword of a wide sum": (
        ["v_mov_b32_e32 v2, 0", "v_mad_u64_u32 v[4:5], s[8:9], v2, 3, v[2:3]", stored("v5")],
        "what is stored"),
    "one half of a conversion": (
        ["v_mov_b32_e32 v2, 0", "v_cvt_pk_fp8_f32 v4, v2, v2", stored("v4")], "what is stored"),
    "a lane that was not written": (
        ["s_mov_b32 s8, 1", "v_writelane_b32 v4, s8, 5", stored("v4")], "what is stored"),
    "lanes that were inactive": (
        ["s_mov_b64 exec, 0xff", "v_mov_b32_e32 v1, 0", "s_mov_b64 exec, -1", stored("v1")],
        "what is stored"),
    "matrix factor": (
        ["v_mov_b32_e32 v2, 0", "v_mov_b32_e32 v3, 0", "s_nop 1",
         "v_mfma_f32_16x16x16_f16 v[8:11], v[2:3], v[4:5], 0"], "a matrix product"),
    "matrix addend": (
        ["v_mov_b32_e32 v2, 0", "v_mov_b32_e32 v3, 0", "s_nop 1",
         "v_mfma_f32_16x16x16_f16 v[8:11], v[2:3], v[2:3], v[8:11]"], "a matrix product"),
    "scratch that was not written": (
        ["scratch_load_dword v2, off, off offset:8", "s_waitcnt vmcnt(0)", stored("v2")],
        "what is stored"),
    "exchanged lanes": (
        ["v_mov_b32_e32 v2, 0", "s_nop 1", "v_permlane32_swap_b32_e32 v2, v3", stored("v2")],
        "what is stored"),
}  # fmt: skip


@pytest.mark.parametrize("case", HARMLESS)
def test_what_does_not_matter_is_not_reported(case: str) -> None:
    assert findings(*HARMLESS[case], scratch=16) == []


@pytest.mark.parametrize("case", HARMFUL)
def test_what_matters_is_reported(case: str) -> None:
    lines, use = HARMFUL[case]
    found = findings(*lines, scratch=16, lds=64)
    ours = [finding for finding in found if finding.kind == "uninitialised"]
    assert ours, found
    assert ours[0].message.startswith(use)


def test_message_names_register_lane_and_line() -> None:
    (found,) = findings(
        "s_mov_b64 exec, 0xff", "v_mov_b32_e32 v1, 0", "s_mov_b64 exec, -1", stored("v1")
    )
    assert found.instruction == stored("v1")
    assert "v1 in lane 8" in found.message
    assert found.wave == 0


def test_matrices_see_inactive_lanes() -> None:
    lines = (
        "s_mov_b64 exec, 0xff", "v_mov_b32_e32 v2, 0", "v_mov_b32_e32 v3, 0", "s_nop 1",
        "v_mfma_f32_16x16x16_f16 v[8:11], v[2:3], v[2:3], 0", "s_mov_b64 exec, -1",
    )  # fmt: skip
    (found,) = findings(*lines)
    assert "lane 8" in found.message
