"""Decides whether LLVM made room for the loop as the recipe demands, and puts the text in.

LLVM derives the kernel descriptor from the call's results and clobbers; nothing of it is patched
here, only checked. It does not judge what the text computes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from asm_overrides.isa import registers
from zyfa_triton.splice.errors import require
from zyfa_triton.splice.gfx950.layout import MatrixLayout
from zyfa_triton.splice.gfx950.recipe import LoopRecipe, register_numbers
from zyfa_triton.splice.gfx950.text import body_comment, checked_text

LDS_BYTES = 163840  # of a gfx950 compute unit
_VECTOR_REGISTERS = 512  # of a lane, for all waves of a SIMD together
_SIMDS = 4


def insert_text(
    amdgcn: str,
    recipe: LoopRecipe,
    layout: MatrixLayout,
    metadata: Mapping[str, Any],
    waves_per_eu: int,
) -> str:
    """Assembly with the recipe's text in place of the comment that stood in for it.

    Raises:
        SpliceError: LLVM bound registers otherwise, spilled, reserved accumulation registers, or
            gave the kernel fewer registers than the text uses; or the text is not allowed.
    """
    pattern = re.compile(
        rf"^[ \t]*{re.escape(body_comment(recipe))} outputs (.*?) inputs (.*?) end[ \t]*$",
        re.MULTILINE,
    )
    found = pattern.findall(amdgcn)
    require(len(found) == 1, f"the assembly holds the loop's place {len(found)} times, not once")
    _check_binding(recipe, found[0][0].split(), found[0][1].split())
    _check_budget(amdgcn, recipe, metadata, waves_per_eu)
    text = checked_text(recipe, f".Lsplice_{recipe.name}", layout)
    return pattern.sub(lambda _: text, amdgcn)


def _check_binding(recipe: LoopRecipe, outputs: list[str], inputs: list[str]) -> None:
    """LLVM prints an error for a register it cannot give, and yet compiles, without the call."""
    wanted = [name for output in recipe.outputs for name in output.registers]
    require(outputs == wanted, f"LLVM put the results into {_differing(outputs, wanted)}")
    wanted = [*(one.register for one in recipe.inputs), recipe.thread_id]
    require(inputs == wanted, f"LLVM put the inputs into {_differing(inputs, wanted)}")


def _differing(given: list[str], wanted: list[str]) -> str:
    if len(given) != len(wanted):
        return f"{len(given)} registers instead of {len(wanted)}"
    return ", ".join(f"{a} instead of {b}" for a, b in zip(given, wanted, strict=True) if a != b)


def descriptor_value(amdgcn: str, name: str) -> int:
    """Number that a directive or a metadata entry of the kernel gives."""
    match = re.search(rf"^[ \t]*(?:- )?{re.escape(name)}:?[ \t]+(\d+)", amdgcn, re.MULTILINE)
    require(match, f"the assembly does not state {name}")
    assert match is not None
    return int(match[1])


def _check_budget(
    amdgcn: str, recipe: LoopRecipe, metadata: Mapping[str, Any], waves_per_eu: int
) -> None:
    def value(name: str) -> int:
        return descriptor_value(amdgcn, name)

    used = [number for text in recipe.clobbers for number in register_numbers(text)]
    used += [
        number
        for output in recipe.outputs
        for name in output.registers
        for number in register_numbers(name)
    ]
    top_vector = max(number for number in used if registers.is_vector(number)) - registers.VGPR
    top_scalar = max((n - registers.SGPR for n in used if registers.is_scalar(n)), default=-1)
    waves = max(waves_per_eu, -(-metadata["num_warps"] // _SIMDS))
    granted = min(value(".amdhsa_next_free_vgpr"), value(".amdhsa_accum_offset"))
    budget = _VECTOR_REGISTERS // waves
    require(
        top_vector < granted,
        f"LLVM gives the kernel v0 to v{granted - 1}, {recipe.name} uses v{top_vector}",
    )
    require(
        value(".amdhsa_next_free_vgpr") <= budget,
        f"the kernel takes {value('.amdhsa_next_free_vgpr')} vector registers, {waves} waves "
        f"a SIMD leave {budget}",
    )
    require(
        top_scalar < value(".amdhsa_next_free_sgpr"),
        f"LLVM gives the kernel {value('.amdhsa_next_free_sgpr')} scalar registers, {recipe.name} "
        f"uses s{top_scalar}",
    )
    uses_agprs = value(".agpr_count") or re.search(r"^\s*v_accvgpr", amdgcn, re.MULTILINE)
    require(not uses_agprs, "the kernel round the loop uses accumulation registers")
    spills = (".vgpr_spill_count", ".sgpr_spill_count", ".amdhsa_private_segment_fixed_size")
    spilled = ", ".join(f"{name} {value(name)}" for name in spills if value(name))
    require(not spilled, f"the kernel round the loop spills registers: {spilled}")
    require(
        value(".amdhsa_group_segment_fixed_size") == 0,
        "the kernel has static LDS, which would move the loop's",
    )
    require(
        metadata["shared"] <= LDS_BYTES,
        f"{recipe.name} needs {metadata['shared']} bytes of LDS, a compute unit has {LDS_BYTES}",
    )
