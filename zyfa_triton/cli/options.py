"""Which variants of the op the command line knows, and arguments that commands share."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

# zyfa_triton.dispatch has them, too, and imports torch
KERNELS = ("triton", "pingpong", "hip")  # for gfx950
HOPPER_KERNELS = ("gluon", "ptx")
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


def add_choice(
    parser: argparse.ArgumentParser, name: str, choices: Sequence[str], *, several: bool = False
) -> None:
    """An option whose default is its first choice; several: one or more, collected in a list."""
    one_of = "one or several of" if several else "one of"
    parser.add_argument(
        name,
        choices=choices,
        nargs="+" if several else None,
        default=[choices[0]] if several else choices[0],
        metavar="NAME",
        help=f"{one_of} {', '.join(choices)} (default: {choices[0]})",
    )


def add_variant_arguments(
    parser: argparse.ArgumentParser, *, several: bool = False, kernels: Sequence[str] = KERNELS
) -> None:
    """--dtype and --p-mode (of which there can be several), --headdim, --block-scale, --causal,
    --kernel."""
    add_choice(parser, "--dtype", DTYPES, several=several)
    add_choice(parser, "--p-mode", P_MODES, several=several)
    parser.add_argument("--headdim", type=int, choices=HEADDIMS, default=HEADDIMS[0])
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
    add_choice(parser, "--kernel", ("auto", *kernels))


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
