"""Decides the loop of examples/scaled_product.py for sm_90a, in PTX.

Run it: the kernel is compiled with Triton's loop and with ours, and ptxas's report printed; on a
Hopper GPU both are run and compared with a plain product.

    python -m examples.scaled_product_sm90
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from examples.scaled_product import (
    BLOCK_K,
    BLOCK_M,
    BLOCK_N,
    BLOCKS,
    ONES_CODES,
    example_arguments,
    product_loop,
    scaled_product,
)
from zyfa_triton import arch, splice
from zyfa_triton.splice import Carried, MmaLayout, Names, PtxInput, PtxRecipe, SpliceError

OPTIONS = {"num_warps": 8, "num_stages": 2}
LAYOUT = MmaLayout(warps=(8, 1), columns=BLOCK_N, version=3)
MMA = "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32"
ROW_TILES = BLOCK_M // (16 * 8)  # of 16 rows a warp
COLUMN_TILES = BLOCK_N // 8
ROWS = 2 * ROW_TILES  # of A that a lane loads; rows of B: one for each column tile
WORDS = BLOCK_K // 16  # registers of a lane for a row and a step of k; four lanes share a row


@dataclass(frozen=True, kw_only=True)
class ScaledProductPtxLoop(PtxRecipe):
    """The loop of `scaled_product`: no shared memory; A and B go from global memory to registers,
    the next step's loads ahead of this one's products."""

    name: str = "scaled_product"
    inputs: tuple[PtxInput, ...] = (
        PtxInput("a", "pointer"),
        PtxInput("b", "pointer"),
        PtxInput("stride_a"),
        PtxInput("stride_b"),
    )
    carried: tuple[Carried, ...] = (
        Carried("acc", 32, "f32", (BLOCK_M, BLOCK_N)),
        Carried("row_sum", ROWS, "f32", (BLOCK_M,)),
    )
    operations: Mapping[str, int] = field(
        default_factory=lambda: {"ttng.warp_group_dot": 2, "tt.reduce": 1}
    )
    step: int | None = BLOCK_K
    requires: tuple[str, ...] = (MMA,)
    options: Mapping[str, int] = field(default_factory=lambda: {"num_stages": 1})

    def text(self, names: Names) -> str:
        for name, layout in names.layouts.items():
            if layout != LAYOUT:
                raise SpliceError(f"{name} is written for {LAYOUT}, Triton chose {layout}")
        return "\n".join(product_loop(_Sm90(names), f"{names.label}product"))

    def sources(self) -> tuple[Path, ...]:
        return (*super().sources(), Path(__file__).with_name("scaled_product.py"))


def _words(matrix: str, copy: int, row: int) -> list[str]:
    """Registers with a lane's share of a row of A or B: 32 of 128 bytes."""
    return [f"{matrix}{copy}_{WORDS * row + word}" for word in range(WORDS)]


