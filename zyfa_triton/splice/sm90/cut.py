"""Decides where in Triton's GPU IR the marked loops are, and whether a recipe may replace them.

Each becomes inline assembly that copies what the loop carries into named PTX registers, a comment
that stands for the recipe's text and names its inputs, and inline assembly that copies out again.
It does not see PTX.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from zyfa_triton.splice.errors import SpliceError, require
from zyfa_triton.splice.markers import (
    Mark,
    Named,
    read_locations,
    read_marks,
    read_tensors,
    replace_value,
    scopes,
)
from zyfa_triton.splice.sm90.layout import Layout, MmaLayout, mma_layouts, tensor_layout
from zyfa_triton.splice.sm90.recipe import ELEMENT_BITS, REGISTER_BITS, PtxRecipe, PtxTensor
from zyfa_triton.splice.ttgir import SHARED_EFFECTS, For, constant, loops, operations

BODY = "// @splice-body"
COPY_IN = "// @splice-in"
COPY_OUT = "// @splice-out"
_ASM = "tt.elementwise_inline_asm"
# What somebody outside the loop would notice if it did not happen, or what makes it wait.
_EFFECTS = re.compile(SHARED_EFFECTS + r"|ttng\.(?!warp_group_dot|fence)\w+|nvg\.\w+")
_TYPES = {"i32": "i32", "i64": "i64", "f32": "f32"}
_CONSTRAINTS = {"i32": "r", "f32": "f", "i64": "l", "pointer": "l"}
_MEMORY = re.compile(  # a fifth parameter is the shape of what it is a part of
    r"!ttg\.memdesc<((?:\d+x)+)[^<>,]+, #[\w.]+, #(?:ttg\.shared_memory|smem), mutable>"
)


@dataclass(frozen=True)
class Place:
    """One copy of the loop: its number, and the layouts of the tensors that it carries or reads."""

    number: int
    layouts: dict[str, Layout]

    def register(self, kind: str, name: str, index: int | None = None) -> str:
        """Name of a PTX register. kind: `c` tensor or carried, `i` input or bound, `m` memory."""
        return f"zy{self.number}{kind}_{name}" + ("" if index is None else f"_{index}")


def cut_loops(ttgir: str, recipe: PtxRecipe) -> tuple[str, list[Place]]:
    """Module text with every marked loop replaced, and what each copy's text is for.

    Raises:
        SpliceError: a marked loop is not what the recipe implements.
    """
    marks, locations, tensors = read_marks(ttgir), read_locations(ttgir), read_tensors(ttgir)
    require(marks, "no marked loop is left in Triton's GPU IR")
    layouts = mma_layouts(ttgir)
    lines = ttgir.split("\n")
    scope_of = scopes(lines)
    every_loop = loops(lines)
    found = [_marked_loop(lines, scope_of, every_loop, mark) for mark in marks]
    places, texts = [], []
    for number, (mark, loop) in enumerate(zip(marks, found, strict=True)):
        _check_step(lines, scope_of, mark, loop, recipe)
        _check_operations(lines, loop, recipe)
        memory = [_closest(locations, mark, recipe, "memory", name) for name in recipe.memory]
        read = [_closest(tensors, mark, recipe, "tensor", one.name) for one in recipe.tensors]
        place = Place(number, _layouts(loop, read, recipe, layouts))
        places.append(place)
        texts.append(_replacement(place, mark, loop, recipe, memory, read))
    replaced: list[str] = []
    for mark, loop, text, place in zip(marks, found, texts, places, strict=True):
        for index in range(len(recipe.carried)):
            new = _result(place, index)
            replace_value(lines, scope_of, mark.scope, loop.result_name(index), new)
        inside = range(loop.first, loop.last + 1)
        for line in (mark.line, *inside):
            lines[line] = ""
        lines[loop.first] = "\n".join(text)
    for named in (*locations, *tensors):
        for line in named.lines:
            lines[line] = ""
    replaced = [line for line in lines if line]
    return "\n".join(replaced) + "\n", places


def _marked_loop(
    lines: Sequence[str], scope_of: Sequence[int], every_loop: Sequence[For], mark: Mark
) -> For:
    marked = [
        loop
        for loop in every_loop
        if loop.upper == mark.result and scope_of[loop.first] == mark.scope
    ]
    require(len(marked) == 1, f"{len(marked)} loops end at the marked bound, exactly one must")
    name = re.compile(re.escape(mark.result) + r"(?![\w$.#-])")
    used = sum(
        len(name.findall(line))
        for line, scope in zip(lines, scope_of, strict=True)
        if scope == mark.scope
    )
    require(used == 2, "the marked bound is used elsewhere than as the loop's bound")
    return marked[0]


def _check_step(
    lines: Sequence[str], scope_of: Sequence[int], mark: Mark, loop: For, recipe: PtxRecipe
) -> None:
    inside = (line for line, scope in zip(lines, scope_of, strict=True) if scope == mark.scope)
    step = constant("\n".join(inside), loop.step)
    require(
        recipe.step in (None, step), f"the loop's step is {step}, {recipe.name} takes {recipe.step}"
    )


def _check_operations(lines: Sequence[str], loop: For, recipe: PtxRecipe) -> None:
    inside = lines[loop.first + 1 : loop.last]
    count = operations(inside)
    effects = {name for name in count if _EFFECTS.fullmatch(name)}
    if any(_ASM in line and "pure = false" in line for line in inside):
        effects.add(_ASM)
    unnamed = sorted(effects - set(recipe.operations))
    require(
        not unnamed,
        f"the loop has effects that {recipe.name} does not name among its operations: "
        + ", ".join(f"{count[name]} {name}" for name in unnamed),
    )
    for name, expected in recipe.operations.items():
        require(
            count[name] == expected,
            f"the loop holds {count[name]} {name}, {recipe.name} stands for {expected}",
        )


def _layouts(
    loop: For, read: Sequence[Named], recipe: PtxRecipe, layouts: dict[str, MmaLayout]
) -> dict[str, Layout]:
    """Layout of each tensor; types must be the recipe's."""
    given = ", ".join(loop.types)
    wanted = ", ".join(
        f"{one.name} {'x'.join(map(str, (*one.shape, one.element)))}" for one in recipe.carried
    )
    require(
        len(loop.types) == len(recipe.carried),
        f"the loop carries {len(loop.types)} values ({given}), {recipe.name} {len(recipe.carried)} "
        f"({wanted})",
    )
    found = {}
    for one, kind in zip(recipe.carried, loop.types, strict=True):
        try:
            if one.shape:
                found[one.name] = _layout(one, kind, recipe, layouts)
            else:
                require(
                    kind == one.element,
                    f"{one.name} is {kind} in the loop, {recipe.name} takes {one.element}",
                )
        except SpliceError as error:
            raise SpliceError(f"{error}; the loop carries {given}") from None
    for tensor, named in zip(recipe.tensors, read, strict=True):
        found[tensor.name] = _layout(tensor, named.type, recipe, layouts)
    return found


