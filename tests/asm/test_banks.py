"""LDS bank conflicts: hand-made patterns, and the counter of a run."""

from __future__ import annotations

import numpy as np
import pytest

from asm_overrides.emulator.banks import BankCounter, added, bank_cycles, phases_of
from tests.asm.program import execute

LANES = np.arange(64)


def cycles(addresses: np.ndarray, size: int, is_write: bool = False) -> tuple[int, int]:
    return bank_cycles(np.asarray(addresses, np.int64)[None], size, is_write)


@pytest.mark.parametrize("is_write", [False, True])
@pytest.mark.parametrize("size", [4, 8, 12, 16])
def test_neighbours(size: int, is_write: bool) -> None:
    """They do not conflict, but for 12 bytes, of which lanes 0-3 and 20-23 are read together."""
    phases = len(phases_of(size, is_write).lanes)
    conflicts = 8 if (size, is_write) == (12, False) else 0
    assert cycles(LANES * size, size, is_write) == (phases + conflicts, conflicts)


@pytest.mark.parametrize("is_write", [False, True])
@pytest.mark.parametrize("size", [4, 8, 12, 16])
def test_every_lane_is_served_once(size: int, is_write: bool) -> None:
    assert sorted(phases_of(size, is_write).lanes.ravel()) == list(LANES)


@pytest.mark.parametrize("size", [4, 8, 16])
def test_one_dword_for_all_is_a_broadcast(size: int) -> None:
    assert cycles(LANES * 0 + 64, size) == (len(phases_of(size, False).lanes), 0)


PATTERNS = {
    # name: (addresses, size, is_write, conflicts)
    "every second dword": (LANES * 8, 4, False, 1),
    "every 64th dword": (LANES * 256, 4, False, 63),
    "every 65th dword": (LANES * 260, 4, False, 0),
    "rows of 256 bytes, 16 bytes of each": (LANES * 256, 16, False, 4 * 15),
    "rows of 272 bytes, 16 bytes of each": (LANES * 272, 16, False, 0),
    "half a row apart": (LANES % 2 * 256 + LANES // 2 * 16, 16, False, 4 * 1),
    "b64: two rows of 128 bytes": (LANES % 16 * 8 + LANES // 16 * 256, 8, False, 2 * 1),
    "b64: four rows with a swizzle": (
        LANES // 8 * 128 + (LANES % 8 ^ (LANES // 16 % 2) * 4) * 8, 8, False, 2 * 1,
    ),
    "b64 written: 32 banks": (LANES * 128, 8, True, 4 * 15),
    "b64 written: half as many banks as read": (
        LANES % 8 * 8 + LANES // 8 * 128, 8, True, 4 * 1,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PATTERNS)
def test_patterns(name: str) -> None:
    addresses, size, is_write, conflicts = PATTERNS[name]
    phases = len(phases_of(size, is_write).lanes)
    assert cycles(addresses, size, is_write) == (phases + conflicts, conflicts)


def test_lanes_conflict_only_within_a_phase() -> None:
    """Measured for 16-byte reads: lanes 0-3, 12-15 and 20-27 share one, 4-11 are in another."""
    for other, conflicts in ((1, 1), (12, 1), (27, 1), (4, 0), (16, 0), (32, 0)):
        addresses = LANES * 0
        addresses[other] = 256
        mask = np.isin(LANES, (0, other))[None]
        assert bank_cycles(addresses[None], 16, False, mask)[1] == conflicts, other


def test_inactive_lanes_cost_nothing() -> None:
    addresses = (LANES * 256)[None]
    assert bank_cycles(addresses, 16, False, (LANES == 5)[None]) == (1, 0)
    assert bank_cycles(addresses, 16, False, np.zeros((1, 64), bool)) == (0, 0)


def test_waves_add_up() -> None:
    both = np.stack([LANES * 4, LANES * 8])
    assert bank_cycles(both, 4, False) == (3, 1)


BODY = """
    v_and_b32_e32 v1, 63, v0
    v_lshlrev_b32_e32 v2, 2, v1
    v_lshlrev_b32_e32 v3, 8, v1
    v_mov_b32_e32 v8, 1.0
    ds_write_b32 v2, v8
    s_waitcnt lgkmcnt(0)
    s_barrier
    ds_read_b32 v9, v2
    ds_read_b32 v10, v3
    ds_read2_b32 v[12:13], v2 offset1:64
    s_waitcnt lgkmcnt(0)
"""


def test_a_run_counts_by_instruction_and_finds_nothing_more() -> None:
    result = execute(BODY, waves=2, lds=64 * 256, checks=False, count_banks=True).result
    assert result.findings == []
    found = {(use.instruction.split()[0], use.is_write): use for use in result.banks}
    assert len(result.banks) == 4
    write, plain, two = (
        found["ds_write_b32", True], result.banks[1], found["ds_read2_b32", False],
    )  # fmt: skip
    assert (write.accesses, write.cycles, write.conflicts) == (2, 4, 0)
    assert (plain.accesses, plain.cycles, plain.conflicts) == (2, 2, 0)
    assert (result.banks[2].cycles, result.banks[2].conflicts) == (128, 126)
    assert (two.accesses, two.conflicts) == (4, 0)
    assert execute(BODY, waves=2, lds=64 * 256, checks=False).result.banks == ()


def test_uses_of_several_processes_are_added() -> None:
    result = execute(BODY, waves=1, lds=64 * 256, checks=False, count_banks=True).result
    total = added((result.banks, result.banks, ()))
    assert [use.cycles for use in total] == [2 * use.cycles for use in result.banks]
    assert [use.line for use in total] == [use.line for use in result.banks]
    assert BankCounter().uses == ()
