"""Which configuration (tile sizes, warps, stages) a kernel is compiled with, and where that comes
from.

It does not launch the op. In this order: an entry of the user's file, an entry that ships with the
package, the entry of the nearest length, the target's default. Measuring is `autotune`.
"""

from __future__ import annotations

from zyfa_triton.tuning.choice import Seen, allow, chosen, observed, requested, resolve
from zyfa_triton.tuning.configurations import KERNELS, PINGPONG, TRITON, candidates, default
from zyfa_triton.tuning.key import TuningKey, key_of
from zyfa_triton.tuning.selection import kernel_of, launchable, select

__all__ = [
    "KERNELS",
    "PINGPONG",
    "TRITON",
    "Seen",
    "TuningKey",
    "allow",
    "candidates",
    "chosen",
    "default",
    "kernel_of",
    "key_of",
    "launchable",
    "observed",
    "requested",
    "resolve",
    "select",
]
