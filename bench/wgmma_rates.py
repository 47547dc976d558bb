"""Cycles that a Hopper multiprocessor takes for the matrix products of one block of attention.

Each warpgroup starts the products of a block of 64 rows and 128 keys, waits for them, and does so
again; what is printed is the time of one round. The operands are whatever lies in registers and
shared memory: only time is measured.

    python -m bench.wgmma_rates
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from asm_overrides.ptx import Text, hexadecimal, matrix
from zyfa_triton.cli.output import table

ROUNDS = 2000
STEPS = 4  # products of 32 keys, or of 32 columns of the head dim, to a block
BYTES = 136 * 128  # of the widest B
WARPGROUPS = (1, 2)
SHAPES: dict[str, tuple[int, ...]] = {
    "scores": (128,),
    "scores, P V": (128, 128),
    "scores, P V, row sum of its own": (128, 128, 8),
    "scores, P V with row sum": (128, 136),
}
"""Columns of the products of a block, in their order."""


def text(columns: tuple[int, ...]) -> str:
    """PTX that writes the cycles of all rounds to `$0`."""
    t = Text("rate")
    tile, b = t.register("b32", "tile"), t.register("b64", "b")
    left, before, after = (t.register("b32", name) for name in ("left", "before", "after"))
    always, more = t.register("pred", "always"), t.register("pred", "more")
    a = t.registers("b32", "a", matrix.A_REGISTERS)
    results = [t.registers("f32", f"d{i}", width // 2) for i, width in enumerate(columns)]
    for register in a:
        t.op("mov.b32", register, "0")
    for result in results:
        for register in result:
            t.op("mov.f32", register, hexadecimal(0.0))
    t.op("mov.u32", tile, "rate_memory")
    matrix.describe(t, b, tile, 128, left)
    t.op("setp.eq.u32", always, "0", "0")
    t.op("mov.b32", left, str(ROUNDS))
    t.op("mov.u32", before, "%clock")
    t.place("next")
    t.keep_rolled()
    matrix.begin(t)
    for result in results:
        for _ in range(STEPS):
            matrix.product(t, result, a, b, accumulate=always)
    matrix.commit(t)
    matrix.wait(t, 0)
    t.op("add.s32", left, left, "-1")
    t.op("setp.gt.s32", more, left, "0")
    t.op("bra.uni", t.label("next"), when=more)
    t.op("mov.u32", after, "%clock")
    t.op("sub.u32", "$0", after, before)
    for result in results:  # or ptxas drops the products
        for register in result:
            t.op("setp.gt.f32", more, register, hexadecimal(1.0))
            t.op("mov.b32", "$0", "0", when=more)
    return f".shared .align 1024 .b8 rate_memory[{BYTES}];\n{t.render()}"


def cycles(columns: tuple[int, ...], warpgroups: int) -> float:
    """Of one round of all warpgroups, on this machine."""
    import torch
    import triton
    import triton.language as tl

    made = tl.constexpr(text(columns))

    @triton.jit  # type: ignore[untyped-decorator]
    def rate(out_ptr, TEXT: tl.constexpr, THREADS: tl.constexpr):  # type: ignore[no-untyped-def]
        thread = tl.arange(0, THREADS)
        spent = tl.inline_asm_elementwise(
            TEXT, "=r,r", [thread], dtype=tl.int32, is_pure=False, pack=1
        )
        tl.store(out_ptr + thread, spent)

    threads = 128 * warpgroups
    out = torch.zeros(threads, dtype=torch.int32, device="cuda")
    kernel: Any = rate
    for _ in range(2):  # the first one warms up
        kernel[(1,)](out, made.value, threads, num_warps=4 * warpgroups)
    return float(out.max()) / ROUNDS


def main(argv: list[str] | None = None) -> int:
    """Prints the table."""
    argparse.ArgumentParser(description=__doc__).parse_args(argv)
    import torch

    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        print("wgmma_rates: needs a Hopper GPU", file=sys.stderr)
        return 2
    header = ("products of a block", *(f"{n} warpgroup{'s' * (n > 1)}" for n in WARPGROUPS))
    rows = [
        (name, *(f"{cycles(columns, n):.0f}" for n in WARPGROUPS))
        for name, columns in SHAPES.items()
    ]
    print(f"{torch.cuda.get_device_name()}: cycles of one round\n{table(header, rows)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