class _Sm90:
    """The loop's steps. A lane is 4 g + t.

    mma.sync takes from a lane, of A's rows g and g + 8, and of B's row g, eight of 32 bytes; which
    is told by t, but any share of the row will do if it is the same in A and B. Its result is, for
    each eight columns, what a lane holds in Triton's layout, `MmaLayout`: (g, 2 t), (g, 2 t + 1),
    (g + 8, 2 t), (g + 8, 2 t + 1). There are no waits: ptxas adds those that registers need.
    """

    depth = 32

    def __init__(self, names: Names) -> None:
        self.names = names

    def start(self, done: str) -> Iterator[str]:
        inputs = self.names.inputs
        yield ".reg .pred at_end; .reg .b32 thread, group, row, place, k, ones;"
        yield f".reg .b64 a_row<{ROWS}>, b_row<{COLUMN_TILES}>, from;"
        for copy in (0, 1):
            yield f".reg .b32 a{copy}_<{ROWS * WORDS}>, b{copy}_<{COLUMN_TILES * WORDS}>;"
        yield f".reg .b32 sum_<{4 * ROW_TILES}>;"
        yield "mov.u32 thread, %tid.x;"
        yield "bfe.u32 group, thread, 2, 3;  // g"
        yield "and.b32 place, thread, 3;  // t"
        yield "shl.b32 place, place, 4;"
        yield f"add.s32 place, place, {self.names.lower};"
        yield "cvt.s64.s32 from, place;  // the byte of a row where this lane's share begins"
        yield "shr.u32 row, thread, 5;  // warp"
        yield "mad.lo.s32 row, row, 16, group;"
        for index in range(ROWS):
            offset = 16 * 8 * (index // 2) + 8 * (index % 2)
            yield f"add.s32 k, row, {offset};"
            yield f"mad.wide.s32 a_row{index}, k, {inputs['stride_a']}, {inputs['a']};"
            yield f"add.s64 a_row{index}, a_row{index}, from;"
        for index in range(COLUMN_TILES):
            yield f"add.s32 k, group, {8 * index};"
            yield f"mad.wide.s32 b_row{index}, k, {inputs['stride_b']}, {inputs['b']};"
            yield f"add.s64 b_row{index}, b_row{index}, from;"
        yield f"mov.b32 ones, 0x{ONES_CODES:x};"
        for index in range(4 * ROW_TILES):
            yield f"mov.b32 sum_{index}, 0;"
        yield f"mov.b32 k, {self.names.lower};  // of the step that is loaded last"
        yield f"setp.ge.s32 at_end, k, {self.names.upper};"
        yield f"@at_end bra {done};"

    def load(self, copy: int) -> Iterator[str]:
        for half in (0, 1):  # four lanes load 64 consecutive bytes of a row
            for matrix, rows in (("a", ROWS), ("b", COLUMN_TILES)):
                for row in range(rows):
                    words = ", ".join(_words(matrix, copy, row)[4 * half : 4 * half + 4])
                    yield f"ld.global.v4.b32 {{{words}}}, [{matrix}_row{row} + {64 * half}];"

    def advance(self, otherwise: str) -> Iterator[str]:
        yield f"add.s32 k, k, {BLOCK_K};"
        yield f"setp.ge.s32 at_end, k, {self.names.upper};"
        yield f"@at_end bra {otherwise};"
        for matrix, rows in (("a", ROWS), ("b", COLUMN_TILES)):
            for row in range(rows):
                yield f"add.s64 {matrix}_row{row}, {matrix}_row{row}, {BLOCK_K};"

    def wait(self, steps: int) -> Iterator[str]:
        yield from ()

    def multiply(self, copy: int, part: int) -> Iterator[str]:
        here = slice(2 * part, 2 * part + 2)
        acc = self.names.carried["acc"]
        for tile in range(ROW_TILES):
            upper, lower = (_words("a", copy, 2 * tile + half)[here] for half in (0, 1))
            a = f"{{{upper[0]}, {lower[0]}, {upper[1]}, {lower[1]}}}"
            for column in range(COLUMN_TILES):
                b = ", ".join(_words("b", copy, column)[here])
                first = 4 * (COLUMN_TILES * tile + column)
                c = ", ".join(acc[first : first + 4])
                yield f"{MMA} {{{c}}}, {a}, {{{b}}}, {{{c}}};"
            c = ", ".join(f"sum_{4 * tile + index}" for index in range(4))
            yield f"{MMA} {{{c}}}, {a}, {{ones, ones}}, {{{c}}};"

    def jump(self, label: str) -> Iterator[str]:
        yield f"bra.uni {label};"

    def finish(self) -> Iterator[str]:
        for index, row_sum in enumerate(self.names.carried["row_sum"]):
            yield f"add.f32 {row_sum}, {row_sum}, sum_{2 * index};"


def product_on(device: torch.device, arguments: Mapping[str, Any], loop: str) -> Any:
    """Launch the kernel on tensors moved to a device; fills c_ptr and row_sum_ptr there and gives
    the moved arguments and Triton's compiled kernel."""
    moved = {
        name: value.to(device) if isinstance(value, torch.Tensor) else value
        for name, value in arguments.items()
    }
    size_m, size_n = moved["c_ptr"].shape
    grid = (size_m // BLOCK_M, size_n // BLOCK_N)
    compiled = scaled_product[grid](**moved, **BLOCKS, LOOP=loop, **OPTIONS)
    return moved, compiled


def main() -> None:
    if not torch.cuda.is_available() or arch.arch_of(0).name != "sm90":
        raise SystemExit("no Hopper GPU here; tests/asm/test_scaled_product_sm90.py compiles it")
    arguments = example_arguments(4 * BLOCK_M, 4 * BLOCK_N, 9 * BLOCK_K)
    a, b = arguments["a_ptr"].double(), arguments["b_ptr"].double()
    expected = {"c_ptr": a @ b.T * arguments["scale"], "row_sum_ptr": a.sum(1)}
    for title, loop in (("Triton's loop", ""), ("ours", splice.use(ScaledProductPtxLoop()))):
        moved, compiled = product_on(torch.device("cuda", 0), arguments, loop)
        error = max(
            ((moved[name].cpu() - truth).abs().max() / truth.abs().max()).item()
            for name, truth in expected.items()
        )
        print(f"{title}: {getattr(compiled.metadata, 'splice', 'nothing replaced')}")
        print(f"  largest error {error:.1e}, registers {compiled.n_regs}, shared memory "
              f"{compiled.metadata.shared} bytes")  # fmt: skip


if __name__ == "__main__":
    main()
