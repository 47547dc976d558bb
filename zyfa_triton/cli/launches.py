"""What `zyfa schedule --seqlens` prints: predicted times of whole launches; see
zyfa_triton.launches."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from zyfa_triton.cli import options
from zyfa_triton.cli.output import CommandError, table

_PARTS = {
    "prologue": "prologue", "full": "tiles", "masked": "diagonal", "ramp": "ramp",
    "rescales": "rescales", "epilogue": "epilogue", "idle": "idle",
}  # fmt: skip
"""Parts of a launch's time and their columns."""
_FIXED = {"multiply_add": "plain", "row_sum": "sparse"}
"""Settings of the loop that the op's launches do not have."""


def rows_of(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Rows of all kernels, p modes and lengths asked for; raises CommandError."""
    from asm_overrides.timing import MI355X
    from zyfa_triton.launches import TYPICAL_RESCALES, Attention, LaunchModel

    if args.file:
        raise CommandError("--seqlens: predicts launches of the op's kernels; a FILE has none")
    for name, accepted in _FIXED.items():
        if getattr(args, name) != accepted:
            option = f"--{name.replace('_', '-')}"
            raise CommandError(f"{option}: got {getattr(args, name)}; with --seqlens: {accepted}")
    kernels = list(dict.fromkeys(args.kernel or [options.PINGPONG]))
    if options.HIP in kernels:
        accepted = ", ".join(name for name in options.KERNELS if name != options.HIP)
        raise CommandError(f"--kernel: got {options.HIP}; accepted with --seqlens: {accepted}")
    if "lean" not in args.p_mode and args.pack != "perm":
        raise CommandError(f"--pack: got {args.pack}; with --seqlens: of --p-mode lean alone")
    if args.png is not None or args.trace is not None:
        raise CommandError("--png and --trace: show a steady state, not what --seqlens predicts")
    rescales = TYPICAL_RESCALES if args.rescales is None else args.rescales
    card = MI355X if args.clock is None else replace(MI355X, hertz=1e9 * args.clock)
    rows = []
    try:
        for headdim, kernel, p_mode in itertools.product(
            dict.fromkeys(args.headdim),
            kernels,
            dict.fromkeys(args.p_mode),
        ):
            model = LaunchModel(
                kernel,
                p_mode,
                causal=args.causal,
                nheads=args.nheads,
                nheads_k=args.nheads_k,
                headdim=headdim,
                pack=args.pack,
            )
            for seqlen in args.seqlens:
                call = Attention(
                    seqlen, args.nheads, args.nheads_k, args.batch, args.causal, headdim
                )
                rows.append(model.launch(call, rescales=rescales).as_json(card))
    except (ValueError, RuntimeError) as error:
        raise CommandError(str(error)) from None
    return rows


def readable(rows: Sequence[dict[str, Any]]) -> str:
    """Times and shares, then how evenly each order of the workgroups keeps the card busy."""
    call = ("kernel", "d", "P", "seqlen", "batch")
    header = (*call, "ms", "TFLOP/s", "of peak", "matrix", *_PARTS.values())
    times = [
        (
            *_call(row),
            f"{row['milliseconds']:.3f}",
            f"{row['tflops']:.0f}",
            f"{row['peak_share']:.3f}",
            f"{row['matrix_share']:.3f}",
            *(f"{round(row['time_shares'][name], 3) + 0.0:.3f}" for name in _PARTS),  # no -0
        )
        for row in rows
    ]
    orders = list(rows[0]["balances"])
    balances = [
        (*_call(row), *(f"{row['balances'][order]:.3f}" for order in orders), row["best_order"])
        for row in rows
    ]
    first = rows[0]
    heads = f"{first['nheads']} heads, {first['nheads_k']} of keys"
    kind = "causal" if first["causal"] else "without a mask"
    return "\n\n".join(
        (
            f"MI355X at {first['clock_ghz']:g} GHz, {kind}, {heads}; a row maximum grows in "
            f"{first['rescales']:.0%} of the tiles",
            table(header, times),
            f"balance of the workgroups' orders; the op launches {first['order']}",
            table((*call, *orders, "best"), balances),
        )
    )


def _call(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["kernel"], row["headdim"], row["p_mode"], row["seqlen"], row["batch"]
