"""Decides what is done to the two rows that a lane holds of a warp's 16, whatever P is made of.

Four lanes share a row; a lane's scores and outputs take turns between its rows, two registers each.
"""

from __future__ import annotations

from collections.abc import Sequence

from asm_overrides.ptx import Text, hexadecimal

ONE = hexadecimal(1.0)
LANES = "0xffffffff"
QUAD = ("1", "2")  # lanes that share a row, by exclusive or


def both(half: int) -> str:
    """A 16-bit number in both halves of a register."""
    return f"0x{half:04x}{half:04x}"


def row_of(score: int) -> int:
    """Which of a lane's two rows a score's register belongs to."""
    return score >> 1 & 1


def largest(
    t: Text, scores: Sequence[str], row: int, target: str, other: str, *, chains: int
) -> None:
    """target: the largest score of a row in this block, in all of its lanes. other: overwritten.

    chains: 1 or 2; a maximum waits for the one before it in its chain.
    """
    mine = [score for index, score in enumerate(scores) if row_of(index) == row]
    part = len(mine) // chains
    for index, chain in enumerate((target, other)[:chains]):
        first, second, *others = mine[part * index :][:part]
        t.op("max.f32", chain, first, second)
        for score in others:
            t.op("max.f32", chain, chain, score)
    if chains > 1:
        t.op("max.f32", target, target, other)
    for lanes in QUAD:
        t.op("shfl.sync.bfly.b32", other, target, lanes, "0x1f", LANES)
        t.op("max.f32", target, target, other)


def multiply(t: Text, values: Sequence[str], factors: Sequence[str]) -> None:
    """Outputs times the factor of their row."""
    for index, value in enumerate(values):
        t.op("mul.rn.f32", value, value, factors[row_of(index)])
