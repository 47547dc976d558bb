"""Decides on which scores the generated Hopper loop is tried: made ones, placed ones, real ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch

from tests.asm.hopper_loop_runs import BLOCK_N, HEADDIM_V, Task
from zyfa_triton import activations

ROWS = 64
_UNIT = 1 / 16  # octaves of a raw score


def made(
    levels: Sequence[float],
    spread: float,
    *,
    headdim: int = 128,
    unit: float = _UNIT,
    seed: int = 0,
) -> Task:
    """Scores about `levels` octaves in each block, in the order of visits, with a deviation."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    direction = normal(headdim).sign()
    q = direction + 0.25 * normal(ROWS, headdim)
    keys = [
        level / (headdim * unit) * direction
        + spread / (headdim**0.5 * unit) * normal(BLOCK_N, headdim)
        for level in reversed(levels)
    ]
    v = normal(len(levels) * BLOCK_N, HEADDIM_V)
    e4m3 = torch.float8_e4m3fn
    return Task(q.to(e4m3), torch.cat(keys).to(e4m3), v.to(e4m3), unit * math.log(2.0))


def with_small(task: Task, octaves: float = 14.5) -> Task:
    """The same with every third key so many octaves lower: Lean codes of a few, and of 0."""
    direction = task.q.float().mean(0).sign()
    k = task.k.float()
    unit = task.softmax_scale / math.log(2.0)
    k[::3] -= octaves / (k.shape[1] * unit) * direction
    return replace(task, k=k.to(task.k.dtype))


def with_rest(task: Task, q_size: float = 0.5, seed: int = 5) -> Task:
    """The same with 64 more columns of q and k; q_size: the deviation of those of q."""
    generator = torch.Generator().manual_seed(seed)
    parts = []
    for each, size in ((task.q, q_size), (task.k, 0.5)):
        rest = size * torch.randn(each.shape[0], 64, generator=generator)
        parts.append(torch.cat([each.float(), rest], 1).to(each.dtype))
    return replace(task, q=parts[0], k=parts[1])


def placed(octaves: torch.Tensor, unit: float = _UNIT, seed: int = 0) -> Task:
    """Scores as they are given, (blocks in the order of visits, 64, 128): each row has two columns
    of k of its own, one for what the other one rounds off."""
    blocks = octaves.shape[0]
    keys = octaves.flip(0).transpose(1, 2).reshape(blocks * BLOCK_N, ROWS) / unit
    e4m3 = torch.float8_e4m3fn
    coarse = keys.to(e4m3)
    fine = (keys - coarse.float()).to(e4m3)
    q = torch.eye(ROWS).repeat(1, 2).to(e4m3)
    k = torch.cat([coarse.float(), fine.float()], 1).to(e4m3)
    v = torch.randn(len(keys), HEADDIM_V, generator=torch.Generator().manual_seed(seed)).to(e4m3)
    return Task(q, k, v, unit * math.log(2.0))


