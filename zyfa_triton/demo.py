"""What the demonstration shows: five kernels' machine code on one real layer, and one picture.

It runs what `zyfa run --backend emulated` runs and adds nothing to it but the selection.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from asm_overrides.emulator.launch import Progress
from asm_overrides.inspection import Cost, inspect_text
from zyfa_triton.activations import Activations
from zyfa_triton.measure import Inputs, Measurement, measure, row_errors
from zyfa_triton.report import KernelReport, report

HIGHEST_CODE = 126
_DPI = 130
_BIN = 32  # queries of which the picture draws the median


@dataclass(frozen=True)
class Variant:
    """One of the kernels shown."""

    name: str
    dtype: str
    p_mode: str
    kernel: str = "triton"


VARIANTS = (
    Variant("FP8 exact, Triton's loop", "fp8", "exact"),
    Variant("FP8 exact, ping-pong", "fp8", "exact", "pingpong"),
    Variant("FP8 Lean, Triton's loop", "fp8", "lean"),
    Variant("FP8 Lean, ping-pong", "fp8", "lean", "pingpong"),
    Variant("BF16, Triton's loop", "bf16", "exact"),
)


@dataclass(frozen=True)
class Shown:
    """A variant, what its machine code computed, and what it costs: as a whole (report), and its
    main loop by purpose for 32 queries x 128 keys (cost)."""

    variant: Variant
    measurement: Measurement
    report: KernelReport
    cost: Cost

    def as_json(self) -> dict[str, object]:
        row = self.measurement.row.as_json()
        return {"variant": self.variant.name, **row, "registers": dataclasses.asdict(self.report)}


def show(variant: Variant, sample: Activations, progress: Progress | None = None) -> Shown:
    """Compiles a variant for gfx950 and executes its machine code on the sample."""
    inputs = Inputs.of(sample, variant.dtype)
    measurement = measure(
        inputs,
        p_mode=variant.p_mode,
        kernel=variant.kernel,
        backend="emulated",
        progress=progress,
    )
    compiled = measurement.compiled
    assert compiled is not None
    (found,) = inspect_text(compiled.amdgcn, dynamic_lds=compiled.shared)
    whole = report(compiled.amdgcn, dynamic_lds=compiled.shared)
    return Shown(variant, measurement, whole, found.cost)


def visible_codes(codes: torch.Tensor) -> torch.Tensor:
    """How often each code from 0 to 127 occurs among P's codes at causal pairs."""
    seqlen = codes.shape[-1]
    visible = torch.ones(seqlen, seqlen, dtype=torch.bool).tril()
    return torch.bincount(codes[..., visible].flatten().long(), minlength=HIGHEST_CODE + 2)


def picture(shown: Sequence[Shown], path: Path) -> None:
    """Writes one picture: error of each row, and where P's codes lie. Needs matplotlib."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.2), dpi=_DPI, layout="constrained")
    FigureCanvasAgg(figure)
    rows, histogram = figure.subplots(1, 2)
    row = shown[0].measurement.row
    figure.suptitle(
        f"gfx950 machine code, emulated: {row.inputs}, {row.nheads} heads, "
        f"{row.seqlen} tokens, causal"
    )
    drawn = [one for one in shown if one.variant.kernel == "triton"]  # others give the same bits
    for one in drawn:
        errors = row_errors(one.measurement.out, one.measurement.truth)[0]
        queries = torch.arange(errors.shape[0])
        (line,) = rows.plot(*_binned_medians(errors), linewidth=1.6, label=_short(one))
        for head in range(errors.shape[1]):
            rows.scatter(queries, errors[:, head], s=2, alpha=0.15, color=line.get_color())
    rows.set_yscale("log")
    rows.set_xlabel("query")
    rows.set_ylabel(f"relative error of a row (line: median of {_BIN})")
    rows.set_title("Error against fp64 on the same inputs")
    rows.legend(loc="lower right", fontsize=8)

    for one in drawn:
        if one.measurement.codes is None:
            continue
        counts = visible_codes(one.measurement.codes)[: HIGHEST_CODE + 1].double()
        histogram.step(
            range(HIGHEST_CODE + 1), counts / counts.sum(), where="mid", label=_short(one)
        )
    histogram.set_yscale("log")
    histogram.set_xlabel("code of P (8 codes an octave; 126 is Lean's largest)")
    histogram.set_ylabel("share of the visible keys")
    histogram.set_title("Where P's codes lie")
    histogram.legend(loc="upper right", fontsize=8)
    figure.savefig(path)


def _short(shown: Shown) -> str:
    return shown.variant.name.partition(",")[0]


def _binned_medians(errors: torch.Tensor) -> tuple[list[float], list[float]]:
    """Middles of runs of queries, and the median error of their rows in all heads."""
    runs = torch.split(errors, _BIN)
    middles = [index * _BIN + run.shape[0] / 2 for index, run in enumerate(runs)]
    return middles, [run.median().item() for run in runs]
