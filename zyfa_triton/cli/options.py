"""Which variants of the op the command line knows, and arguments that commands share."""

from __future__ import annotations

import argparse

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
        "--kernel", choices=("auto", "triton"), default="auto", help="which kernel is run"
    )


def block_scale(args: argparse.Namespace) -> bool | str:
    """The op's argument for --block-scale."""
    return BLOCK_SCALES[args.block_scale]
