"""Decides whether control flow, memory, LDS and lane moves of the emulator are the machine's."""

from __future__ import annotations

import re

import numpy as np
import pytest

from asm_overrides.emulator import UnsupportedInstructionError
from tests.asm.program import execute, kinds

LANES = np.arange(64, dtype=np.uint32)
STORE_V1 = "global_store_dword v62, v1, s[4:5]\ns_waitcnt vmcnt(0)"


def test_exec_masks_vector_writes_and_restores() -> None:
    outcome = execute(
        f"""
        v_mov_b32_e32 v1, 1
        v_cmp_gt_u32_e32 vcc, 20, v0
        s_and_saveexec_b64 s[10:11], vcc
        v_mov_b32_e32 v1, 2
        s_andn2_b64 exec, s[10:11], exec
        v_add_u32_e32 v1, 9, v1
        s_mov_b64 exec, s[10:11]
        {STORE_V1}
        """
    )
    assert np.array_equal(outcome.words, np.where(LANES < 20, 2, 10))


def test_stores_skip_inactive_lanes() -> None:
    outcome = execute(
        """
        v_mov_b32_e32 v1, 7
        s_mov_b64 exec, 0xff0
        global_store_dword v62, v1, s[4:5]
        s_waitcnt vmcnt(0)
        """
    )
    active = (LANES >= 4) & (LANES < 12)
    assert np.array_equal(outcome.words, np.where(active, 7, 0xCCCCCCCC))


LOOP = f"""
v_readfirstlane_b32 s10, v0
s_lshr_b32 s10, s10, 6
s_lshl_b32 s10, s10, 1
v_mov_b32_e32 v1, 0
s_mov_b32 s11, 0
.LBB0_1:
s_cmp_ge_u32 s11, s10
s_cbranch_scc1 .LBB0_2
v_add_u32_e32 v1, 3, v1
s_add_i32 s11, s11, 1
s_branch .LBB0_1
.LBB0_2:
s_barrier
v_add_u32_e32 v1, 100, v1
{STORE_V1}
"""


@pytest.mark.parametrize("seed", [None, 0, 1, 2])
def test_waves_loop_as_often_as_they_must(seed: int | None) -> None:
    outcome = execute(LOOP, waves=5, words=5 * 64, seed=seed)
    expected = np.repeat(100 + 6 * np.arange(5), 64)
    assert np.array_equal(outcome.words, expected)
    # 4 to load pointers, 5 before the loop, 5 an iteration, 2 to leave, 5 after it.
    assert outcome.result.wave_instructions == sum(4 + 5 + 5 * 2 * w + 2 + 5 for w in range(5))


EXCHANGE = f"""
v_add_u32_e32 v1, 1000, v0
ds_write_b32 v62, v1
s_waitcnt lgkmcnt(0)
s_barrier
v_xor_b32_e32 v2, 0x40, v0
v_lshlrev_b32_e32 v2, 2, v2
ds_read_b32 v1, v2
s_waitcnt lgkmcnt(0)
{STORE_V1}
"""


@pytest.mark.parametrize("seed", [None, 0, 1, 2, 3])
def test_waves_meet_at_a_barrier(seed: int | None) -> None:
    outcome = execute(EXCHANGE, waves=4, words=256, lds=1024, seed=seed)
    assert np.array_equal(outcome.words, (np.arange(256) ^ 64) + 1000)


@pytest.mark.parametrize(("value", "found"), [("63", set()), ("v0", {"lds-race"})])
def test_waves_may_write_the_same_value_to_one_place(value: str, found: set[str]) -> None:
    outcome = execute(
        f"""
        v_and_b32_e32 v2, 63, v0
        v_lshlrev_b32_e32 v2, 2, v2
        v_mov_b32_e32 v1, {value}
        ds_write_b32 v2, v1
        s_waitcnt lgkmcnt(0)
        s_barrier
        ds_read_b32 v1, v2
        s_waitcnt lgkmcnt(0)
        {STORE_V1}
        """,
        waves=2,
        words=128,
        lds=256,
        checks=True,
    )
    assert kinds(outcome) == found


