"""Decides which questions are put to a machine, and how each is asked: probes in gfx950 assembly.

It does not run them: an executor (the emulator here, a card in zyfa_triton) returns the output of
`Probe.text`, and `Probe.judge` names the outcome.
"""

from __future__ import annotations

from functools import cache

from asm_overrides.probes import conversions, entry, float32, lanes, matrix, memory, packing
from asm_overrides.probes.builder import Probe

__all__ = ["Probe", "all_probes"]

_GROUPS = (matrix, conversions, packing, float32, lanes, memory, entry)


@cache
def all_probes() -> tuple[Probe, ...]:
    """Every probe, in the order of the groups."""
    return tuple(make() for group in _GROUPS for make in group.PROBES)
