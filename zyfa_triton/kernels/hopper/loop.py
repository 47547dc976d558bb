"""Which generated loop takes the place of the Gluon kernel's loop over blocks that need no mask.

It hands what the kernel carries to the generator in asm_overrides. It knows no instruction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Literal, cast

import asm_overrides
from asm_overrides.recipes.attention_sm90 import Interface, Parameters, build
from zyfa_triton import splice
from zyfa_triton.kernels.hopper.values import BEHIND
from zyfa_triton.splice import Carried, Names, PtxInput, PtxRecipe, PtxTensor

BLOCK_N = 128
_LANE_OUTPUTS = 64  # registers of a lane for 64 rows and 128 columns
_BARRIERS = ("k_full", "v_full", "used")
_SPILLED = 96  # bytes: some words a tile, outside the loops


@dataclass(frozen=True, kw_only=True)
class HopperLoop(PtxRecipe):
    """The loop of one computing warpgroup. headdim, p_mode, stages: see attention_sm90.Parameters.

    overlap: the kernel's OVERLAP, which decides whether acc_o is referred to m_i where the loop
    begins.
    """

    headdim: int
    p_mode: str
    stages: int
    overlap: bool
    inputs: tuple[PtxInput, ...] = (PtxInput("multiplier", "f32"), PtxInput("scale_log2", "f32"))
    carried: tuple[Carried, ...] = field(init=False)
    memory: tuple[str, ...] = field(init=False)
    tensors: tuple[PtxTensor, ...] = field(init=False)
    operations: Mapping[str, int] = field(init=False)
    step: int | None = 1
    requires: tuple[str, ...] = ("wgmma.mma_async",)
    maximum_spill_bytes: int = _SPILLED

    def __post_init__(self) -> None:
        is_lean = self.p_mode == "lean"
        registers, element = (32, "f16") if is_lean else (64, "f32")
        slots = (Carried(name, 1, "i32") for name in ("k_slot", "k_phase", "v_slot", "v_phase"))
        carried = (
            Carried("alpha", 2, "f32", (64,)),
            Carried("p", registers, element, (64, BLOCK_N)),
            *slots,
            Carried("acc_o", _LANE_OUTPUTS, "f32", (64, 128)),
            Carried("acc_l", 4, "f32", (64, 8)),
            Carried("row_max", 2, "f32", (64,)),
        )
        has_rest = self.headdim > 128
        rest = ("k_rest",) if has_rest else ()
        apart = () if BEHIND.value else ("ones",)
        object.__setattr__(self, "carried", carried)
        object.__setattr__(self, "memory", ("k_first", *rest, "values", *apart, *_BARRIERS))
        q_rest = (PtxTensor("q_rest", 8, "f8E4M3FN", (64, 64)),) if has_rest else ()
        object.__setattr__(
            self, "tensors", (PtxTensor("q_first", 16, "f8E4M3FN", (64, 128)), *q_rest)
        )
        object.__setattr__(self, "operations", _operations(has_rest))
        super().__post_init__()

    def text(self, names: Names) -> str:
        """See PtxRecipe."""
        parameters = Parameters(
            headdim=self.headdim,
            p_mode=cast(Literal["lean", "exact"], self.p_mode),
            stages=self.stages,
            ones="behind" if BEHIND.value else "apart",
            referred=self.overlap,
        )
        carried, memory = names.carried, names.memory
        interface = Interface(
            first=names.lower,
            last=names.upper,
            multiplier=names.inputs["multiplier"],
            scale_log2=names.inputs["scale_log2"],
            q=[*names.tensors["q_first"], *names.tensors.get("q_rest", ())],
            k_rest=memory.get("k_rest"),
            ones=memory.get("ones"),
            k_first=memory["k_first"],
            values=memory["values"],
            k_full=memory["k_full"],
            v_full=memory["v_full"],
            used=memory["used"],
            k_slot=carried["k_slot"][0],
            k_phase=carried["k_phase"][0],
            v_slot=carried["v_slot"][0],
            v_phase=carried["v_phase"][0],
            p=carried["p"],
            acc_o=carried["acc_o"],
            acc_l=carried["acc_l"],
            row_max=carried["row_max"],
            alpha=carried["alpha"],
        )
        return build(parameters, interface, names.label)

    def sources(self) -> tuple[Path, ...]:
        """The whole generator: everything in asm_overrides that may decide the text."""
        folder = Path(asm_overrides.__file__).parent
        generator = [*(folder / "ptx").glob("*.py"), *(folder / "recipes").rglob("*.py")]
        return tuple(sorted([*generator, *super().sources()]))


def _operations(has_rest: bool) -> dict[str, int]:
    """What tells the kernel's loop from others: its waits, arrivals and matrix products."""
    return {
        "ttng.wait_barrier": 2,
        "ttng.arrive_barrier": 1,
        "ttng.warp_group_dot": 3 + has_rest,
        "tt.elementwise_inline_asm": 5,
    }


@cache  # the object, which reads its sources once; its registration depends on the environment
def _recipe_of(headdim: int, p_mode: str, stages: int, overlap: bool) -> HopperLoop:
    name = f"hopper_fp8_d{headdim}_{p_mode}_s{stages}" + ("" if overlap else "_late")
    return HopperLoop(name=name, headdim=headdim, p_mode=p_mode, stages=stages, overlap=overlap)


def loop_of(headdim: int, p_mode: str, stages: int, overlap: bool) -> str:
    """The LOOP constexpr for a kind of problem. Installs the splice's stage hook."""
    return splice.use(_recipe_of(headdim, p_mode, stages, overlap))
