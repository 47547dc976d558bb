"""Which variants of the op the command line knows, and arguments that commands share."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

KERNELS = ("triton", "pingpong")  # zyfa_triton.dispatch has them, too, and imports torch
DTYPES = ("fp8", "bf16", "fp16")
HEADDIMS = (128, 192)
P_MODES = ("lean", "exact", "unscaled")
BLOCK_SCALES: dict[str, bool | str] = {"auto": "auto", "on": True, "off": False}


def positive(text: str) -> int:
    """An integer above 0, for argparse."""
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is below 1")
    return value


def add_variant_arguments(parser: argparse.ArgumentParser) -> None:
    """--dtype, --p-mode, --block-scale, --causal, --kernel."""
    parser.add_argument("--dtype", choices=DTYPES, default="fp8", help="of the inputs (fp8: e4m3)")
    parser.add_argument(
        "--p-mode",
        choices=P_MODES,
        default="lean",
        help="how fp8 probabilities are made (default: %(default)s)",
    )
    parser.add_argument(
        "--block-scale",
        choices=tuple(BLOCK_SCALES),
        default="auto",
        help="a power of two for every 64 keys of fp8 P (default: where the target has it)",
    )
    parser.add_argument(
        "--causal",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="query i sees keys up to i (default: on)",
    )
    parser.add_argument(
        "--kernel",
        choices=("auto", *KERNELS),
        default="auto",
        help="Triton's own loop or the hand-scheduled one (default: what tuning found)",
    )


def variants(dtypes: Sequence[str], p_modes: Sequence[str]) -> list[tuple[str, str]]:
    """dtype and p_mode of each combination; 16-bit inputs know one way to make P and come once."""
    return [
        (dtype, p_mode)
        for dtype in dict.fromkeys(dtypes)
        for p_mode in dict.fromkeys(p_modes)
        if dtype == "fp8" or p_mode == p_modes[0]
    ]


def block_scale(args: argparse.Namespace) -> bool | str:
    """The op's argument for --block-scale."""
    return BLOCK_SCALES[args.block_scale]
