"""Which configuration (tile sizes, warps, stages) a kernel is compiled with, and where that comes
from.

It does not launch the op. In this order: an entry of the user's file, an entry that ships with the
package, the entry of the nearest length, the target's default. Measuring is `autotune`.
"""

from __future__ import annotations

from zyfa_triton.tuning.choice import Seen, chosen, observed, requested, resolve
from zyfa_triton.tuning.configurations import candidates, default
from zyfa_triton.tuning.key import TuningKey, key_of

__all__ = [
    "Seen",
    "TuningKey",
    "candidates",
    "chosen",
    "default",
    "key_of",
    "observed",
    "requested",
    "resolve",
]
