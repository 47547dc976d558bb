"""`zyfa schedule`: how long a kernel's main loop takes on the card, and what keeps its pipes idle.

The model is `asm_overrides.timing` (docs/cycle-model.md); which kernels are asked about is decided
in `zyfa_triton.schedules`, how the picture looks in `zyfa_triton.timeline`.
"""

from __future__ import annotations

import argparse
import gzip
import importlib.util
import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from zyfa_triton.cli import options
from zyfa_triton.cli.output import CommandError, table, write_json

if TYPE_CHECKING:
    from zyfa_triton.schedules import Scheduled

SUMMARY = "predict the cycles of a loop: table, picture of the two waves, trace for Perfetto"
DESCRIPTION = f"""\
Predicts the steady state of a kernel's main loop on one SIMD with two waves: the port bound (no
schedule is faster) and a replay of both waves, instruction by instruction, at the best and at the
worst offset between them. The steady state skips masks and rescales; --take and --pass decide
branches otherwise. Useful are matrix cycles of Q K^T and P V.
FILE: assembly, an llvm-objdump listing or a code object (.hsaco, .co) for gfx950.
{options.READING}
Without FILE the ping-pong loop is generated and looked at alone, with --kernel triton Triton's is
compiled and with --kernel hip the BF16 kernel in HIP, for both of its head dims.
The picture and the trace show the first row, at its worst offset.
With --seqlens it predicts whole launches of the op's kernels instead, from the first instruction to
the last workgroup's end: milliseconds, TFLOP/s (pairs of a query and a key that it sees count), the
share of the time in which matrix pipes work on Q K^T or P V of a visited tile, parts of the time of
all compute units (idle: the tail), and how evenly orders of the workgroups keep the card busy."""

_OF_KERNELS = {
    "p_mode": ["lean"], "headdim": [128], "causal": True, "pack": "perm", "multiply_add": "plain",
    "row_sum": "sparse",
}  # fmt: skip
"""What only the op's own kernels have, and its default."""
_OF_LOOP = ("pack", "multiply_add", "row_sum")
_OF_FILES = ("waves", "take", "pass")
_OF_LAUNCHES = ("nheads", "nheads_k", "batch", "rescales", "clock")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, nargs="*", metavar="FILE")
    parser.add_argument(
        "--kernel",
        choices=options.KERNELS,
        nargs="+",
        metavar="NAME",
        help=f"one or several of {', '.join(options.KERNELS)} (default: pingpong, if no FILE); "
        "with --seqlens not hip",
    )
    parser.add_argument(
        "--p-mode",
        choices=options.P_MODES,
        nargs="+",
        metavar="NAME",
        help=f"one or several of {', '.join(options.P_MODES)} (default: lean); unscaled: of "
        "--kernel triton alone",
    )
    parser.add_argument(
        "--headdim",
        type=int,
        choices=options.HEADDIMS,
        nargs="+",
        metavar="N",
        help="one or both of 128, 192 (default: 128)",
    )
    for name, choices in (
        ("--pack", ("perm", "op_sel")),
        ("--multiply-add", ("plain", "packed")),
        ("--row-sum", ("sparse", "dense")),
    ):
        parser.add_argument(
            name, choices=choices, help=f"of the ping-pong loop (default: {choices[0]})"
        )
    parser.add_argument("--causal", action=argparse.BooleanOptionalAction, help="default: on")
    parser.add_argument(
        "--waves",
        type=options.positive,
        metavar="N",
        help="waves of a FILE's workgroup; up to 4 have a SIMD each (default: its metadata's)",
    )
    for name, what in (("--take", "is taken"), ("--pass", "is not taken")):
        parser.add_argument(
            name,
            type=options.positive,
            nargs="+",
            default=[],
            metavar="LINE",
            help=f"the branch on this line of the FILE {what}",
        )
    _add_launch_arguments(parser)
    parser.add_argument("--png", type=Path, metavar="FILE", help="picture of two iterations")
    parser.add_argument(
        "--trace", type=Path, metavar="FILE", help="Chrome trace, for Perfetto (.gz: packed)"
    )
    parser.add_argument(
        "--cycles", type=options.positive, metavar="N", help="so many cycles in the picture"
    )


def _add_launch_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("whole launches")
    group.add_argument(
        "--seqlens",
        type=options.positive,
        nargs="+",
        metavar="N",
        help="lengths of queries and keys",
    )
    group.add_argument("--nheads", type=options.positive, metavar="N", help="default: 16")
    group.add_argument(
        "--nheads-k", type=options.positive, metavar="N", help="key heads (default: as many)"
    )
    group.add_argument(
        "--batch", type=options.positive, metavar="N", help="default: 32768 tokens in all"
    )
    group.add_argument(
        "--rescales",
        type=float,
        metavar="SHARE",
        help="tiles in which a row maximum grows (default: 0.28, a typical layer)",
    )
    group.add_argument(
        "--clock", type=_frequency, metavar="GHZ", help="default: the peak clock, 2.4"
    )


def _frequency(text: str) -> float:
    """A clock in GHz, for argparse."""
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
    if not 0 < value < 10:
        raise argparse.ArgumentTypeError(f"{value} is not within 0 to 10")
    return value


