"""`zyfa inspect`: what the cycles of a kernel's main loop are spent on.

What is counted is decided in `asm_overrides.inspection`, which kernels in `zyfa_triton.inspection`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from zyfa_triton.cli import options
from zyfa_triton.cli.options import PINGPONG
from zyfa_triton.cli.output import CommandError, table, write_json

if TYPE_CHECKING:
    from asm_overrides.inspection import Cost
    from zyfa_triton.inspection import Row

SUMMARY = "what the cycles of a loop are spent on, in our kernels or in a file"
DESCRIPTION = f"""\
Counts the cycles of a kernel's main loop by purpose, for 32 queries x 128 keys and one wave. The
machine code is all that is looked at: matrix instructions are told apart by what flows between
them; work that is done once a score (row maximum, multiply-add, exponential, conversion, packing)
is softmax. Code that most iterations skip (mask, rescale) is listed apart.
FILE: assembly, an llvm-objdump listing or a code object (.hsaco, .co) for gfx950. Without FILE
the op's own kernels are compiled; with FILE and --kernel both are shown.
{options.READING}
--kernel, --p-mode and --dtype can be given several values."""

_OF_KERNELS = {
    "p_mode": ["lean"], "dtype": ["fp8"], "headdim": 128, "causal": True, "block_scale": "auto",
}  # fmt: skip
"""What only the op's own kernels have, and its default."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, nargs="*", metavar="FILE")
    for name, choices, default in (
        ("--kernel", options.KERNELS, "those that serve the problem"),
        ("--p-mode", options.P_MODES, "lean"),
        ("--dtype", options.DTYPES, "fp8"),
    ):
        parser.add_argument(
            name,
            choices=choices,
            nargs="+",
            metavar="NAME",
            help=f"one or several of {', '.join(choices)} (default: {default})",
        )
    parser.add_argument(
        "--headdim", type=int, choices=options.HEADDIMS, help="of the op's kernels (default: 128)"
    )
    parser.add_argument("--causal", action=argparse.BooleanOptionalAction, help="default: on")
    parser.add_argument(
        "--variants",
        action="store_true",
        help="also the ping-pong loop's settings that are not its default ones",
    )
    parser.add_argument(
        "--block-scale", choices=tuple(options.BLOCK_SCALES), help="default: auto, on for fp8"
    )


def run(args: argparse.Namespace) -> int:
    of_kernels = bool(args.kernel or args.variants or not args.file)
    if not of_kernels:
        options.refuse(args, _OF_KERNELS, "of the op's kernels; beside FILE give --kernel, too")
    if args.kernel and PINGPONG not in args.kernel:
        options.refuse(args, ["variants"], f"of --kernel {PINGPONG}, which is not asked for")
    options.fill(args, _OF_KERNELS)
    rows = [row for path in args.file for row in _rows_of_file(path)]
    if of_kernels:
        rows += _rows_of_kernels(args)
    print("one wave, 32 queries x 128 keys; cycles of each port\n")
    print(readable(rows))
    write_json(args.json, [row.as_json() for row in rows])
    return 0


def readable(rows: Sequence[Row]) -> str:
    """The rows as tables for a terminal: cycles and resources, then what softmax consists of."""
    header = (
        "kernel", "dtype", "d", "P", "QK", "PV", "row sum", "softmax", "blocked", "other VALU",
        "LDS", "barriers", "VGPRs", "spills", "LDS B",
    )  # fmt: skip
    cells = [
        (
            _name(row),
            row.dtype or "-",
            row.headdim or "-",
            row.p_mode or "-",
            row.mfma_qk,
            row.mfma_pv,
            row.mfma_rowsum,
            row.softmax_valu,
            row.softmax_valu_blocked,
            row.other_valu,
            row.lds,
            row.barriers,
            row.vgprs,
            "-" if row.spills is None else row.spills,
            "-" if row.lds_bytes is None else row.lds_bytes,
        )
        for row in rows
    ]
    notes = [f"{_name(row)} {row.p_mode}: {note}" for row in rows for note in _notes(row)]
    return "\n".join([table(header, cells), "", *notes])


def _notes(row: Row) -> list[str]:
    """What the table has no room for, a line each."""
    cost = row.detail.cost
    lines = [f"loop {cost.label}, lines {cost.first_line} to {cost.last_line}"]
    if cost.scores:
        made_of = ", ".join(f"{count} {name}" for name, count in cost.softmax_by_opcode.items())
        lines.append(f"softmax is {made_of}")
        if cost.mfma_other:
            lines.append(f"matrix work besides QK, PV and row sum: {cost.mfma_other} cycles")
    else:
        lines.append(f"no attention found: {cost.mfma_other} matrix cycles, all for one iteration")
    if cost.by_accumulators:
        lines.append("P passes through LDS: matrix instructions told apart by their accumulators")
    if cost.other_valu_blocked:
        lines.append(f"blocked besides softmax: {cost.other_valu_blocked} cycles")
    for aside in cost.aside:
        mfma = f" and {aside.mfma} matrix" if aside.mfma else ""
        lines.append(
            f"skipped in the steady state: {aside.what}, {aside.valu} VALU{mfma} cycles a time "
            f"({aside.places} places, the first at line {aside.first_line})"
        )
    lines += [f"other loop: {_short(other)}" for other in row.detail.others]
    return lines


def _short(cost: Cost) -> str:
    if not cost.scores:
        return f"{cost.label}, {cost.mfma_other} matrix and {cost.valu} VALU cycles an iteration"
    return (
        f"{cost.label}, softmax {cost.softmax_valu} ({cost.softmax_valu_blocked} blocked), "
        f"other VALU {cost.other_valu}"
    )


def _name(row: Row) -> str:
    return f"{row.kernel} {row.settings}".strip()


def _rows_of_file(path: Path) -> list[Row]:
    from asm_overrides.emulator import LoadError
    from zyfa_triton import inspection

    try:
        return inspection.of_file(path)
    except OSError as error:
        raise CommandError(f"cannot read {path}: {error.strerror}") from None
    except (LoadError, ValueError) as error:
        raise CommandError(f"{path}: {error}") from None


def _rows_of_kernels(args: argparse.Namespace) -> list[Row]:
    from zyfa_triton import inspection, offline
    from zyfa_triton.measure import DTYPES

    rows = []
    for dtype, p_mode in options.variants(args.dtype, args.p_mode):
        try:
            asked = offline.problem(
                dtype=DTYPES[dtype],
                headdim=args.headdim,
                p_mode=p_mode,
                block_scale=options.block_scale(args),
                causal=args.causal,
            )
            reasons = offline.misfits(asked)
            for kernel in args.kernel or ():
                if reasons[kernel]:
                    serving = ", ".join(each for each in options.KERNELS if not reasons[each])
                    got = f"{kernel}; {reasons[kernel]}"
                    raise CommandError(f"--kernel: got {got}; accepted here: {serving}")
            kernels = args.kernel or offline.kernels_that_serve(asked)
            rows += [inspection.of_kernel(kernel, asked) for kernel in kernels]
            if args.variants:
                rows += inspection.of_other_settings(asked)
        except (ValueError, RuntimeError) as error:
            raise CommandError(str(error)) from None
    return rows
