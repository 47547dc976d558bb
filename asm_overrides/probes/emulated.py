"""Decides how a probe is executed where there is no card."""

from __future__ import annotations

import numpy as np

from asm_overrides.emulator import DEFAULT_MACHINE, GlobalMemory, Machine, load_text, run
from asm_overrides.probes.builder import UNWRITTEN, Probe, Words


def execute(probe: Probe, machine: Machine = DEFAULT_MACHINE) -> Words:
    """The probe's output, (words,), on a machine that answers as `machine` says."""
    kernel = load_text(probe.text)
    memory = GlobalMemory()
    output = memory.alloc("output", np.full(probe.words, UNWRITTEN, np.uint32))
    source = memory.alloc("input", probe.source, readonly=True)
    run(
        kernel,
        grid=(1,),
        kernarg=kernel.pack([output, source]),
        memory=memory,
        num_waves=probe.waves,
        checks=False,
        machine=machine,
    )
    words: Words = memory.array(output, np.uint32).copy()
    return words