def maxima_everywhere(blocks: int = 7) -> Task:
    """Rows grow in every block, further than by codes, by a key in another place in each: in every
    block each register that holds a score has the largest one of some row.
    """
    generator = torch.Generator().manual_seed(8)
    octaves = -1 - 3 * torch.rand(blocks, ROWS, BLOCK_N, generator=generator)
    half = torch.arange(ROWS) // 8 % 2
    for block in octaves:
        column = torch.empty(ROWS, dtype=torch.int64)
        for which in (0, 1):
            register = torch.randperm(32, generator=generator)  # 8 g + 2 lane + e
            lane = torch.randint(4, (32,), generator=generator)
            column[half == which] = 8 * (register // 2) + 2 * lane + register % 2
        block.scatter_(1, column[:, None], 0.0)
    return placed(octaves + 6.0 * torch.arange(blocks)[:, None, None] - 18)


def sums_about_flat(blocks: int = 6) -> Task:
    """Rows whose sums pass FLAT at different times: of a warp's first or last eight rows one.

    Rows grow by a code a block; the last eight of two warps by more, of another one once not.
    """
    below = torch.full((ROWS,), 1.0)
    for row in (3, 19, 28, 44, 58):
        below[row] = 5.0  # 448 (1 + 127 2^-5): 2,200 a block
    octaves = torch.zeros(blocks, ROWS, BLOCK_N) - below[:, None]
    octaves[:, :, 77] = 0.0
    grown = 0.15 * torch.arange(blocks)[:, None].repeat(1, ROWS)
    for first in (8, 56):
        grown[:, first : first + 8] *= 8
    grown[2, 40:48] = grown[1, 40:48]
    return placed(octaves + grown[..., None])


def grown_alone(blocks: int = 9) -> Task:
    """In each block one row of each warp grows, by one key; over all blocks that key lies once in
    each eight keys for each half of a warp's rows."""
    octaves = torch.full((blocks, ROWS, BLOCK_N), -4.0)
    octaves[0] = 0.0
    for event in range(4 * (blocks - 1)):
        visit, warp = 1 + event // 4, event % 4
        row = 16 * warp + 8 * (event % 2) + visit % 8
        octaves[visit, row, 8 * (event // 2 % 16) + (5 * event) % 8] = 2.5 * visit
    return placed(octaves)


def thresholds() -> Task:
    """Flat rows that exceed the reference, 24 codes of room above their keys, by one code, and by
    one more than may be lowered: of each half of a warp's rows, by a key at an even and at an odd
    place; and as many as just may be, above that room, and above a score."""
    octaves = torch.zeros(5, ROWS, BLOCK_N)
    for visit, row, key, codes in (
        (2, 3, 40, 25), (2, 16 + 11, 41, 25), (2, 32 + 5, 96, 37), (2, 48 + 9, 33, 37),
        (3, 32 + 5, 2, 49), (3, 48 + 9, 7, 49), (4, 2, 8, 36), (4, 16 + 8, 9, 36),
    ):  # fmt: skip
        octaves[visit, row, key] = codes / 8
    return placed(octaves)


def sums_and_growth(eighths: Sequence[int], codes: Sequence[int]) -> Task:
    """Rows that sum to 2^(eighths / 8) keys at their largest, a step each eight rows, and then grow
    by `codes`, a step each row of eight. They got no room: the loop's first block is far below."""
    octaves = torch.full((4, ROWS, BLOCK_N), -20.0)
    for group, above in enumerate(eighths):
        wanted = 2.0 ** (above / 8)
        for row, grown in enumerate(codes):
            mine = octaves[:, 8 * group + row]
            mine[0, : int(wanted)] = 0.0
            rest = wanted - int(wanted)
            if rest > 0:
                mine[0, 100] = math.log2(rest)
            mine[2, 64 + row] = grown / 8
    return placed(octaves)


def far_from_zero(blocks: int = 4) -> Task:
    """Scores about 1,000 octaves, other ones in each row, with a small deviation; in half of the
    rows, of the two that a lane holds one, about 30."""
    task = made([0.0] * blocks, 2.0, unit=0.5)
    q, k = task.q.float(), task.k.float()
    row = torch.arange(ROWS)
    factor = torch.linspace(0.75, 1.25, ROWS)
    factor[(row // 8 + row // 16) % 2 == 1] /= 32
    q[:, :64] = factor[:, None]
    k[:, :64] = 32.0
    return replace(task, q=q.to(task.q.dtype), k=k.to(task.k.dtype))


def by_row(task: Task) -> Task:
    """The same with rows of different size: references far apart."""
    factor = torch.linspace(0.5, 2.0, ROWS)[:, None]
    return replace(task, q=(task.q.float() * factor).to(task.q.dtype))


def real(first_row: int, blocks: int, head: int = 0) -> Task:
    """Rows of the package's sample, and the keys that they see, quantised by their largest."""
    sample = activations.load(activations.SAMPLE)
    keys = blocks * BLOCK_N
    assert ROWS + first_row == keys, "the rows are the last ones"
    codes, scale = [], sample.softmax_scale
    for tensor, rows, index in (
        (sample.q, slice(first_row, keys), head),
        (sample.k, slice(0, keys), 0),
        (sample.v, slice(0, keys), 0),
    ):
        part = tensor[0, rows, index].float()
        factor = part.abs().max() / 448
        codes.append((part / factor).to(torch.float8_e4m3fn))
        if tensor is not sample.v:
            scale *= factor.item()
    q, k, v = codes
    return Task(q, k, v, scale, causal=True, seqlen_k=keys)


def late_peak(blocks: int, peaks: int, grown: float, background: float) -> Task:
    """Some keys at 10 octaves in the first block, one at `grown` in the third, all others at
    `background`, whose values are 1 and the peaks' 0: the output is the background's share."""
    octaves = torch.full((blocks, ROWS, BLOCK_N), background)
    octaves[0, :, :peaks] = 10.0
    octaves[2, :, 5] = grown
    task = placed(octaves)
    v = (octaves[:, 0] == background).float().flip(0).reshape(-1, 1).expand(-1, HEADDIM_V)
    return replace(task, v=v.to(task.v.dtype))
