"""`zyfa compile`: the op's kernel as gfx950 machine code, with a report of what it costs.

It needs no GPU and no data; which configuration is compiled is decided in `zyfa_triton.tuning`.
"""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zyfa_triton.cli import options
from zyfa_triton.cli.output import CommandError, table, write_json

if TYPE_CHECKING:
    from zyfa_triton.compile import CompiledKernel
    from zyfa_triton.report import KernelReport

SUMMARY = "compile the kernel for gfx950 and report registers, spills and cycles"
DESCRIPTION = """Compiles for gfx950 with Triton's own back end; no GPU is needed.
Writes NAME.amdgcn (assembly), NAME.hsaco (code object) and NAME.json (report) into a folder.
Cycles are counted from the instruction table for one iteration of a loop's steady state and one
wave, without overlap; zyfa inspect says what they are spent on."""

_CONFIGURATION = ("block_m", "num_warps", "num_stages", "waves_per_eu")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_variant_arguments(parser)
    parser.add_argument("--nheads", type=options.positive, default=16, metavar="H")
    parser.add_argument("--nheads-k", type=options.positive, metavar="H", help="default: --nheads")
    parser.add_argument("--seqlen", type=options.positive, default=4096, metavar="N")
    for name in _CONFIGURATION:
        parser.add_argument(
            f"--{name.replace('_', '-')}",
            type=options.positive,
            metavar="N",
            help="instead of the tuned configuration's",
        )
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="DIR")


def run(args: argparse.Namespace) -> int:
    from zyfa_triton import offline
    from zyfa_triton.measure import DTYPES

    try:
        asked = offline.problem(
            dtype=DTYPES[args.dtype],
            headdim=args.headdim,
            p_mode=args.p_mode,
            block_scale=options.block_scale(args),
            causal=args.causal,
            nheads=args.nheads,
            nheads_k=args.nheads_k or args.nheads,
            seqlen=args.seqlen,
        )
    except ValueError as error:
        raise CommandError(str(error)) from None
    overrides = {
        "BLOCK_M" if name == "block_m" else name: getattr(args, name)
        for name in _CONFIGURATION
        if getattr(args, name) is not None
    }
    try:
        compiled, report = offline.compile_problem(asked, overrides, kernel=args.kernel)
    except (ValueError, RuntimeError) as error:
        raise CommandError(str(error)) from None
    name = "_".join(
        [
            f"attention_{args.dtype}_d{asked.headdim}",
            *([asked.p_mode] if asked.is_fp8 else []),
            *(["block_scale"] if asked.block_scale else []),
            "causal" if asked.causal else "full",
            *([] if compiled.kernel == "triton" else [compiled.kernel]),
        ]
    )
    result = _as_json(name, args, compiled, report)
    files = _write(args.output, name, compiled, result)
    print(_readable(name, compiled, report))
    print("\n" + "\n".join(f"wrote {path}" for path in files))
    write_json(args.json, result)
    return 0


def _as_json(
    name: str, args: argparse.Namespace, compiled: CompiledKernel, report: KernelReport
) -> dict[str, Any]:
    return {
        "name": name,
        "kernel": compiled.kernel,
        "splice": compiled.splice,
        "target": "gfx950",
        "dtype": args.dtype,
        "headdim": args.headdim,
        "p_mode": args.p_mode if args.dtype == "fp8" else "exact",
        "causal": args.causal,
        "config": dict(compiled.config),
        **{key: value for key, value in dataclasses.asdict(report).items() if key != "name"},
    }


def _write(folder: Path, name: str, compiled: CompiledKernel, result: dict[str, Any]) -> list[Path]:
    files = [folder / f"{name}.{suffix}" for suffix in ("amdgcn", "hsaco", "json")]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        files[0].write_text(compiled.amdgcn, encoding="utf-8")
        files[1].write_bytes(compiled.hsaco)
    except OSError as error:
        raise CommandError(f"-o: cannot write to {folder}: {error.strerror}") from None
    write_json(files[2], result)
    return files


def _readable(name: str, compiled: CompiledKernel, report: KernelReport) -> str:
    config = ", ".join(f"{key} {value}" for key, value in compiled.config.items())
    resources = table(
        ("VGPRs", "AGPRs", "SGPRs", "spilled VGPRs", "spilled SGPRs", "scratch B", "LDS B"),
        [
            (
                report.vgprs,
                report.agprs,
                report.sgprs,
                report.vgpr_spills,
                report.sgpr_spills,
                report.scratch_bytes,
                report.lds_bytes,
            )
        ],
    )
    loops = table(
        ("loop", "lines", "instructions", "MFMA cycles", "VALU cycles", "exp", "memory", "LDS"),
        [
            (
                loop.label,
                f"{loop.first_line}-{loop.last_line}",
                loop.instructions,
                loop.mfma_cycles,
                loop.valu_cycles,
                loop.transcendental_instructions,
                loop.memory_instructions,
                loop.lds_instructions,
            )
            for loop in report.loops
        ],
    )
    return f"{name} for gfx950\n{config}\n\n{resources}\n\n{loops}"
