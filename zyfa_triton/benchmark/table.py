"""How rows read: as cells for a terminal, and as Markdown for a document.

It measures nothing and leaves nothing out: reasons are listed, each once.
"""

from __future__ import annotations

from collections.abc import Sequence

from zyfa_triton.benchmark.rows import Measured, Row

HEADER = (
    "case", "inputs", "path", "dtype", "ms", "20%", "80%", "TFLOP/s", "of matmul", "error x1e-3",
    "MHz", "W", "drift %",
)  # fmt: skip


def cells(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """One line for each row that has figures, under HEADER."""
    return [_line(row, row.result) for row in rows if isinstance(row.result, Measured)]


def reasons(rows: Sequence[Row]) -> list[str]:
    """Why there are no figures: one line for each reason, with its paths and cases."""
    paths: dict[str, dict[str, None]] = {}
    cases: dict[str, dict[str, None]] = {}
    for row in rows:
        if isinstance(row.result, str):
            paths.setdefault(row.result, {})[f"{row.path} ({row.dtype})"] = None
            cases.setdefault(row.result, {})[row.case.label] = None
    return [
        f"{', '.join(paths[reason])}: {reason} [{'; '.join(cases[reason])}]" for reason in paths
    ]


def markdown(rows: Sequence[Row]) -> str:
    """The same table for a document, without reasons."""
    lines = [f"| {' | '.join(HEADER)} |", "|" + "---|" * len(HEADER)]
    return "\n".join(lines + [f"| {' | '.join(line)} |" for line in cells(rows)])


def _line(row: Row, measured: Measured) -> tuple[str, ...]:
    share = measured.share_of_matmul
    return (
        row.case.label,
        row.inputs,
        row.path,
        row.dtype,
        f"{measured.ms_median:.3f}",
        f"{measured.ms_p20:.3f}",
        f"{measured.ms_p80:.3f}",
        f"{measured.tflops:.0f}",
        "-" if share is None else f"{share:.2f}",
        f"{1e3 * measured.rel_err_same_inputs:.2f}",
        _number(measured.clock_mhz),
        _number(measured.power_w),
        f"{100 * measured.drift:+.1f}",
    )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"
