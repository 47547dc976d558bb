"""Decides how a replayed schedule looks as a picture; the times come from asm_overrides.timing.

Five tracks: two waves (what each issues, and in pale colours what holds it), then the matrix pipe,
the vector port and the LDS port, coloured by the wave that they work for.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asm_overrides.timing.replay import (
    BARRIER,
    LDS_QUEUE,
    LDS_WAIT,
    MATRIX_PIPE,
    MATRIX_READS,
    MATRIX_RESULT,
    MEMORY_WAIT,
    ORDER,
    PACKED,
    VECTOR_PORT,
    VECTOR_RESULT,
)  # fmt: skip
from asm_overrides.timing.steps import Kind

if TYPE_CHECKING:
    from asm_overrides.timing import Event, Prediction, Replay

ITERATIONS = 2
LINE_CYCLES = 1280
"""Cycles that a line of the picture shows."""
_DPI = 110

ISSUES = {
    "matrix": "#7b2d8b", "vector": "#1f77b4", "lds": "#2ca02c", "vmem": "#8c564b",
    "scalar": "#7f7f7f",
}  # fmt: skip
"""Colours of what a wave issues."""
HELD = {
    MATRIX_PIPE: "#e3c6ea", MATRIX_RESULT: "#f0a6c8", VECTOR_PORT: "#c6dbef",
    VECTOR_RESULT: "#9ecae1", MATRIX_READS: "#d9d2e9", PACKED: "#ffbb78", LDS_QUEUE: "#b7e4b0",
    LDS_WAIT: "#8fd18a", MEMORY_WAIT: "#d7b7a5", BARRIER: "#dddddd",
}  # fmt: skip
"""Colours of what holds a wave."""
WAVES = ("#1b6ca8", "#e07b00")
"""Colours of the wave that a port works for; row sums and the like are paler."""
_TRACKS = ("wave 0", "wave 1", "matrix pipe", "vector port", "LDS port")
_PORT_TRACKS = {"matrix": 2, "vector": 3, "lds": 4}

Bar = tuple[int, int]


def picture(title: str, prediction: Prediction, path: Path, cycles: int | None = None) -> None:
    """Writes a PNG of the worst replay: two iterations or so many cycles. Needs matplotlib."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    replay = prediction.worst
    shown = cycles or round(ITERATIONS * replay.period)
    lines = -(-shown // LINE_CYCLES)
    figure = Figure(figsize=(16, 1.0 + 1.25 * lines), dpi=_DPI)
    FigureCanvasAgg(figure)
    axes = figure.subplots(lines, 1, squeeze=False)[:, 0]
    bars = _bars(replay, replay.begin + lines * LINE_CYCLES)
    for number, axis in enumerate(axes):
        _line(axis, bars, number * LINE_CYCLES, min(shown, (number + 1) * LINE_CYCLES))
    axes[-1].set_xlabel("cycles")
    figure.suptitle(
        f"{title}: matrix pipe busy {replay.matrix_busy:.1%}, useful {replay.useful_share:.1%} "
        f"(best phase {prediction.best.useful_share:.1%}, "
        f"port bound {prediction.bound.share:.1%}); {replay.period:.0f} cycles an iteration",
        fontsize=11,
    )
    figure.legend(handles=_legend(bars), loc="lower center", ncols=6, fontsize=8, frameon=False)
    below = 0.45 / figure.get_figheight()
    figure.tight_layout(rect=(0, below, 1, 1))
    figure.savefig(path)


def _legend(bars: Iterable[tuple[str, int, float]]) -> list[Any]:
    from matplotlib.patches import Patch

    used = {color for color, _, _ in bars}
    patches = [
        Patch(color=color, label=f"issues {name}")
        for name, color in ISSUES.items()
        if color in used
    ]
    patches += [
        Patch(color=color, label=f"held: {name}") for name, color in HELD.items() if color in used
    ]
    patches += [
        Patch(color=color, label=f"port works for wave {wave}") for wave, color in enumerate(WAVES)
    ]
    return patches


def _bars(replay: Replay, end: int) -> dict[tuple[str, int, float], list[Bar]]:
    """Bars (first cycle of the stretch is 0, length) by colour, track and opacity."""
    bars: dict[tuple[str, int, float], list[Bar]] = {}
    for event in replay.events:
        if replay.begin <= event.start and event.ready < end:
            for color, track, alpha, begin, length in _bars_of(replay, event):
                bars.setdefault((color, track, alpha), []).append((begin - replay.begin, length))
    return bars


def _bars_of(replay: Replay, event: Event) -> Iterable[tuple[str, int, float, int, int]]:
    step = replay.step(event)
    if event.start > event.ready and event.cause != ORDER:
        yield HELD[event.cause], event.wave, 1.0, event.ready, event.start - event.ready
    if step.kind is not Kind.BARRIER:
        yield ISSUES[step.port], event.wave, 1.0, event.start, step.next
    track = _PORT_TRACKS.get(step.port)
    if track is not None:
        alpha = 0.45 if step.kind is Kind.MATRIX and not step.useful else 1.0
        yield WAVES[event.wave], track, alpha, event.served, step.cycles


def _line(axis: Any, bars: dict[tuple[str, int, float], list[Bar]], begin: int, end: int) -> None:
    for (color, track, alpha), spans in bars.items():
        seen = [span for span in spans if span[0] < end and span[0] + span[1] > begin]
        edge = "white" if track == _PORT_TRACKS["matrix"] else "none"
        axis.broken_barh(
            seen, (track + 0.1, 0.8), facecolors=color, alpha=alpha, edgecolor=edge, linewidth=0.5
        )
    axis.set_xlim(begin, begin + LINE_CYCLES)
    axis.set_ylim(len(_TRACKS), 0)
    axis.set_yticks([track + 0.5 for track in range(len(_TRACKS))], _TRACKS, fontsize=8)
    axis.tick_params(axis="x", labelsize=8)
    for side in ("top", "right", "left"):
        axis.spines[side].set_visible(False)
