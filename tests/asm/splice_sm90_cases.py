"""Decides which sm_90a kernels and recipes the tests of the splice share; it tests nothing.

The loop is the same everywhere: a matrix, its narrower companion, a value a row and a scalar are
carried, and a barrier is arrived at.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import triton
import triton.experimental.gluon.language as gl
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler.compiler import compile as triton_compile
from triton.experimental import gluon
from triton.experimental.gluon._runtime import GluonASTSource
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from zyfa_triton.splice import Carried, Names, PtxInput, PtxRecipe, PtxTensor
from zyfa_triton.splice.marker import handed, located, marked_bound

HOPPER = GPUTarget("cuda", 90, 32)


@gluon.jit
def _work(w: gl.constexpr, ring, barriers, out_ptr, blocks, scale, LOOP: gl.constexpr):
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16])
    acc = gl.full([64, 64], 0.0, gl.float32, LAYOUT)
    half = gl.full([64, 64], 1.0, gl.float16, LAYOUT)
    rows = gl.full([64], 0.0, gl.float32, gl.SliceLayout(1, LAYOUT))
    across = gl.arange(0, 64, gl.SliceLayout(0, LAYOUT))
    down = gl.arange(0, 64, gl.SliceLayout(1, LAYOUT))
    places = gl.expand_dims(down, 1) * 64 + gl.expand_dims(across, 0)
    bias = places.to(gl.float32)
    operand = ring.index(w).load(gl.DotOperandLayout(0, LAYOUT, 4))
    slot = 0
    end = blocks
    if LOOP != "":
        handed(LOOP, "bias", bias)
        handed(LOOP, "operand", operand)
        located(LOOP, "ring", ring)
        located(LOOP, "barriers", barriers)
        end = marked_bound(LOOP, blocks, (w, out_ptr, scale))
    for _ in range(1, end):
        acc = acc * scale + half.to(gl.float32) + bias
        half = half + slot.to(gl.float16)
        rows = rows + gl.max(acc, 1)
        slot += 1
        mbarrier.arrive(barriers.index(w))
    total = acc + half.to(gl.float32) + gl.expand_dims(rows, 1) + slot
    gl.store(out_ptr + w * 4096 + places, total)


@gluon.jit
def _other(ring, barriers):
    layout: gl.constexpr = gl.BlockedLayout([1, 16], [4, 8], [1, 1], [1, 0])
    codes = gl.full([64, 128], 0, gl.uint8, layout)
    ring.index(4).store(codes.to(gl.float8e4nv, bitcast=True))
    mbarrier.wait(barriers.index(2), 1)


@gluon.jit
def twice(out_ptr, blocks, scale, LOOP: gl.constexpr, OTHER: gl.constexpr):
    """Warp-specialised: two warpgroups run the same loop, a third warp does something else.

    out_ptr: float32 (2, 64, 64). OTHER: the second's LOOP.
    """
    shared: gl.constexpr = gl.NVMMASharedLayout(128, element_bitwidth=8, rank=2)
    ring = gl.allocate_shared_memory(gl.float8e4nv, [5, 64, 128], shared)
    barriers = gl.allocate_shared_memory(gl.int64, [3, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(3):
        mbarrier.init(barriers.index(i), count=1)
    gl.warp_specialize(
        [
            (_work, (0, ring, barriers, out_ptr, blocks, scale, LOOP)),
            (_work, (1, ring, barriers, out_ptr, blocks, scale, OTHER)),
            (_other, (ring, barriers)),
        ],
        [4, 1],
        [160, 24],
    )


@dataclass(frozen=True, kw_only=True)
class WorkLoop(PtxRecipe):
    """What the loop of `twice` does, one element at a time; `more`: lines put before it."""

    name: str = "work"
    operations: Mapping[str, int] = field(default_factory=lambda: {"ttng.arrive_barrier": 1})
    step: int | None = 1
    inputs: tuple[PtxInput, ...] = (
        PtxInput("w"),
        PtxInput("out", "pointer"),
        PtxInput("scale", "f32"),
    )
    carried: tuple[Carried, ...] = (
        Carried("acc", 32, "f32", (64, 64)),
        Carried("half", 16, "f16", (64, 64)),
        Carried("rows", 2, "f32", (64,)),
        Carried("slot", 1, "i32"),
    )
    memory: tuple[str, ...] = ("ring", "barriers")
    tensors: tuple[PtxTensor, ...] = (
        PtxTensor("bias", 32, "f32", (64, 64)),
        PtxTensor("operand", 16, "f8E4M3FN", (64, 128)),
    )
    requires: tuple[str, ...] = ("mbarrier.arrive",)
    more: str = ""

    def text(self, names: Names) -> str:
        label, carried = names.label, names.carried
        (slot,) = carried["slot"]
        lines = [self.more] if self.more else []
        lines += [
            ".reg .pred done, first; .reg .b32 thread, address, count, both;",
            ".reg .b16 low, high, step; .reg .f32 wide<2>, top<2>, other;",
            "mov.u32 thread, %tid.x;",
            "and.b32 thread, thread, 127;",
            "setp.eq.b32 first, thread, 0;",
            f"shl.b32 address, {names.inputs['w']}, 3;",
            f"add.s32 address, address, {names.memory['barriers']};",
            f"mov.b32 count, {names.lower};",
            f"{label}loop:",
            f"setp.ge.s32 done, count, {names.upper};",
            f"@done bra {label}end;",
            f"cvt.rn.f16.s32 step, {slot};",
            "mov.b32 both, {step, step};",
            "mov.b32 top0, 0fFF800000;",
            "mov.b32 top1, 0fFF800000;",
        ]
        for pair, half in enumerate(carried["half"]):
            lines += [f"mov.b32 {{low, high}}, {half};",
                      "cvt.f32.f16 wide0, low;", "cvt.f32.f16 wide1, high;"]  # fmt: skip
            for place in (0, 1):
                acc = carried["acc"][2 * pair + place]
                lines += [f"fma.rn.f32 {acc}, {acc}, {names.inputs['scale']}, wide{place};",
                          f"add.f32 {acc}, {acc}, {names.tensors['bias'][2 * pair + place]};",
                          f"max.f32 top{pair % 2}, top{pair % 2}, {acc};"]  # fmt: skip
            lines.append(f"add.rn.f16x2 {half}, {half}, both;")
        for row in (0, 1):
            for distance in (1, 2):
                lines += [f"shfl.sync.bfly.b32 other, top{row}, {distance}, 31, -1;",
                          f"max.f32 top{row}, top{row}, other;"]  # fmt: skip
            lines.append(f"add.f32 {carried['rows'][row]}, {carried['rows'][row]}, top{row};")
        lines += [
            f"add.s32 {slot}, {slot}, 1;",
            "add.s32 count, count, 1;",
            "@first mbarrier.arrive.shared::cta.b64 _, [address];",
            f"bra.uni {label}loop;",
            f"{label}end:",
        ]
        return "\n".join(lines)


@triton.jit
def sums(in_ptr, count, LOOP: tl.constexpr):
    """A plain kernel without matrix products: its loop carries a vector."""
    offsets = tl.arange(0, 128)
    total = tl.zeros([128], tl.float32)
    for i in range(0, marked_bound(LOOP, count)):
        total += tl.load(in_ptr + i * 128 + offsets)
    tl.store(in_ptr + offsets, total)


@triton.jit
def misused(count, LOOP: tl.constexpr, WHICH: tl.constexpr):
    """Marks on what they do not take."""
    numbers = tl.arange(0, 128)
    if WHICH == "bound":
        marked_bound(LOOP, numbers)
    elif WHICH == "long bound":
        marked_bound(LOOP, count.to(tl.int64))
    elif WHICH == "operand":
        marked_bound(LOOP, count, (count, numbers))
    else:
        handed(LOOP, "x", count)


def compile_twice(loop: str, other: str | None = None, **options: Any) -> Any:
    """`twice` as Triton compiles it, through its caches. other: the second copy's LOOP."""
    names = twice.arg_names
    types = {"out_ptr": "*fp32", "blocks": "i32", "scale": "fp32"}
    source = GluonASTSource(
        twice,
        {name: types.get(name, "constexpr") for name in names},
        {
            (names.index("LOOP"),): loop,
            (names.index("OTHER"),): loop if other is None else other,
        },
    )
    return triton_compile(source, target=HOPPER, options={"num_warps": 4, **options})
