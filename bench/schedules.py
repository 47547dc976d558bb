"""Predicted schedules side by side: our loop in its settings, Triton's, and given code objects.

Every row is the steady state of one SIMD in the cycle model (docs/cycle-model.md), nothing is
measured on a card. --sensitivity adds the same rows for other values of the uncertain constants.

    python bench/schedules.py [--triton] [--hip] [--sensitivity] [--json FILE] [FILE ...]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from asm_overrides.timing import DEFAULT, Constants, predict
from zyfa_triton import schedules
from zyfa_triton.cli.output import table, write_json

OURS: tuple[dict[str, Any], ...] = (
    {"p_mode": "lean"},
    {"p_mode": "lean", "pack": "op_sel"},
    {"p_mode": "lean", "multiply_add": "packed"},
    {"p_mode": "lean", "row_sum": "dense"},
    {"p_mode": "exact"},
    {"p_mode": "exact", "row_sum": "dense"},
    {"p_mode": "lean", "headdim": 192},
    {"p_mode": "exact", "headdim": 192},
)
VARIATIONS: dict[str, Constants] = {
    "as documented": DEFAULT,
    "barrier 0": replace(DEFAULT, barrier=0),
    "barrier 16": replace(DEFAULT, barrier=16),
    "barrier 40": replace(DEFAULT, barrier=40),
    "matrix holds vector 1/3": replace(DEFAULT, matrix_holds_vector=1 / 3),
    "matrix holds vector 1": replace(DEFAULT, matrix_holds_vector=1.0),
    "packed beside other's matrix": replace(DEFAULT, packed_waits_for_other=False),
    "permlane 4": replace(DEFAULT, permlane=4),
    "LDS queue 8": replace(DEFAULT, lds_queue=8),
    "LDS latency 128": replace(DEFAULT, lds_latency=128),
    "memory latency 800": replace(DEFAULT, vmem_latency=800),
}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("file", type=Path, nargs="*", help="code objects, listings or assembly")
    parser.add_argument("--triton", action="store_true", help="compile Triton's own loop, too")
    parser.add_argument("--hip", action="store_true", help="compile the BF16 kernel in HIP, too")
    parser.add_argument("--sensitivity", action="store_true")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args(argv)
    rows = [schedules.of_recipe(**parameters) for parameters in OURS]
    if args.triton:
        rows += [
            schedules.of_triton(p_mode, headdim=headdim)
            for headdim in (128, 192)
            for p_mode in ("lean", "exact")
        ]
    if args.hip:
        rows += [schedules.of_hip(headdim) for headdim in (128, 192)]
    rows += [schedules.of_file(path) for path in args.file]
    header = (
        "kernel", "d", "P", "port bound", "limit", "useful best", "useful worst", "busy worst",
    )  # fmt: skip
    print(table(header, [_cells(row) for row in rows]))
    result: dict[str, Any] = {"rows": [row.as_json() for row in rows]}
    if args.sensitivity:
        result["sensitivity"] = _sensitivity(rows)
        names = [
            f"{_name(row)} {row.as_json()['headdim']} {row.as_json()['p_mode']}" for row in rows
        ]
        print("\nuseful share at the worst offset")
        print(table(("constants", *names), [(k, *v) for k, v in result["sensitivity"].items()]))
    write_json(args.json, result)
    return 0


def _name(row: schedules.Scheduled) -> str:
    """Of a file its own name and its folder's: AITER's kernels are told apart by those."""
    file = "/".join(Path(row.file).with_suffix("").parts[-2:]) if row.file else ""
    width = f" d{row.as_json()['headdim']}" if row.kernel == "hip" else ""
    return f"{file or row.kernel}{width} {row.settings}".strip()


def _cells(row: schedules.Scheduled) -> tuple[str, ...]:
    values = row.as_json()
    shares = ("useful_share_replay_best", "useful_share_replay_worst", "matrix_busy_replay_worst")
    return (
        _name(row),
        str(values["headdim"] or "-"),
        values["p_mode"],
        f"{values['port_bound_share']:.3f}",
        values["port_bound_limit"],
        *(f"{values[name]:.3f}" for name in shares),
    )


def _sensitivity(rows: Sequence[schedules.Scheduled]) -> dict[str, list[str]]:
    return {
        name: [
            f"{predict(row.prediction.steady, constants).worst.useful_share:.3f}" for row in rows
        ]
        for name, constants in VARIATIONS.items()
    }


if __name__ == "__main__":
    sys.exit(main())