@pytest.mark.parametrize("processes", [1, 2])
def test_unknown_ways_to_branch_are_refused_where_they_are_reached(processes: int) -> None:
    body = "s_branch .LBB0_7\n.LBB0_6:\ns_setpc_b64 s[10:11]\n.LBB0_7:\ns_nop 0"
    assert execute(body, grid=(2,), processes=processes).result.wave_instructions == 14
    with pytest.raises(UnsupportedInstructionError, match=r"line \d+: s_setpc_b64 s\[10:11\]"):
        execute(body.replace("s_nop 0", "s_branch .LBB0_6"), grid=(2,), processes=processes)


def test_endless_loops_are_given_up() -> None:
    outcome = execute(".LBB0_9:\ns_nop 0\ns_branch .LBB0_9", max_wave_instructions=1000)
    assert not outcome.result.finished
    assert kinds(outcome) == {"did-not-finish"}


TRANSPOSE = """
v_lshlrev_b32_e32 v2, 3, v0
global_load_dwordx2 v[4:5], v2, s[6:7]
s_waitcnt vmcnt(0)
ds_write_b64 v2, v[4:5]
s_waitcnt lgkmcnt(0)
ds_read_b64_tr_b{bits} v[6:7], v2
s_waitcnt lgkmcnt(0)
global_store_dwordx2 v2, v[6:7], s[4:5]
s_waitcnt vmcnt(0)
"""


@pytest.mark.parametrize(("bits", "dtype"), [(8, np.uint8), (16, np.uint16)])
def test_transposing_reads(bits: int, dtype: type[np.unsignedinteger]) -> None:
    """Element j of lane t is element t % E of what lane (16/E) j + t/E of its 16 addressed."""
    count = 64 // bits
    source = np.random.default_rng(0).integers(0, 256, 512).astype(np.uint8).view(dtype)
    outcome = execute(TRANSPOSE.format(bits=bits), source, words=128, lds=512)
    lanes = source.reshape(4, 16, count)
    expected = np.empty_like(lanes)
    for lane in range(16):
        for element in range(count):
            origin = 16 // count * element + lane // count
            expected[:, lane, element] = lanes[:, origin, lane % count]
    assert np.array_equal(outcome.words.view(dtype), expected.reshape(-1))


def test_transposing_read_of_nibbles() -> None:
    source = np.random.default_rng(0).integers(0, 256, 512).astype(np.uint8)
    outcome = execute(TRANSPOSE.format(bits=4), source, words=128, lds=512)
    nibbles = np.stack((source & 15, source >> 4), -1).reshape(4, 16, 16)
    got = outcome.words.view(np.uint8)
    got_nibbles = np.stack((got & 15, got >> 4), -1).reshape(4, 16, 16)
    assert np.array_equal(got_nibbles, nibbles.transpose(0, 2, 1))


DESCRIPTOR = """
s_mov_b64 s[8:9], s[6:7]
s_mov_b32 s10, {records}
s_mov_b32 s11, 0x27000
"""


def test_lds_direct_loads_place_lanes_by_m0() -> None:
    """M0 + offset + lane * 16; the offset moves memory too; out of bounds writes zero, off none."""
    source = np.arange(512, dtype=np.uint32)
    outcome = execute(
        DESCRIPTOR.format(records=1024)
        + """
        v_mov_b32_e32 v1, -1
        v_lshlrev_b32_e32 v2, 4, v0
        s_mov_b32 m0, 0x100
        ds_write_b32 v62, v1
        ds_write_b32 v62, v1 offset:256
        ds_write_b32 v62, v1 offset:512
        ds_write_b32 v62, v1 offset:768
        ds_write_b32 v62, v1 offset:1024
        ds_write_b32 v62, v1 offset:1280
        s_waitcnt lgkmcnt(0)
        s_mov_b64 exec, 0xfffffffffffffff0
        buffer_load_dwordx4 v2, s[8:11], 0 offen offset:32 lds
        s_mov_b64 exec, -1
        s_waitcnt vmcnt(0)
        v_lshlrev_b32_e32 v3, 4, v0
        ds_read_b128 v[4:7], v3 offset:288
        s_waitcnt lgkmcnt(0)
        global_store_dwordx4 v3, v[4:7], s[4:5]
        s_waitcnt vmcnt(0)
        """.replace("0xfffffffffffffff0", "-16"),
        source,
        words=256,
        lds=2048,
    )
    expected = np.arange(256) + 8
    expected[expected >= 256] = 0
    expected[:16] = 0xFFFFFFFF
    assert not outcome.result.findings
    assert np.array_equal(outcome.words, expected)


