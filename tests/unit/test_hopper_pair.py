"""Two workgroups that share K and V, modelled: no place is overwritten in use, nobody waits for
ever, whoever is slow."""

from __future__ import annotations

import random

import pytest

from tests.unit.hopper_pair_model import Finding, Model, Rules, Tiles
from zyfa_triton.kernels.hopper import preparation


def tiles_of(seed: int, count: int) -> Tiles:
    """Causal ones, of which one workgroup needs a block fewer, rows beyond the end, which need one,
    and others."""
    drawn = random.Random(seed)
    copied = tuple(drawn.choice((1, 1, 2, 3, 9)) for _ in range(count))
    needed = tuple((drawn.choice((1, n, max(n - 1, 1))), n) for n in copied)
    return Tiles(copied, needed)


@pytest.mark.parametrize("stages", [2, 3, 4, 6])
@pytest.mark.parametrize("count", [1, 3, 40])
def test_every_block_is_read_whole_and_nothing_waits_for_ever(count: int, stages: int) -> None:
    for seed in range(2):
        Model(tiles_of(seed, count), stages, seed).run()


@pytest.mark.parametrize(
    ("rules", "stages", "finding"),
    [
        (Rules(mail=1), 6, "waits for ever"),
        (Rules(gives_back_there=False), 3, "is overwritten while it is read"),
        (Rules(waits_when_passing=False), 2, "more arrivals than a phase has"),
    ],
    ids=str,
)
def test_mistakes_are_found(rules: Rules, stages: int, finding: str) -> None:
    for seed in range(40):
        try:
            Model(tiles_of(seed, 40), stages, seed, rules).run()
        except Finding as error:
            if finding in str(error):
                return
    raise AssertionError(f"no run of 40 was told: {finding}")


def test_the_kernels_mail_has_the_places_that_its_launch_makes_room_for() -> None:
    from zyfa_triton.kernels.hopper.pair import MAIL

    assert (MAIL.value, Rules().mail) == (preparation._MAIL, preparation._MAIL)
