"""Measures the usual problems on this device: `python -m zyfa_triton.tuning [-o FILE]`.

It decides only what the usual problems are; the configurations that ship with the package were made
with it. A key that the file holds already is measured again.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

import torch

from zyfa_triton import dispatch, warmup
from zyfa_triton.kernels.registry import KERNELS
from zyfa_triton.problem import HEADDIMS
from zyfa_triton.tuning import ahead, choice, selection
from zyfa_triton.tuning.key import DTYPE_NAMES

ALL_LENGTHS = (1024, 4096, 16384)
FEW_QUERIES = {"queries": 16, "heads": 64, "heads_k": 8}  # what ships for chunks and drafts


def main(arguments: list[str] | None = None) -> int:
    """The command. Returns 0, or 2 where no device can be measured."""
    args = _parser().parse_args(arguments)
    (device,) = (one for one in dispatch.capabilities() if one.backend == "device")
    if not device.available:
        print(f"zyfa_triton.tuning: {device.reason}. {device.remedy}", file=sys.stderr)
        return 2
    problems = usual_problems(args)
    if args.output is not None:
        choice.write_to(args.output)
    print(f"{len(problems)} problems on {device.detail}; writes {choice.user_file()}")
    with selection.only(args.kernels):
        if args.jobs > 1:
            count = ahead.compile_ahead(problems, args.jobs)
            print(f"{count} configurations compiled by {args.jobs} processes", flush=True)
        for problem in problems:
            x = problem.inputs()
            options: dict[str, Any] = {"p_mode": problem.p_mode, **x.descales}
            config = warmup(x.q, x.k, x.v, causal=problem.causal, tune=True, **options)
            print(f"{problem}: {config}", flush=True)
            del x
            torch.cuda.empty_cache()
    return 0


def usual_problems(args: argparse.Namespace) -> list[ahead.Usual]:
    """What the arguments ask for; other dtypes than e4m3 have one way to make probabilities."""
    lengths = ALL_LENGTHS if args.all else args.seqlen
    sizes: list[tuple[dict[str, int], tuple[str, ...]]] = []  # with P modes of e4m3
    if args.all or not args.few_queries:
        sizes.append(({"heads": args.heads}, ("lean", "exact") if args.all else (args.p_mode,)))
    if args.all or args.few_queries:
        sizes.append((FEW_QUERIES, ("lean",) if args.all else (args.p_mode,)))
    return [
        ahead.Usual(name, *headdims, causal, p_mode, seqlen, **size)
        for size, modes in sizes
        for name in args.dtype
        for p_mode in (modes if name == "e4m3" else modes[:1])
        for headdims in HEADDIMS
        for causal in (True, False)
        for seqlen in lengths
    ]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m zyfa_triton.tuning", description=__doc__)
    names = sorted(DTYPE_NAMES.values())
    parser.add_argument("--dtype", nargs="+", choices=names, default=["e4m3", "bf16"])
    parser.add_argument("--seqlen", nargs="+", type=int, default=list(ALL_LENGTHS))
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--few-queries", action="store_true",
                        help="{queries} queries of {heads} heads on {heads_k}, in place of as many "
                        "queries as keys".format(**FEW_QUERIES))  # fmt: skip
    parser.add_argument("--p-mode", choices=("lean", "exact", "unscaled"), default="lean")
    parser.add_argument("--kernels", nargs="+", choices=KERNELS, metavar="NAME",
                        help=f"compares only these, of {', '.join(KERNELS)}, with what a call "
                        "takes now")  # fmt: skip
    parser.add_argument("--all", action="store_true",
                        help="what ships: of as many queries as keys e4m3 lean and exact and bf16, "
                        f"of few queries e4m3 lean and bf16, lengths {ALL_LENGTHS}")  # fmt: skip
    parser.add_argument("--jobs", type=int, default=min(16, os.cpu_count() or 1),
                        help="processes that compile before anything is measured")  # fmt: skip
    parser.add_argument("-o", "--output", type=Path, help="file to write; default ZYFA_TUNING_FILE")
    return parser


if __name__ == "__main__":
    sys.exit(main())
