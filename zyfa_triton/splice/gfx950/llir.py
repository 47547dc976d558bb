"""Decides what LLVM is told about a kernel with a replaced loop; sees no GPU IR, no assembly."""

from __future__ import annotations

import re
from typing import Any

from zyfa_triton.splice.errors import require
from zyfa_triton.splice.gfx950.recipe import LoopRecipe
from zyfa_triton.splice.gfx950.text import body_comment
from zyfa_triton.splice.markers import MARK

_KERNEL = re.compile(r"^define amdgpu_kernel void @\w+\(.*\)[^{\n]*#(\d+)", re.MULTILINE)


def prepare_llir(llir: str, recipe: LoopRecipe, metadata: dict[str, Any]) -> str:
    """LLVM IR that reserves no accumulation registers; raises metadata's LDS size to the loop's.

    Without the attribute LLVM may split the register file at v128 and take what lies above away
    from the loop. The launcher passes metadata["shared"] as dynamic LDS.

    Raises:
        SpliceError: the call is not there exactly once, or a mark is left.
    """
    calls = llir.count(f'asm sideeffect "{body_comment(recipe)} ')
    require(calls == 1, f"LLVM IR holds the loop {calls} times")
    require(MARK not in llir, "the mark is still used after the loop was cut out")
    group = _KERNEL.search(llir)
    require(group, "no kernel with attributes in LLVM IR")
    assert group is not None
    llir, found = re.subn(
        rf"^(attributes #{group[1]} = \{{)",
        r'\1 "amdgpu-agpr-alloc"="0"',
        llir,
        flags=re.MULTILINE,
    )
    require(found == 1, "the kernel's attributes are not in LLVM IR")
    metadata["shared"] = max(metadata["shared"], recipe.lds_bytes)
    return llir