def test_global_load_lds_uses_dword_part_of_m0() -> None:
    source = np.arange(64, dtype=np.uint32) + 5
    outcome = execute(
        f"""
        s_mov_b32 m0, 0x43
        s_nop 0
        global_load_lds_dword v62, s[6:7]
        s_waitcnt vmcnt(0)
        ds_read_b32 v1, v62 offset:64
        s_waitcnt lgkmcnt(0)
        {STORE_V1}
        """,
        source,
        lds=512,
    )
    assert np.array_equal(outcome.words, source)


def test_buffer_bounds_are_checked_per_dword() -> None:
    """Bytes past num_records read zero; the scalar offset counts towards the bound."""
    outcome = execute(
        DESCRIPTOR.format(records=1000)
        + """
        v_lshlrev_b32_e32 v2, 4, v0
        s_mov_b32 s12, 4
        buffer_load_dwordx4 v[4:7], v2, s[8:11], s12 offen
        s_waitcnt vmcnt(0)
        global_store_dwordx4 v2, v[4:7], s[4:5]
        s_waitcnt vmcnt(0)
        """,
        np.arange(1, 513, dtype=np.uint32),
        words=256,
    )
    expected = np.arange(256) + 2
    expected[249:] = 0
    assert np.array_equal(outcome.words, expected)
    assert not outcome.result.findings


def test_buffer_stores_past_the_end_vanish() -> None:
    outcome = execute(
        """
        s_mov_b64 s[8:9], s[4:5]
        s_movk_i32 s10, 0x82
        s_mov_b32 s11, 0x27000
        v_lshlrev_b32_e32 v2, 3, v0
        v_mov_b32_e32 v4, 1
        v_mov_b32_e32 v5, 2
        buffer_store_dwordx2 v[4:5], v2, s[8:11], 0 offen
        s_waitcnt vmcnt(0)
        """,
        words=128,
    )
    expected = np.where(np.arange(128) % 2 == 0, 1, 2)
    expected[32:] = 0xCCCCCCCC
    assert np.array_equal(outcome.words, expected)
    assert not outcome.result.findings


def test_structured_buffers_compare_the_index() -> None:
    outcome = execute(
        f"""
        s_mov_b32 s8, s6
        s_or_b32 s9, s7, 0x80000
        s_mov_b32 s10, 10
        s_mov_b32 s11, 0x27000
        buffer_load_dword v1, v0, s[8:11], 0 idxen offset:4
        s_waitcnt vmcnt(0)
        {STORE_V1}
        """,
        np.arange(128, dtype=np.uint32),
    )
    assert np.array_equal(outcome.words, np.where(LANES < 10, 2 * LANES + 1, 0))


SMALL = {
    "global_load_ubyte v1, v62, s[6:7] offset:1": lambda b: b[:, 1].astype(np.uint32),
    "global_load_sbyte v1, v62, s[6:7]": lambda b: b[:, 0].view(np.int8).astype(np.int32),
    "global_load_sshort v1, v62, s[6:7] offset:2": lambda b: (
        b[:, 2:].copy().view(np.int16)[:, 0].astype(np.int32)
    ),
    "global_load_short_d16 v1, v62, s[6:7]": lambda b: (
        b[:, :2].copy().view(np.uint16)[:, 0].astype(np.uint32) | 0x12340000
    ),
    "global_load_short_d16_hi v1, v62, s[6:7]": lambda b: (
        b[:, :2].copy().view(np.uint16)[:, 0].astype(np.uint32) << 16 | 0x5678
    ),
    "global_load_ubyte_d16_hi v1, v62, s[6:7]": lambda b: b[:, 0].astype(np.uint32) << 16 | 0x5678,
}


