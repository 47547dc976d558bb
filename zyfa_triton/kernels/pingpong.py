"""Decides which hand-scheduled loop takes the place of `attention_forward`'s tile loops.

It knows for which problems there is one, and hands the interface of `attention_loop` to the
generator in asm_overrides. It knows no instruction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any, Literal, cast, get_args, get_origin, get_type_hints

import asm_overrides
from asm_overrides.isa import parse_instruction
from asm_overrides.isa.registers import SGPR
from asm_overrides.passes.allocate import Budget
from asm_overrides.passes.hazards import Surroundings
from asm_overrides.passes.pipeline import Generated, Options, generate
from asm_overrides.passes.waits import Boundary
from asm_overrides.recipes.attention_fp8 import Interface, Parameters, build
from zyfa_triton import splice
from zyfa_triton.kernels.attention_loop import (
    HEAD_DIMS,
    INPUTS,
    LAYOUT,
    OUTPUTS,
    ROPE_INPUTS,
    TILE_M,
    TILE_N,
    WAVES,
    AttentionLoop,
)
from zyfa_triton.kernels.family import Config, Launch
from zyfa_triton.kernels.launch import complaint_of_tiles, launch_attention
from zyfa_triton.problem import Problem
from zyfa_triton.splice.gfx950.recipe import register_numbers
from zyfa_triton.splice.gfx950.text import AFTER, BEFORE

CONFIG: Mapping[str, Any] = {
    "BLOCK_M": TILE_M,
    "BLOCK_N": TILE_N,
    "num_warps": WAVES,
    "num_stages": 1,
    "waves_per_eu": 2,
}
"""The one configuration that the loop is written for."""

LARGEST_SPAN = 2**31
"""Bytes from the first to the last key of a head that the loop's 32-bit offsets reach."""

ALIGNMENT = 16
"""Bytes that a lane loads at once."""

_HEAD_DIMS = " and ".join(map(str, HEAD_DIMS))

_INPUT_NAMES = {
    "end": "end",
    "full_end": "full_end",
    "q_ptr": "q",
    "k_ptr": "k",
    "v_ptr": "v",
    "stride_q": "stride_qs",
    "stride_k": "stride_ks",
    "stride_v": "stride_vs",
    "scale_log2": "scale_log2",
    "row_first": "row_0",
    "seqlen_q": "seqlen_q",
    "seqlen_k": "seqlen_k",
    "q_rope_ptr": "q_rope",
    "k_rope_ptr": "k_rope",
    "stride_q_rope": "stride_qrs",
    "stride_k_rope": "stride_krs",
}
"""The generator's name of each scalar -> the kernel's."""


def interface() -> Interface:
    """Registers by the generator's names, as attention_loop prescribes them."""
    registers = {each.name: each.register for each in (*INPUTS, *ROPE_INPUTS)}
    inputs = {name: register_numbers(text)[0] - SGPR for name, text in registers.items()}
    outputs = {each.name: each.first for each in OUTPUTS}
    scalars = {ours: inputs[theirs] for ours, theirs in _INPUT_NAMES.items()}
    return Interface(**scalars, **outputs, thread=0)


_BUDGET = Budget(vectors=(range(10, 64), range(130, 256)), scalars=(range(57, 88),))
_BOUNDARY = Boundary(entry=False, exit=False)  # the splice waits on both sides
_SURROUNDINGS = Surroundings(
    before=tuple(map(parse_instruction, BEFORE)), after=tuple(map(parse_instruction, AFTER))
)


@dataclass(frozen=True, kw_only=True)
class PingPongLoop(AttentionLoop):
    """The generated two-wave ping-pong loop. Its settings: see attention_fp8.Parameters."""

    pack: Literal["perm", "op_sel"] = "perm"
    multiply_add: Literal["plain", "packed"] = "plain"
    row_sum: Literal["sparse", "dense"] = "sparse"
    # fewer scalar registers than the interface leaves free: the kernel around the loop keeps many
    clobbers: tuple[str, ...] = ("v[10:63]", "v[130:255]", "s[56:87]")
    lds_bytes: int = field(init=False)
    fp8_casts_bounded: bool = True  # the exact mode's P is at most 256, see the numerics contract

    def __post_init__(self) -> None:
        object.__setattr__(self, "lds_bytes", self.generated("").report.lds_bytes)
        super().__post_init__()

    @property
    def parameters(self) -> Parameters:
        """What the generator is asked for."""
        return Parameters(
            headdim=self.headdim,
            causal=self.is_causal,
            p_mode=cast(Literal["lean", "exact"], self.p_mode),
            pack=self.pack,
            multiply_add=self.multiply_add,
            row_sum=self.row_sum,
        )

    def generated(self, label: str) -> Generated:
        """Text, program and report; every label starts with `label`."""
        return _generated(self.parameters, label)

    def text(self, label: str, layout: splice.MatrixLayout) -> str:
        """See LoopRecipe."""
        if layout != LAYOUT:
            raise splice.SpliceError(f"the loop is written for {LAYOUT}, Triton chose {layout}")
        return self.generated(label).text

    @property
    def vgprs(self) -> int:
        """Vector registers of the kernel around it, which LLVM counts from these lists."""
        named = [*self.clobbers, *(name for each in self.outputs for name in each.registers)]
        return 1 + max(id for name in named for id in register_numbers(name) if id < SGPR)

    def sources(self) -> tuple[Path, ...]:
        """The whole generator: everything in asm_overrides that may decide the text."""
        folder = Path(asm_overrides.__file__).parent
        generator = [*(folder / "isa").glob("*.py"), *(folder / "passes").glob("*.py")]
        generator += [*(folder / "recipes").rglob("*.py"), folder / "program.py"]
        generator += (folder / "emulator" / "hazards").glob("*.py")
        return tuple(sorted([*generator, *super().sources()]))


