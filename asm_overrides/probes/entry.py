"""Probe of where a program starts and whether its arguments are already in registers."""

from __future__ import annotations

import numpy as np

from asm_overrides.probes.builder import LANES, Probe, kernel_name, kernel_text
from asm_overrides.probes.outcomes import among, rows

_NAME = "entry/preload"
_AT_THE_SYMBOL, _BEHIND = 1, 2


def preload() -> Probe:
    """Both entries store which one was taken, through the pointer in s[2:3]."""
    lines = [
        "s_load_dwordx4 s[8:11], s[0:1], 0x0",
        f"v_mov_b32_e32 v1, {_AT_THE_SYMBOL}",
        "s_waitcnt lgkmcnt(0)",
        "s_mov_b64 s[2:3], s[8:9]",
        "s_branch .Lstore",
        ".p2align\t8",
        f"v_mov_b32_e32 v1, {_BEHIND}",
        ".Lstore:",
        "v_and_b32_e32 v0, 0x3ff, v0",
        "v_lshlrev_b32_e32 v2, 2, v0",
        "global_store_dword v2, v1, s[2:3]",
        "s_endpgm",
    ]
    name = kernel_name(_NAME)
    judge = among({"at +256 bytes": rows([_BEHIND]), "at the symbol": rows([_AT_THE_SYMBOL])})
    return Probe(
        name=_NAME,
        question="arguments are preloaded, the program starts 256 bytes behind its symbol",
        text=kernel_text(name, lines, threads=LANES, preload_dwords=4),
        kernel=name,
        source=np.zeros(LANES, np.uint32),
        words=LANES,
        assumed="at +256 bytes",
        judge=lambda words: judge(words.reshape(1, LANES)),
    )


PROBES = (preload,)
