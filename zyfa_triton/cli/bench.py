"""`zyfa bench`: our paths beside every peer that is installed, on this machine's GPU.

What is measured, and how, is decided in `zyfa_triton.benchmark`.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zyfa_triton.benchmark.suites import SUITES
from zyfa_triton.cli import options
from zyfa_triton.cli.output import CommandError, progress_bar, table, write_json

if TYPE_CHECKING:
    from zyfa_triton.activations import Activations
    from zyfa_triton.benchmark.peers import Path as BenchmarkPath
    from zyfa_triton.benchmark.rows import Row
    from zyfa_triton.benchmark.session import Session
    from zyfa_triton.benchmark.shapes import Case

SUMMARY = "speed and error of our paths beside every installed peer, on this GPU"
DESCRIPTION = f"""\
Times attention and compares it with fp64. A result that is wrong is not timed. Paths take turns;
each runs --settle seconds uncounted, then --seconds counted, --rounds times over. Device time of
calls replayed by a CUDA graph, inputs rotated through twice the L2; median, 20 % and 80 %
quantiles; TFLOP/s by 2 (headdim + headdim_v) FLOP for each pair of query and key, half of all
pairs where causal. Clock and power are those of the time measured.

suites:
{chr(10).join(f"  {suite.name:9} {suite.about}" for suite in SUITES.values())}

