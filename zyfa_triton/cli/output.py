"""How results look: tables for a terminal, JSON for a program. Decides nothing of their content."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tqdm import tqdm


class CommandError(Exception):
    """Wrong arguments or a missing file: printed as one line with the usage, no traceback."""


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Columns as wide as their longest cell; numbers to the right, words to the left."""
    cells = [[str(cell) for cell in row] for row in rows]
    widths = [
        max([len(title), *(len(row[column]) for row in cells)])
        for column, title in enumerate(header)
    ]
    right = [
        bool(cells) and all(_is_number(row[column]) for row in cells)
        for column in range(len(header))
    ]

    def line(row: Sequence[str]) -> str:
        padded = (
            cell.rjust(width) if is_right else cell.ljust(width)
            for cell, width, is_right in zip(row, widths, right, strict=True)
        )
        return "  ".join(padded).rstrip()

    rule = "  ".join("-" * width for width in widths)
    return "\n".join([line(list(header)), rule, *(line(row) for row in cells)])


def _is_number(cell: str) -> bool:
    if cell in ("", "-"):
        return True
    try:
        float(cell)
    except ValueError:
        return False
    return True


def write_json(path: Path | None, value: object) -> None:
    """Writes strict JSON (a value that is no number becomes null); nothing where path is None."""
    if path is None:
        return
    text = json.dumps(_strict(value), indent=2, allow_nan=False) + "\n"
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise CommandError(f"--json: cannot write {path}: {error.strerror}") from None


def _strict(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _strict(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_strict(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


@contextmanager
def progress_bar(description: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on a terminal's stderr, moved by calls with (done, in all), gone at the end."""
    with tqdm(desc=description, leave=False, disable=None) as bar:

        def move(done: int, of: int) -> None:
            bar.total = of
            bar.update(done - bar.n)

        yield move


def percent(value: float | None) -> str:
    """A relative error as in the study's tables: 0.00596 is 0.596 (x1e-2)."""
    return "-" if value is None else f"{100 * value:.3f}"
