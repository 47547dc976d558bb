"""`zyfa demo`: the demonstration's table and picture. `zyfa_triton.demo` decides what it runs."""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

from zyfa_triton.cli import options
from zyfa_triton.cli.output import CommandError, percent, progress_bar, table, write_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zyfa_triton.demo import Shown

SUMMARY = "machine code for gfx950 on a real layer, on this CPU: a table and a picture"
DESCRIPTION = """\
Compiles the FP8 kernel (exact and Lean, block scaled; with Triton's own loop and with the
hand-scheduled ping-pong loop in its place) and the BF16 kernel for gfx950, runs their machine code
in the emulator on a real model's attention inputs, and compares with fp64.
Writes demo.json and demo.png (the picture needs matplotlib: pip install 'zyfa-triton[plot]')."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-o", "--output", type=Path, default=Path("demo"), metavar="DIR")
    parser.add_argument("--seqlen", type=options.positive, metavar="N", help="first N tokens")
    parser.add_argument("--heads", type=options.positive, metavar="H", help="first H heads")


def run(args: argparse.Namespace) -> int:
    from zyfa_triton import activations, demo
    from zyfa_triton.activations import ActivationsError
    from zyfa_triton.cli.run import is_good

    try:
        args.output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CommandError(f"-o: cannot make {args.output}: {error.strerror}") from None
    try:
        sample = activations.load(activations.SAMPLE).cut(seqlen=args.seqlen, heads=args.heads)
    except ActivationsError as error:
        raise CommandError(str(error)) from None
    shown = []
    for variant in demo.VARIANTS:
        with progress_bar(variant.name) as progress:
            shown.append(demo.show(variant, sample, progress))
    row = shown[0].measurement.row
    print(
        f"{row.inputs}: {row.nheads} heads, {row.seqlen} tokens, causal; "
        "gfx950 machine code run in the emulator, errors x1e-2 against fp64;\n"
        "MFMA, softmax, other VALU: cycles of one wave for 32 queries x 128 keys\n"
    )
    print(readable(shown))
    results = [one.as_json() for one in shown]
    files = [args.output / "demo.json"]
    write_json(files[0], results)
    if importlib.util.find_spec("matplotlib") is None:
        print("\nno picture: matplotlib is not installed (pip install 'zyfa-triton[plot]')")
    else:
        files.append(args.output / "demo.png")
        demo.picture(shown, files[-1])
    print("\n" + "\n".join(f"wrote {path}" for path in files))
    write_json(args.json, results)
    return 0 if all(is_good(one.measurement.row) for one in shown) else 1


def readable(shown: Sequence[Shown]) -> str:
    """The demonstration's table."""
    header = (
        "kernel",
        "same inputs",
        "original inputs",
        "P codes",
        "VGPRs",
        "spilled",
        "MFMA",
        "softmax",
        "other VALU",
        "findings",
        "s",
    )
    cells = []
    for one in shown:
        row, report = one.measurement.row, one.report
        cost = one.cost
        match = row.matches_contract
        codes = "-" if match is None else "as contract" if match.p_codes_equal else "DIFFER"
        cells.append(
            (
                one.variant.name,
                percent(row.rel_err_same_inputs),
                percent(row.rel_err_original_inputs),
                codes,
                report.vgprs,
                report.vgpr_spills,
                round(cost.mfma_qk + cost.mfma_pv + cost.mfma_rowsum),
                round(cost.softmax_valu),
                round(cost.other_valu),
                len(row.findings or []) or "none",
                f"{row.seconds:.0f}",
            )
        )
    return table(header, cells)
