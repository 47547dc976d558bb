"""Decides what must be known of a PTX loop that takes the place of Triton's: `PtxRecipe`."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from zyfa_triton.splice.recipe import Recipe
from zyfa_triton.splice.sm90.layout import Layout

INPUT_BITS = {"i32": 32, "f32": 32, "i64": 64, "pointer": 64}
ELEMENT_BITS = {"i8": 8, "f8E4M3FN": 8, "f8E5M2": 8, "f16": 16, "bf16": 16, "i32": 32, "f32": 32}
REGISTER_BITS = 32
CLUSTERS = (1, 2)
_SCALARS = ("i32", "f32")
_IDENTIFIER = re.compile(r"[A-Za-z][A-Za-z0-9_]*")


@dataclass(frozen=True)
class PtxInput:
    """A scalar operand of the mark. kind: i32, i64, f32 or pointer (64 bits)."""

    name: str
    kind: str = "i32"


@dataclass(frozen=True)
class PtxTensor:
    """A tensor that the loop reads, in 32-bit PTX registers.

    registers: of a lane. element: type in Triton's IR: i32, f32, f16, bf16, i8, f8E4M3FN, f8E5M2;
    narrow ones are packed, `sm90.layout` says how. shape: (rows, columns) of a matrix in the
    layout of a matrix result or of a matrix instruction's first operand, (rows,) of a vector with
    one value a row of a result.
    """

    name: str
    registers: int
    element: str = "f32"
    shape: tuple[int, ...] = ()


@dataclass(frozen=True)
class Carried(PtxTensor):
    """A loop-carried variable: goes in and comes out in the same registers. shape: as for tensors,
    or () of a scalar."""


@dataclass(frozen=True)
class Names:
    """What a text may call by name; each of several copies of a loop has its own.

    Attributes:
        label: for labels and further registers; unique in the module.
        lower, upper: registers (.b32) with the loop's bounds.
        inputs: name -> register: .b32, .b64 for i64 and pointers.
        memory: name -> register (.b32) with the address in the window of shared memory.
        carried: name -> registers (.b32), in the order of the lane's elements.
        tensors: the same for those that are only read.
        layouts: name of a tensor, carried or not -> its layout.

    All of these may be written: they are copies. What stands in the carried registers at the end is
    the loop's result.
    """

    label: str
    lower: str
    upper: str
    inputs: Mapping[str, str]
    memory: Mapping[str, str]
    carried: Mapping[str, tuple[str, ...]]
    layouts: Mapping[str, Layout]
    tensors: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class PtxRecipe(Recipe):
    """A loop for sm_90a: its interface as fields, its text by `text`.

    Subclass it, give the fields values and write `text`. A kernel may hold the marked loop several
    times, as where a function that holds it is called twice: each copy is replaced.

    Attributes:
        operations: what has an effect outside of the loop must be named: barriers (`ttng.*`),
            stores, inline assembly that is not pure (`tt.elementwise_inline_asm`).
        inputs: the operands of `marked_bound`, in order; the bounds come by themselves.
        carried: the loop's variables in the order in which Triton carries them.
        memory: names given by `marker.located`.
        tensors: what `marker.handed` gives.
        requires: what must stand in the text, such as "wgmma.mma_async".
        maximum_registers: of a thread, for the kernel; None: what the hardware has.
        maximum_spill_bytes: of a thread, stored or loaded, for the kernel with the loop.
        cluster: workgroups of a cluster, 1 or 2; with 2 the kernel says by `marker.in_cluster` what
            they do for one another, and is nothing without that: there is no fallback.
    """

    target: ClassVar[str] = "sm90"

    inputs: tuple[PtxInput, ...] = ()
    carried: tuple[Carried, ...]
    memory: tuple[str, ...] = ()
    tensors: tuple[PtxTensor, ...] = ()
    requires: tuple[str, ...] = ()
    maximum_registers: int | None = None
    maximum_spill_bytes: int = 0
    cluster: int = 1

    @abstractmethod
    def text(self, names: Names) -> str:
        """PTX of the loop, one instruction a line; comments start with "//".

        It stands in a block of its own: what it declares is visible only there. All threads of the
        warps that run the kernel round it are there. Nothing is waited for at either end: what
        Triton's loop leaves in flight (an mbarrier's phase, a wgmma group) the text must leave in
        flight, and what it waited for the text must wait for.
        Raise `SpliceError` for a layout that the loop does not serve.
        """

    def __post_init__(self) -> None:
        super().__post_init__()
        seen: dict[str, str] = {}
        parts = {
            "inputs": [one.name for one in self.inputs],
            "carried": [one.name for one in self.carried],
            "memory": list(self.memory),
            "tensors": [one.name for one in self.tensors],
        }
        for part, names in parts.items():
            for name in names:
                if not _IDENTIFIER.fullmatch(name) or name in ("lower", "upper"):
                    raise self.wrong(
                        part,
                        f"{name!r}; accepted are identifiers other than lower and upper, which are "
                        "the loop's bounds",
                    )
                if name in seen:
                    raise self.wrong(part, f"{name} is also one of {seen[name]}")
                seen[name] = part
        if not self.carried:
            raise self.wrong("carried", "a loop without results has nothing to leave")
        for one in self.inputs:
            if one.kind not in INPUT_BITS:
                raise self.wrong(
                    "inputs", f"{one.name}: kind {one.kind!r}; accepted are {list(INPUT_BITS)}"
                )
        for each in (*self.carried, *self.tensors):
            part = seen[each.name]
            accepted = ELEMENT_BITS if each.shape else _SCALARS if part == "carried" else ()
            if each.element not in accepted or len(each.shape) > 2:
                raise self.wrong(
                    part,
                    f"{each.name}: {each.element!r} of shape {each.shape}; accepted are "
                    f"{list(accepted)}, of up to two dimensions",
                )
            if each.registers < 1 or (not each.shape and each.registers != 1):
                raise self.wrong(part, f"{each.name}: {each.registers} registers")
        if self.cluster not in CLUSTERS:
            raise self.wrong("cluster", f"got {self.cluster}; accepted are {list(CLUSTERS)}")
        for limit in ("maximum_registers", "maximum_spill_bytes"):
            value = getattr(self, limit)
            if value is not None and value < 0:
                raise self.wrong(limit, f"got {value}; accepted are 0 and more")
