"""How a probe runs on a card: `zyfa_triton.code_object` launches it, its output is read back.

It does not judge what comes back.
"""

from __future__ import annotations

import numpy as np
import torch

from asm_overrides.probes import Probe
from asm_overrides.probes.builder import UNWRITTEN, Words
from zyfa_triton.arch import GFX950, arch_of
from zyfa_triton.backends import device
from zyfa_triton.code_object import Kernel

_POINTERS = ("*i32", "*i32")  # output, input


def missing() -> str:
    """Why nothing can be launched on a gfx950 here; "" where one is the current device."""
    why = device.unavailable()
    if why is not None:
        return why.reason
    name = arch_of(torch.cuda.current_device()).name
    return "" if name == GFX950.name else f"the current device is {name}, not {GFX950.name}"


def describe() -> str:
    """The card's name as its driver gives it."""
    return torch.cuda.get_device_name(torch.cuda.current_device())


def execute(probe: Probe) -> Words:
    """The probe's output, (words,), from the current device."""
    from triton.runtime.driver import driver

    where = driver.active.get_active_torch_device()
    unwritten = torch.from_numpy(np.full(probe.words, UNWRITTEN, np.uint32).view(np.int32))
    output = unwritten.to(where)
    source = torch.from_numpy(probe.source.view(np.int32).copy()).to(where)
    kernel = Kernel(probe.kernel, probe.text, _POINTERS, probe.waves)
    kernel.launch((1, 1, 1), output, source)
    words: Words = output.cpu().numpy().view(np.uint32)  # waits for the launch
    return words
