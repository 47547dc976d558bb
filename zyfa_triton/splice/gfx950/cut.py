"""Decides where in Triton's GPU IR the marked loop is, and whether a recipe may replace it.

The loop bounded by the mark, with every earlier loop that feeds it, becomes one
`llvm.inline_asm` whose results are in the recipe's fixed registers. What the loop loaded and
stored to LDS is then dead; Triton's own passes remove it. It does not see machine code.
"""

from __future__ import annotations

import itertools
import re

from zyfa_triton.splice.errors import require
from zyfa_triton.splice.gfx950.layout import MatrixLayout, matrix_layout
from zyfa_triton.splice.gfx950.recipe import LoopRecipe, Output, register_numbers
from zyfa_triton.splice.gfx950.text import body_comment, single_registers
from zyfa_triton.splice.markers import (
    Mark,
    read_locations,
    read_mark,
    read_tensors,
    replace_value,
    scopes,
)
from zyfa_triton.splice.ttgir import SHARED_EFFECTS, For, constant, operations
from zyfa_triton.splice.ttgir import loops as every_loop

_GFX950 = 4  # version of its MFMA layouts
# What somebody outside the loop would notice if it did not happen.
_EFFECTS = re.compile(
    SHARED_EFFECTS
    + r"|(amdg|amdgpu)\.(buffer_store|buffer_atomic\w*|buffer_load_to_local|async\w*)"
)
_LDS = re.compile(r"^\s*(%[\w$.-]+) = ttg\.(?:local_alloc|memdesc_\w+)\b")
_TYPES = {"i32": "i32", "i64": "i64", "f32": "f32"}


def cut_loop(ttgir: str, recipe: LoopRecipe) -> tuple[str, MatrixLayout]:
    """Module text with the loop replaced, and the layout that the recipe's text is for.

    Raises:
        SpliceError: the marked loop is not what the recipe implements.
    """
    mark = read_mark(ttgir)
    named = [one.name for one in (*read_locations(ttgir), *read_tensors(ttgir))]
    require(not named, f"the kernel hands over {', '.join(named)}; gfx950 loops take scalars only")
    layout = matrix_layout(ttgir)
    require(
        layout.version == _GFX950, f"the MFMA layout has version {layout.version}, not gfx950's"
    )
    waves = re.search(r'"ttg\.num-warps" = (\d+)', ttgir)
    require(
        waves and int(waves[1]) == layout.waves[0] * layout.waves[1],
        f"the MFMA layout {layout.waves} does not use every wave once",
    )
    lines = ttgir.split("\n")
    chain = _marked_chain(lines, mark)
    _check_results(ttgir, chain, recipe, layout)
    _check_range(ttgir, chain, recipe)
    _check_operations(lines, chain, recipe)
    _check_escapes(lines, chain)
    _check_lds(lines, chain, recipe)
    asm = _inline_asm(mark, recipe, chain[-1].types)
    dropped = {number for loop in chain for number in range(loop.first, loop.last + 1)}
    last = chain[-1].first
    kept = [line for number, line in enumerate(lines[:last]) if number not in dropped]
    cut = kept + asm + lines[chain[-1].last + 1 :]
    scope_of = scopes(cut)
    for index in range(len(recipe.outputs)):
        result = chain[-1].result_name(index)
        replace_value(cut, scope_of, mark.scope, result, f"%splice_result{index}")
    return "\n".join(cut), layout


def _marked_chain(lines: list[str], mark: Mark) -> list[For]:
    """The marked loop, preceded by the loops that hand it their results one after the other."""
    loops = every_loop(lines)
    marked = [loop for loop in loops if loop.upper == mark.result]
    require(len(marked) == 1, f"{len(marked)} loops end at the marked bound, exactly one must")
    chain = marked
    while True:
        sources = {init.partition("#")[0] for init in chain[0].inits}
        before = [loop for loop in loops if loop.result in sources]
        if not before:
            break
        expected = tuple(before[0].result_name(index) for index in range(len(before[0].types)))
        require(
            chain[0].inits == expected,
            "the loop before the marked one does not hand over all its results in order",
        )
        chain = [before[0], *chain]
    used = sum(line.count(mark.result) for line in lines)
    require(used == 2, "the marked bound is used elsewhere than as the loop's bound")
    return chain


