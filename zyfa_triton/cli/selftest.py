"""`zyfa selftest`: is a gfx950 what the emulator and the cycle model take it for?

What is asked, and what follows from the answers, is decided in `zyfa_triton.selftest`.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
from collections.abc import Sequence
from typing import TYPE_CHECKING

from zyfa_triton.cli.output import CommandError, progress_bar, table, write_json

if TYPE_CHECKING:
    from zyfa_triton.selftest import Row

SUMMARY = "put what is assumed about gfx950 to the card, or to the emulator without one"
DESCRIPTION = """\
Runs a small kernel for each assumption of docs/hardware-assumptions.md that a card can
settle, whole attention kernels against the emulator, and streams that measure the cycle
model's constants. On a gfx950 what turns out to be allowed (a faster way to pack codes) is
written to the tuning file that the op reads. Without one the emulator answers, so that the
probes are known to work; cycles then need a card.
NAME: rows to run, by the beginning of their names, such as matrix or kernels/fp8.
The exit status is 1 when an answer is not the assumed one."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="*", metavar="NAME")
    parser.add_argument(
        "--backend",
        choices=("auto", "device", "emulated"),
        default="auto",
        help="what answers (default: the card where the current device is a gfx950)",
    )
    parser.add_argument(
        "--no-store", action="store_true", help="leave the tuning file as it is, also on a card"
    )


def run(args: argparse.Namespace) -> int:
    from zyfa_triton import selftest, tuning
    from zyfa_triton.selftest import card

    for name in args.name:
        if not any(each.startswith(name) for each in selftest.names()):
            groups = ", ".join(dict.fromkeys(each.split("/")[0] for each in selftest.names()))
            raise CommandError(f"NAME: got {name!r}; accepted: beginnings of names; {groups}")
    missing = card.missing()
    if args.backend == "device" and missing:
        raise CommandError(f"--backend device: {missing}")
    on_card = args.backend != "emulated" and not missing
    where = card.describe() if on_card else f"the emulator ({missing or 'as asked'})"
    stored: list[str] = []

    def allow(settings: dict[str, str]) -> None:
        origin: dict[str, object] = {"device": where, "date": datetime.date.today().isoformat()}
        stored.append(f"{_shown(settings)} in {tuning.allow('gfx950', settings, origin)}")

    print(f"answered by {where}\n")
    with progress_bar("selftest") as move:
        rows = selftest.run(
            args.name, on_card=on_card, allow=None if args.no_store else allow, progress=move
        )
    settings = selftest.settings_from(rows)
    print(table(("question", "name", "outcome", "agrees"), [_cells(row) for row in rows]))
    print(f"\n{_summary(rows)}")
    if any(row.agrees is False for row in rows):
        print("what depends on an assumption: docs/hardware-assumptions.md")
    if settings and on_card:
        print(f"allowed: {stored[0] if stored else _shown(settings) + ' (not stored)'}")
    write_json(
        args.json,
        {
            "answered_by": where,
            "on_card": on_card,
            "allowed": settings if on_card else {},
            "rows": [dataclasses.asdict(row) for row in rows],
        },
    )
    return 1 if any(row.agrees is False for row in rows) else 0


def _cells(row: Row) -> tuple[str, str, str, str]:
    agrees = {True: "yes", False: f"NO, assumed: {row.assumed}", None: f"- (model: {row.assumed})"}
    return row.question, row.name, row.outcome, agrees[row.agrees]


def _summary(rows: Sequence[Row]) -> str:
    """Counts, and the names of what does not agree."""
    wrong = [row.name for row in rows if row.agrees is False]
    open_ = sum(row.agrees is None for row in rows)
    parts = [f"{len(rows) - len(wrong) - open_} of {len(rows)} as assumed"]
    if open_:
        parts.append(f"{open_} need a card")
    if wrong:
        parts.append(f"NOT as assumed: {', '.join(wrong)}")
    return f"{'; '.join(parts)}; {sum(row.seconds for row in rows):.0f} s"


def _shown(settings: dict[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in settings.items())