@pytest.mark.parametrize("load", SMALL)
def test_small_loads(load: str) -> None:
    source = np.random.default_rng(0).integers(0, 2**32, 64, dtype=np.uint32)
    outcome = execute(
        f"v_mov_b32_e32 v1, 0x12345678\n{load}\ns_waitcnt vmcnt(0)\n{STORE_V1}", source
    )
    expected = SMALL[load](source.view(np.uint8).reshape(64, 4)).astype(np.uint32)
    assert np.array_equal(outcome.words, expected)


SMALL_STORES = {
    "global_store_byte v62, v1, s[4:5] offset:2": (0xFF00FFFF, 16, 0xFF),
    "global_store_short v62, v1, s[4:5]": (0xFFFF0000, 0, 0xFFFF),
    "global_store_short_d16_hi v62, v1, s[4:5] offset:2": (0x0000FFFF, 0, 0xFFFF0000),
    "global_store_byte_d16_hi v62, v1, s[4:5]": (0xFFFFFF00, -16, 0xFF0000),
    "flat_store_short v[4:5], v1 offset:2": (0x0000FFFF, 16, 0xFFFF),
    "buffer_store_byte v1, v62, s[8:11], 0 offen offset:1": (0xFFFF00FF, 8, 0xFF),
}


@pytest.mark.parametrize("store", SMALL_STORES)
def test_small_stores(store: str) -> None:
    """The bytes that stay, where the data goes, and which bits of v1 it is."""
    kept, shift, part = SMALL_STORES[store]
    outcome = execute(
        f"""
        s_mov_b64 s[8:9], s[4:5]
        s_movk_i32 s10, 0x100
        s_mov_b32 s11, 0x27000
        v_mov_b32_e32 v1, 0x12345678
        v_mov_b32_e32 v3, s5
        v_add_co_u32_e32 v4, vcc, s4, v62
        v_addc_co_u32_e32 v5, vcc, 0, v3, vcc
        {store}
        s_waitcnt vmcnt(0) lgkmcnt(0)
        """
    )
    data = 0x12345678 & part
    expected = 0xCCCCCCCC & kept | (data << shift if shift >= 0 else data >> -shift)
    assert np.array_equal(outcome.words, np.full(64, expected))
    assert not outcome.result.findings


def test_two_element_lds_accesses() -> None:
    outcome = execute(
        """
        v_lshlrev_b32_e32 v2, 3, v0
        v_add_u32_e32 v3, 100, v0
        v_add_u32_e32 v4, 200, v0
        ds_write2_b32 v2, v3, v4 offset1:1
        s_waitcnt lgkmcnt(0)
        ds_read2st64_b32 v[6:7], v62 offset1:1
        s_waitcnt lgkmcnt(0)
        global_store_dwordx2 v2, v[6:7], s[4:5]
        s_waitcnt vmcnt(0)
        """,
        words=128,
        lds=512,
    )
    stored = np.stack((np.arange(64) + 100, np.arange(64) + 200), 1).reshape(-1)
    assert np.array_equal(outcome.words.reshape(64, 2), np.stack((stored[:64], stored[64:]), 1))


