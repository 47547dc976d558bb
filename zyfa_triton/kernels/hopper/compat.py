"""What Gluon names differently in Triton 3.6 and later; what else the kernel uses is the same."""

from __future__ import annotations

from typing import Any

import triton.experimental.gluon.language as gl
from triton.experimental.gluon.language._core import builtin
from triton.experimental.gluon.language.nvidia.hopper import tma

thread_barrier: Any = getattr(gl, "thread_barrier", None) or gl.barrier
"""Waits for all threads of a partition: `barrier` from Triton 3.7 on."""

copy_tile: Any = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
"""Starts a copy from a descriptor's tensor to shared memory: `async_load` where that exists."""


@builtin
def as_tile(memory: Any, dtype: Any, shape: Any, layout: Any, _semantic: Any = None) -> Any:
    """Shared memory under another type, shape and layout: `reinterpret` from Triton 3.9 on."""
    method = getattr(memory, "reinterpret", None) or memory._reinterpret
    return method(dtype, shape, layout, _semantic=_semantic)
