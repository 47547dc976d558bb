"""`zyfa run`: runs the op on real or made-up inputs and compares it with fp64.

What is measured is decided in `zyfa_triton.measure`; one run is made for every combination asked.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from zyfa_triton.cli import options
from zyfa_triton.cli.output import CommandError, percent, progress_bar, table, write_json

if TYPE_CHECKING:
    from zyfa_triton.activations import Activations
    from zyfa_triton.measure import Row

SUMMARY = "run the op and compare with fp64"
DESCRIPTION = """\
Runs attention and compares with fp64. Without --activations: the sample that ships with the
package (one layer of Qwen2.5-Coder-1.5B, 1,024 tokens, 2 heads); for --headdim 192, of which
nothing is captured, made-up inputs. --dtype, --p-mode and --backend take several names.
FP8 inputs are quantised with one scale a key head, K's mean left in.
Errors are relative (Frobenius, all heads and rows), x1e-2. LDS conflicts: cycles that they add to
those that LDS takes without, counted by the emulator. The exit status is 1 when a run does not
keep the numerics contract or the emulator found a fault."""

BACKENDS = ("auto", "device", "interpreter", "emulated", "reference")
GAUSSIAN_SEQLEN = 512


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--activations", type=Path, metavar="FILE.npz", help="captured inputs")
    parser.add_argument("--seqlen", type=options.positive, metavar="N", help="first N tokens")
    parser.add_argument("--heads", type=options.positive, metavar="H", help="first H query heads")
    parser.add_argument(
        "--seed", type=int, metavar="N", help="of made-up inputs (--headdim 192; default: 0)"
    )
    options.add_choice(parser, "--backend", BACKENDS, several=True)
    kernels = (*options.KERNELS, *options.HOPPER_KERNELS)
    options.add_variant_arguments(parser, several=True, kernels=kernels)


def run(args: argparse.Namespace) -> int:
    import torch

    from zyfa_triton import BackendUnavailableError
    from zyfa_triton.hip import HipCompilerError
    from zyfa_triton.measure import Inputs, measure

    inputs = _inputs(args)
    rows: list[Row] = []
    for dtype, p_mode, backend in _combinations(args):
        chosen = _default_backend(backend)
        device = "cuda" if chosen == "device" and torch.cuda.is_available() else "cpu"
        try:
            with progress_bar(f"{dtype} {p_mode} on {chosen}") as progress:
                measured = measure(
                    Inputs.of(inputs.to(device), dtype),
                    causal=args.causal,
                    p_mode=p_mode,
                    block_scale=options.block_scale(args),
                    kernel=args.kernel,
                    backend=chosen,
                    progress=progress,
                )
        except (ValueError, BackendUnavailableError, HipCompilerError) as error:
            raise CommandError(str(error)) from None
        rows.append(measured.row)
    print(f"{inputs.name}: {inputs.seqlen} tokens, {inputs.nheads} heads, errors x1e-2\n")
    print(readable(rows))
    write_json(args.json, [row.as_json() for row in rows])
    return 0 if all(is_good(row) for row in rows) else 1


def is_good(row: Row) -> bool:
    """Whether nothing about a run is known to be wrong."""
    match = row.matches_contract
    return not row.findings and (match is None or match.p_codes_equal is not False)


def readable(rows: Sequence[Row]) -> str:
    """The rows as a table for a terminal, followed by the findings."""
    header = (
        "back end",
        "kernel",
        "dtype",
        "P",
        "scale",
        "same inputs",
        "original",
        "codes",
        "max diff",
        "findings",
        "LDS conflicts",
        "s",
    )
    cells = [
        (
            row.backend,
            row.kernel,
            row.dtype,
            row.p_mode,
            "block" if row.block_scale else "-",
            percent(row.rel_err_same_inputs),
            percent(row.rel_err_original_inputs),
            _codes(row),
            f"{row.matches_contract.max_output_difference:.1e}" if row.matches_contract else "-",
            "-" if row.findings is None else len(row.findings) or "none",
            _conflicts(row),
            f"{row.seconds:.1f}",
        )
        for row in rows
    ]
    lines = [table(header, cells)]
    for row in rows:
        for finding in row.findings or []:
            lines.append(f"line {finding['line']}: {finding['kind']}: {finding['message']}")
    return "\n".join(lines)


def _conflicts(row: Row) -> str:
    """Cycles that bank conflicts add to those that LDS takes without them."""
    if row.lds_cycles is None or row.lds_conflict_cycles is None:
        return "-"
    if not row.lds_conflict_cycles:
        return "none"
    return f"+{row.lds_conflict_cycles / (row.lds_cycles - row.lds_conflict_cycles):.0%}"


def _codes(row: Row) -> str:
    if row.matches_contract is None or row.matches_contract.p_codes_equal is None:
        return "-"
    return "equal" if row.matches_contract.p_codes_equal else "DIFFER"


def _default_backend(backend: str) -> str:
    """ "auto" is the device where there is one, else the contract model."""
    import torch

    if backend != "auto":
        return backend
    return "device" if torch.cuda.is_available() else "reference"


def _inputs(args: argparse.Namespace) -> Activations:
    from zyfa_triton import activations
    from zyfa_triton.activations import ActivationsError

    try:
        if args.activations is None and args.headdim != 128:
            return activations.gaussian(
                seqlen=args.seqlen or GAUSSIAN_SEQLEN,
                nheads=args.heads or 2,
                headdim=args.headdim,
                seed=args.seed or 0,
            )
        options.refuse(args, ["seed"], "of made-up inputs: --headdim 192 without --activations")
        found = activations.load(args.activations or activations.SAMPLE)
        if found.q.shape[3] != args.headdim:
            raise CommandError(
                f"--headdim: {args.headdim} asked for, {found.name} has {found.q.shape[3]}"
            )
        return found.cut(seqlen=args.seqlen, heads=args.heads)
    except ActivationsError as error:
        raise CommandError(str(error)) from None


def _combinations(args: argparse.Namespace) -> list[tuple[str, str, str]]:
    """dtype, p_mode, backend of each run."""
    return [
        (dtype, p_mode, backend)
        for backend in dict.fromkeys(args.backend)
        for dtype, p_mode in options.variants(args.dtype, args.p_mode)
    ]