def _check_results(ttgir: str, chain: list[For], recipe: LoopRecipe, layout: MatrixLayout) -> None:
    types = [_result_type(output) for output in recipe.outputs]
    require(
        list(chain[-1].types) == types,
        f"the loop's results are {', '.join(chain[-1].types)}; "
        f"{recipe.name} gives {', '.join(types)}",
    )
    for output, init in zip(recipe.outputs, chain[0].inits, strict=True):
        needed = layout.registers(output.shape)
        require(
            needed == output.count,
            f"{output.name} needs {needed} registers, {recipe.name} gives {output.count}",
        )
        start = constant(ttgir, init)
        require(
            start == output.initial,
            f"{output.name} starts from {init} = {start}, {recipe.name} starts from "
            f"{output.initial}",
        )


def _result_type(output: Output) -> str:
    shape = "x".join(str(size) for size in output.shape)
    layout = "#mma" if len(output.shape) == 2 else "#ttg.slice<{dim = 1, parent = #mma}>"
    return f"tensor<{shape}xf32, {layout}>"


def _check_range(ttgir: str, chain: list[For], recipe: LoopRecipe) -> None:
    require(constant(ttgir, chain[0].lower) == 0, "the loop does not start from 0")
    for before, after in itertools.pairwise(chain):
        require(before.upper == after.lower, "a later loop does not start where the first ended")
    for loop in chain:
        step = constant(ttgir, loop.step)
        require(
            recipe.step in (None, step),
            f"the loop's step is {step}, {recipe.name} takes {recipe.step}",
        )


def _check_operations(lines: list[str], chain: list[For], recipe: LoopRecipe) -> None:
    inside = [line for loop in chain for line in lines[loop.first : loop.last]]
    require(
        not any("pure = false" in line for line in inside),
        "inline assembly with effects in the loop",
    )
    count = operations(inside)
    effects = sorted(name for name in count if _EFFECTS.fullmatch(name))
    require(not effects, f"the loop has effects of its own: {', '.join(effects)}")
    for name, expected in recipe.operations.items():
        require(
            count[name] == expected,
            f"the loop holds {count[name]} {name}, {recipe.name} stands for {expected}",
        )


def _check_escapes(lines: list[str], chain: list[For]) -> None:
    dropped = {number for loop in chain for number in range(loop.first, loop.last + 1)}
    for loop in chain[:-1]:
        pattern = re.compile(re.escape(loop.result) + r"(?:#\d+)?(?![\w$.-])")
        for number, line in enumerate(lines):
            require(
                number in dropped or not pattern.search(line),
                "a result of the earlier loop is used after it, not only by the marked loop",
            )


def _check_lds(lines: list[str], chain: list[For], recipe: LoopRecipe) -> None:
    """The loop's LDS begins at address 0: nothing that the kernel keeps there may be used later."""
    if not recipe.lds_bytes:
        return
    inside = {number for loop in chain for number in range(loop.first, loop.last + 1)}
    before = (
        _LDS.match(line)
        for number, line in enumerate(lines[: chain[-1].first])
        if number not in inside
    )
    kept = [match[1] for match in before if match]
    for line in lines[chain[-1].last + 1 :]:
        used = [name for name in kept if re.search(re.escape(name) + r"(?![\w$.-])", line)]
        require(
            not used or "ttg.local_dealloc" in line,
            f"{', '.join(used)} lies in LDS before the loop and is used after it",
        )


