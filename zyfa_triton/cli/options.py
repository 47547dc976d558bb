"""Which variants of the op the command line knows, and arguments that commands share."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from zyfa_triton.cli.output import CommandError

# zyfa_triton.dispatch has them, too, and imports torch
PINGPONG, HIP = "pingpong", "hip"
KERNELS = ("triton", PINGPONG, HIP)  # for gfx950
HOPPER_KERNELS = ("gluon", "ptx")
DTYPES = ("fp8", "bf16", "fp16")
HEADDIMS = (128, 192)
P_MODES = ("lean", "exact", "unscaled")
BLOCK_SCALES: dict[str, bool | str] = {"auto": "auto", "on": True, "off": False}


READING = """\
Code objects are read with llvm-objdump (LLVM 20 or later), in ZYFA_LLVM's folder or on PATH."""


def refuse(args: argparse.Namespace, names: Iterable[str], why: str) -> None:
    """Raises CommandError for the first of these options that was given: it would change nothing.

    Their defaults must not be values that a user can give, so that None says that nothing came.
    """
    for name in names:
        if getattr(args, name) != args.parser.get_default(name):
            raise CommandError(f"--{name.replace('_', '-')}: {why}")


def fill(args: argparse.Namespace, defaults: Mapping[str, Any]) -> None:
    """Gives options that did not come their defaults, once nobody needs to know that any more."""
    for name, value in defaults.items():
        if getattr(args, name) is None:
            setattr(args, name, value)


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
    parser: argparse.ArgumentParser,
    name: str,
    choices: Sequence[str],
    *,
    several: bool = False,
    of: str = "",
) -> None:
    """An option whose default is its first choice; several: one or more, collected in a list."""
    one_of = "one or several of" if several else "one of"
    parser.add_argument(
        name,
        choices=choices,
        nargs="+" if several else None,
        default=[choices[0]] if several else choices[0],
        metavar="NAME",
        help=f"{of}{one_of} {', '.join(choices)} (default: {choices[0]})",
    )


def add_variant_arguments(
    parser: argparse.ArgumentParser, *, several: bool = False, kernels: Sequence[str] = KERNELS
) -> None:
    """--dtype and --p-mode (of which there can be several), --headdim, --block-scale, --causal,
    --kernel."""
    add_choice(parser, "--dtype", DTYPES, several=several)
    add_choice(parser, "--p-mode", P_MODES, several=several, of="fp8: ")
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
