"""Which commands `zyfa` has and how an error reaches the user. Each command has its own file.

A command's module has `add_arguments(parser)` and `run(args) -> int`, and imports what needs
Triton only inside `run`, so that `zyfa --help` and `zyfa check` work and start without it.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from zyfa_triton._version import __version__
from zyfa_triton.cli import (
    bench,
    capture,
    check,
    compile,
    demo,
    doctor,
    inspect,
    run,
    schedule,
    selftest,
)
from zyfa_triton.cli.output import CommandError

COMMANDS = {
    "doctor": doctor,
    "compile": compile,
    "inspect": inspect,
    "schedule": schedule,
    "run": run,
    "capture": capture,
    "check": check,
    "selftest": selftest,
    "demo": demo,
    "bench": bench,
}

EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


def build_parser() -> argparse.ArgumentParser:
    """The parser of `zyfa`, with one subparser a command."""
    parser = argparse.ArgumentParser(
        prog="zyfa",
        description="FP8 and BF16 attention for Hopper and gfx950: run and measure it on this "
        "machine's card; compile gfx950 code, run it on a CPU, check it.",
    )
    parser.add_argument("--version", action="version", version=f"zyfa-triton {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, module in COMMANDS.items():
        command = commands.add_parser(
            name,
            help=module.SUMMARY,
            description=module.DESCRIPTION,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(command)
        command.add_argument(
            "--json", type=Path, metavar="FILE", help="also write the result as JSON"
        )
        command.set_defaults(run=module.run, parser=command)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command. Returns its exit status: 0 done, 1 the result is bad, 2 wrong arguments."""
    args = build_parser().parse_args(argv)
    try:
        status: int = args.run(args)
        sys.stdout.flush()
        return status
    except CommandError as error:
        args.parser.print_usage(sys.stderr)
        print(f"zyfa {args.command}: error: {error}", file=sys.stderr)
        return EXIT_USAGE
    except KeyboardInterrupt:
        print(f"zyfa {args.command}: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # the reader of a pipe went away: say nothing, also not when Python flushes stdout at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
