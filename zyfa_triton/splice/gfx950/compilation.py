"""Decides the order of the steps from a marked gfx950 kernel to its binary."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zyfa_triton.splice.gfx950.amdgcn import insert_text
from zyfa_triton.splice.gfx950.cut import cut_loop
from zyfa_triton.splice.gfx950.llir import prepare_llir
from zyfa_triton.splice.gfx950.recipe import LoopRecipe
from zyfa_triton.splice.stages import Stage, parse_module, triton_errors

STAGES = ("ttgir", "llir", "amdgcn", "hsaco")


def compile_spliced(
    text: str,
    context: Any,
    recipe: LoopRecipe,
    stages: Mapping[str, Stage],
    options: Any,
    metadata: dict[str, Any],
) -> list[Any]:
    """What each of STAGES gives, with the marked loop of a module's text replaced.

    Raises:
        SpliceError: the loop or the kernel round it does not fit.
    """
    with triton_errors():
        uncut = stages["ttgir"](parse_module(text, context), metadata)
    cut, layout = cut_loop(str(uncut), recipe)
    with triton_errors():
        module = parse_module(cut, context)
        llir = stages["llir"](parse_module(cut, context), metadata)  # consumes its input
        llir = prepare_llir(llir, recipe, metadata)
        amdgcn = stages["amdgcn"](llir, metadata)
        amdgcn = insert_text(amdgcn, recipe, layout, metadata, options.waves_per_eu)
    with triton_errors("LLVM's assembler, which says why on stderr"):
        binary = stages["hsaco"](amdgcn, metadata)
    return [module, llir, amdgcn, binary]
