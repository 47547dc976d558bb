"""Decides the public names for replacing a Triton kernel's loop; the modules beside it do the work.

Kernels import `zyfa_triton.splice.marker` by itself: this module does not import Triton.
"""

from zyfa_triton.splice.errors import SpliceError, SpliceWarning
from zyfa_triton.splice.hook import fallback_reason, install, uninstall, use
from zyfa_triton.splice.layout import MatrixLayout
from zyfa_triton.splice.recipe import Input, LoopRecipe, Output

__all__ = [
    "Input",
    "LoopRecipe",
    "MatrixLayout",
    "Output",
    "SpliceError",
    "SpliceWarning",
    "fallback_reason",
    "install",
    "uninstall",
    "use",
]
