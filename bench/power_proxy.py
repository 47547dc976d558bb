"""How many bits of the matrix instructions' operands change, by variant, on real and normal inputs.

The card's clock falls with the bits that toggle, and nobody can measure that here. This counts one
part of them in the emulator: registers of A, B, C and D between matrix instructions that follow
each other on a pipe (asm_overrides/inspection/toggles.py). One workgroup, the last 256 queries of
the first head against all keys, no mask.

    python bench/power_proxy.py [--keys N] [--json FILE] [FILE.npz ...]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from asm_overrides.inspection.matrix import Purpose
from asm_overrides.inspection.toggles import (
    OPERANDS,
    OWN,
    TURNS,
    ToggleCount,
    Toggles,
    purposes_by_line,
)
from asm_overrides.isa.parse import parse
from zyfa_triton import activations
from zyfa_triton.activations import Activations, ActivationsError
from zyfa_triton.backends.emulated import emulate
from zyfa_triton.cli.output import table, write_json
from zyfa_triton.kernels.launch import launch_arguments
from zyfa_triton.measure import Inputs
from zyfa_triton.problem import Problem

QUERIES = 256
BLOCK = 32 * 128
"""Scores of the block for which sums are given."""
VARIANTS = (
    ("pingpong", "lean"),
    ("pingpong", "exact"),
    ("triton", "lean"),
    ("triton", "exact"),
    ("triton", "unscaled"),
)
"""Kernel and p_mode. "unscaled" flushes small P to zero, as AITER's v3 kernel does."""


@dataclass(frozen=True)
class Row:
    """Changed bits of one variant on one input.

    counts: each wave by itself, by what is computed, "QK" or "PV": row sums meet the same P as PV
    and are counted there. own, turns: sums in both orders. blocks: of 32 queries x 128 keys.
    """

    kernel: str
    p_mode: str
    inputs: str
    counts: dict[str, Toggles]
    own: Toggles
    turns: Toggles
    blocks: int

    def as_json(self) -> dict[str, Any]:
        shares = {
            f"{what} {name}": round(count.share(name), 4)
            for what, count in self.counts.items()
            for name in OPERANDS
        }
        return {
            "kernel": self.kernel,
            "p_mode": self.p_mode,
            "inputs": self.inputs,
            "changed_share": shares,
            "changed_bits_a_block_own": round(self.own.changed.total() / self.blocks),
            "changed_bits_a_block_turns": round(self.turns.changed.total() / self.blocks),
            "operand_bits_a_block": round(
                sum(self.own.changed[name] for name in "ab") / self.blocks
            ),
            "matrix_cycles_a_block": self.own.matrix_cycles / self.blocks,
        }


def measure(kernel: str, p_mode: str, inputs: Inputs) -> Row:
    """Run one workgroup in the emulator and count."""
    q = inputs.q[:, -QUERIES:]
    out = torch.empty(1, QUERIES, 1, inputs.v.shape[3], dtype=torch.bfloat16)
    problem = Problem.of(
        q,
        inputs.k,
        inputs.v,
        causal=False,
        p_mode=p_mode,
        block_scale=p_mode != "unscaled",
        out_dtype=out.dtype,
        return_lse=False,
    )
    arguments = launch_arguments(problem, q, inputs.k, inputs.v, out, None, **inputs.scales())
    count = ToggleCount()
    run = emulate(problem, arguments, kernel=kernel, checks=False, observer=count)
    if run.kernel != kernel:
        raise RuntimeError(f"{kernel} fell back to {run.kernel}: {run.compiled.splice}")
    program = parse(run.compiled.amdgcn)
    purposes = purposes_by_line(program.instructions, program.labels)
    counts = count.by_purpose(OWN, purposes)
    return Row(
        kernel,
        p_mode,
        inputs.original.name,
        {
            "QK": counts[Purpose.QK],
            "PV": counts[Purpose.PV] + counts.get(Purpose.ROW_SUM, Toggles()),
        },
        count.total(OWN),
        count.total(TURNS),
        QUERIES * inputs.k.shape[1] // BLOCK,
    )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("file", type=Path, nargs="*", help="captured activations (default: ours)")
    parser.add_argument("--keys", type=int, default=1024, help="a multiple of 128; default: 1024")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args(argv)
    if args.keys < QUERIES or args.keys % 128:
        parser.error(f"--keys: got {args.keys}; accepted: multiples of 128 from {QUERIES}")
    try:
        every = [activations.load(path) for path in args.file or [activations.SAMPLE]]
        every = [each.cut(seqlen=args.keys, heads=1) for each in every]
    except ActivationsError as error:
        parser.error(str(error))
    every.append(_normal(args.keys))
    rows = []
    for each in tqdm(every, desc="inputs"):
        inputs = Inputs.of(each, "fp8")
        rows += [measure(kernel, p_mode, inputs) for kernel, p_mode in VARIANTS]
    print(f"{QUERIES} queries x {args.keys} keys; share of an operand's bits that change, in %\n")
    print(_table(rows))
    write_json(args.json, [row.as_json() for row in rows])
    return 0


def _normal(keys: int) -> Activations:
    """The same shape, drawn from a normal distribution."""
    return activations.gaussian(seqlen=keys).cut(heads=1)


def _table(rows: Sequence[Row]) -> str:
    parts = [(what, name) for what in ("QK", "PV") for name in OPERANDS]
    header = (
        *("kernel", "P", "inputs"),
        *(f"{what} {name.upper()}" for what, name in parts),
        *("Mbit a block", "by turns", "A and B alone"),
    )
    cells = []
    for row in rows:
        values = row.as_json()
        shares = (row.counts[what].share(name) for what, name in parts)
        cells.append(
            (
                *(row.kernel, row.p_mode, row.inputs),
                *(f"{100 * share:.1f}" for share in shares),
                f"{values['changed_bits_a_block_own'] / 1e6:.3f}",
                f"{values['changed_bits_a_block_turns'] / 1e6:.3f}",
                f"{values['operand_bits_a_block'] / 1e6:.3f}",
            )
        )
    return table(header, cells)


if __name__ == "__main__":
    sys.exit(main())
