"""What one path did on one case, as it stands in the JSON: times and errors, or the reason why not.

A row with a reason has no times: a path that cannot run or whose result is wrong is not timed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from zyfa_triton.benchmark.shapes import Case, Shape


@dataclass(frozen=True)
class Measured:
    """Figures of a path that passed the gate.

    ms_*: of one call on the device, milliseconds; median, and what 20 % and 80 % of the samples are
        below.
    tflops: by the count of `Shape.flop`, at the median. share_of_matmul: of that over
        matmul_tflops, the rate of an 8192^3 matrix product of the same dtype in the same run; None
        where it could not be measured.
    rel_err_same_inputs: Frobenius norm, relative, against fp64 on the inputs that the path saw.
    rel_err_model: of a plain implementation on the same inputs (`gate` describes it: for FP8 the
        true exponential times 2^8).
    clock_mhz, power_w: SM clock and board power while it was timed, medians; None without a sensor.
    samples: how many there are; calls_a_sample: calls between two of its marks.
    drift: how much longer calls took in the second half of a block, relative.
    graph: whether calls were replayed by a CUDA graph, without the host's share.
    config: the configuration that our tuning took; {} for others.
    """

    ms_median: float
    ms_p20: float
    ms_p80: float
    tflops: float
    share_of_matmul: float | None
    matmul_tflops: float | None
    rel_err_same_inputs: float
    rel_err_model: float
    clock_mhz: float | None
    power_w: float | None
    samples: int
    calls_a_sample: int
    drift: float
    graph: bool
    config: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Row:
    """One path on one case with one kind of inputs. result: figures, or the reason why none."""

    path: str
    dtype: str
    p_mode: str
    case: Case
    inputs: str
    result: Measured | str
    is_wrong: bool = False

    @property
    def measured(self) -> Measured | None:
        return self.result if isinstance(self.result, Measured) else None

    @property
    def is_ours(self) -> bool:
        return self.path.startswith("zyfa")

    def as_json(self, environment: Mapping[str, Any]) -> dict[str, Any]:
        """One flat object; "reason" in place of the figures where there are none."""
        shape = self.case.shape
        row: dict[str, Any] = {
            "path": self.path,
            "dtype": self.dtype,
            "headdim": shape.headdim,
            "batch": shape.batch,
            "nheads": shape.nheads,
            "nheads_k": shape.nheads_k,
            "seqlen": shape.seqlen,
            "causal": shape.causal,
            "inputs": self.inputs,
            "headdim_v": shape.headdim_v,
            "p_mode": self.p_mode,
            "quantise_included": self.case.quantise and self.dtype == "fp8",
        }
        if isinstance(self.result, str):
            row["reason"] = self.result
        else:
            row |= dataclasses.asdict(self.result)
        return row | {"environment": dict(environment)}

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Row:
        """What `as_json` wrote; a wrong result's mark is not in it.

        Raises:
            ValueError: it is not a row.
        """
        try:
            shape = Shape(**{each.name: row[each.name] for each in dataclasses.fields(Shape)})
            case = Case(shape, (row["dtype"],), row["quantise_included"])
            result = row.get("reason") or Measured(
                **{each.name: row[each.name] for each in dataclasses.fields(Measured)}
            )
            return cls(row["path"], row["dtype"], row["p_mode"], case, row["inputs"], result)
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a row of zyfa bench: {error!r}") from None
