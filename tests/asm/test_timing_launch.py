"""Launches worked by hand, and orders of workgroups."""

from __future__ import annotations

from collections import Counter

import pytest

from asm_overrides.timing import MI355X, ORDERS, Card, makespan

TINY = Card(xcds=2, units=2)
ONE = Card(xcds=1, units=2)


def test_units_take_the_next_workgroup_when_they_are_free() -> None:
    # Unit 0: 5 until 5. Unit 1: 2, then 2 until 4, then 4 until 8. Unit 0: 3 from 5 until 8.
    span = makespan([5, 2, 2, 4, 3], ONE)
    assert (span.cycles, span.ideal, span.balance) == (8, 8, 1)


def test_a_long_last_workgroup_is_a_tail() -> None:
    # 1 and 1 until 1, then 6 alone until 7: 8 cycles of work on two units, 4 each.
    span = makespan([1, 1, 6], ONE)
    assert (span.cycles, span.ideal) == (7, 4)
    assert makespan([6, 1, 1], ONE).cycles == 6


def test_xcds_take_turns_and_do_not_help_each_other() -> None:
    # XCD 0 gets workgroups 0, 2, 4: 4 and 4, then 4 more until 8. XCD 1 gets 1, 3: done at 1. With
    # one queue the last 4 starts at 1, when a unit is free.
    costs = [4, 1, 4, 1, 4]
    assert makespan(costs, TINY).cycles == 8
    assert makespan(costs, TINY).balance == 14 / 4 / 8
    assert makespan(costs, Card(xcds=1, units=4)).cycles == 5


def test_no_workgroup_is_an_error() -> None:
    with pytest.raises(ValueError, match="costs: got no workgroup"):
        makespan([], ONE)


def test_orders_of_three_tiles_two_heads_and_two_entries() -> None:
    flat = {
        name: [work[0] for work in order(3, 2, 2)]
        for name, order in ORDERS.items()
        if name != "folded"
    }
    assert flat["by_head"] == [2, 1, 0] * 4
    assert flat["by_head_ascending"] == [0, 1, 2] * 4
    assert flat["by_entry"] == [2, 2, 1, 1, 0, 0] * 2
    assert flat["longest_first"] == flat["head_an_xcd"] == [2] * 4 + [1] * 4 + [0] * 4
    assert ORDERS["folded"](3, 2, 2) == [(2, 0)] * 4 + [(1,)] * 4


def test_a_head_an_xcd_takes_eight_heads_at_a_time() -> None:
    work = [each[0] for each in ORDERS["head_an_xcd"](2, 5, 2)]
    assert work == [1] * 8 + [0] * 8 + [1] * 2 + [0] * 2


@pytest.mark.parametrize("shape", [(1, 1, 1), (5, 3, 2), (8, 16, 1), (4, 12, 3)])
@pytest.mark.parametrize("order", ORDERS)
def test_every_order_computes_every_tile_of_every_head_once(
    order: str, shape: tuple[int, int, int]
) -> None:
    m_blocks, nheads, batch = shape
    found = Counter(m_block for work in ORDERS[order](*shape) for m_block in work)
    assert found == dict.fromkeys(range(m_blocks), nheads * batch)


def test_tiles_of_one_head_in_turn_give_the_first_xcd_the_longest() -> None:
    # 32 tiles of costs 1 to 32 a head, 8 heads, 8 XCDs of one unit. By head XCD 0 gets the tiles of
    # 32, 24, 16 and 8 of each head: 8 * 80 of 8 * 66. With heads fastest each XCD has all of one.
    card = Card(xcds=8, units=1)
    spans = {
        name: makespan([m + 1 for (m,) in ORDERS[name](32, 8, 1)], card)
        for name in ("by_head", "by_entry")
    }
    assert spans["by_head"].cycles == 8 * 80
    assert spans["by_head"].balance == 66 / 80
    assert spans["by_entry"].balance == 1


def test_peak_is_the_data_sheet_s() -> None:
    assert MI355X.all_units == 256
    assert MI355X.peak == pytest.approx(5.03e15, rel=1e-3)
