"""Decides the public names for replacing a Triton kernel's loop; the modules beside it do the work.

Kernels import `zyfa_triton.splice.marker` by itself: this module does not import Triton.
"""

from zyfa_triton.splice.errors import SpliceError, SpliceWarning
from zyfa_triton.splice.gfx950.layout import MatrixLayout
from zyfa_triton.splice.gfx950.recipe import Input, LoopRecipe, Output
from zyfa_triton.splice.hook import fallback_reason, install, uninstall, use
from zyfa_triton.splice.recipe import Recipe
from zyfa_triton.splice.sm90.layout import MmaLayout, OperandLayout
from zyfa_triton.splice.sm90.recipe import Carried, Names, PtxInput, PtxRecipe, PtxTensor

__all__ = [
    "Carried",
    "Input",
    "LoopRecipe",
    "MatrixLayout",
    "MmaLayout",
    "Names",
    "OperandLayout",
    "Output",
    "PtxInput",
    "PtxRecipe",
    "PtxTensor",
    "Recipe",
    "SpliceError",
    "SpliceWarning",
    "fallback_reason",
    "install",
    "uninstall",
    "use",
]
