"""What a self-test reports: one row a question. It asks none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["probe", "kernel", "cycles"]
NEEDS_A_CARD = "needs a card"


@dataclass(frozen=True)
class Row:
    """One line of `zyfa selftest`, as it stands in the JSON.

    name: "group/question". question: what is assumed, in a few words. assumed: the outcome that
    the emulator and the cycle model assume. outcome: what the machine answered. agrees: whether
    these are the same; None where the machine at hand cannot tell.
    """

    kind: Kind
    name: str
    question: str
    assumed: str
    outcome: str
    agrees: bool | None
    seconds: float
