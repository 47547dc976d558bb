"""Decides whether memory results are protected by the waits that gfx950 needs, and by no others."""

from __future__ import annotations

import pytest

from asm_overrides.emulator.waits import MissingWait, find_missing_waits
from asm_overrides.isa import parse

LOAD = "buffer_load_dword v4, v0, s[0:3], 0 offen"
SECOND = "buffer_load_dword v5, v0, s[0:3], 0 offen"
STORE = "buffer_store_dword v9, v0, s[0:3], 0 offen"
USE = "v_add_f32_e32 v8, v4, v9"


def missing(*lines: str) -> list[MissingWait]:
    program = parse("\n".join([*lines, "s_waitcnt vmcnt(0) lgkmcnt(0)", "s_endpgm"]))
    return find_missing_waits(program.instructions, program.labels)


CLEAN = {
    "waited": [LOAD, "s_waitcnt vmcnt(0)", USE],
    "the newer one may be outstanding": [LOAD, SECOND, "s_waitcnt vmcnt(1)", USE],
    "stores count too": [LOAD, STORE, "s_waitcnt vmcnt(1)", USE],
    "a store has read its data": [STORE, "v_mov_b32_e32 v9, 0"],
    "loads return in order": [LOAD, LOAD, "s_waitcnt vmcnt(0)", USE],
    "LDS returns in order": [
        "ds_read_b32 v4, v0", "ds_read_b32 v5, v0", "s_waitcnt lgkmcnt(1)", USE,
    ],
    "scalar loads need zero": ["s_load_dword s4, s[0:1], 0x0", "s_waitcnt lgkmcnt(0)",
                               "s_add_i32 s5, s4, 1"],
    "loads into LDS write no register": [
        "buffer_load_dwordx4 v0, s[0:3], 0 offen lds", USE,
    ],
    "an address may be overwritten": [LOAD, "v_mov_b32_e32 v0, 0"],
    "stores may be in flight at the end": ["s_nop 0"],
    "a numeric wait": [LOAD, "s_waitcnt 0xf70", USE],
}  # fmt: skip

FAULTY = {
    "no wait": ([LOAD, USE], "vmcnt"),
    "wait too weak": ([LOAD, "s_waitcnt vmcnt(1)", USE], "vmcnt"),
    "wrong counter": ([LOAD, "s_waitcnt lgkmcnt(0)", USE], "vmcnt"),
    "overwritten": ([LOAD, "v_mov_b32_e32 v4, 0"], "vmcnt"),
    "used as data": ([LOAD, "buffer_store_dword v4, v0, s[0:3], 0 offen"], "vmcnt"),
    "used as address": ([LOAD, "ds_read_b32 v6, v4"], "vmcnt"),
    "LDS": (["ds_read_b32 v4, v0", USE], "lgkmcnt"),
    "LDS into a vector load's register": ([LOAD, "ds_read_b32 v4, v0"], "vmcnt"),
    "scalar": (["s_load_dword s4, s[0:1], 0x0", "s_add_i32 s5, s4, 1"], "lgkmcnt"),
    "scalar loads overtake each other": (
        ["s_load_dword s4, s[0:1], 0x0", "s_load_dword s5, s[0:1], 0x4", "s_waitcnt lgkmcnt(1)",
         "s_add_i32 s5, s4, 1"], "lgkmcnt"),
    "scalar loads overtake LDS": (
        ["ds_read_b32 v4, v0", "s_load_dword s5, s[0:1], 0x4", "s_waitcnt lgkmcnt(1)", USE],
        "lgkmcnt"),
    "a lane exchange through LDS": (["ds_bpermute_b32 v4, v0, v1", USE], "lgkmcnt"),
}  # fmt: skip


@pytest.mark.parametrize("case", CLEAN)
def test_sufficient_waits_are_accepted(case: str) -> None:
    assert missing(*CLEAN[case]) == []


@pytest.mark.parametrize("case", FAULTY)
def test_missing_waits_are_found(case: str) -> None:
    lines, counter = FAULTY[case]
    found = missing(*lines)
    assert {(each.kind, each.counter) for each in found} == {("use-before-wait", counter)}


def test_message_names_load_register_and_counter() -> None:
    program = parse(f"{LOAD}\n{USE}\ns_waitcnt vmcnt(0)\ns_endpgm")
    (found,) = find_missing_waits(program.instructions, program.labels)
    message = found.describe(program.instructions)
    assert "uses v4" in message
    assert f"line 1 `{LOAD}`" in message
    assert "vmcnt" in message


def test_a_wait_on_one_path_only() -> None:
    text = f"""
        {LOAD}
        s_cbranch_scc1 .Lskip
        s_waitcnt vmcnt(0)
    .Lskip:
        {USE}
        s_waitcnt vmcnt(0)
        s_endpgm
    """
    program = parse(text)
    (found,) = find_missing_waits(program.instructions, program.labels)
    assert program.instructions[found.index].text == USE


def test_a_load_carried_round_a_loop() -> None:
    text = """
        s_waitcnt lgkmcnt(0)
    .Lloop:
        v_add_f32_e32 v8, v4, v9
        {load}
        {wait}
        s_cbranch_scc1 .Lloop
        s_waitcnt vmcnt(0)
        s_endpgm
    """
    for wait, expected in (("s_nop 0", 1), ("s_waitcnt vmcnt(0)", 0)):
        program = parse(text.format(load=LOAD, wait=wait))
        assert len(find_missing_waits(program.instructions, program.labels)) == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (LOAD, 1),
        ("ds_read_b32 v4, v0", 1),
        ("s_load_dword s4, s[0:1], 0x0", 1),
        ("buffer_load_dwordx4 v0, s[0:3], 0 offen lds", 1),
        (STORE, 0),
        ("ds_write_b32 v0, v1", 0),
    ],
)
def test_what_may_be_in_flight_at_the_end(line: str, expected: int) -> None:
    program = parse(f"{line}\ns_endpgm")
    found = find_missing_waits(program.instructions, program.labels)
    assert [each.kind for each in found] == ["end-in-flight"] * expected


def test_counter_limit_bounds_what_is_outstanding() -> None:
    """The 64th outstanding load is not issued before the first has returned."""
    loads = [f"buffer_load_dword v{i}, v200, s[0:3], 0 offen" for i in range(4, 4 + 64)]
    assert missing(*loads, "v_mov_b32_e32 v100, v4") == []
    assert len(missing(*loads, "v_mov_b32_e32 v100, v5")) == 1
