"""Measures the usual problems on this device: `python -m zyfa_triton.tuning [-o FILE]`.

It decides only what the usual problems are; the configurations that ship with the package were made
with it. A key that the file holds already is measured again.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import torch

from zyfa_triton import dispatch, warmup
from zyfa_triton.problem import HEADDIMS
from zyfa_triton.testing import make_inputs
from zyfa_triton.tuning import choice
from zyfa_triton.tuning.key import DTYPE_NAMES


def main(arguments: list[str] | None = None) -> int:
    """The command. Returns 0, or 2 where no device can be measured."""
    args = _parser().parse_args(arguments)
    (device,) = (one for one in dispatch.capabilities() if one.backend == "device")
    if not device.available:
        print(f"zyfa_triton.tuning: {device.reason}. {device.remedy}", file=sys.stderr)
        return 2
    by_name = {name: dtype for dtype, name in DTYPE_NAMES.items()}
    problems = [
        (by_name[name], headdims, causal, seqlen)
        for name in args.dtype
        for headdims in HEADDIMS
        for causal in (True, False)
        for seqlen in args.seqlen
    ]
    if args.output is not None:
        choice.write_to(args.output)
    print(f"{len(problems)} problems on {device.detail}; writes {choice.user_file()}")
    for dtype, (headdim, headdim_v), causal, seqlen in problems:
        x = make_inputs(
            seqlen,
            seqlen,
            nheads=args.heads,
            nheads_k=args.heads,
            headdim=headdim,
            headdim_v=headdim_v,
            dtype=dtype,
            device="cuda",
        )
        options: dict[str, Any] = {"p_mode": args.p_mode, **x.descales}
        config = warmup(x.q, x.k, x.v, causal=causal, tune=True, **options)
        name = f"{DTYPE_NAMES[dtype]} {headdim}/{headdim_v} {'causal' if causal else 'full'}"
        print(f"{name} {seqlen}: {config}", flush=True)
        del x
        torch.cuda.empty_cache()
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m zyfa_triton.tuning", description=__doc__)
    names = sorted(DTYPE_NAMES.values())
    parser.add_argument("--dtype", nargs="+", choices=names, default=["e4m3", "bf16"])
    parser.add_argument("--seqlen", nargs="+", type=int, default=[1024, 4096, 16384])
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--p-mode", choices=("lean", "exact", "unscaled"), default="lean")
    parser.add_argument("-o", "--output", type=Path, help="file to write; default ZYFA_TUNING_FILE")
    return parser


if __name__ == "__main__":
    sys.exit(main())