def _check(args: argparse.Namespace) -> None:
    """Refuses options that would change nothing, and fills in the others' defaults."""
    kernels = args.kernel or [options.PINGPONG]
    if not args.seqlens:
        options.refuse(args, _OF_LAUNCHES, "of whole launches; give --seqlens")
    if not args.file:
        options.refuse(args, _OF_FILES, "of a FILE; none is given")
    elif not args.kernel and not args.seqlens:
        options.refuse(args, _OF_KERNELS, "of the op's kernels; beside FILE give --kernel, too")
    if options.PINGPONG not in kernels:
        options.refuse(args, _OF_LOOP, f"of --kernel {options.PINGPONG}, which is not asked for")
    if set(kernels) == {options.HIP}:
        options.refuse(args, ["p_mode"], f"of fp8; --kernel {options.HIP} is bf16")
    if args.png is None:
        options.refuse(args, ["cycles"], "of the picture; give --png")
    options.fill(args, {**_OF_KERNELS, "nheads": 16})
    if "unscaled" in args.p_mode and options.PINGPONG in kernels:
        accepted = ", ".join(mode for mode in options.P_MODES if mode != "unscaled")
        raise CommandError(
            f"--p-mode: got unscaled; accepted with --kernel {options.PINGPONG}: {accepted}"
        )


def run(args: argparse.Namespace) -> int:
    _check(args)
    if args.seqlens:
        from zyfa_triton.cli import launches

        predicted = launches.rows_of(args)
        print(launches.readable(predicted))
        write_json(args.json, predicted)
        return 0
    rows = [_of_file(path, args) for path in args.file]
    if args.kernel or not args.file:
        rows += _of_kernels(args)
    print("one SIMD, two waves, steady state; shares of the matrix pipe's time\n")
    print(readable(rows))
    files = _write(args, rows[0])
    if files:
        print("\n" + "\n".join(f"wrote {path}" for path in files))
    write_json(args.json, [row.as_json() for row in rows])
    return 0


def readable(rows: Sequence[Scheduled]) -> str:
    """The rows as tables for a terminal: figures, then what waves and the matrix pipe wait for."""
    header = (
        "kernel", "dtype", "d", "P", "port bound", "limit", "useful best", "useful worst",
        "busy worst", "cycles",
    )  # fmt: skip
    cells = []
    for row in rows:
        values = row.as_json()
        cells.append(
            (
                _name(row),
                values["dtype"] or "-",
                values["headdim"] or "-",
                values["p_mode"] or "-",
                *(f"{values['port_bound_share']:.3f}", values["port_bound_limit"]),
                *(f"{values[name]:.3f}" for name in _SHARES),
                f"{values['cycles_per_iteration_worst']:.0f}",
            )
        )
    parts = [table(header, cells)]
    for row in rows:
        worst = row.prediction.worst
        parts.append(f"{_name(row)} {row.as_json()['p_mode']}, worst offset, cycles an iteration")
        parts.append(_causes("waves held by (both together)", worst.stalls()))
        parts.append(_causes("matrix pipe idle while its next wave is", worst.idle_matrix()))
    return "\n\n".join(parts)


_SHARES = ("useful_share_replay_best", "useful_share_replay_worst", "matrix_busy_replay_worst")


def _causes(title: str, cycles: dict[str, float]) -> str:
    return table((title, "cycles"), [(name, f"{count:.0f}") for name, count in cycles.items()])


def _name(row: Scheduled) -> str:
    return f"{row.kernel} {row.settings}".strip()


def _of_file(path: Path, args: argparse.Namespace) -> Scheduled:
    from asm_overrides.emulator import LoadError
    from zyfa_triton import schedules

    decisions = dict.fromkeys(args.take, True) | dict.fromkeys(getattr(args, "pass"), False)
    try:
        return schedules.of_file(path, waves=args.waves, decisions=decisions)
    except OSError as error:
        raise CommandError(f"cannot read {path}: {error.strerror}") from None
    except (LoadError, ValueError) as error:
        raise CommandError(f"{path}: {error}") from None


def _of_kernels(args: argparse.Namespace) -> list[Scheduled]:
    from zyfa_triton import schedules

    rows = []
    kernels = args.kernel or ["pingpong"]
    try:
        if "hip" in kernels:  # BF16: it has no p_mode
            rows += [schedules.of_hip(size, causal=args.causal) for size in _headdims(args)]
        for headdim, p_mode in itertools.product(_headdims(args), dict.fromkeys(args.p_mode)):
            for kernel in kernels:
                if kernel == "hip":
                    continue
                if kernel == "triton":
                    rows.append(schedules.of_triton(p_mode, headdim=headdim, causal=args.causal))
                else:
                    rows.append(
                        schedules.of_recipe(
                            headdim=headdim,
                            p_mode=p_mode,
                            causal=args.causal,
                            pack=args.pack,
                            multiply_add=args.multiply_add,
                            row_sum=args.row_sum,
                        )
                    )
    except (ValueError, RuntimeError) as error:
        raise CommandError(str(error)) from None
    return rows


def _headdims(args: argparse.Namespace) -> list[int]:
    """Those asked for, each once."""
    return list(dict.fromkeys(args.headdim))


def _write(args: argparse.Namespace, row: Scheduled) -> list[Path]:
    """Picture and trace of one row."""
    from asm_overrides.timing import chrome_trace
    from zyfa_triton import timeline

    files = []
    name = f"{_name(row)} {row.as_json()['p_mode']}"
    try:
        if args.png is not None:
            if importlib.util.find_spec("matplotlib") is None:
                raise CommandError("--png needs matplotlib (pip install 'zyfa-triton[plot]')")
            timeline.picture(name, row.prediction, args.png, args.cycles)
            files.append(args.png)
        if args.trace is not None:
            trace = chrome_trace(row.prediction.worst, row.notes)
            data = json.dumps(trace, separators=(",", ":")).encode()
            is_packed = args.trace.suffix == ".gz"  # Perfetto opens both
            args.trace.write_bytes(gzip.compress(data, mtime=0) if is_packed else data)
            files.append(args.trace)
    except OSError as error:
        raise CommandError(f"cannot write {error.filename}: {error.strerror}") from None
    return files