The exit status is 1 when nothing could be timed, or when a result of ours was wrong."""

SAMPLE = "sample"
_PACING = {"rounds": 2, "settle": 1.0, "seconds": 0.5}
_OUTPUTS = ("png", "markdown")
CUSTOM = ("seqlen", "nheads", "nheads_k", "batch", "headdim", "causal", "quantise", "dtype")
_MEASURING = ("suite", "activations", "no_gaussian", "verbose", *CUSTOM, *_PACING)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--suite",
        choices=tuple(SUITES),
        metavar="NAME",
        help=f"one of {', '.join(SUITES)} (default: {next(iter(SUITES))})",
    )
    parser.add_argument(
        "--activations",
        nargs="+",
        default=[],
        metavar="FILE.npz",
        help=f"captured inputs, besides Gaussian ones; '{SAMPLE}' is the one in the package",
    )
    parser.add_argument(
        "--no-gaussian", action="store_true", help="only the captured inputs of --activations"
    )
    parser.add_argument(
        "--paths", nargs="+", metavar="PATTERN", help="only paths so named, as 'zyfa-*' 'cudnn-fp8'"
    )
    parser.add_argument("--verbose", action="store_true", help="say on stderr what comes next")
    parser.add_argument("--list-paths", action="store_true", help="names of all paths, and exit")
    shape = parser.add_argument_group("a shape of your own, in place of --suite")
    for name in ("--seqlen", "--nheads", "--nheads-k", "--batch"):
        shape.add_argument(name, type=options.positive, metavar="N")
    shape.add_argument("--headdim", type=int, choices=options.HEADDIMS)
    shape.add_argument("--causal", action=argparse.BooleanOptionalAction)
    shape.add_argument("--quantise", action="store_const", const=True,
                       help="FP8 paths get bfloat16 and quantise within the time: one scale a "
                       "tensor, the means of K and V left in, as peers do")  # fmt: skip
    shape.add_argument("--dtype", choices=("fp8", "bf16"), nargs="+", metavar="NAME")
    pacing = parser.add_argument_group("how long")
    for name, kind, unit in (
        ("rounds", options.positive, "N"),
        ("settle", float, "S"),
        ("seconds", float, "S"),
    ):
        default = f"default: {_PACING[name]:g}"
        pacing.add_argument(f"--{name}", type=kind, metavar=unit, help=default)
    parser.add_argument("--rows", nargs="+", type=Path, metavar="FILE.json",
                        help="measure nothing: show what --json wrote before, of --paths if given"
                        )  # fmt: skip
    parser.add_argument("--png", type=Path, metavar="FILE", help="also draw it (needs matplotlib)")
    parser.add_argument(
        "--markdown", type=Path, metavar="FILE", help="also write the table for a document"
    )


def run(args: argparse.Namespace) -> int:
    from zyfa_triton.benchmark import card, peers, stamp
    from zyfa_triton.benchmark.session import Session
    from zyfa_triton.benchmark.timing import Pacing

    if args.list_paths:
        others = (*_MEASURING, *_OUTPUTS, "paths", "rows")
        options.refuse(args, others, "of a measurement; --list-paths makes none")
        names = [{"path": path.name, "dtype": path.dtype} for path in peers.all_paths()]
        print(table(("path", "dtype"), [tuple(each.values()) for each in names]))
        write_json(args.json, names)
        return 0
    if args.png is not None and importlib.util.find_spec("matplotlib") is None:
        raise CommandError("--png needs matplotlib (pip install 'zyfa-triton[bench]')")
    if args.rows is not None:
        options.refuse(args, _MEASURING, "of a measurement; --rows makes none")
        return _again(args)
    options.fill(args, _PACING)
    cases, sources, paths = _cases(args), _sources(args), _paths(args, peers.all_paths())
    try:
        pacing = Pacing(args.rounds, args.settle, args.seconds)
    except ValueError as error:
        raise CommandError(str(error)) from None
    environment = stamp.environment()
    session = Session(paths, pacing, card.found(), _to_stderr if args.verbose else _to_nobody)
    with progress_bar("bench") as progress:
        rows = session.run(cases, sources, _after_case(args.json, environment, progress))
    _report(session, rows, environment)
    write_json(args.json, _as_json(rows, environment))
    _write(args, rows, environment)
    timed = any(row.measured is not None for row in rows)
    return 0 if timed and not any(row.is_wrong and row.is_ours for row in rows) else 1


def _again(args: argparse.Namespace) -> int:
    """Table, document, picture and JSON of rows that were written before."""
    from zyfa_triton.benchmark import table as tables
    from zyfa_triton.benchmark.rows import Row

    found: list[tuple[Row, dict[str, Any]]] = []
    for file in args.rows:
        try:
            read = json.loads(file.read_text(encoding="utf-8"))
            if not isinstance(read, list) or not read:
                raise ValueError("not a list of rows")
            found += [(Row.from_json(row), row["environment"]) for row in read]
        except OSError as error:
            raise CommandError(f"--rows: cannot read {file}: {error.strerror}") from None
        except (ValueError, LookupError, TypeError) as error:
            raise CommandError(f"--rows: {file}: {error}; accepted: what --json wrote") from None
    environment = found[0][1]
    if args.paths is not None:
        found = [each for each in found if _is_asked_for(each[0].path, args.paths)]
    rows = [row for row, _ in found]
    print(table(tables.HEADER, tables.cells(rows)))
    write_json(args.json, [row.as_json(of_row) for row, of_row in found])
    _write(args, rows, environment)
    return 0


def _is_asked_for(path: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(path, pattern) for pattern in patterns)


def _after_case(
    json_file: Path | None, environment: dict[str, Any], progress: Callable[[int, int], None]
) -> Callable[[list[Row], int, int], None]:
    """What is done after each case: what is known so far is written, should the rest be cut off."""

    def after(rows: list[Row], done: int, of: int) -> None:
        write_json(json_file, _as_json(rows, environment))
        progress(done, of)

    return after


def _to_stderr(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _to_nobody(text: str) -> None:
    """Says nothing."""


def _as_json(rows: Sequence[Row], environment: dict[str, Any]) -> list[dict[str, Any]]:
    return [row.as_json(environment) for row in rows]


def _report(session: Session, rows: Sequence[Row], environment: dict[str, Any]) -> None:
    from zyfa_triton.benchmark import table as tables

    print("  ".join(f"{name} {value}" for name, value in environment.items() if value is not None))
    if session.sampler is not None:
        print(f"clock and power: {session.sampler.source}")
    for rate in session.rates:
        size = "8192^3 matrix product"
        if rate.tflops is None:
            print(f"{rate.dtype} {size}: {rate.reason}")
            continue
        clock, power = rate.state.clock_mhz, rate.state.power_w
        card = "" if clock is None else f" at {clock:.0f} MHz, {power:.0f} W"
        print(f"{rate.dtype} {size}: {rate.tflops:.0f} TFLOP/s{card}")
    cells = tables.cells(rows)
    if cells:
        print("\n" + table(tables.HEADER, cells))
    reasons = tables.reasons(rows)
    if reasons:
        print("\nnot timed:\n" + "\n".join(f"  {reason}" for reason in reasons))


def _write(args: argparse.Namespace, rows: Sequence[Row], environment: dict[str, Any]) -> None:
    from zyfa_triton.benchmark import plot
    from zyfa_triton.benchmark import table as tables

    try:
        if args.markdown is not None:
            args.markdown.write_text(tables.markdown(rows) + "\n", encoding="utf-8")
        if args.png is not None and any(row.measured is not None for row in rows):
            plot.picture(rows, args.png, environment)
        elif args.png is not None:
            print("\nno picture: nothing was timed")
    except OSError as error:
        raise CommandError(f"cannot write {error.filename}: {error.strerror}") from None


def _cases(args: argparse.Namespace) -> tuple[Case, ...]:
    from zyfa_triton.benchmark.shapes import Case, Shape

    given = [name for name in CUSTOM if getattr(args, name) is not None]
    if not given:
        return SUITES[args.suite or next(iter(SUITES))].cases
    options.refuse(args, ["suite"], f"beside a shape of your own (--{_option(given[0])})")
    if args.seqlen is None or args.nheads is None:
        flag = _option(given[0])
        raise CommandError(f"--{flag}: a shape of your own needs --seqlen and --nheads")
    nheads_k = args.nheads_k or args.nheads
    if args.nheads % nheads_k:
        raise CommandError(f"--nheads-k: got {nheads_k}; accepted: a divisor of {args.nheads}")
    shape = Shape(
        args.seqlen,
        args.nheads,
        nheads_k,
        batch=args.batch or 1,
        headdim=args.headdim or 128,
        causal=True if args.causal is None else args.causal,
    )
    dtypes = tuple(dict.fromkeys(args.dtype or ("fp8", "bf16")))
    if "fp8" not in dtypes:
        options.refuse(args, ["quantise"], "of FP8 paths; --dtype asks for none")
    return (Case(shape, dtypes, bool(args.quantise)),)


def _option(name: str) -> str:
    return name.replace("_", "-")


def _sources(args: argparse.Namespace) -> list[Activations | None]:
    from zyfa_triton import activations
    from zyfa_triton.activations import ActivationsError

    sources: list[Activations | None] = [] if args.no_gaussian else [None]
    try:
        for name in args.activations:
            sources.append(activations.load(activations.SAMPLE if name == SAMPLE else name))
    except ActivationsError as error:
        raise CommandError(f"--activations: {error}") from None
    if not sources:
        raise CommandError("--no-gaussian: nothing is left; give --activations FILE.npz")
    return sources


def _paths(args: argparse.Namespace, known: Sequence[BenchmarkPath]) -> list[BenchmarkPath]:
    if args.paths is None:
        return list(known)
    for pattern in args.paths:
        if not any(_is_asked_for(path.name, [pattern]) for path in known):
            names = ", ".join(dict.fromkeys(path.name for path in known))
            raise CommandError(f"--paths: got {pattern!r}; accepted: patterns of {names}")
    return [path for path in known if _is_asked_for(path.name, args.paths)]
