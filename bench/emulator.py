"""How fast the emulator is: one workgroup of the FP8 kernel, 256 queries x 1,024 keys, one core.

It prints the median of several runs after one that compiles and warms up, with the checks on and
off, and wave-instructions a second.

    python bench/emulator.py
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
from pathlib import Path

import torch

from zyfa_triton import activations
from zyfa_triton.backends.emulated import emulate
from zyfa_triton.cli.output import table
from zyfa_triton.kernels.launch import launch_arguments
from zyfa_triton.measure import Inputs
from zyfa_triton.problem import Problem

QUERIES = 256
KEYS = 1024
MOST_SECONDS = 2.0  # with checks


def measure(dtype: str, p_mode: str, checks: bool, repeats: int) -> dict[str, object]:
    sample = activations.load(activations.SAMPLE).cut(seqlen=KEYS, heads=1)
    inputs = Inputs.of(sample, dtype)
    q = inputs.q[:, -QUERIES:]
    out = torch.empty(1, QUERIES, 1, inputs.v.shape[3], dtype=torch.bfloat16)
    problem = Problem.of(
        q,
        inputs.k,
        inputs.v,
        causal=False,
        p_mode=p_mode,
        block_scale=dtype == "fp8",
        out_dtype=out.dtype,
        return_lse=False,
    )
    arguments = launch_arguments(problem, q, inputs.k, inputs.v, out, None, **inputs.scales())
    runs = [emulate(problem, arguments, checks=checks, processes=1) for _ in range(repeats + 1)][1:]
    seconds = statistics.median(run.seconds for run in runs)
    return {
        "dtype": dtype,
        "p_mode": p_mode,
        "checks": checks,
        "wave_instructions": runs[0].wave_instructions,
        "seconds": seconds,
        "wave_instructions_per_second": runs[0].wave_instructions / seconds,
        "findings": len(runs[0].findings),
    }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args(argv)
    rows = [
        measure(dtype, p_mode, checks, args.repeats)
        for dtype, p_mode in (("fp8", "lean"), ("fp8", "exact"), ("bf16", "exact"))
        for checks in (True, False)
    ]
    print(f"one workgroup, {QUERIES} queries x {KEYS} keys, one core of {platform.machine()}\n")
    print(
        table(
            ("dtype", "P", "checks", "wave instructions", "s", "wave instructions/s"),
            [
                (
                    row["dtype"],
                    row["p_mode"],
                    "on" if row["checks"] else "off",
                    row["wave_instructions"],
                    f"{row['seconds']:.2f}",
                    f"{row['wave_instructions_per_second']:.0f}",
                )
                for row in rows
            ],
        )
    )
    if args.json:
        args.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    slow = [row for row in rows if row["checks"] and float(str(row["seconds"])) > MOST_SECONDS]
    for row in slow:
        print(f"above {MOST_SECONDS} s: {row['dtype']} {row['p_mode']}", file=sys.stderr)
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
