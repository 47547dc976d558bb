"""Decides how a recipe's text is put into PTX, and which text may be.

It sees that the text keeps to names of its own; what the text computes is not judged.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from zyfa_triton.splice.errors import require
from zyfa_triton.splice.sm90.cut import BODY, COPY_IN, COPY_OUT, Place
from zyfa_triton.splice.sm90.recipe import INPUT_BITS, Names, PtxRecipe, PtxTensor

_FUNCTION = re.compile(r"^[ \t.\w]*\.(?:entry|func)\b[^{;]*\n\{\n", re.MULTILINE)
_LABEL = re.compile(r"^\s*([A-Za-z_$][\w$]*):", re.MULTILINE)
_BRANCH = re.compile(r"\bbra(?:\.uni)?\s+([\w$]+)\s*;")
_LEAVES = re.compile(r"(?<![\w.])(?:ret|exit|trap|brkpt|call|brx)\b")
_TRITONS = re.compile(r"%(?:p|rs|r|rd|f|fd|rq|b)\d+\b")
_DIRECTIVE = re.compile(r"(?:^|[;{}\n])\s*(\.(?!reg\b|pragma\b)\w+)")
_SETMAXNREG = "setmaxnreg"


def insert_text(ptx: str, recipe: PtxRecipe, places: Sequence[Place]) -> str:
    """PTX with the recipe's text in place of the comments that stood in for it.

    Raises:
        SpliceError: LLVM copied, moved or dropped one of the pieces, or the text is not allowed.
    """
    for place in places:
        ptx = _with_text(ptx, recipe, place)
    return ptx


def _with_text(ptx: str, recipe: PtxRecipe, place: Place) -> str:
    pattern = re.compile(rf"^[ \t]*{re.escape(BODY)} {place.number} (.*?) end[ \t]*$", re.MULTILINE)
    bodies = list(pattern.finditer(ptx))
    require(len(bodies) == 1, f"PTX holds the loop's place {len(bodies)} times, not once")
    body = bodies[0]
    _check_pieces(ptx, recipe, place, body.start())
    names = _names(recipe, place)
    registers = body[1].split()
    copies = [*_scalars(recipe, place)]
    require(
        len(registers) == len(copies),
        f"PTX gives the loop {len(registers)} inputs, {len(copies)} are needed",
    )
    text = recipe.text(names).rstrip("\n")
    _check_text(text, recipe, names)
    lines = [f"// splice {recipe.name} {place.number}: begin", "{"]
    for (name, bits), register in zip(copies, registers, strict=True):
        lines += [f"\t.reg .b{bits} {name};", f"\tmov.b{bits} {name}, {register};"]
    lines += [text, "}", f"// splice {recipe.name} {place.number}: end"]
    ptx = ptx[: body.start()] + "\n".join(lines) + ptx[body.end() :]
    functions = [match.end() for match in _FUNCTION.finditer(ptx) if match.end() < body.start()]
    require(functions, "PTX holds no function round the loop")
    start = functions[-1]
    declared = "".join(
        f"\t.reg .b32 {place.register('c', one.name)}_<{one.registers}>;\n"
        for one in (*recipe.carried, *recipe.tensors)
    )
    return ptx[:start] + declared + ptx[start:]


def _scalars(recipe: PtxRecipe, place: Place) -> list[tuple[str, int]]:
    """Name and bits of each operand of the comment, in order."""
    return [
        (place.register("i", "lower"), 32),
        (place.register("i", "upper"), 32),
        *((place.register("i", one.name), INPUT_BITS[one.kind]) for one in recipe.inputs),
        *((place.register("m", name), 32) for name in recipe.memory),
    ]


def _names(recipe: PtxRecipe, place: Place) -> Names:
    def registers(tensors: Iterable[PtxTensor]) -> dict[str, tuple[str, ...]]:
        return {
            one.name: tuple(place.register("c", one.name, index) for index in range(one.registers))
            for one in tensors
        }

    return Names(
        label=f"zy{place.number}t_",
        lower=place.register("i", "lower"),
        upper=place.register("i", "upper"),
        inputs={one.name: place.register("i", one.name) for one in recipe.inputs},
        memory={name: place.register("m", name) for name in recipe.memory},
        carried=registers(recipe.carried),
        tensors=registers(recipe.tensors),
        layouts=place.layouts,
    )


def _check_pieces(ptx: str, recipe: PtxRecipe, place: Place, body: int) -> None:
    """Copies in, text, copies out: each once, in this order, with no jump between."""
    sides = []
    for comment, side, tensors in (
        (COPY_IN, "into", (*recipe.carried, *recipe.tensors)),
        (COPY_OUT, "out of", recipe.carried),
    ):
        at = []
        for one in tensors:
            pattern = rf"^[ \t]*{re.escape(comment)} {place.number} {one.name}$"
            found = [match.start() for match in re.finditer(pattern, ptx, re.MULTILINE)]
            require(
                len(found) == 1,
                f"PTX holds the copy of {one.name} {side} the loop {len(found)} times, not once",
            )
            at += found
        sides.append(at)
    before, after = sides
    require(max(before) < body < min(after), "LLVM moved a copy of a variable past the loop")
    between = ptx[min(before) : max(after)]
    jumps = re.search(r"^(?!\$L__tmp)[\w$]+:|\bbra\b", between, re.MULTILINE)
    require(jumps is None, "LLVM put a jump between the copies of variables and the loop")


def _check_text(text: str, recipe: PtxRecipe, names: Names) -> None:
    def refuse(what: str) -> None:
        require(False, f"text of {recipe.name}: {what}")

    code = re.sub(r"//[^\n]*", "", text)
    for needed in recipe.requires:
        if needed not in code:
            refuse(f"holds no {needed}")
    labels = _LABEL.findall(code)
    for label in labels:
        if not label.startswith(names.label):
            refuse(f"label {label} does not start with {names.label}")
    for target in _BRANCH.findall(code):
        if target not in labels:
            refuse(f"branches to {target}, which is no label of the text")
    if leaving := _LEAVES.search(code):
        refuse(f"{leaving[0]} leaves the loop")
    if foreign := _TRITONS.search(code):
        refuse(f"{foreign[0]} is a register of Triton's")
    if directive := _DIRECTIVE.search(code):
        refuse(f"directive {directive[1]}; accepted are .reg and .pragma")
    if _SETMAXNREG in code:
        refuse(f"{_SETMAXNREG} changes what the kernel round the loop has")
    depth = 0
    for brace in re.findall(r"[{}]", code):
        depth += 1 if brace == "{" else -1
        if depth < 0:
            break
    if depth:
        refuse("braces do not match")
