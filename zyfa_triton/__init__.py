"""FP8 attention in Triton: the public names, and nothing else.

    flash_attn_func       attention of bfloat16, float16 or e4m3 tensors
    flash_attn_fp8_func   attention of 16-bit tensors, computed in FP8
    quantize_fp8          e4m3 codes and descales of a 16-bit tensor
    warmup                compiles and tunes ahead of CUDA graph capture
    language              @triton.jit building blocks for kernels of your own (needs Triton)

Importing this package does not import Triton.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING

from zyfa_triton._version import __version__
from zyfa_triton.backends import BackendUnavailableError
from zyfa_triton.interface import flash_attn_fp8_func, flash_attn_func, quantize_fp8, warmup

if TYPE_CHECKING:
    from zyfa_triton import language

__all__ = [
    "BackendUnavailableError",
    "__version__",
    "flash_attn_fp8_func",
    "flash_attn_func",
    "language",
    "quantize_fp8",
    "warmup",
]


def __getattr__(name: str) -> ModuleType:
    if name == "language":
        return importlib.import_module("zyfa_triton.language")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