def _layout(one: PtxTensor, kind: str, recipe: PtxRecipe, layouts: dict[str, MmaLayout]) -> Layout:
    """Layout of a tensor whose type in the kernel is `kind`."""
    tensor = tensor_layout(kind, layouts)
    require(
        tensor is not None and tensor[:2] == (one.shape, one.element),
        f"{one.name} is {kind} in the loop, {recipe.name} takes {one.element} {one.shape} in a "
        "matrix instruction's layout",
    )
    assert tensor is not None
    bits = tensor[2].elements(one.shape) * ELEMENT_BITS[one.element]
    require(
        bits == one.registers * REGISTER_BITS,
        f"{one.name} needs {bits / REGISTER_BITS:g} registers, {recipe.name} gives {one.registers}",
    )
    return tensor[2]


def _closest(given: Sequence[Named], mark: Mark, recipe: PtxRecipe, what: str, name: str) -> Named:
    """The closest above the mark that has the name."""
    above = [
        one
        for one in given
        if (one.name, one.loop, one.scope) == (name, mark.loop, mark.scope)
        and one.lines[-1] < mark.line
    ]
    require(above, f"{recipe.name} needs {what} {name}, which is named nowhere above the loop")
    if what == "memory":
        require(
            _MEMORY.fullmatch(above[-1].type),
            f"memory {name} is {above[-1].type}; accepted are whole allocations",
        )
    return above[-1]


