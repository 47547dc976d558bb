"""Decides how tests wrap a few instructions into a kernel and run them; it judges no results."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from asm_overrides.emulator import GlobalMemory, Kernel, Result, load_text, run

OUTPUT = 0
INPUT = 1


def kernel_text(body: str, scratch: int = 0, lds: int = 0) -> str:
    """A kernel with the kernarg pointer in s[0:1], workgroup id in s2, the thread in v0."""
    lines = "\n".join(f"\t{line.strip()}" for line in body.strip().splitlines())
    return f"""
\t.text
\t.globl\tk
\t.p2align\t8
\t.type\tk,@function
k:
{lines}
\ts_endpgm
\t.section\t.rodata,"a",@progbits
\t.p2align\t6, 0x0
\t.amdhsa_kernel k
\t\t.amdhsa_group_segment_fixed_size {lds}
\t\t.amdhsa_private_segment_fixed_size {scratch}
\t\t.amdhsa_kernarg_size 16
\t\t.amdhsa_user_sgpr_kernarg_segment_ptr 1
\t\t.amdhsa_next_free_vgpr 128
\t\t.amdhsa_next_free_sgpr 96
\t\t.amdhsa_accum_offset 64
\t.end_amdhsa_kernel
\t.text
"""


LOAD_POINTERS = """
s_load_dwordx4 s[4:7], s[0:1], 0x0
s_waitcnt lgkmcnt(0)
v_and_b32_e32 v63, 0xffff, v0
v_lshlrev_b32_e32 v62, 2, v0
"""
"""s[4:5]: output, s[6:7]: input; v62: byte offset of the thread's dword."""


@dataclass
class Outcome:
    """Words of the output after a run, the run's result and the kernel."""

    words: NDArray[np.uint32]
    result: Result
    kernel: Kernel


def execute(
    body: str,
    source: NDArray[np.generic] | None = None,
    *,
    waves: int = 1,
    words: int = 64,
    lds: int = 0,
    scratch: int = 0,
    **options: object,
) -> Outcome:
    """Run `body` after LOAD_POINTERS with an output of `words` dwords, all 0xCCCCCCCC at first."""
    kernel = load_text(kernel_text(LOAD_POINTERS + body, scratch, lds))
    memory = GlobalMemory()
    output = memory.alloc("output", np.full(words, 0xCCCCCCCC, np.uint32))
    data = np.zeros(64, np.uint32) if source is None else source
    pointers = np.array([output, memory.alloc("input", data, readonly=True)], np.uint64)
    settings = {"grid": (1,), "checks": False} | options
    result = run(kernel, kernarg=pointers.tobytes(), memory=memory, num_waves=waves, **settings)  # type: ignore[arg-type]
    return Outcome(memory.array(output, np.uint32).copy(), result, kernel)


def kinds(outcome: Outcome) -> set[str]:
    """Kinds of the findings."""
    return {finding.kind for finding in outcome.result.findings}
