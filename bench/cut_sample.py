"""Cuts the sample that ships with the package out of a captured layer. Decides how much of it.

python bench/cut_sample.py FOLDER/prose4k_L14.npz
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from pathlib import Path

from zyfa_triton import activations

SOURCE_SHA256 = "0059db8fab3eaaac55a698c170e67e067dfb2e802c6b4007efdddf7631fdc707"
TOKENS = 1024
HEADS = 2


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path)
    parser.add_argument("-o", "--output", type=Path, default=activations.SAMPLE)
    args = parser.parse_args(argv)
    digest = hashlib.sha256(args.source.read_bytes()).hexdigest()
    if digest != SOURCE_SHA256:
        print(f"{args.source}: sha256 is {digest}, not {SOURCE_SHA256}", file=sys.stderr)
        return 2
    sample = activations.load(args.source).cut(seqlen=TOKENS, heads=HEADS)
    sample.save(args.output)
    print(f"{args.output}: {args.output.stat().st_size} bytes, digest {sample.digest()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
