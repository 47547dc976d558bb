"""Decides whether the emulator finds planted mistakes in Triton's own code, and nothing without."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from typing import NamedTuple

import pytest
import torch

from asm_overrides.check import check_text
from asm_overrides.isa import parse
from asm_overrides.mutate import Mutation, mutations
from tests.asm.attention_runs import AttentionRun, attention_run

PIPELINED = "pipelined"
"""num_stages 2: K and V go straight to LDS, loads are in flight across barriers."""

STAGED = "staged"
"""num_stages 1: K and V go through registers."""

SYNCHRONISATION = frozenset(("use-before-wait", "lds-race", "lds-uninitialised"))
WRONG_PLACE = frozenset(("lds-race", "lds-uninitialised", "global-out-of-bounds"))


class Case(NamedTuple):
    """A mistake: which kernel, which kind, which occurrence, and what must be said about it.

    `where` counts occurrences of the kind whose instruction contains `before` and whose successor
    is `followed_by`; a fraction counts from the first (0.0) to the last (1.0).
    """

    name: str
    kernel: str
    kind: str
    where: int | float
    expected: frozenset[str]
    before: str = ""
    followed_by: str = ""


def spread(
    name: str, kernel: str, kind: str, expected: frozenset[str], *places: float
) -> list[Case]:
    return [
        Case(f"{name} at {place:.0%} of the {kernel} code", kernel, kind, place, expected)
        for place in places
    ]


HAZARD = frozenset(("hazard",))
UNDEFINED = frozenset(("uninitialised",))
BEYOND = frozenset(("lds-out-of-bounds",))
OUTSIDE = frozenset(("global-out-of-bounds",))
MISALIGNED = frozenset(("lds-misaligned",))
EARLY = frozenset(("use-before-wait",))

CASES = [
    *spread("wait removed", PIPELINED, "wait-removed", SYNCHRONISATION, 0.1, 0.35, 0.6),
    *spread("wait removed", STAGED, "wait-removed", SYNCHRONISATION, 0.3, 0.5, 0.9),
    *spread("wait weakened", PIPELINED, "wait-weakened", SYNCHRONISATION, 0.05, 0.4),
    *spread("wait weakened", STAGED, "wait-weakened", SYNCHRONISATION, 0.45, 0.85),
    Case("wait for loads into LDS removed", PIPELINED, "wait-removed", 0.0, SYNCHRONISATION,
         "vmcnt(0)", "s_barrier"),
    Case("wait for loads into LDS weakened", PIPELINED, "wait-weakened", 0.0, SYNCHRONISATION,
         "vmcnt(0)", "s_barrier"),
    Case("wait for LDS stores removed", STAGED, "wait-removed", 0.0, SYNCHRONISATION,
         "lgkmcnt(0)", "s_barrier"),
    Case("wait for scalar loads removed", STAGED, "wait-removed", 1, EARLY, "lgkmcnt(0)"),
    *spread("nop removed", PIPELINED, "nop-removed", HAZARD, 0.5, 1.0),
    Case("nop before an exchange of lanes", PIPELINED, "nop-removed", 0, HAZARD, "s_nop 1",
         "v_permlane"),
    *spread("nop removed", STAGED, "nop-removed", HAZARD, 0.3, 0.8),
    Case("long nop halved", PIPELINED, "nop-halved", 0, HAZARD, "s_nop 15"),
    *spread("barrier removed", PIPELINED, "barrier-removed", SYNCHRONISATION, 0.0, 0.4, 1.0),
    *spread("barrier removed", STAGED, "barrier-removed", SYNCHRONISATION, 0.0, 0.3, 0.6, 1.0),
    *spread("undefined factor", PIPELINED, "matrix-factor-unwritten", UNDEFINED, 0.2),
    *spread("source still being loaded", STAGED, "source-in-flight", EARLY, 0.0, 0.5),
    *spread("source still being multiplied", PIPELINED, "source-of-matrix", HAZARD, 0.3, 1.0),
    *spread("undefined LDS address", STAGED, "lds-address-unwritten", UNDEFINED, 0.5),
    *spread("undefined LDS data", STAGED, "lds-data-unwritten", UNDEFINED, 0.0),
    *spread("undefined output", PIPELINED, "store-data-unwritten", UNDEFINED, 0.5),
    *spread("undefined output address", STAGED, "store-address-unwritten", UNDEFINED, 1.0),
    *spread("wrong descriptor", PIPELINED, "descriptor-next", OUTSIDE, 0.95),
    *spread("LDS read beyond", PIPELINED, "lds-read-beyond", BEYOND, 0.4),
    *spread("LDS write beyond", STAGED, "lds-write-beyond", BEYOND, 0.0),
    *spread("LDS read misaligned", PIPELINED, "lds-read-misaligned", MISALIGNED, 0.3),
    *spread("LDS write elsewhere", PIPELINED, "lds-write-shifted", WRONG_PLACE, 0.0),
    *spread("LDS write elsewhere", STAGED, "lds-write-shifted", WRONG_PLACE, 0.5),
    *spread("load elsewhere", PIPELINED, "load-shifted", WRONG_PLACE, 1.0),
    *spread("output past the end", PIPELINED, "store-shifted", OUTSIDE, 0.0, 1.0),
]  # fmt: skip


@cache
def kernel(name: str) -> AttentionRun:
    if name == PIPELINED:  # three tiles without a mask: its loop runs twice
        return attention_run(seqlen_k=320, config={"num_stages": 2})
    return attention_run(seqlen_k=256, config={"num_stages": 1})


@cache
def planted(name: str, kind: str) -> list[Mutation]:
    return mutations(kernel(name).text, (kind,))


@cache
def followers(name: str) -> dict[int, str]:
    """Line of an instruction -> opcode of the next one."""
    code = parse(kernel(name).text).instructions
    return {first.line: second.opcode for first, second in pairwise(code)}


def chosen(case: Case) -> Mutation:
    found = [
        mutation
        for mutation in planted(case.kernel, case.kind)
        if case.before in mutation.before
        and case.followed_by in followers(case.kernel).get(mutation.line, "")
    ]
    assert found, f"this code has no {case.kind} to plant"
    where = case.where
    return found[where if isinstance(where, int) else round(where * (len(found) - 1))]


def test_there_are_enough_cases() -> None:
    assert len({case.name for case in CASES}) == len(CASES) >= 25


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_planted_mistake_is_found(case: Case) -> None:
    mutation = chosen(case)
    result = kernel(case.kernel).execute(mutation.apply(kernel(case.kernel).text))
    said = {finding.kind for finding in result.findings}
    assert said & case.expected, f"{mutation}: {sorted(said) or 'nothing'}"


@pytest.mark.parametrize("seed", [None, 1, 2])
@pytest.mark.parametrize("name", [PIPELINED, STAGED])
def test_nothing_is_found_without_a_mistake(name: str, seed: int | None) -> None:
    result = kernel(name).execute(seed=seed)
    assert [str(finding) for finding in result.findings] == []
    assert result.finished


BF16 = {"dtype": torch.bfloat16, "p_mode": "exact", "block_scale": False}
VARIANTS = {
    "exact": {"p_mode": "exact", "seqlen_k": 200},
    "not scaled": {"block_scale": False, "seqlen_k": 257},
    "bf16": {**BF16, "seqlen_k": 257},
    "bf16 192, spilling": {**BF16, "headdim": 192, "seqlen_k": 257},
    "fp8 192": {"headdim": 192, "seqlen_k": 130},
    "full, 8 waves": {"causal": False, "seqlen_q": 256, "seqlen_k": 65,
                      "config": {"BLOCK_M": 256, "num_warps": 8}},
    "one key": {"seqlen_q": 1, "seqlen_k": 1},
}  # fmt: skip


@pytest.mark.parametrize("variant", VARIANTS)
def test_nothing_is_found_in_other_variants(variant: str) -> None:
    run = attention_run(**VARIANTS[variant])
    assert [str(finding) for finding in check_text(run.text)] == []
    assert [str(finding) for finding in run.execute().findings] == []


@pytest.mark.parametrize("kind", ["wait-removed", "nop-removed", "source-of-matrix"])
def test_mistakes_are_found_without_running(kind: str) -> None:
    """Every tenth; the waits among them that guard registers."""
    text = kernel(STAGED).text
    found = planted(STAGED, kind)[::10]
    guards = [each for each in found if followers(STAGED)[each.line] != "s_barrier"]
    assert guards
    for mutation in guards:
        assert check_text(mutation.apply(text)), str(mutation)


def test_mutations_keep_line_numbers_and_refuse_other_texts() -> None:
    text = kernel(STAGED).text
    mutation = planted(STAGED, "nop-removed")[0]
    changed = mutation.apply(text)
    assert len(changed.split("\n")) == len(text.split("\n"))
    assert changed != text
    with pytest.raises(ValueError, match="does not hold"):
        mutation.apply(changed)
