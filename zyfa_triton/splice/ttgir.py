"""Decides how loops, constants and operations are read out of Triton's GPU IR text.

It knows no target and replaces nothing: that is for `gfx950.cut` and `sm90.cut`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from zyfa_triton.splice.errors import require
from zyfa_triton.splice.markers import split_types

_FOR = re.compile(
    r"^(?P<indent> *)(?P<result>%[\w$.-]+)(?::(?P<count>\d+))? = scf\.for %[\w$.-]+ = "
    r"(?P<lower>%[\w$.-]+) to (?P<upper>%[\w$.-]+) step (?P<step>%[\w$.-]+) "
    r"iter_args\((?P<inits>.*?)\) -> \((?P<types>.*)\)\s*:"
)
_OPERATION = re.compile(r"(?<![\w.%#!])((?:tt|ttg|ttng|nvg|math|arith|amdg|amdgpu)\.\w+)(?![\w.])")
SHARED_EFFECTS = (
    r"tt\.(store|descriptor_\w*store|atomic\w*|print|assert|call|experimental\w*)|"
    r"ttg\.(local_store|local_atomic\w*|async_copy\w*)"
)


@dataclass(frozen=True)
class For:
    """One scf.for: lines [first, last] of the module, its bounds, initial values and results."""

    first: int
    last: int
    result: str
    lower: str
    upper: str
    step: str
    inits: tuple[str, ...]
    types: tuple[str, ...]

    def result_name(self, index: int) -> str:
        return f"{self.result}#{index}" if len(self.types) > 1 else self.result


def loops(lines: Sequence[str]) -> list[For]:
    """Every loop that carries values, outer ones before those inside."""
    found = []
    for number, line in enumerate(lines):
        match = _FOR.match(line)
        if match is None:
            continue
        closing = match["indent"] + "}"
        last = next(
            (after for after in range(number + 1, len(lines)) if lines[after].startswith(closing)),
            None,
        )
        require(last is not None, f"scf.for in line {number + 1} has no end")
        assert last is not None
        inits = (part.split("=")[1].strip() for part in split_types(match["inits"]))
        types = tuple(split_types(match["types"]))
        found.append(
            For(number, last, match["result"], match["lower"], match["upper"], match["step"],
                tuple(inits), types)
        )  # fmt: skip
    return found


def constant(text: str, value: str) -> float | None:
    """A constant's value, a float32 tensor's or an integer's; None for anything else."""
    match = re.search(
        rf"^\s*{re.escape(value)} = arith\.constant (?:dense<)?(-?[\w.+-]+)>? :",
        text,
        re.MULTILINE,
    )
    if match is None:
        return None
    if match[1].startswith("0x"):  # bits of a float without decimal form
        return {"0xFF800000": float("-inf"), "0x7F800000": float("inf")}.get(match[1])
    return float(match[1])


def operations(lines: Iterable[str]) -> Counter[str]:
    """How often the lines hold each operation; `tt.dot_scaled` counts as `tt.dot`."""
    count: Counter[str] = Counter()
    for line in lines:
        count.update(_OPERATION.findall(line))
    count["tt.dot"] += count.pop("tt.dot_scaled", 0)
    return count
