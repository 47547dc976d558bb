"""`zyfa check`: may somebody's gfx950 assembly or code object be trusted on hardware?

The checks are those of `asm_overrides.check`; nothing is executed and Triton is not needed.
"""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

from zyfa_triton import env
from zyfa_triton.cli import options
from zyfa_triton.cli.output import CommandError, table, write_json

SUMMARY = "look for hazards, missing waits and other faults in gfx950 code"
DESCRIPTION = f"""\
Checks assembly text, an llvm-objdump listing or a code object (.hsaco, .co) for gfx950:
unknown opcodes, wait states that the hardware needs, results used before their wait,
registers that the descriptor does not allocate, programs that run off their end.
Every path is judged and nothing is executed; races and addresses need a run (zyfa run).
{options.READING}
The exit status is 1 when something was found."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, nargs="+", metavar="FILE")
    parser.add_argument(
        "--strict",
        action="store_true",
        help="also demand what compilers guarantee by other means; for hand-written code",
    )


def run(args: argparse.Namespace) -> int:
    from asm_overrides.check import check_file
    from asm_overrides.emulator import LoadError
    from asm_overrides.isa.parse import ParseError

    results = []
    for path in args.file:
        try:
            findings = check_file(path, strict=args.strict, objdump=env.objdump())
        except OSError as error:
            raise CommandError(f"cannot read {path}: {error.strerror}") from None
        except (LoadError, ParseError, ValueError) as error:
            raise CommandError(f"{path}: {error}") from None
        if findings:
            rows = [(one.line, one.kind, one.instruction, one.message) for one in findings]
            print(f"{path}: {len(findings)} findings\n")
            print(table(("line", "kind", "instruction", "what is wrong"), rows), end="\n\n")
        else:
            print(f"{path}: nothing found")
        results.append(
            {"file": str(path), "findings": [dataclasses.asdict(one) for one in findings]}
        )
    write_json(args.json, results)
    return 1 if any(one["findings"] for one in results) else 0
