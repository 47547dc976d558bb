"""Which generated loop takes the place of the Gluon kernel's loop over blocks that need no mask.

It hands what the kernel carries to the generator in asm_overrides. It knows no instruction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal, cast

import asm_overrides
from asm_overrides.recipes.attention_sm90 import (
    Bfloat16Interface,
    Bfloat16Parameters,
    Interface,
    Parameters,
    build,
    build_bfloat16,
)
from zyfa_triton import splice
from zyfa_triton.kernels.hopper.values import BEHIND
from zyfa_triton.splice import Carried, Names, PtxInput, PtxRecipe, PtxTensor

BLOCK_N = 128
_LANE_OUTPUTS = 64  # registers of a lane for 64 rows and 128 columns
_SLOTS = ("k_slot", "k_phase", "v_slot", "v_phase")
_BARRIERS = ("k_full", "v_full", "used")
_SPILLED = 256  # bytes: some words a tile, outside the generated loop


@dataclass(frozen=True, kw_only=True)
class _HopperLoop(PtxRecipe):
    """The loop of one computing warpgroup. headdim, stages: see attention_sm90.Parameters.

    overlap: the kernel's OVERLAP, which decides whether acc_o is referred to row_max where the loop
    begins.
    """

    headdim: int
    stages: int
    overlap: bool
    carried: tuple[Carried, ...] = field(init=False)
    memory: tuple[str, ...] = field(init=False)
    operations: Mapping[str, int] = field(init=False)
    step: int | None = 1
    requires: tuple[str, ...] = ("wgmma.mma_async",)
    maximum_spill_bytes: int = _SPILLED

    @property
    def has_rest(self) -> bool:
        """Whether the head dim has a second part."""
        return self.headdim > 128

    def common(self, names: Names) -> dict[str, Any]:
        """What either loop is handed, by attention_sm90.Handed's names."""
        carried, memory = names.carried, names.memory
        scalars = {name: carried[name][0] for name in _SLOTS}
        tensors = {name: carried[name] for name in ("p", "acc_o", "row_max", "alpha")}
        rings = {name: memory[name] for name in ("k_first", "values", *_BARRIERS)}
        return {
            "first": names.lower,
            "last": names.upper,
            "multiplier": names.inputs["multiplier"],
            "k_rest": memory.get("k_rest"),
            **scalars,
            **tensors,
            **rings,
        }

    def sources(self) -> tuple[Path, ...]:
        """The whole generator: everything in asm_overrides that may decide the text."""
        folder = Path(asm_overrides.__file__).parent
        generator = [*(folder / "ptx").glob("*.py"), *(folder / "recipes").rglob("*.py")]
        return tuple(sorted([*generator, *super().sources()]))


@dataclass(frozen=True, kw_only=True)
class HopperLoop(_HopperLoop):
    """The loop on e4m3. p_mode: see attention_sm90.Parameters."""

    p_mode: str
    inputs: tuple[PtxInput, ...] = (PtxInput("multiplier", "f32"), PtxInput("scale_log2", "f32"))
    tensors: tuple[PtxTensor, ...] = field(init=False)

    def __post_init__(self) -> None:
        registers, element = (32, "f16") if self.p_mode == "lean" else (64, "f32")
        carried = (
            Carried("alpha", 2, "f32", (64,)),
            Carried("p", registers, element, (64, BLOCK_N)),
            *(Carried(name, 1, "i32") for name in _SLOTS),
            Carried("acc_o", _LANE_OUTPUTS, "f32", (64, 128)),
            Carried("acc_l", 4, "f32", (64, 8)),
            Carried("row_max", 2, "f32", (64,)),
        )
        rest = ("k_rest",) if self.has_rest else ()
        apart = () if BEHIND.value else ("ones",)
        q_rest = (PtxTensor("q_rest", 8, "f8E4M3FN", (64, 64)),) if self.has_rest else ()
        q = (PtxTensor("q_first", 16, "f8E4M3FN", (64, 128)), *q_rest)
        object.__setattr__(self, "carried", carried)
        object.__setattr__(self, "memory", ("k_first", *rest, "values", *apart, *_BARRIERS))
        object.__setattr__(self, "tensors", q)
        object.__setattr__(self, "operations", _operations(3 + self.has_rest, self.cluster))
        super().__post_init__()

    def text(self, names: Names) -> str:
        """See PtxRecipe."""
        parameters = Parameters(
            headdim=self.headdim,
            p_mode=cast(Literal["lean", "exact"], self.p_mode),
            stages=self.stages,
            ones="behind" if BEHIND.value else "apart",
            referred=self.overlap,
            cluster=self.cluster,
        )
        interface = Interface(
            **self.common(names),
            scale_log2=names.inputs["scale_log2"],
            q=[*names.tensors["q_first"], *names.tensors.get("q_rest", ())],
            ones=names.memory.get("ones"),
            acc_l=names.carried["acc_l"],
        )
        return build(parameters, interface, names.label)


