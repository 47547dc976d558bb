"""Decides when Python's cycle collector rests; decides nothing about programs.

Loading and compiling a kernel make some hundred thousand small objects that live on. The collector
would scan a large heap (torch's, say) again and again meanwhile, which doubles the time of a run.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def paused_collection() -> Iterator[None]:
    """Switch the cycle collector off for a while, if it was on."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
