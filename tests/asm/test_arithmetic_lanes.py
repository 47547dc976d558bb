"""Masks as words, DPP lane maps and swizzles against the manual's loops and examples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from asm_overrides.emulator.arithmetic import (
    UnsupportedArithmetic,
    dpp_map,
    first_lane,
    is_dpp,
    pack_mask,
    swizzle_map,
    unpack_mask,
)

LANES = np.arange(64, dtype=np.uint32)[None]
EVERY = np.ones((1, 64), np.bool_)


def test_masks_pack_into_two_words() -> None:
    mask = np.zeros((3, 64), np.bool_)
    mask[0, [0, 31]] = True
    mask[1, 32] = True
    np.testing.assert_array_equal(pack_mask(mask), [[0x80000001, 0, 0], [0, 1, 0]])
    random = np.random.default_rng(0).random((4, 64)) < 0.5
    np.testing.assert_array_equal(unpack_mask(pack_mask(random)), random)


def test_first_lane_is_zero_for_an_empty_mask() -> None:
    mask = np.zeros((2, 64), np.bool_)
    mask[0, [17, 40]] = True
    assert list(first_lane(mask)) == [17, 0]


# What each lane reads, or None (manual, table 94).
MAPS: list[tuple[dict[str, Any], Callable[[int], int | None]]] = [
    ({"quad_perm": (1, 0, 3, 2)}, lambda n: n ^ 1),
    ({"quad_perm": (2, 2, 0, 1)}, lambda n: (n & 0x3C) + (2, 2, 0, 1)[n & 3]),
    ({"row_shl": 3}, lambda n: n + 3 if n % 16 < 13 else None),
    ({"row_shr": 1}, lambda n: n - 1 if n % 16 >= 1 else None),
    ({"row_ror": 5}, lambda n: n - 5 if n % 16 >= 5 else n + 11),
    ({"wave_shl": 1}, lambda n: n + 1 if n < 63 else None),
    ({"wave_rol": 1}, lambda n: (n + 1) % 64),
    ({"wave_shr": 1}, lambda n: n - 1 if n > 0 else None),
    ({"wave_ror": 1}, lambda n: (n - 1) % 64),
    ({"row_mirror": True}, lambda n: (n & 0x30) + 15 - (n & 15)),
    ({"row_half_mirror": True}, lambda n: (n & 0x38) + 7 - (n & 7)),
    ({"row_bcast": 15}, lambda n: (n & 0x30) - 1 if n > 15 else None),
    ({"row_bcast": 31}, lambda n: (n & 0x20) - 1 if n > 31 else None),
    ({"row_newbcast": 6}, lambda n: (n & 0x30) + 6),
]


@pytest.mark.parametrize(("modifiers", "reads"), MAPS, ids=[next(iter(m)) for m, _ in MAPS])
def test_lane_maps(modifiers: dict[str, Any], reads: Callable[[int], int | None]) -> None:
    assert is_dpp(modifiers)
    lanes = dpp_map(modifiers)
    expected = [reads(n) for n in range(64)]
    got = lanes.permute(LANES + 1)[0]
    assert [int(x) for x in got] == [0 if x is None else x + 1 for x in expected]
    exists = [x is not None for x in expected]
    assert list(lanes.enabled(EVERY)[0]) == exists
    filled = dpp_map({**modifiers, "bound_ctrl": 1})
    assert filled.enabled(EVERY).all() and list(filled.valid(EVERY)[0]) == exists


def test_inactive_source_lanes_count_as_missing() -> None:
    active = EVERY.copy()
    active[0, 4] = False
    lanes = dpp_map({"row_shr": 1, "row_mask": 15, "bank_mask": 15})
    enabled = lanes.enabled(active)[0]
    assert not enabled[4] and not enabled[5] and enabled[6] and not enabled[0]
    filled = dpp_map({"row_shr": 1, "bound_ctrl": 0})
    assert filled.enabled(active)[0, 5] and not filled.valid(active)[0, 5]


def test_row_and_bank_masks_only_restrict_writing() -> None:
    lanes = dpp_map({"quad_perm": (0, 1, 2, 3), "row_mask": 0b1010, "bank_mask": 0b0110})
    expected = [n // 16 in (1, 3) and n % 16 // 4 in (1, 2) for n in range(64)]
    assert list(lanes.enabled(EVERY)[0]) == expected
    np.testing.assert_array_equal(lanes.permute(LANES), LANES)


def test_unknown_dpp_controls_are_refused() -> None:
    with pytest.raises(UnsupportedArithmetic, match="row_bcast:7"):
        dpp_map({"row_bcast": 7})
    with pytest.raises(UnsupportedArithmetic, match="no DPP control"):
        dpp_map({"row_mask": 15})


def hexadecimal(text: str) -> list[int]:
    """The manual's lists count lanes from 1."""
    return [int(x, 16) - 1 for x in text.split(",")]


def test_swizzle_examples_of_the_manual() -> None:
    fft = hexadecimal(
        "1,11,9,19,5,15,d,1d,3,13,b,1b,7,17,f,1f,2,12,a,1a,6,16,e,1e,4,14,c,1c,8,18,10,20"
    )
    assert list(swizzle_map(0xE000))[:32] == fft
    half = hexadecimal(
        "1,9,5,d,3,b,7,f,2,a,6,e,4,c,8,10,11,19,15,1d,13,1b,17,1f,12,1a,16,1e,14,1c,18,20"
    )
    assert list(swizzle_map(0xE010))[:32] == half
    assert list(swizzle_map(0xE01F)) == list(range(64))
    left = [(n + 1) % 32 for n in range(32)]
    right = [(n - 1) % 32 for n in range(32)]
    assert list(swizzle_map(0xC000 | 1 << 5))[:32] == left
    assert list(swizzle_map(0xC400 | 1 << 5))[:32] == right
    odd = hexadecimal(
        "1,4,3,6,5,8,7,a,9,c,b,e,d,10,f,12,11,14,13,16,15,18,17,1a,19,1c,1b,1e,1d,20,1f,2"
    )
    assert list(swizzle_map(0xC000 | 1 << 5 | 1))[:32] == odd
    even = hexadecimal(
        "1f,2,1,4,3,6,5,8,7,a,9,c,b,e,d,10,f,12,11,14,13,16,15,18,17,1a,19,1c,1b,1e,1d,20"
    )
    assert list(swizzle_map(0xC400 | 1 << 5 | 1))[:32] == even


def test_basic_swizzles() -> None:
    assert list(swizzle_map(0x10 << 10 | 0x1F)) == [n ^ 16 for n in range(64)]
    assert list(swizzle_map(0x1F << 10 | 0x1F)) == [n & 32 | 31 - n % 32 for n in range(64)]
    assert list(swizzle_map(5 << 5 | 0x18)) == [n & 0x38 | 5 for n in range(64)]
    assert list(swizzle_map(0x8000 | 0b00_01_10_11)) == [n & 0x3C | 3 - n % 4 for n in range(64)]
