"""Mistakes planted into the generated Hopper loop are noticed where they change anything."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
import torch

from asm_overrides.recipes.attention_sm90 import Parameters
from tests.asm.hopper_loop_mutations import (
    Mutation,
    arithmetic,
    found,
    ordering,
    removals,
    sample,
    statements,
    weaker_waits,
)
from tests.asm.hopper_loop_runs import text_of

LEAN, EXACT = Parameters(stages=3, cluster=2), Parameters(p_mode="exact", stages=3)
OTHER = Parameters(headdim=192, stages=2, ones="apart", referred=False, cluster=2)

EQUIVALENT = {
    r"removed .*@L_[kv]_there bra": "the wait looks again and finds the tile",
    r"constant .*wait_group\S* 1; ->": "waits for more than it must",
    r"other place .*, 0, L_ones_tile": "there is one tile of ones",
    r"neighbour .*n8k32\S* \.\.\..*L_step_": "that tile is the same everywhere",
    r"constant .*L_once, L_lane": "another lane arrives for the warp",
    r"(removed|neighbour) .*neg\.f32 L_x_[01], multiplier": "the first row left it in the register",
    r"neighbour .*add\.rn\.f32 L_row_sum_(0, .*L_sum_1|1, .*L_sum_3);$": "each row's sum twice",
    r"neighbour .*add\.u32 L_y_3, L_y_3, 0x7f797f79": "with other lanes' maxima: all are asked",
    r"neighbour .*prmt\.b32 L_by_(0, L_by_0, L_by_0|1, L_by_1, L_by_1), .*L_by_[01], 0x1010;$": (
        "the second source is not read"
    ),
    r"constant .*mov\.f32 L_sum_[13], ": "the sum that is not read",
}
EQUIVALENT_IN_EXACT = {
    r"removed .*bra\.uni L_as_it_was": "multiplies by 1",
    r"constant .*setp\.neu\S* L_some, L_factor_": "a factor is hardly ever a half exactly",
    r".*L_signs": "no code has a sign; ptxas alone minds the branch on it",
    r"(removed|neighbour) .*bra\.uni L_stop": "never taken",
}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Matrices are small: torch's threads would only wait for one another."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def survivors(parameters: Parameters, mutations: list[Mutation]) -> list[str]:
    known = EQUIVALENT if parameters.p_mode == "lean" else {**EQUIVALENT, **EQUIVALENT_IN_EXACT}
    never = never_run(parameters)
    left = [
        str(each) for each in mutations if each.line not in never and not found(parameters, each)
    ]
    return [each for each in left if not any(re.match(pattern, each) for pattern in known)]


def never_run(parameters: Parameters) -> range:
    """Lines that stand between the loop and its end for the branch that is never taken, and the
    jump over them, without which the end waits for what is over."""
    lines = text_of(parameters).split("\n")
    if "L_stop:" not in lines:
        return range(0)
    return range(lines.index("L_stop:"), lines.index("L_leave:") + 1)


@pytest.mark.parametrize("parameters", [LEAN, EXACT], ids=lambda p: p.p_mode)
def test_every_mistake_with_waits_barriers_and_branches(parameters: Parameters) -> None:
    mutations = ordering(text_of(parameters))
    assert len(mutations) >= 60
    assert survivors(parameters, mutations) == []


@pytest.mark.parametrize("parameters", [LEAN, EXACT, OTHER], ids=["lean", "exact", "other"])
def test_a_sample_of_mistakes_with_arithmetic(parameters: Parameters) -> None:
    chosen = sample(arithmetic(text_of(parameters)), 40, seed=11)
    assert len({each.kind for each in chosen}) == 4
    assert survivors(parameters, chosen) == []


def line_of(part: str, which: int = 0) -> tuple[int, str]:
    lines = [each for each in statements(text_of(LEAN)) if part in each[1]]
    return lines[which]


FINDINGS = [
    ("wgmma.wait_group.sync.aligned 1", 0, "L_s_0 is under way since"),
    ("wgmma.wait_group.sync.aligned 0", 0, "is under way since"),
    ("wgmma.fence", 0, "no fence since"),
    ("wgmma.fence", 1, "no fence since"),
    ("wgmma.commit", 0, "is under way since"),
    ("mbarrier.arrive.shared::cta", 0, "waits for ever"),
    ("mbarrier.arrive.shared::cluster", 0, "arrivals at the other workgroup"),
    ("mapa", 0, "the barrier is workgroup 0's"),
    ("mov.pred L_due", 0, "arrivals"),
    ("bra.uni L_k_again", 0, "was not waited for by all warps"),
    ("bra.uni L_v_again", 0, "v["),
    ("mov.b32 v_phase, k_phase", 0, "waits for ever"),
    ("setp.eq.u32 L_once", 0, "L_once is read before it is written"),
    ("or.b64 L_k_tiles", 0, "is not swizzled"),
]


@pytest.mark.parametrize(("part", "which", "finding"), FINDINGS)
def test_what_is_left_out_is_named(part: str, which: int, finding: str) -> None:
    line, text = line_of(part, which)
    assert finding in found(LEAN, Mutation("removed", line, text, ""))


def test_other_mistakes_are_named() -> None:
    line, text = line_of("mbarrier.arrive")
    bare = Mutation("guard removed", line, text, text.partition(" ")[2])
    assert "L_used is read before it is written" in found(LEAN, bare)
    twice = Mutation("twice", line, text, f"{text}\n{text}")
    assert "back twice" in found(LEAN, twice)
    line, text = line_of("wgmma.wait_group.sync.aligned 0")
    (weaker,) = (each for each in weaker_waits(text_of(LEAN)) if each.line == line)
    assert "is under way since" in found(LEAN, weaker)
    for window, used in (("cta", "used"), ("cluster", "there_1")):
        arrival = f"@L_once mbarrier.arrive.shared::{window}.b64 _, [L_{used}];"
        soon = Mutation("arrives too soon", line, text, f"{arrival}\n{text}")
        assert "while a product reads it" in found(LEAN, soon)
    early = Mutation("operand written", line, text, f"mov.b32 L_operand_0, 0;\n{text}")
    assert "L_operand_0 is under way since" in found(LEAN, early)


def test_the_text_itself_is_right_and_idle_mistakes_survive() -> None:
    line, text = line_of("wgmma.fence")
    assert found(LEAN, Mutation("nothing", line, text, text)) == ""
    assert found(LEAN, Mutation("fence twice", line, text, f"{text}\n{text}")) == ""
    assert len(removals(text_of(LEAN))) == len(list(statements(text_of(LEAN))))
