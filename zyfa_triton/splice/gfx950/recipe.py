"""Decides what must be known of a gfx950 loop that takes the place of Triton's: `LoopRecipe`."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType
from typing import ClassVar

from asm_overrides.isa import registers
from zyfa_triton.splice.gfx950.layout import MatrixLayout
from zyfa_triton.splice.recipe import Recipe

# What a recipe's text may change besides its registers, if it names scalar registers to keep the
# old value in: registers needed, how to save, how to restore.
STATES: Mapping[str, tuple[int, str, str]] = MappingProxyType(
    {
        "m0": (1, "s_mov_b32 {0}, m0", "s_mov_b32 m0, {0}"),
        "exec": (2, "s_mov_b64 {0}, exec", "s_mov_b64 exec, {0}"),
        # MODE.FP16_OVFL: conversions to FP8 saturate instead of giving NaN
        "fp8_saturation": (
            1,
            "s_getreg_b32 {0}, hwreg(HW_REG_MODE, 23, 1)",
            "s_setreg_b32 hwreg(HW_REG_MODE, 23, 1), {0}",
        ),
    }
)
_KINDS = {"i32": 1, "f32": 1, "i64": 2, "pointer": 2}  # registers of an input
_REGISTERS = re.compile(r"([vs])(?:(\d+)|\[(\d+):(\d+)\])")
_STACK_POINTER = registers.register_id("s", 32)  # LLVM only warns, on stderr, when it is clobbered


@dataclass(frozen=True)
class Input:
    """A scalar that the loop finds in a fixed register and must not write.

    register: "s24", or "s[20:21]" for a pointer or an i64. kind: i32, i64, f32 or pointer.
    """

    name: str
    register: str
    kind: str = "i32"


@dataclass(frozen=True)
class Output:
    """A float32 loop result that the loop leaves in consecutive vector registers of each lane.

    first, count: the registers. shape: (rows, columns) of a matrix in the MFMA layout, or (rows,)
    of a vector with one value a row. initial: what Triton's loop starts it from; the loop written
    by hand has to do so itself.
    `MatrixLayout.coordinates` says which element a register holds.
    """

    name: str
    first: int
    count: int
    shape: tuple[int, ...]
    initial: float

    @property
    def registers(self) -> tuple[str, ...]:
        return tuple(f"v{self.first + index}" for index in range(self.count))


@dataclass(frozen=True, kw_only=True)
class LoopRecipe(Recipe):
    """A loop that can take the place of Triton's: its interface as fields, its text by `text`.

    Subclass it, give the fields values and write `text`.

    Attributes:
        inputs: the loop's upper bound (i32), then the operands of `marked_bound`, in order.
        outputs: the loop's results in the order of the kernel's loop-carried variables.
        clobbers: every further register that the text writes: "v5", "v[10:63]", "s[34:95]".
            vcc and scc are always clobbered.
        lds_bytes: LDS that the loop uses, from address 0. A kernel that keeps something in LDS
            across the loop is refused then.
        operations: `tt.dot_scaled` counts as `tt.dot`. The loop must start from 0.
        saves: state that the text changes -> scalar registers (from clobbers, not used by the
            text) that keep the old value: "m0", "exec" or "fp8_saturation".
        fp8_casts_bounded: the text converts to FP8 only what cannot exceed 448. A conversion
            beyond it is NaN unless saturation is on, and the instruction by which Triton
            switches it on leaves with the loop.
        thread_id: vector register that holds the thread's number in the workgroup; read only.
        options: no software pipeline, whose prologue would be left behind, and the one matrix
            instruction shape that `MatrixLayout.coordinates` knows.
    """

    target: ClassVar[str] = "gfx950"

    inputs: tuple[Input, ...]
    outputs: tuple[Output, ...]
    clobbers: tuple[str, ...]
    lds_bytes: int
    saves: Mapping[str, str] = field(default_factory=dict)
    fp8_casts_bounded: bool = False
    thread_id: str = "v0"
    options: Mapping[str, int] = field(
        default_factory=lambda: {"num_stages": 1, "matrix_instr_nonkdim": 32}
    )

    @abstractmethod
    def text(self, label: str, layout: MatrixLayout) -> str:
        """Assembly of the loop, one instruction a line; comments start with ";".

        The text begins with all counters waited for and all waves past a barrier, EXEC all ones,
        and may end with anything in flight: both ends are padded by the splice.

        Args:
            label: every label in the text starts with it.
            layout: what Triton chose. Raise `SpliceError` for one that the loop does not serve.
        """

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_interface(self)


@cache
def register_numbers(text: str) -> tuple[int, ...]:
    """Register ids (`asm_overrides.isa.registers`) of "v5" or "s[34:95]".

    Raises:
        ValueError: not a vector or scalar register, or a range that no register file has.
    """
    match = _REGISTERS.fullmatch(text)
    if match is None:
        raise ValueError(
            f"register {text!r}; accepted are v0 to v255, s0 to s101 and ranges such as v[10:63]"
        )
    low = int(match[2] or match[3])
    high = int(match[4] or low)
    if high < low:
        raise ValueError(f"register range {text} runs backwards")
    first = registers.register_id(match[1], low)
    registers.register_id(match[1], high)
    return tuple(range(first, first + high - low + 1))


def _check_interface(recipe: LoopRecipe) -> None:
    """Everything that can be wrong whatever the kernel: raises ValueError naming the field."""

    wrong = recipe.wrong
    if not recipe.inputs or recipe.inputs[0].kind != "i32":
        raise wrong("inputs", "the first is the loop's bound and must be an i32")
    taken: dict[int, str] = {}

    def take(part: str, name: str, text: str, file: str, count: int | None = None) -> None:
        try:
            numbers = register_numbers(text)
        except ValueError as error:
            raise wrong(part, f"{name}: {error}") from None
        if not text.startswith(file):
            raise wrong(part, f"{name}: {text} is not a {file} register")
        if count is not None and len(numbers) != count:
            raise wrong(part, f"{name}: {text} has {len(numbers)} registers, {count} are needed")
        for number in numbers:
            if number == _STACK_POINTER:
                raise wrong(part, f"{name}: s32 is LLVM's stack pointer")
            if number in taken:
                register = registers.register_name(number)
                raise wrong(part, f"{name}: {register} is also {taken[number]}")
            taken[number] = name

    for one in recipe.inputs:
        if one.kind not in _KINDS:
            raise wrong("inputs", f"{one.name}: kind {one.kind!r}; accepted are {list(_KINDS)}")
        take("inputs", one.name, one.register, "s", _KINDS[one.kind])
        if _KINDS[one.kind] == 2 and register_numbers(one.register)[0] % 2:
            raise wrong("inputs", f"{one.name}: {one.register} must start at an even register")
    take("thread_id", "thread id", recipe.thread_id, "v", 1)
    for result in recipe.outputs:
        last = result.first + result.count - 1
        take("outputs", result.name, f"v[{result.first}:{last}]", "v", result.count)
    for text in recipe.clobbers:
        take("clobbers", f"clobber {text}", text, text[:1])
    _check_saves(recipe)
    if recipe.lds_bytes < 0:
        raise wrong("lds_bytes", f"got {recipe.lds_bytes}; accepted are 0 and more")


def _check_saves(recipe: LoopRecipe) -> None:
    clobbered = {number for text in recipe.clobbers for number in register_numbers(text)}
    for state, text in recipe.saves.items():
        if state not in STATES:
            raise ValueError(
                f"recipe {recipe.name!r}: saves: {state!r}; accepted are {', '.join(STATES)}"
            )
        numbers = register_numbers(text)
        if len(numbers) != STATES[state][0] or not clobbered.issuperset(numbers):
            raise ValueError(
                f"recipe {recipe.name!r}: saves: {state} needs {STATES[state][0]} scalar "
                f"register(s) that are among the clobbers, got {text}"
            )
