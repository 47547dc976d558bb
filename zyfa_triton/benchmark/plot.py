"""How rows look as a picture: bars of TFLOP/s, one panel for each kind of inputs.

It leaves out rows without figures; the table lists their reasons.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from zyfa_triton.benchmark.rows import Row

_DPI = 110
_OURS = ("#0b5394", "#3d85c6", "#9fc5e8", "#674ea7", "#8e7cc3", "#b4a7d6")
_OTHERS = ("#7f7f7f", "#b8860b", "#a0522d", "#6b8e23", "#bc8f8f", "#c0c0c0")


def picture(rows: Sequence[Row], path: Path, environment: Mapping[str, Any]) -> None:
    """Writes a PNG: cases in groups, a bar a path with its 20 % and 80 % marks. Needs matplotlib.

    Raises ValueError where no row has figures.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    shown = [row for row in rows if row.measured is not None]
    if not shown:
        raise ValueError("no row has figures: there is nothing to draw")
    panels = list(dict.fromkeys(panel_of(row) for row in shown))
    series = list(dict.fromkeys(name_of(row) for row in shown))
    colours = _colours(series)
    cases = {panel: _cases(shown, panel) for panel in panels}
    width = 2.5 + 0.22 * len(series) * max(len(labels) for labels in cases.values())
    figure = Figure(
        figsize=(max(7.0, width), 1 + 3.2 * len(panels)), dpi=_DPI, layout="constrained"
    )
    FigureCanvasAgg(figure)
    figure.suptitle(f"{environment.get('device') or 'no card'}, {environment['date'][:10]}")
    for axes, panel in zip(
        figure.subplots(len(panels), 1, squeeze=False)[:, 0], panels, strict=True
    ):
        _panel(
            axes, [row for row in shown if panel_of(row) == panel], cases[panel], series, colours
        )
        axes.set_title(panel)
    figure.legend(*_handles(figure), loc="outside lower center", ncols=4, fontsize=8)
    figure.savefig(path)


def panel_of(row: Row) -> str:
    """Inputs without what depends on the length, and whether quantising is in the time."""
    name = row.inputs.partition(" repeated")[0]
    return f"{name}, quantising in the time" if row.case.quantise else name


def name_of(row: Row) -> str:
    """A path's name in the legend."""
    return f"{row.path} ({row.dtype})"


def _cases(rows: Sequence[Row], panel: str) -> list[str]:
    return list(dict.fromkeys(row.case.shape.label for row in rows if panel_of(row) == panel))


def _colours(series: Sequence[str]) -> dict[str, str]:
    ours = [name for name in series if name.startswith("zyfa")]
    others = [name for name in series if not name.startswith("zyfa")]
    return {
        name: palette[index % len(palette)]
        for names, palette in ((ours, _OURS), (others, _OTHERS))
        for index, name in enumerate(names)
    }


def _panel(
    axes: Any,
    rows: Sequence[Row],
    cases: Sequence[str],
    series: Sequence[str],
    colours: Mapping[str, str],
) -> None:
    width = 0.85 / len(series)
    for index, name in enumerate(series):
        mine = [row for row in rows if name_of(row) == name]
        places = [cases.index(row.case.shape.label) + (index + 0.5) * width - 0.425 for row in mine]
        heights, below, above = [], [], []
        for row in mine:
            assert row.measured is not None
            heights.append(row.measured.tflops)
            fast = row.case.shape.tflops(row.measured.ms_p20 / 1e3)
            slow = row.case.shape.tflops(row.measured.ms_p80 / 1e3)
            below.append(max(0.0, heights[-1] - slow))
            above.append(max(0.0, fast - heights[-1]))
        axes.bar(
            places, heights, width, yerr=(below, above), label=name, color=colours[name],
            error_kw={"elinewidth": 0.8},
        )  # fmt: skip
    axes.set_xticks(range(len(cases)), cases, fontsize=8)
    axes.set_ylabel("TFLOP/s")
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)


def _handles(figure: Any) -> tuple[list[Any], list[str]]:
    """Legend entries of all panels, each once."""
    found: dict[str, Any] = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    return list(found.values()), list(found)