LANE_MOVES = {
    "v_mov_b32_dpp v1, v2 quad_perm:[1,0,3,2] row_mask:0xf bank_mask:0xf": LANES ^ 1,
    "v_mov_b32_dpp v1, v2 row_half_mirror row_mask:0xf bank_mask:0xf": LANES ^ 7,
    "v_mov_b32_dpp v1, v2 row_ror:8 row_mask:0xf bank_mask:0xf": LANES // 16 * 16
    + (LANES + 8) % 16,
    "v_mov_b32_dpp v1, v2 row_shr:1 row_mask:0xf bank_mask:0xf": np.where(
        LANES % 16 == 0, 99, LANES - 1
    ),
    "v_mov_b32_dpp v1, v2 row_shr:1 row_mask:0xf bank_mask:0xf bound_ctrl:1": np.where(
        LANES % 16 == 0, 0, LANES - 1
    ),
    "v_mov_b32_dpp v1, v2 row_newbcast:3 row_mask:0x5 bank_mask:0xf": np.where(
        LANES // 16 % 2 == 0, LANES // 16 * 16 + 3, 99
    ),
    "v_mov_b32_dpp v1, v2 row_bcast:31 row_mask:0xf bank_mask:0xf": np.where(LANES < 32, 99, 31),
    "ds_swizzle_b32 v1, v2 offset:swizzle(SWAP,16)\ns_waitcnt lgkmcnt(0)": LANES ^ 16,
    "v_xor_b32_e32 v3, 5, v0\nv_lshlrev_b32_e32 v3, 2, v3\nds_bpermute_b32 v1, v3, v2\n"
    "s_waitcnt lgkmcnt(0)": LANES ^ 5,
    "v_add_u32_e32 v3, 3, v0\nv_lshlrev_b32_e32 v3, 2, v3\nds_permute_b32 v1, v3, v2\n"
    "s_waitcnt lgkmcnt(0)": (LANES - 3) % 64,
    "v_mov_b32_e32 v3, v2\nv_permlane32_swap_b32_e32 v2, v3\nv_mov_b32_e32 v1, v2": LANES % 32,
    "s_mov_b32 s10, 41\nv_readlane_b32 s11, v2, s10\nv_mov_b32_e32 v1, s11": np.full(64, 41),
    "v_writelane_b32 v1, 7, 13": np.where(LANES == 13, 7, 99),
    "s_mov_b64 exec, 0xf00\nv_readfirstlane_b32 s11, v2\ns_mov_b64 exec, -1\n"
    "v_mov_b32_e32 v1, s11": np.full(64, 8),
}


@pytest.mark.parametrize("move", LANE_MOVES)
def test_lane_moves(move: str) -> None:
    outcome = execute(f"v_mov_b32_e32 v1, 0x63\nv_mov_b32_e32 v2, v0\n{move}\n{STORE_V1}")
    assert np.array_equal(outcome.words, LANE_MOVES[move].astype(np.uint32))


@pytest.mark.parametrize(("overflow", "expected"), [(0, 0x7F), (1, 0x7E)])
def test_mode_register_decides_fp8_overflow(overflow: int, expected: int) -> None:
    outcome = execute(
        f"""
        s_setreg_imm32_b32 hwreg(HW_REG_MODE, 23, 1), {overflow}
        s_getreg_b32 s10, hwreg(HW_REG_MODE, 23, 1)
        v_mov_b32_e32 v2, 0x447a0000
        v_mov_b32_e32 v1, 0
        v_cvt_pk_fp8_f32 v1, v2, 0
        v_lshl_add_u32 v1, s10, 8, v1
        {STORE_V1}
        """
    )
    assert np.array_equal(outcome.words, np.full(64, expected + 256 * overflow))


def test_scratch_is_private_to_a_lane() -> None:
    outcome = execute(
        f"""
        v_add_u32_e32 v2, 5, v0
        scratch_store_dword off, v2, off offset:8
        v_mov_b32_e32 v3, 10
        scratch_store_byte v3, v0, off
        s_waitcnt vmcnt(0)
        scratch_load_dword v1, off, off offset:8
        s_waitcnt vmcnt(0)
        {STORE_V1}
        """,
        waves=2,
        words=128,
        scratch=16,
    )
    threads = np.arange(128)
    assert np.array_equal(outcome.words, (threads + 5) & 0xFF00FFFF | threads << 16)


def test_atomics_see_every_lane_and_return_the_old_value() -> None:
    outcome = execute(
        """
        v_mov_b32_e32 v2, 0
        v_mov_b32_e32 v3, 1
        global_store_dword v62, v2, s[4:5]
        s_waitcnt vmcnt(0)
        global_atomic_add v1, v2, v3, s[4:5] sc0
        s_waitcnt vmcnt(0)
        s_mov_b64 exec, -2
        global_store_dword v62, v1, s[4:5]
        s_waitcnt vmcnt(0)
        """
    )
    assert outcome.words[0] == 64
    assert np.array_equal(outcome.words[1:], LANES[1:])


