"""Decides whether LDS accesses that nothing orders are found, whatever order a run takes."""

from __future__ import annotations

import pytest

from asm_overrides.emulator.findings import Finding
from tests.asm.program import execute

LANE = "v_and_b32_e32 v1, 63, v0\nv_lshlrev_b32_e32 v1, 2, v1"
"""v1: byte offset of the lane in its wave's part, the same for every wave."""

OWN = "v_lshlrev_b32_e32 v2, 2, v0"
"""v2: byte offset of the thread; v3: that of the next wave's thread, of two waves."""

NEXT = "v_xor_b32_e32 v3, 0x100, v2"

PREPARE = f"{LANE}\n{OWN}\n{NEXT}\nv_mov_b32_e32 v8, 1.0\n"

DIRECT = """
    s_mov_b32 s8, s6
    s_mov_b32 s9, s7
    s_mov_b32 s10, 0x100
    s_mov_b32 s11, 0x27000
    v_readfirstlane_b32 s12, v2
    v_mov_b32_e32 v10, v1
    s_mov_b32 m0, s12
    s_nop 0
    buffer_load_dword v10, s[8:11], 0 offen lds
"""
"""LDS-direct load of one dword a lane into the wave's own part."""

STORE = "ds_write_b32 v2, v8"
READ_OWN = "ds_read_b32 v9, v2\ns_waitcnt lgkmcnt(0)"
READ_NEXT = "ds_read_b32 v9, v3\ns_waitcnt lgkmcnt(0)"
WAIT = "s_waitcnt lgkmcnt(0)"
BARRIER = "s_barrier"


def findings(*lines: str, waves: int = 2, lds: int = 512, seed: int | None = None) -> list[Finding]:
    body = PREPARE + "\n".join(lines)
    return execute(body, waves=waves, lds=lds, checks=True, seed=seed).result.findings


CLEAN = {
    "own part": [STORE, READ_OWN],
    "a wave reads what it writes without waiting": [STORE, "ds_read_b32 v9, v2", WAIT],
    "barrier between": [STORE, WAIT, BARRIER, READ_NEXT],
    "barriers on both sides": [STORE, WAIT, BARRIER, READ_NEXT, BARRIER, STORE, WAIT],
    "everybody reads": [STORE, WAIT, BARRIER, READ_NEXT, READ_OWN],
    "atomics do not race": ["ds_write_b32 v2, v8", WAIT, BARRIER, "ds_add_u32 v1, v8", WAIT],
    "an atomic after its wave's own write": ["ds_write_b32 v2, v8", "ds_add_u32 v2, v8", READ_OWN],
    "LDS-direct, waited for": [DIRECT, "s_waitcnt vmcnt(0)", BARRIER, READ_NEXT],
    "two waves write one value": ["ds_write_b32 v1, v8", WAIT],
    "LDS-direct, own part": [DIRECT, "s_waitcnt vmcnt(0)", READ_OWN],
}

RACING = {
    "read without barrier": [STORE, WAIT, READ_NEXT],
    "write after read": [STORE, WAIT, BARRIER, READ_NEXT, STORE, WAIT],
    "two waves write": ["ds_write_b32 v1, v0", WAIT],
    "write in flight at the barrier": [STORE, BARRIER, "ds_read_b32 v9, v3", WAIT],
    "read in flight at the barrier": [
        STORE, WAIT, BARRIER, "ds_read_b32 v9, v3", BARRIER, STORE, WAIT,
    ],
    "LDS-direct not waited for": [DIRECT, BARRIER, READ_NEXT, "s_waitcnt vmcnt(0)"],
    "LDS-direct waited for after the barrier": [
        DIRECT, BARRIER, "s_waitcnt vmcnt(0)", READ_NEXT,
    ],
    "LDS-direct read by its own wave": [DIRECT, READ_OWN, "s_waitcnt vmcnt(0)"],
    "LDS-direct over a read in flight": [
        STORE, WAIT, "ds_read_b32 v9, v2", DIRECT, "s_waitcnt vmcnt(0) lgkmcnt(0)",
    ],
    "LDS-direct still in flight two barriers later": [
        DIRECT, BARRIER, BARRIER, READ_NEXT, "s_waitcnt vmcnt(0)",
    ],
    "an atomic and a write": ["ds_write_b32 v1, v8", WAIT, "ds_add_u32 v1, v8", WAIT],
}  # fmt: skip