def settings() -> dict[str, tuple[str, ...]]:
    """What a loop of a given kind leaves open: accepted values by field, the default first."""
    hints = get_type_hints(PingPongLoop)
    found = {}
    for each in fields(PingPongLoop):
        if get_origin(hints[each.name]) is Literal:
            accepted = (each.default, *get_args(hints[each.name]))
            found[each.name] = tuple(dict.fromkeys(map(str, accepted)))
    return found


@cache
def _generated(parameters: Parameters, label: str) -> Generated:
    options = Options(
        budget=_BUDGET, boundary=_BOUNDARY, surroundings=_SURROUNDINGS, label_prefix=label or ".L"
    )
    return generate(build(parameters, interface()), options)


def misfit(problem: Problem, arguments: Mapping[str, Any]) -> str:
    """Why the loop does not serve a call; "" if it does.

    Args:
        arguments: run-time arguments of the launch, whose strides and lengths are looked at.
    """
    return _misfit_of_problem(problem) or misfit_of_strides(arguments)


def _misfit_of_problem(problem: Problem) -> str:
    return misfit_of_kind(
        is_fp8=problem.is_fp8,
        headdim=problem.headdim,
        p_mode=problem.p_mode,
        block_scale=problem.block_scale,
    )


def misfit_of_kind(*, is_fp8: bool, headdim: int, p_mode: str, block_scale: bool) -> str:
    """Why the loop does not serve a kind of problem; "" if it does."""
    for fits, reason in (
        (is_fp8, "it takes e4m3 inputs"),
        (headdim in HEAD_DIMS, f"it is written for head dims {_HEAD_DIMS}, not {headdim}"),
        (p_mode in ("lean", "exact"), f"it has no p_mode {p_mode!r}"),
        (block_scale, "it needs block_scale"),
    ):
        if not fits:
            return reason
    return ""


def misfit_of_strides(arguments: Mapping[str, Any]) -> str:
    """Why the loop does not reach these tensors; "" if it does."""
    seqlen_k = arguments["seqlen_k"]
    tensors = [("k", "k", seqlen_k), ("v", "v", seqlen_k), ("q", "q", 0)]
    if arguments["k_rope_ptr"] is not None:
        tensors += [("k_rope", "kr", seqlen_k), ("q_rope", "qr", 0)]
    for name, short, rows in tensors:
        steps = [arguments[f"stride_{short}{axis}"] for axis in "bsh"]
        if any(number % ALIGNMENT for number in (arguments[f"{name}_ptr"].data_ptr(), *steps)):
            return f"{name}'s rows do not all start at multiples of {ALIGNMENT} bytes"
        if (rows + TILE_M) * arguments[f"stride_{short}s"] >= LARGEST_SPAN:
            return f"{name} spans {LARGEST_SPAN} bytes or more along the sequence"
    return ""


def loop_of(p_mode: str, *, is_causal: bool, headdim: int = 128, pack: str = "perm") -> str:
    """The LOOP constexpr for a kind of problem that fits. Installs the splice's stage hook.

    pack: how Lean codes are put together, see attention_fp8.Parameters; other modes have none.
    """
    pack = pack if p_mode == "lean" else "perm"
    return splice.use(_recipe_of(p_mode, is_causal, headdim, pack))


@cache  # the object, which reads its sources once; its registration depends on the environment
def _recipe_of(p_mode: str, is_causal: bool, headdim: int, pack: str) -> PingPongLoop:
    parts = ["pingpong_fp8", p_mode, "causal" if is_causal else "full"]
    if headdim != HEAD_DIMS[0]:
        parts.insert(1, f"d{headdim}")
    if pack != "perm":
        parts.append(pack)
    return PingPongLoop(
        name="_".join(parts),
        p_mode=p_mode,
        is_causal=is_causal,
        headdim=headdim,
        pack=cast(Literal["perm", "op_sel"], pack),
    )


class PingPongFamily:
    """`attention_forward` with the generated loop in place of its own."""

    name = "pingpong"
    target: str | None = "gfx950"
    backends: tuple[str, ...] | None = ("device", "emulated")
    nature = "machine code"
    reads_parts = True

    def misfit(self, problem: Problem, arguments: Mapping[str, Any]) -> str:
        """See Family."""
        return misfit(problem, arguments)

    def configurations(self, problem: Problem) -> list[Config]:
        """See Family."""
        return [dict(CONFIG)]

    def complaint(self, config: Mapping[str, Any], problem: Problem) -> str | None:
        """See Family."""
        unfit = _misfit_of_problem(problem)
        if unfit:
            return unfit
        asked = {name: config.get(name) for name in CONFIG}
        if asked != CONFIG:
            return f"the ping-pong loop has {dict(CONFIG)}, not {asked}"
        return complaint_of_tiles(config, block_scale=problem.block_scale)

    def constants(
        self, *, headdim: int, p_mode: str, is_causal: bool, settings: Mapping[str, str]
    ) -> dict[str, Any]:
        """LOOP, and causal tiles with heads fastest (docs/cycle-model.md)."""
        loop = loop_of(p_mode, is_causal=is_causal, headdim=headdim, **settings)
        return {"LOOP": loop, "HEADS_FASTEST": is_causal}

    def launch(
        self,
        launch: Launch,
        problem: Problem,
        arguments: Mapping[str, Any],
        config: Mapping[str, Any],
    ) -> None:
        """See Family."""
        launch_attention(launch, problem, arguments, config)
