"""FP8 attention in Triton: the public names, and nothing else.

    flash_attn_func       attention of bfloat16, float16 or e4m3 tensors
    flash_attn_fp8_func   attention of 16-bit tensors, computed in FP8
    quantize_fp8          e4m3 codes and descales of a 16-bit tensor
    flash_attn_mla_func, flash_attn_mla_fp8_func, quantize_mla_fp8
                          the same of q and k in two parts (MLA): 128 columns, and 64 with rotary
                          embedding whose keys all heads may share
    warmup                compiles and tunes ahead of CUDA graph capture
    language              @triton.jit building blocks for kernels of your own (needs Triton)

Importing this package imports neither Triton nor torch, so that what only reads machine code starts
at once; a name is imported when it is first asked for. `torch.ops.zyfa` exists from the first of
the functions on, or from `import zyfa_triton.ops`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from zyfa_triton._version import __version__

if TYPE_CHECKING:
    from zyfa_triton import language
    from zyfa_triton.backends import BackendUnavailableError
    from zyfa_triton.interface import flash_attn_fp8_func, flash_attn_func, quantize_fp8, warmup
    from zyfa_triton.mla import flash_attn_mla_fp8_func, flash_attn_mla_func, quantize_mla_fp8

__all__ = [
    "BackendUnavailableError",
    "__version__",
    "flash_attn_fp8_func",
    "flash_attn_func",
    "flash_attn_mla_fp8_func",
    "flash_attn_mla_func",
    "language",
    "quantize_fp8",
    "quantize_mla_fp8",
    "warmup",
]

_HOMES = {
    "BackendUnavailableError": "zyfa_triton.backends",
    "flash_attn_fp8_func": "zyfa_triton.interface",
    "flash_attn_func": "zyfa_triton.interface",
    "flash_attn_mla_fp8_func": "zyfa_triton.mla",
    "flash_attn_mla_func": "zyfa_triton.mla",
    "quantize_fp8": "zyfa_triton.interface",
    "quantize_mla_fp8": "zyfa_triton.mla",
    "warmup": "zyfa_triton.interface",
}


if not TYPE_CHECKING:  # a misspelt name is an error for the type checker

    def __getattr__(name: str) -> object:
        if name == "language":
            return importlib.import_module("zyfa_triton.language")
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value: object = getattr(importlib.import_module(_HOMES[name]), name)
        globals()[name] = value  # asked for once
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
