"""What the demonstration shows: three kernels' machine code on one real layer, and one picture.

It runs what `zyfa run --backend emulated` runs and adds nothing to it but the selection.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from asm_overrides.emulator.launch import Progress
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


VARIANTS = (
    Variant("FP8, exact, block scaled", "fp8", "exact"),
    Variant("FP8, Lean, block scaled", "fp8", "lean"),
    Variant("BF16", "bf16", "exact"),
)


@dataclass(frozen=True)
class Shown:
    """A variant, what its machine code computed, and what it costs."""

    variant: Variant
    measurement: Measurement
    report: KernelReport

    def as_json(self) -> dict[str, object]:
        row = self.measurement.row.as_json()
        return {"variant": self.variant.name, **row, "registers": dataclasses.asdict(self.report)}


def show(variant: Variant, sample: Activations, progress: Progress | None = None) -> Shown:
    """Compiles a variant for gfx950 and executes its machine code on the sample."""
    inputs = Inputs.of(sample, variant.dtype)
    measurement = measure(inputs, p_mode=variant.p_mode, backend="emulated", progress=progress)
    assert measurement.compiled is not None
    costs = report(measurement.compiled.amdgcn, dynamic_lds=measurement.compiled.shared)
    return Shown(variant, measurement, costs)


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
    for one in shown:
        errors = row_errors(one.measurement.out, one.measurement.truth)[0]
        queries = torch.arange(errors.shape[0])
        (line,) = rows.plot(*_binned_medians(errors), linewidth=1.6, label=one.variant.name)
        for head in range(errors.shape[1]):
            rows.scatter(queries, errors[:, head], s=2, alpha=0.15, color=line.get_color())
    rows.set_yscale("log")
    rows.set_xlabel("query")
    rows.set_ylabel(f"relative error of a row (line: median of {_BIN})")
    rows.set_title("Error against fp64 on the same inputs")
    rows.legend(loc="lower right", fontsize=8)

    for one in shown:
        if one.measurement.codes is None:
            continue
        counts = visible_codes(one.measurement.codes)[: HIGHEST_CODE + 1].double()
        histogram.step(
            range(HIGHEST_CODE + 1), counts / counts.sum(), where="mid", label=one.variant.name
        )
    histogram.set_yscale("log")
    histogram.set_xlabel("code of P (8 codes an octave; 126 is Lean's largest)")
    histogram.set_ylabel("share of the visible keys")
    histogram.set_title("Where P's codes lie")
    histogram.legend(loc="upper right", fontsize=8)
    figure.savefig(path)


def _binned_medians(errors: torch.Tensor) -> tuple[list[float], list[float]]:
    """Middles of runs of queries, and the median error of their rows in all heads."""
    runs = torch.split(errors, _BIN)
    middles = [index * _BIN + run.shape[0] / 2 for index, run in enumerate(runs)]
    return middles, [run.median().item() for run in runs]