@dataclass(frozen=True, kw_only=True)
class HopperBfloat16Loop(_HopperLoop):
    """The loop on bfloat16."""

    inputs: tuple[PtxInput, ...] = (PtxInput("multiplier", "f32"), PtxInput("warpgroup"))

    def __post_init__(self) -> None:
        if self.cluster != 1:
            raise self.wrong("cluster", f"got {self.cluster}; accepted is 1 with bfloat16")
        carried = (
            Carried("alpha", 2, "f32", (64,)),
            Carried("p", 32, "bf16", (64, BLOCK_N)),
            Carried("block_sum", 2, "f32", (64,)),
            *(Carried(name, 1, "i32") for name in _SLOTS),
            Carried("acc_o", _LANE_OUTPUTS, "f32", (64, 128)),
            Carried("row_sum", 2, "f32", (64,)),
            Carried("row_max", 2, "f32", (64,)),
        )
        parts = ("first", "rest") if self.has_rest else ("first",)
        keys, queries = ([f"{name}_{part}" for part in parts] for name in "kq")
        object.__setattr__(self, "carried", carried)
        object.__setattr__(self, "memory", (*keys, "values", *queries, *_BARRIERS))
        object.__setattr__(self, "operations", _operations(2 + self.has_rest, self.cluster))
        super().__post_init__()

    def text(self, names: Names) -> str:
        """See PtxRecipe."""
        parameters = Bfloat16Parameters(
            headdim=self.headdim, stages=self.stages, referred=self.overlap
        )
        interface = Bfloat16Interface(
            **self.common(names),
            q_first=names.memory["q_first"],
            q_rest=names.memory.get("q_rest"),
            warpgroup=names.inputs["warpgroup"],
            row_sum=names.carried["row_sum"],
            block_sum=names.carried["block_sum"],
        )
        return build_bfloat16(parameters, interface, names.label)


def _operations(products: int, cluster: int) -> dict[str, int]:
    """What tells the kernel's loop from others: its waits, arrivals, products, inline PTX."""
    return {
        "ttng.wait_barrier": 2,
        "ttng.arrive_barrier": cluster,
        "ttng.warp_group_dot": products,
        "tt.elementwise_inline_asm": 4 + cluster,  # each arrival at the other's is marked
    }


@cache  # the object, which reads its sources once; its registration depends on the environment
def _recipe_of(
    headdim: int, p_mode: str, stages: int, overlap: bool, is_fp8: bool, cluster: int
) -> _HopperLoop:
    late = ("" if cluster == 1 else f"_c{cluster}") + ("" if overlap else "_late")
    common: dict[str, Any] = {
        "headdim": headdim, "stages": stages, "overlap": overlap, "cluster": cluster
    }  # fmt: skip
    if not is_fp8:
        return HopperBfloat16Loop(name=f"hopper_bf16_d{headdim}_s{stages}{late}", **common)
    name = f"hopper_fp8_d{headdim}_{p_mode}_s{stages}{late}"
    return HopperLoop(name=name, p_mode=p_mode, **common)


def loop_of(
    headdim: int, p_mode: str, stages: int, overlap: bool, is_fp8: bool, cluster: int = 1
) -> str:
    """The LOOP constexpr for a kind of problem. Installs the splice's stage hook."""
    return splice.use(_recipe_of(headdim, p_mode, stages, overlap, is_fp8, cluster))
