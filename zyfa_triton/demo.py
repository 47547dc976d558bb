"""What the demonstration shows: three kernels' machine code on one real layer, and one picture.

It runs what `zyfa run --backend emulated` runs and adds nothing to it but the selection.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from zyfa_triton import activations, offline
from zyfa_triton.activations import Activations
from zyfa_triton.measure import DTYPES, Inputs, Measurement, measure, row_errors
from zyfa_triton.report import KernelReport

HIGHEST_CODE = 126
_DPI = 130


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


def run(
    *,
    seqlen: int | None = None,
    heads: int | None = None,
    progress: Callable[[str], None] = lambda step: None,
) -> list[Shown]:
    """Compiles and emulates each variant on the sample, or on its first tokens and heads.

    progress: called with what is about to be done, twice a variant.
    """
    sample = activations.load(activations.SAMPLE).cut(seqlen=seqlen, heads=heads)
    return [_show(variant, sample, progress) for variant in VARIANTS]


def _show(variant: Variant, sample: Activations, progress: Callable[[str], None]) -> Shown:
    progress(f"{variant.name}: compiling for gfx950")
    _, report = offline.compile_problem(
        offline.problem(
            dtype=DTYPES[variant.dtype],
            p_mode=variant.p_mode,
            nheads=sample.nheads,
            nheads_k=sample.nheads_k,
            seqlen=sample.seqlen,
        )
    )
    progress(f"{variant.name}: running the machine code")
    measurement = measure(
        Inputs.of(sample, variant.dtype), p_mode=variant.p_mode, backend="emulated"
    )
    return Shown(variant, measurement, report)


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
        worst = errors.max(dim=-1).values.numpy()
        rows.plot(worst, linewidth=0.7, label=one.variant.name)
    rows.set_yscale("log")
    rows.set_xlabel("query")
    rows.set_ylabel("relative error of the row (largest of the heads)")
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