def _inline_asm(mark: Mark, recipe: LoopRecipe, types: tuple[str, ...]) -> list[str]:
    """IR lines that define %splice_result0.. by one inline assembly call."""
    require(
        len(mark.operands) == len(recipe.inputs),
        f"the mark passes {len(mark.operands)} values, {recipe.name} takes {len(recipe.inputs)}",
    )
    lines = ["%splice_thread = rocdl.workitem.id.x : i32"]
    operands, operand_types = [], []
    for index, (one, value, kind) in enumerate(
        zip(recipe.inputs, mark.operands, mark.types, strict=True)
    ):
        given = "pointer" if kind.startswith("!tt.ptr<") else _TYPES.get(kind, kind)
        require(
            given == one.kind,
            f"input {one.name} is {given} in the kernel, {recipe.name} takes {one.kind}",
        )
        if given == "pointer":
            address = f"%splice_address{index}"
            lines += [
                f"%splice_pointer{index} = builtin.unrealized_conversion_cast {value} : {kind} "
                "to !llvm.ptr<1>",
                f"{address} = llvm.ptrtoint %splice_pointer{index} : !llvm.ptr<1> to i64",
            ]
            value, kind = address, "i64"
        # There is no scalar float arithmetic, and not every load is scalar: LLVM may hold a uniform
        # value in a vector register, and that of Triton 3.6 ends the process over a copy from there
        # to a scalar register.
        uniform = f"%splice_uniform{index}"
        lines.append(f"{uniform} = rocdl.readfirstlane {value} : {kind}")
        operands.append(uniform)
        operand_types.append(kind)
    count = sum(output.count for output in recipe.outputs)
    lines.append(
        f'%splice_all = llvm.inline_asm has_side_effects "{_echo(recipe)}", '
        f'"{",".join(constraints(recipe))}" {", ".join([*operands, "%splice_thread"])} : '
        f"({', '.join([*operand_types, 'i32'])}) -> {_struct(count)}"
    )
    base = 0
    for index, (output, kind) in enumerate(zip(recipe.outputs, types, strict=True)):
        lines += _repack(index, base, output.count, count, kind)
        base += output.count
    return lines


def constraints(recipe: LoopRecipe) -> list[str]:
    """Constraints of the inline assembly: outputs, inputs, then clobbers *one by one*.

    LLVM ignores a clobbered range that is wider than any register class, without a word.
    """
    clobbers = sorted(number for text in recipe.clobbers for number in register_numbers(text))
    return [
        *(f"={{{name}}}" for output in recipe.outputs for name in output.registers),
        *(f"{{{one.register}}}" for one in recipe.inputs),
        f"{{{recipe.thread_id}}}",
        *(f"~{{{name}}}" for name in single_registers(clobbers)),
        *("~{vcc}", "~{scc}", "~{memory}"),
    ]


def _echo(recipe: LoopRecipe) -> str:
    """Comment through which the assembly says which registers LLVM really took."""
    count = sum(output.count for output in recipe.outputs)
    outputs = " ".join(f"${index}" for index in range(count))
    inputs = " ".join(f"${count + index}" for index in range(len(recipe.inputs) + 1))
    return f"{body_comment(recipe)} outputs {outputs} inputs {inputs} end"


def _struct(count: int) -> str:
    return f"!llvm.struct<({', '.join(['f32'] * count)})>"


def _repack(index: int, base: int, count: int, total: int, kind: str) -> list[str]:
    """Collect registers base.. of the call's results into the tensor %splice_result{index}."""
    packed = f"%splice_pack{index}_0"
    lines = [f"{packed} = llvm.mlir.undef : {_struct(count)}"]
    for part in range(count):
        value, after = f"%splice_value{index}_{part}", f"%splice_pack{index}_{part + 1}"
        lines += [
            f"{value} = llvm.extractvalue %splice_all[{base + part}] : {_struct(total)}",
            f"{after} = llvm.insertvalue {value}, {packed}[{part}] : {_struct(count)}",
        ]
        packed = after
    lines.append(
        f"%splice_result{index} = builtin.unrealized_conversion_cast {packed} : "
        f"{_struct(count)} to {kind}"
    )
    return lines
