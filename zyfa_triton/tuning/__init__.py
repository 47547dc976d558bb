"""Which configuration (tile sizes, warps, stages) a kernel is compiled with, and where that comes
from.

It does not launch the op. In this order: an entry of the user's file, an entry that ships with the
package, the entry of the nearest length, the target's default. Measuring is `autotune`.
"""

from __future__ import annotations

from zyfa_triton.kernels.launch import TRITON
from zyfa_triton.kernels.registry import KERNELS, kernel_of
from zyfa_triton.tuning.choice import (
    Seen,
    allow,
    chosen,
    is_wanted,
    note,
    observed,
    requested,
    resolve,
)
from zyfa_triton.tuning.configurations import candidates, default
from zyfa_triton.tuning.key import TuningKey, key_of
from zyfa_triton.tuning.selection import (
    launchable,
    measured,
    only,
    ruled_out,
    select,
    tunable,
)
from zyfa_triton.tuning.store import Kernels

__all__ = [
    "KERNELS",
    "TRITON",
    "Kernels",
    "Seen",
    "TuningKey",
    "allow",
    "candidates",
    "chosen",
    "default",
    "is_wanted",
    "kernel_of",
    "key_of",
    "launchable",
    "measured",
    "note",
    "observed",
    "only",
    "requested",
    "resolve",
    "ruled_out",
    "select",
    "tunable",
]
