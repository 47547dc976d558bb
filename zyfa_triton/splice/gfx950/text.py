"""Decides how a recipe's text is padded and which text may be put into a kernel.

The text is parsed instruction by instruction: it may touch nothing but the registers and the state
that the recipe declares. It does not judge what the text computes, nor its waits inside; that is
for `asm_overrides.check` and the emulator.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from asm_overrides.isa import Instruction, ParseError, Program, parse, registers
from asm_overrides.isa.operands import HardwareField, Label
from zyfa_triton.splice.errors import require
from zyfa_triton.splice.gfx950.layout import MatrixLayout
from zyfa_triton.splice.gfx950.recipe import STATES, LoopRecipe, register_numbers

# LLVM leaves loads in flight across inline assembly, and does not know what the loop leaves in
# flight: everything is waited for on both sides. The barriers keep one wave's LDS traffic of the
# kernel apart from another's of the loop. The nops cover what a result may still need: 8 states
# behind the kernel's VALU, 20 behind an FP8 matrix instruction of the loop.
BEFORE = ("s_waitcnt vmcnt(0) expcnt(0) lgkmcnt(0)", "s_barrier", "s_nop 7")
AFTER = ("s_waitcnt vmcnt(0) expcnt(0) lgkmcnt(0)", "s_barrier", "s_nop 15", "s_nop 7")
_FORBIDDEN = ("s_endpgm", "s_setpc_b64", "s_swappc_b64", "s_call_b64", "s_trap", "s_sethalt")
_FP8_CASTS = ("v_cvt_pk_fp8", "v_cvt_sr_fp8", "v_cvt_scalef32_pk_fp8", "v_cvt_scalef32_sr_fp8")


def body_comment(recipe: LoopRecipe) -> str:
    """Start of the comment that stands in for the text until LLVM has made assembly."""
    return f"; @splice-body {recipe.name}"


def single_registers(numbers: Iterable[int]) -> list[str]:
    """Assembler names of register numbers."""
    return [registers.register_name(number) for number in numbers]


def checked_text(recipe: LoopRecipe, label: str, layout: MatrixLayout) -> str:
    """The recipe's text between its paddings.

    Raises:
        SpliceError: it touches what the recipe does not declare, or is not gfx950 assembly.
    """
    body = recipe.text(label, layout).rstrip("\n")
    try:
        program = parse(body)
    except ParseError as error:
        require(False, f"text of {recipe.name}: {error}")
        raise
    _check_flow(program, recipe, label)
    access = _access(recipe)
    for instruction in program.instructions:
        _check_registers(instruction, recipe, access)
        _check_state(instruction, recipe)
    raises_priority = any(one.opcode == "s_setprio" for one in program.instructions)
    keep = [STATES[state][1].format(kept) for state, kept in recipe.saves.items()]
    restore = [STATES[state][2].format(kept) for state, kept in recipe.saves.items()]
    if raises_priority:
        restore.append("s_setprio 0")
    return "\n".join(
        (
            f"; splice {recipe.name}: begin",
            *_indented((*BEFORE, *keep)),
            body,
            *_indented((*restore, *AFTER)),
            f"; splice {recipe.name}: end",
        )
    )


def _indented(lines: Iterable[str]) -> list[str]:
    return [f"\t{line}" for line in lines]


def _refuse(recipe: LoopRecipe, instruction: Instruction, what: str) -> None:
    require(False, f"text of {recipe.name}, line {instruction.line}, {instruction.text!r}: {what}")


def _check_flow(program: Program, recipe: LoopRecipe, label: str) -> None:
    require(
        not [text for _, text in program.directives if not text.startswith((".p2align", ".loc"))],
        f"text of {recipe.name} holds directives",
    )
    require(
        all(name.startswith(label) for name in program.labels),
        f"text of {recipe.name}: a label does not start with {label}",
    )
    for instruction in program.instructions:
        if instruction.opcode in _FORBIDDEN:
            _refuse(recipe, instruction, "leaves the loop")
        if instruction.spec.port == "branch":
            targets = [one for one in instruction.operands if isinstance(one, Label)]
            if not targets or any(one.name not in program.labels for one in targets):
                _refuse(recipe, instruction, "branches to no label of the text")


@dataclass(frozen=True)
class _Access:
    """Register numbers by what the text may do with them."""

    inputs: frozenset[int]
    kept: frozenset[int]
    writable: frozenset[int]
    readable: frozenset[int]

    def why_not(self, number: int) -> str:
        if number in self.inputs:
            return "an input"
        if number in self.kept:
            return "which keeps saved state"
        if number in (registers.M0, *registers.EXEC):
            return "which is not among the recipe's saves"
        return "neither an output nor a declared clobber"


def _access(recipe: LoopRecipe) -> _Access:
    def numbers(names: Iterable[str]) -> frozenset[int]:
        return frozenset(number for name in names for number in register_numbers(name))

    inputs = numbers([*(one.register for one in recipe.inputs), recipe.thread_id])
    kept = numbers(recipe.saves.values())
    results = numbers(name for output in recipe.outputs for name in output.registers)
    writable = results | (numbers(recipe.clobbers) - kept)
    writable |= {*registers.VCC, registers.SCC, registers.MODE}  # MODE: see _check_state
    if "m0" in recipe.saves:
        writable |= {registers.M0}
    if "exec" in recipe.saves:
        writable |= registers.EXEC
    return _Access(inputs, kept, writable, writable | inputs | registers.EXEC)


def _check_registers(instruction: Instruction, recipe: LoopRecipe, access: _Access) -> None:
    for verb, outside in (
        ("writes", instruction.writes - access.writable),
        ("reads", instruction.reads - access.readable),
    ):
        if outside:
            number = min(outside)
            name = registers.register_name(number)
            _refuse(recipe, instruction, f"{verb} {name}, {access.why_not(number)}")


def _check_state(instruction: Instruction, recipe: LoopRecipe) -> None:
    saturates = "fp8_saturation" in recipe.saves
    if instruction.opcode.startswith("s_setreg"):
        field = next((one for one in instruction.operands if isinstance(one, HardwareField)), None)
        is_saturation = field is not None and (field.name, field.offset, field.width) == (
            "HW_REG_MODE", 23, 1,
        )  # fmt: skip
        if not (is_saturation and saturates):
            _refuse(recipe, instruction, "changes state that is not among the recipe's saves")
    if instruction.opcode.startswith(_FP8_CASTS) and not (saturates or recipe.fp8_casts_bounded):
        _refuse(
            recipe, instruction,
            "gives NaN above 448: save fp8_saturation and switch it on, or declare "
            "fp8_casts_bounded",
        )  # fmt: skip