ATOMICS = {
    "ds_add_rtn_u32": (lambda old: 7 * LANES, 100, 448 + 100),
    "ds_max_rtn_u32": (lambda old: np.where(LANES == 0, old, np.maximum(old, 7)), 3, 7),
    "ds_inc_rtn_u32": (lambda old: (old + LANES) % 8, 0, 0),
    "ds_dec_rtn_u32": (lambda old: (7 - LANES) % 8, 7, 7),
}


@pytest.mark.parametrize("opcode", ATOMICS)
def test_lds_atomics(opcode: str) -> None:
    """Lanes act one after the other on one dword, each with the value 7."""
    returned, start, end = ATOMICS[opcode]
    outcome = execute(
        f"""
        v_mov_b32_e32 v2, 0
        v_mov_b32_e32 v3, {start}
        v_mov_b32_e32 v4, 7
        ds_write_b32 v2, v3
        s_waitcnt lgkmcnt(0)
        {opcode} v1, v2, v4
        s_waitcnt lgkmcnt(0)
        {STORE_V1}
        ds_read_b32 v1, v2
        s_waitcnt lgkmcnt(0)
        global_store_dword v62, v1, s[4:5] offset:256
        s_waitcnt vmcnt(0)
        """,
        words=128,
        lds=64,
    )
    first = returned(np.uint32(start))
    expected = first + start if opcode == "ds_add_rtn_u32" else first
    assert np.array_equal(outcome.words[:64], expected)
    assert np.array_equal(outcome.words[64:], np.full(64, end))


FAULTS = {
    "global_load_dword v1, v62, s[6:7] offset:4": ("global-out-of-bounds", "byte 256 of 'input'"),
    "global_store_dword v62, v1, s[4:5] offset:-4": ("global-out-of-bounds", "byte -4 of 'output'"),
    "global_store_dword v62, v1, s[6:7]": ("global-readonly", "byte 0 of 'input'"),
    "global_load_dword v1, v0, s[6:7]": ("global-misaligned", "is not a multiple of 4"),
    "ds_write_b32 v62, v0 offset:4": ("lds-out-of-bounds", "LDS bytes 256..259"),
    "ds_read_b64 v[2:3], v62": ("lds-misaligned", "LDS address 4 is not a multiple of 8"),
    "scratch_store_dword off, v0, off offset:16": ("scratch-out-of-bounds", "scratch byte 16"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_found_and_execution_goes_on(fault: str) -> None:
    outcome = execute(
        f"v_mov_b32_e32 v1, 0\n{fault}\ns_waitcnt vmcnt(0) lgkmcnt(0)\nv_mov_b32_e32 v1, 3\n"
        + STORE_V1,
        lds=256,
        scratch=16,
    )
    kind, message = FAULTS[fault]
    (finding,) = (each for each in outcome.result.findings if each.kind == kind)
    assert message in finding.message
    assert finding.instruction == fault
    assert re.search(r"line \d+", str(finding))
    assert outcome.words[5] == 3


def test_scalar_loads_take_signed_and_scalar_offsets() -> None:
    outcome = execute(
        f"""
        s_add_u32 s6, s6, 16
        s_addc_u32 s7, s7, 0
        s_mov_b32 s12, 8
        s_load_dword s10, s[6:7], -0x8
        s_load_dword s11, s[6:7], s12
        s_waitcnt lgkmcnt(0)
        s_lshl_b32 s11, s11, 8
        s_or_b32 s10, s10, s11
        v_mov_b32_e32 v1, s10
        v_cndmask_b32_e64 v1, v1, 9, 4
        {STORE_V1}
        """,
        np.arange(64, dtype=np.uint32),
    )
    assert np.array_equal(outcome.words, np.where(LANES == 2, 9, 2 + (6 << 8)))


def test_workgroups_spread_over_processes() -> None:
    body = """
    s_lshl_b32 s10, s2, 8
    v_add_u32_e32 v2, s10, v62
    v_mov_b32_e32 v1, s2
    global_store_dword v2, v1, s[4:5]
    s_waitcnt vmcnt(0)
    """
    outcomes = [execute(body, words=320, grid=(5,), processes=count) for count in (1, 2)]
    for outcome in outcomes:
        assert np.array_equal(outcome.words, np.repeat(np.arange(5), 64))
    assert outcomes[0].result.wave_instructions == outcomes[1].result.wave_instructions
