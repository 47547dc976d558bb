"""How the kernels in HIP C++ (the folder `hip/`) become gfx950 assembly on the user's machine.

compiler.py finds a compiler and keeps what it made; sources.py says where the sources lie. Which
kernels there are is decided in `zyfa_triton.kernels.hip`.
"""

from __future__ import annotations

from zyfa_triton.hip.compiler import HipCompilerError, assembly, found_compiler

__all__ = ["HipCompilerError", "assembly", "found_compiler"]
