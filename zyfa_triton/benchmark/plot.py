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
    figure_of(rows, environment).savefig(path)


def figure_of(rows: Sequence[Row], environment: Mapping[str, Any]) -> Any:
    """The picture as a matplotlib figure."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    shown = [row for row in rows if row.measured is not None]
    if not shown:
        raise ValueError("no row has figures: there is nothing to draw")
    panels: dict[str, list[Row]] = {}
    for row in shown:
        panels.setdefault(panel_of(row), []).append(row)
    colours = _colours(list(dict.fromkeys(name_of(row) for row in shown)))
    widest = max(len({row.case.shape.label for row in one}) for one in panels.values())
    size = (max(7.0, 2.5 + 0.22 * len(colours) * widest), 1 + 3.2 * len(panels))
    figure = Figure(figsize=size, dpi=_DPI, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(f"{environment.get('device') or 'no card'}, {environment['date'][:10]}")
    all_axes = figure.subplots(len(panels), 1, squeeze=False)[:, 0]
    for axes, (title, panel) in zip(all_axes, panels.items(), strict=True):
        _panel(axes, panel, colours)
        axes.set_title(title)
    figure.legend(*_handles(figure), loc="outside lower center", ncols=4, fontsize=8)
    return figure


def panel_of(row: Row) -> str:
    """Inputs without what depends on the length, and whether quantising is in the time."""
    name = row.inputs.partition(" repeated")[0]
    return f"{name}, quantising in the time" if row.case.quantise else name


def name_of(row: Row) -> str:
    """A path's name in the legend."""
    return f"{row.path} ({row.dtype})"


def _colours(series: Sequence[str]) -> dict[str, str]:
    ours = [name for name in series if name.startswith("zyfa")]
    others = [name for name in series if not name.startswith("zyfa")]
    return {
        name: palette[index % len(palette)]
        for names, palette in ((ours, _OURS), (others, _OTHERS))
        for index, name in enumerate(names)
    }


def _panel(axes: Any, rows: Sequence[Row], colours: Mapping[str, str]) -> None:
    cases = list(dict.fromkeys(row.case.shape.label for row in rows))
    width = 0.85 / len(colours)
    for index, (name, colour) in enumerate(colours.items()):
        mine = [row for row in rows if name_of(row) == name]
        if not mine:
            continue
        places = [cases.index(row.case.shape.label) + (index + 0.5) * width - 0.425 for row in mine]
        heights, marks = [], []
        for row in mine:
            assert row.measured is not None
            middle = row.measured.tflops
            fast = row.case.shape.tflops(row.measured.ms_p20 / 1e3)
            slow = row.case.shape.tflops(row.measured.ms_p80 / 1e3)
            heights.append(middle)
            marks.append((max(0.0, middle - slow), max(0.0, fast - middle)))
        axes.bar(
            places,
            heights,
            width,
            yerr=tuple(zip(*marks, strict=True)),
            label=name,
            color=colour,
            error_kw={"elinewidth": 0.8},
        )
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