@pytest.mark.parametrize("seed", [None, 1])
@pytest.mark.parametrize("case", CLEAN)
def test_ordered_accesses_are_accepted(case: str, seed: int | None) -> None:
    assert findings(*CLEAN[case], seed=seed) == []


@pytest.mark.parametrize("seed", [None, 1, 2])
@pytest.mark.parametrize("case", RACING)
def test_races_are_found_in_any_order(case: str, seed: int | None) -> None:
    assert "lds-race" in {finding.kind for finding in findings(*RACING[case], seed=seed)}


def test_message_names_both_waves() -> None:
    (finding,) = findings(STORE, WAIT, READ_NEXT)
    assert finding.instruction == "ds_read_b32 v9, v3"
    assert "no barrier" in finding.message
    assert finding.wave in (0, 1)
    assert f"wave {1 - finding.wave}" in finding.message


def test_bytes_of_one_dword_are_told_apart() -> None:
    """Waves 0 and 1 write bytes 0 and 1 of the same dwords."""
    address = "v_lshrrev_b32_e32 v4, 6, v0\nv_add_u32_e32 v4, v1, v4"
    assert findings(address, "ds_write_b8 v4, v8", WAIT) == []
    assert findings("ds_write_b8 v1, v0", WAIT) != []


def test_lds_read_before_written() -> None:
    found = findings("ds_write_b32 v2, v8", WAIT, "ds_read_b32 v9, v2 offset:256", WAIT, waves=1)
    assert [finding.kind for finding in found] == ["lds-uninitialised"]
    assert "byte 256" in found[0].message


def test_lds_written_by_active_lanes_only() -> None:
    half = "s_mov_b64 exec, 0xffff"
    full = "s_mov_b64 exec, -1"
    found = findings(half, STORE, WAIT, full, READ_OWN, waves=1)
    assert [finding.kind for finding in found] == ["lds-uninitialised"]
    assert findings(half, STORE, WAIT, READ_OWN, full, waves=1) == []


def test_a_wave_that_ends_before_a_barrier() -> None:
    body = """
        v_readfirstlane_b32 s12, v0
        s_cmp_eq_u32 s12, 0
        s_cbranch_scc1 .Lend
        s_barrier
    .Lend:
        s_nop 0
    """
    found = execute(body, waves=2, checks=True).result.findings
    assert [finding.kind for finding in found] == ["barrier-divergence"]


def test_transposing_reads_need_every_lane() -> None:
    address = "v_lshlrev_b32_e32 v4, 3, v0"
    write = "ds_write_b64 v4, v[8:9]"
    prepare = ("v_mov_b32_e32 v9, 1.0", address, write, WAIT)
    read = "ds_read_b64_tr_b8 v[10:11], v4"
    assert findings(*prepare, read, WAIT, waves=1) == []
    found = findings(*prepare, "s_mov_b64 exec, 0xffff", read, WAIT, waves=1)
    assert [finding.kind for finding in found] == ["exec-partial"]


def test_load_into_lds_in_flight_at_the_end() -> None:
    found = findings(DIRECT, waves=1)
    assert [finding.kind for finding in found] == ["end-in-flight"]


def global_findings(*lines: str, **options: object) -> list[Finding]:
    body = "\n".join([PREPARE, *lines])
    return execute(body, checks=True, words=256, **options).result.findings  # type: ignore[arg-type]


def test_two_waves_store_to_the_same_bytes() -> None:
    same, own = "global_store_dword v1, v8, s[4:5]", "global_store_dword v2, v8, s[4:5]"
    assert global_findings(own, waves=2) == []
    (found,) = global_findings(same, waves=2)
    assert found.kind == "global-race"
    assert "wave 0" in found.message
    assert global_findings(own, BARRIER, "global_store_dword v3, v8, s[4:5]", waves=2) == []


def test_two_workgroups_store_to_the_same_bytes() -> None:
    own = "global_store_dword v2, v8, s[4:5]"
    (found,) = global_findings(own, BARRIER, waves=1, grid=(2,))
    assert "another workgroup" in found.message


def test_bytes_of_one_global_dword_are_told_apart() -> None:
    address = "v_lshrrev_b32_e32 v4, 6, v0\nv_add_u32_e32 v4, v1, v4"
    assert global_findings(address, "global_store_byte v4, v8, s[4:5]", waves=2) == []
