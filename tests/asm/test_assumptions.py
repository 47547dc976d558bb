"""Decides whether docs/hardware-assumptions.md lists every assumption that the code makes."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from asm_overrides.emulator.arithmetic import Machine
from asm_overrides.emulator.hazards import RULES

DOCUMENT = Path(__file__).parents[2] / "docs" / "hardware-assumptions.md"


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(Machine)])
def test_every_arithmetic_assumption_is_described(name: str) -> None:
    assert f"`{name}`" in DOCUMENT.read_text()


def test_no_assumption_is_described_that_the_code_lacks() -> None:
    fields = {field.name for field in dataclasses.fields(Machine)}
    text = DOCUMENT.read_text()
    arithmetic = text[: text.index("## LDS and memory")]
    named = set(re.findall(r"`([a-z]+(?:_[a-z0-9]+)+)`", arithmetic))
    assert named <= fields


def test_every_hazard_rule_is_named() -> None:
    text = DOCUMENT.read_text()
    assert {rule.name for rule in RULES} == {
        name for name in re.findall(r"`([a-z0-9-]+)`", text[text.index("## Wait states") :])
        if name.count("-") and name not in ("memory-clause", "xnack-")
    }  # fmt: skip
