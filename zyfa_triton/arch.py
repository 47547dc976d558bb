"""What a target is: its name and the abilities on which other modules decide.

It does not decide what to do with them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch


@dataclass(frozen=True)
class Arch:
    """A target that Triton compiles for.

    name: "sm90", "gfx950", ... has_e4m3: whether Triton compiles float8e4nv for it.
    has_scaled_matrix: whether a matrix instruction takes E8M0 scales, so that block scaling is
        free.
    """

    name: str
    has_e4m3: bool
    has_scaled_matrix: bool = False


GFX950 = Arch("gfx950", has_e4m3=True, has_scaled_matrix=True)


def cuda_arch(major: int, minor: int) -> Arch:
    """The NVIDIA target of a compute capability. e4m3 exists from 8.9 on."""
    return Arch(f"sm{major}{minor}", has_e4m3=(major, minor) >= (8, 9))


def amd_arch(gfx: str) -> Arch:
    """The AMD target of a gfx name; what follows a colon ("gfx942:sramecc+:xnack-") is dropped.

    gfx942 has only the fnuz encodings, with another bias, so its e4m3 is not ours.
    """
    name = gfx.split(":", 1)[0]
    if name == "gfx950":
        return GFX950
    return Arch(name, has_e4m3=name.startswith("gfx12"))


@cache
def arch_of(device_index: int) -> Arch:
    """The target of a CUDA or ROCm device. Asks torch, starts nothing."""
    properties = torch.cuda.get_device_properties(device_index)
    if torch.version.hip:
        return amd_arch(properties.gcnArchName)
    return cuda_arch(properties.major, properties.minor)