def _replacement(
    place: Place,
    mark: Mark,
    loop: For,
    recipe: PtxRecipe,
    memory: Sequence[Named],
    read: Sequence[Named],
) -> list[str]:
    """IR lines in place of a loop."""
    lines = []
    for index, one in enumerate(recipe.carried):
        lines.append(_copy(place, one, loop.inits[index], loop.types[index], f"in{index}", True))
    for index, (tensor, named) in enumerate(zip(recipe.tensors, read, strict=True)):
        lines.append(_copy(place, tensor, named.value, named.type, f"tensor{index}", True))
    lines += _body(place, mark, loop, recipe, memory)
    for index, one in enumerate(recipe.carried):
        name = _result(place, index).removeprefix("%")
        lines.append(_copy(place, one, loop.inits[index], loop.types[index], name, False))
    return lines


def _result(place: Place, index: int) -> str:
    return f"%splice{place.number}_out{index}"


def _copy(place: Place, one: PtxTensor, value: str, kind: str, result: str, goes_in: bool) -> str:
    """Inline assembly between a value's registers and the named ones.

    An operation on elements needs an operand and a result: going in, the result is written by
    nobody and used by nobody; going out, the operand only says the shape.
    """
    count = one.registers
    letter = "f" if one.element == "f32" else "r"
    moves = []
    for index in range(count):
        named = place.register("c", one.name, index)
        moves.append(
            f"mov.b32 {named}, ${count + index};" if goes_in else f"mov.b32 ${index}, {named};"
        )
    comment = f"{COPY_IN if goes_in else COPY_OUT} {place.number} {one.name}"
    constraints = ",".join([f"={letter}"] * count + [letter] * count)
    pack = count * REGISTER_BITS // ELEMENT_BITS[one.element]
    name = f"%splice{place.number}_{result}" if goes_in else f"%{result}"
    return (
        f'{name} = {_ASM} "{comment}\\0A{" ".join(moves)}" {{constraints = "{constraints}", '
        f"packed_element = {pack} : i32, pure = false}} {value} : {kind} -> {kind}"
    )


def _body(
    place: Place, mark: Mark, loop: For, recipe: PtxRecipe, memory: Sequence[Named]
) -> list[str]:
    """The comment that stands for the text; its operands are bounds, inputs, addresses."""
    given = list(zip(mark.operands[1:], mark.types[1:], strict=True))
    require(
        len(given) == len(recipe.inputs),
        f"the mark passes {len(given)} values, {recipe.name} takes {len(recipe.inputs)}",
    )
    operands = [(loop.lower, "i32", "r"), (mark.operands[0], "i32", "r")]
    for one, (value, kind) in zip(recipe.inputs, given, strict=True):
        name = "pointer" if kind.startswith("!tt.ptr<") else _TYPES.get(kind, kind)
        require(
            name == one.kind,
            f"input {one.name} is {name} in the kernel, {recipe.name} takes {one.kind}",
        )
        operands.append((value, kind, _CONSTRAINTS[one.kind]))
    lines = []
    for index, location in enumerate(memory):
        base = f"%splice{place.number}_memory{index}"
        sizes = _MEMORY.fullmatch(location.type)
        assert sizes is not None
        struct = f"!llvm.struct<(ptr<3>{', i32' * sizes[1].count('x')})>"
        lines += [
            f"{base}_parts = builtin.unrealized_conversion_cast {location.value} : {location.type} "
            f"to {struct}",
            f"{base}_pointer = llvm.extractvalue {base}_parts[0] : {struct}",
            f"{base} = llvm.ptrtoint {base}_pointer : !llvm.ptr<3> to i32",
        ]
        operands.append((base, "i32", "r"))
    constraints = ",".join(["=r", *(letter for _, _, letter in operands)])
    numbers = " ".join(f"${index + 1}" for index in range(len(operands)))
    lines.append(
        f'%splice{place.number}_body = {_ASM} "{BODY} {place.number} {numbers} end" '
        f'{{constraints = "{constraints}", packed_element = 1 : i32, pure = false}} '
        f"{', '.join(value for value, _, _ in operands)} : "
        f"{', '.join(kind for _, kind, _ in operands)} -> i32"
    )
    return lines
