"""How often the ping-pong loop rescales on captured activations: --rescales of `zyfa schedule`.

A wave rescales in a tile of 64 keys where the row maximum of any of its 32 rows grows. Four waves
of a workgroup are in the same stage and meet at its barrier, so what counts for time is whether any
of their 128 rows grows. The first tile sets the maximum and is not counted. Causal; scores in
float32 of the bfloat16 inputs, quantisation apart.

    python bench/rescales.py FOLDER/prose16k_L14.npz ...
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from zyfa_triton import activations
from zyfa_triton.cli.output import table, write_json

TILE_N = 64
ROWS = 128
"""Of the four waves that are in the same stage."""
FIRST_TILES = (1, 4, 16, 64, 256)
"""Where the ranges of tiles begin that are counted apart."""


def growing(file: activations.Activations, head: int) -> torch.Tensor:
    """Whether a maximum grows: (groups of 128 rows, tiles), int8; -1 where no row sees the tile."""
    group = file.nheads // file.nheads_k
    q = file.q[0, :, head].float()
    k = file.k[0, :, head // group].float()
    tiles = file.seqlen // TILE_N
    found = torch.full((file.seqlen // ROWS, tiles), -1, dtype=torch.int8)
    for number in range(found.shape[0]):
        rows = torch.arange(number * ROWS, (number + 1) * ROWS)
        seen = (number + 1) * ROWS // TILE_N
        scores = q[rows] @ k[: seen * TILE_N].T
        scores.masked_fill_(torch.arange(seen * TILE_N) > rows[:, None], float("-inf"))
        best = scores.view(ROWS, seen, TILE_N).amax(2).cummax(1).values
        found[number, 1:seen] = (best[:, 1:] > best[:, :-1]).any(0).to(torch.int8)
    return found


def rows_of(path: Path) -> list[dict[str, object]]:
    """One row a file and range of tiles, over all of its heads."""
    file = activations.load(path)
    length = file.seqlen // ROWS * ROWS
    file = file.cut(seqlen=length)
    grown = torch.stack([growing(file, head) for head in range(file.nheads)])
    result: list[dict[str, object]] = []
    for first, end in zip(FIRST_TILES, (*FIRST_TILES[1:], length), strict=True):
        part = grown[:, :, first:end]
        count = int((part >= 0).sum())
        if count:
            share = int((part == 1).sum()) / count
            result.append(
                {"file": file.name, "from": first, "to": end - 1, "share": round(share, 3)}
            )
    whole = grown[grown >= 0].float().mean().item()
    result.append(
        {"file": file.name, "from": 1, "to": length // TILE_N - 1, "share": round(whole, 3)}
    )
    return result


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("file", type=Path, nargs="+", help="captured activations (.npz)")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args(argv)
    rows = [row for path in args.file for row in rows_of(path)]
    header = ("file", "tiles from", "to", "share that rescales")
    print(table(header, [tuple(row.values()) for row in rows]))
    write_json(args.json, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
