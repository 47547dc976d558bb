"""Which element a register of a matrix result holds: as Triton's own linear layouts say."""

from __future__ import annotations

from typing import Any

import pytest
import triton.experimental.gluon.language as gl
from triton._C.libtriton import gluon_ir, ir
from triton.compiler.compiler import make_backend

from tests.asm.splice_sm90_cases import HOPPER
from zyfa_triton.splice import MmaLayout, OperandLayout, SpliceError
from zyfa_triton.splice.sm90.layout import mma_layouts, tensor_layout

CASES = {
    "wgmma": ([3, 0], [8, 1], [16, 32, 32], (256, 32)),
    "two column tiles": ([3, 0], [4, 1], [16, 64, 16], (64, 128)),
    "two warpgroups side by side": ([3, 0], [4, 2], [16, 64, 16], (128, 256)),
    "eight columns": ([3, 0], [4, 1], [16, 8, 32], (64, 8)),
    "mma.sync": ([2, 0], [2, 2], [16, 8], (64, 64)),
}


def bases_of(layout: Any, shape: tuple[int, ...]) -> Any:
    """Triton's linear layout: what each bit of register, lane and warp adds to the place."""
    context = ir.context()
    ir.load_dialects(context)
    make_backend(HOPPER).load_dialects(context)
    builder = gluon_ir.GluonOpBuilder(context)
    return builder.to_linear_layout(layout._to_ir(builder), list(shape))


def place(bases: Any, register: int, lane: int, warp: int) -> tuple[int, ...]:
    found = [0] * len(bases.shape)
    for number, parts in (
        (register, bases.reg_bases), (lane, bases.lane_bases), (warp, bases.warp_bases),
    ):  # fmt: skip
        for bit, base in enumerate(parts):
            if number >> bit & 1:
                found = [a ^ b for a, b in zip(found, base, strict=True)]
    return tuple(found)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_coordinates_are_those_of_tritons_layout(case: Any) -> None:
    version, warps, instruction, shape = case
    theirs = gl.NVMMADistributedLayout(version, warps, instruction)
    ours = MmaLayout((warps[0], warps[1]), instruction[1], version[0])
    kinds = [(theirs, shape)]
    if warps[1] == 1:
        kinds.append((gl.SliceLayout(1, theirs), shape[:1]))
    for layout, size in kinds:
        bases = bases_of(layout, size)
        assert ours.elements(size) == 2 ** len(bases.reg_bases)
        for register in range(ours.elements(size)):
            for lane in range(32):
                for warp in range(warps[0] * warps[1]):
                    expected = place(bases, register, lane, warp)
                    assert ours.coordinates(size, register, lane, warp) == expected


@pytest.mark.parametrize(
    ("warps", "shape", "width"),
    [((4, 1), (64, 128), 4), ((4, 1), (64, 64), 2), ((8, 1), (256, 128), 4), ((4, 2), (64, 32), 4)],
)
def test_coordinates_of_an_operand_are_those_of_tritons_layout(
    warps: tuple[int, int], shape: tuple[int, int], width: int
) -> None:
    result = gl.NVMMADistributedLayout([3, 0], list(warps), [16, 64, 32])
    bases = bases_of(gl.DotOperandLayout(0, result, width), shape)
    ours = OperandLayout(MmaLayout(warps, 64, 3), width)
    assert ours.elements(shape) == 2 ** len(bases.reg_bases)
    for element in range(ours.elements(shape)):
        for lane in range(32):
            for warp in range(warps[0] * warps[1]):
                expected = place(bases, element, lane, warp)
                assert ours.coordinates(shape, element, lane, warp) == expected


def test_a_tensor_of_half_a_tile_is_refused() -> None:
    layout = MmaLayout((4, 1), 64, 3)
    with pytest.raises(SpliceError, match="32 rows are not a multiple of 64"):
        layout.elements((32, 64))
    with pytest.raises(SpliceError, match="96 columns are not a multiple of 64"):
        layout.elements((64, 96))


def test_only_tensors_in_known_layouts_have_one() -> None:
    known = "versionMajor = 3, versionMinor = 0, warpsPerCTA = [4, 1], instrShape = [16, 64, 16]"
    text = f"#mma = #ttg.nvidia_mma<{{{known}}}>\n#mma1 = #ttg.nvidia_mma<{{{known}, x = 1}}>\n"
    layouts = mma_layouts(text)
    assert layouts == {"mma": MmaLayout((4, 1), 64, 3)}
    assert tensor_layout("tensor<64x64xf16, #mma>", layouts) == ((64, 64), "f16", layouts["mma"])
    row = "tensor<64xf32, #ttg.slice<{dim = 1, parent = #mma}>>"
    assert tensor_layout(row, layouts) == ((64,), "f32", layouts["mma"])
    operand = "tensor<64x128xf8E4M3FN, #ttg.dot_op<{opIdx = 0, parent = #mma, kWidth = 4}>>"
    expected = ((64, 128), "f8E4M3FN", OperandLayout(layouts["mma"], 4))
    assert tensor_layout(operand, layouts) == expected
    for other in (
        operand.replace("opIdx = 0", "opIdx = 1"),
        "tensor<64x64xf16, #mma1>",
        "tensor<64x64xf16, #blocked>",
        "tensor<64xf32, #ttg.slice<{dim = 0, parent = #mma}>>",
        "tensor<64xf32, #mma>",
        "i32",
    ):
        assert tensor_layout(other, layouts) is None
