"""Decides a loop by hand for a kernel of its own: an FP8 matrix product with row sums.

`scaled_product` is the kernel, in Triton; `product_loop` the order of the steps of a loop that may
take the place of its loop; `ScaledProductLoop` that loop for gfx950 (scaled_product_sm90.py: for
sm_90a). docs/hand-scheduling.md walks through them. Run it: the machine code of Triton's loop and
of ours is executed on this CPU and compared with a plain product.

    python examples/scaled_product.py
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
import triton
import triton.language as tl

from zyfa_triton import splice
from zyfa_triton.prototype import Trial, try_on_gfx950
from zyfa_triton.splice import Input, LoopRecipe, MatrixLayout, Output, SpliceError
from zyfa_triton.splice.marker import marked_bound

BLOCK_M, BLOCK_N, BLOCK_K = 256, 32, 128
BLOCKS = {"BLOCK_M": BLOCK_M, "BLOCK_N": BLOCK_N, "BLOCK_K": BLOCK_K}
OPTIONS = {"num_warps": 8, "num_stages": 2, "waves_per_eu": 2}


@triton.jit
def scaled_product(
    a_ptr, b_ptr, c_ptr, row_sum_ptr, scale, size_k, stride_a, stride_b, stride_c,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, LOOP: tl.constexpr = "",
):  # fmt: skip
    """C = scale * A B^T, and the row sums of A, which a product with shifted numbers needs.

    a: e4m3 (M, K), b: e4m3 (N, K), both with unit last stride; c: float32 (M, N); row_sum: float32
    (M,). Sizes are multiples of the blocks. Grid: (M // BLOCK_M, N // BLOCK_N).
    """
    rows = tl.arange(0, BLOCK_M)
    columns = tl.arange(0, BLOCK_N)
    offs_k = tl.arange(0, BLOCK_K)
    a_ptr += (tl.program_id(0) * BLOCK_M).to(tl.int64) * stride_a
    b_ptr += (tl.program_id(1) * BLOCK_N).to(tl.int64) * stride_b
    ones = tl.full([BLOCK_K, BLOCK_N], 0x38, tl.uint8).to(tl.float8e4nv, bitcast=True)
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    row_sum = tl.zeros([BLOCK_M], tl.float32)
    end = size_k
    if LOOP != "":
        end = marked_bound(LOOP, end, (a_ptr, b_ptr, stride_a, stride_b))
    for k in range(0, end, BLOCK_K):
        a = tl.load(a_ptr + rows[:, None] * stride_a + (k + offs_k)[None, :])
        b = tl.load(b_ptr + columns[None, :] * stride_b + (k + offs_k)[:, None])
        acc = tl.dot(a, b, acc)
        row_sum += tl.max(tl.dot(a, ones), 1)
    c_ptr += tl.program_id(0) * BLOCK_M * stride_c + tl.program_id(1) * BLOCK_N
    tl.store(c_ptr + rows[:, None] * stride_c + columns[None, :], acc * scale)
    if tl.program_id(1) == 0:
        tl.store(row_sum_ptr + tl.program_id(0) * BLOCK_M + rows, row_sum)


ONES_CODES = 0x38383838  # four e4m3 ones


class Machine(Protocol):
    """What the steps of `product_loop` are on a target: each gives lines of assembly.

    depth: k of one matrix instruction.
    """

    depth: int

    def start(self, done: str) -> Iterator[str]:
        """This lane's places in A and B, accumulators; to `done` if there is no step of k."""

    def load(self, copy: int) -> Iterator[str]:
        """Ask for a step of k of A and B, into one of two copies. Any order of k within what one
        matrix instruction takes will do if it is the same in A and B: a sum does not mind."""

    def advance(self, otherwise: str) -> Iterator[str]:
        """On to the next step of k; to `otherwise` if there is none."""

    def wait(self, steps: int) -> Iterator[str]:
        """Until no more than `steps` steps' loads are under way."""

    def multiply(self, copy: int, part: int) -> Iterator[str]:
        """Two matrix instructions: part of A times B, and times ones, which gives the row sums."""

    def jump(self, label: str) -> Iterator[str]: ...

    def finish(self) -> Iterator[str]:
        """Results where Triton expects them."""


def product_loop(machine: Machine, label: str) -> Iterator[str]:
    """The loop, two steps of k at a time: load into one copy, multiply the other, change places.

    A and B are loaded twice over: while the matrix instructions read one copy, the next step
    arrives in the other.
    """

    def multiply(copy: int) -> Iterator[str]:
        for part in range(BLOCK_K // machine.depth):
            yield from machine.multiply(copy, part)

    yield from machine.start(f"{label}_done")
    yield from machine.load(0)
    yield f"{label}_loop:"
    for copy in (0, 1):
        yield from machine.advance(f"{label}_last_{copy}")
        yield from machine.load(1 - copy)
        yield from machine.wait(1)
        yield from multiply(copy)
    yield from machine.jump(f"{label}_loop")
    for copy in (0, 1):
        yield f"{label}_last_{copy}:"
        yield from machine.wait(0)
        yield from multiply(copy)
        if copy == 0:
            yield from machine.jump(f"{label}_done")
    yield f"{label}_done:"
    yield from machine.finish()


# Registers of the gfx950 loop by role.
A_OFFSET, B_OFFSET = 10, 11  # byte offset of this lane's row
SCRATCH = 12
ONES = 16  # to 23
ACC_C, ROW_SUM = 64, 80  # results: 16 registers and 1
A_COPY, B_COPY = (100, 116), (132, 148)  # 2 slices of 64 k x 8 registers each
ACC_ONES = 164  # to 179: A times ones; every register holds the row sum of the lane's row
SLICE_K = 64  # of one matrix instruction
LOADS = 8  # memory instructions for one step of k

LAYOUT = MatrixLayout(waves=(8, 1), instruction=(32, 32, 64), is_transposed=True, version=4)


@dataclass(frozen=True, kw_only=True)
class ScaledProductLoop(LoopRecipe):
    """The loop of `scaled_product`: no LDS; the next tile's loads run under this one's products."""

    name: str = "scaled_product"
    inputs: tuple[Input, ...] = (
        Input("end", "s24"),
        Input("a", "s[20:21]", "pointer"),
        Input("b", "s[22:23]", "pointer"),
        Input("stride_a", "s25"),
        Input("stride_b", "s26"),
    )
    outputs: tuple[Output, ...] = (
        Output("acc", ACC_C, 16, (BLOCK_M, BLOCK_N), 0.0),
        Output("row_sum", ROW_SUM, 1, (BLOCK_M,), 0.0),
    )
    clobbers: tuple[str, ...] = ("v[10:23]", "v[100:179]", "s[40:46]")
    lds_bytes: int = 0
    operations: Mapping[str, int] = field(default_factory=lambda: {"tt.dot": 2, "tt.reduce": 1})
    step: int | None = BLOCK_K

    def text(self, label: str, layout: MatrixLayout) -> str:
        if layout != LAYOUT:
            raise SpliceError(f"{self.name} is written for {LAYOUT}, Triton chose {layout}")
        return "\n".join(product_loop(_Gfx950(), label))


class _Gfx950:
    """The loop's steps; waits are by count of loads."""

    depth = SLICE_K

    def start(self, done: str) -> Iterator[str]:
        yield "v_readfirstlane_b32 s40, v0"
        yield "s_lshr_b32 s40, s40, 6 ; wave"
        yield "s_lshl_b32 s40, s40, 5 ; its first row in A"
        yield f"v_and_b32 v{B_OFFSET}, 31, v0 ; row in B, and in the wave's 32 rows of A"
        yield f"v_add_u32 v{A_OFFSET}, s40, v{B_OFFSET}"
        yield f"v_mul_lo_u32 v{A_OFFSET}, v{A_OFFSET}, s25"
        yield f"v_mul_lo_u32 v{B_OFFSET}, v{B_OFFSET}, s26"
        yield f"v_and_b32 v{SCRATCH}, 32, v0 ; the upper half of a wave holds the upper 32 k of 64"
        yield f"v_add_u32 v{A_OFFSET}, v{A_OFFSET}, v{SCRATCH}"
        yield f"v_add_u32 v{B_OFFSET}, v{B_OFFSET}, v{SCRATCH}"
        for register in range(8):
            yield f"v_mov_b32 v{ONES + register}, 0x{ONES_CODES:x}"
        for register in range(16):
            yield f"v_mov_b32 v{ACC_C + register}, 0"
            yield f"v_mov_b32 v{ACC_ONES + register}, 0"
        yield "s_cmp_lt_i32 s24, 1"
        yield f"s_cbranch_scc1 {done}"
        yield "s_mov_b64 s[42:43], s[20:21] ; a, b and k of the tile that is loaded last"
        yield "s_mov_b64 s[44:45], s[22:23]"
        yield "s_mov_b32 s46, 0"

    def load(self, copy: int) -> Iterator[str]:
        for piece in range(4):  # 16 bytes: 32 consecutive ones of a row for each slice
            offset = SLICE_K * (piece // 2) + 16 * (piece % 2)
            for first, row, base in ((A_COPY, A_OFFSET, 42), (B_COPY, B_OFFSET, 44)):
                low = first[copy] + 4 * piece
                yield (
                    f"global_load_dwordx4 v[{low}:{low + 3}], v{row}, s[{base}:{base + 1}] "
                    f"offset:{offset}"
                )

    def advance(self, otherwise: str) -> Iterator[str]:
        yield f"s_add_u32 s46, s46, {BLOCK_K}"
        yield "s_cmp_ge_i32 s46, s24"
        yield f"s_cbranch_scc1 {otherwise}"
        for pointer in (42, 44):
            yield f"s_add_u32 s{pointer}, s{pointer}, {BLOCK_K}"
            yield f"s_addc_u32 s{pointer + 1}, s{pointer + 1}, 0"

    def wait(self, steps: int) -> Iterator[str]:
        yield f"s_waitcnt vmcnt({LOADS * steps})"

    def multiply(self, copy: int, part: int) -> Iterator[str]:
        """C^T += B A^T and ones A^T: the transposes, so that a lane holds one row of A."""
        a, b = A_COPY[copy] + 8 * part, B_COPY[copy] + 8 * part
        for left, accumulator in ((b, ACC_C), (ONES, ACC_ONES)):
            acc = f"v[{accumulator}:{accumulator + 15}]"
            yield f"v_mfma_f32_32x32x64_f8f6f4 {acc}, v[{left}:{left + 7}], v[{a}:{a + 7}], {acc}"

    def jump(self, label: str) -> Iterator[str]:
        yield f"s_branch {label}"

    def finish(self) -> Iterator[str]:
        yield "s_nop 15 ; a matrix instruction's result may be read 20 states after it"
        yield "s_nop 3"
        yield f"v_mov_b32 v{ROW_SUM}, v{ACC_ONES}"


def example_arguments(size_m: int, size_n: int, size_k: int, seed: int = 0) -> dict[str, Any]:
    """Random e4m3 matrices and outputs full of NaN."""
    generator = torch.Generator().manual_seed(seed)
    a, b = (
        torch.randn(size, size_k, generator=generator).to(torch.float8_e4m3fn)
        for size in (size_m, size_n)
    )
    return {
        "a_ptr": a,
        "b_ptr": b,
        "c_ptr": torch.full((size_m, size_n), float("nan")),
        "row_sum_ptr": torch.full((size_m,), float("nan")),
        "scale": 0.125,
        "size_k": size_k,
        "stride_a": size_k,
        "stride_b": size_k,
        "stride_c": size_n,
    }


def try_product(arguments: Mapping[str, Any], loop: str, seed: int | None = None) -> Trial:
    """Run the kernel's machine code on this CPU, with Triton's loop (loop == "") or a recipe's;
    fills c_ptr and row_sum_ptr."""
    size_m, size_n = arguments["c_ptr"].shape
    return try_on_gfx950(
        scaled_product,
        (size_m // BLOCK_M, size_n // BLOCK_N),
        arguments,
        {**BLOCKS, "LOOP": loop},
        outputs=("c_ptr", "row_sum_ptr"),
        seed=seed,
        **OPTIONS,
    )


def main() -> None:
    arguments = example_arguments(BLOCK_M, BLOCK_N, 5 * BLOCK_K)
    a, b = arguments["a_ptr"].double(), arguments["b_ptr"].double()
    expected = {"c_ptr": a @ b.T * arguments["scale"], "row_sum_ptr": a.sum(1)}
    for title, loop in (("Triton's loop", ""), ("ours", splice.use(ScaledProductLoop()))):
        trial = try_product(arguments, loop)
        error = max(
            ((arguments[name] - truth).abs().max() / truth.abs().max()).item()
            for name, truth in expected.items()
        )
        print(f"{title}: {trial.compiled.splice or 'nothing replaced'}")
        print(f"  largest error {error:.1e}, findings: {len(trial.findings)}")
        print(f"  VGPRs {trial.report.vgprs}, LDS {trial.compiled.shared} bytes")
        print(f"  wave instructions {trial.wave_instructions}")
        for finding in trial.findings:
            print(f"    {finding}")


if __name__ == "__main__":
    main()
