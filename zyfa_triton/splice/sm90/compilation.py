"""Decides the order of the steps from a marked sm_90a kernel to its binary."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zyfa_triton.splice.sm90.cluster import as_cluster
from zyfa_triton.splice.sm90.cut import cut_loops
from zyfa_triton.splice.sm90.ptx import insert_text
from zyfa_triton.splice.sm90.ptxas import captured_report, check_report, failed
from zyfa_triton.splice.sm90.recipe import PtxRecipe
from zyfa_triton.splice.stages import Stage, parse_module, triton_errors

STAGES = ("ttgir", "llir", "ptx", "cubin")


def compile_spliced(
    text: str,
    context: Any,
    recipe: PtxRecipe,
    stages: Mapping[str, Stage],
    options: Any,
    metadata: dict[str, Any],
) -> list[Any]:
    """What each of STAGES gives, with the marked loops of a module's text replaced.

    Raises:
        SpliceError: a loop or the kernel round it does not fit.
    """
    from triton.runtime.errors import PTXASError

    with triton_errors():
        uncut = stages["ttgir"](parse_module(text, context), metadata)
    cut, places = cut_loops(str(uncut), recipe)
    with triton_errors():
        module = parse_module(cut, context)
        llir = stages["llir"](parse_module(cut, context), metadata)  # consumes its input
        ptx = stages["ptx"](llir, metadata)
    ptx = as_cluster(insert_text(ptx, recipe, places), recipe.cluster)
    try:
        with captured_report() as report:
            binary = stages["cubin"](ptx, metadata)
    except PTXASError as error:
        raise failed(error) from error
    check_report("".join(report), recipe, metadata["name"])
    return [module, llir, ptx, binary]
