"""Runs the generated Hopper loop on bfloat16 on the CPU, beside float64 arithmetic of its steps.

The loop is handed what the kernel would hand it after the first block of keys. Its text is executed
as it is; what it leaves is compared with a model that moves a row's reference when the loop should.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from asm_overrides.recipes.attention_sm90 import (
    Bfloat16Interface,
    Bfloat16Parameters,
    build_bfloat16,
)
from tests.asm.ptx.fragments import from_result, to_result
from tests.asm.ptx.operations import Values
from tests.asm.ptx.rings import Place, Rings, swizzled
from tests.asm.ptx.threads import Threads

BLOCK_N, ROWS, THREADS, WARP_ROWS = 128, 64, 128, 16
SCORES = BLOCK_N // 2  # of a lane in a block
LARGEST = 256.0  # of P, from which on a reference moves
PIECE = 64  # columns that lie together in shared memory
_STEPS = BLOCK_N // 16  # products of a block of P
_SMALLEST = 2.0**-100
_ULP = 2.0**-24
_ROUNDINGS = 12  # of an exponent: a sum of 8 or 12 steps, products
_NAN = 0xFF
_SCALARS = ("first", "last", "multiplier", "k_slot", "k_phase", "v_slot", "v_phase", "warpgroup")
_ADDRESSES = ("k_first", "k_rest", "values", "k_full", "v_full", "used", "q_first", "q_rest")


@dataclass(frozen=True)
class Task:
    """q (64, headdim), k (blocks * 128, headdim), v (blocks * 128, 128), bfloat16: in the order in
    which blocks are visited. base: blocks that the workgroup copied before. looks: of each copy at
    its barrier until it is there."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    stages: int = 2
    warpgroup: int = 0
    referred: bool = True
    base: int = 3
    multiplier: float = 0.1275
    looks: tuple[int, ...] = (0, 3, 1, 7, 2)

    @property
    def headdim(self) -> int:
        return self.q.shape[1]

    @property
    def blocks(self) -> int:
        return len(self.k) // BLOCK_N

    @property
    def parameters(self) -> Bfloat16Parameters:
        return Bfloat16Parameters(self.headdim, self.stages, self.referred)

    def block(self, tensor: torch.Tensor, number: int) -> torch.Tensor:
        return tensor[BLOCK_N * number :][:BLOCK_N]


def made(headdim: int, blocks: int, seed: int = 0) -> dict[str, torch.Tensor]:
    """Gaussian q, k, v."""
    generator = torch.Generator().manual_seed(seed)
    shapes = {"q": (ROWS, headdim), "k": (blocks * BLOCK_N, headdim), "v": (blocks * BLOCK_N, 128)}
    made = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    return {name: tensor.bfloat16() for name, tensor in made.items()}


def rounded(values: Values) -> Values:
    """To bfloat16, as float64."""
    return torch.from_numpy(values.astype(np.float32)).bfloat16().double().numpy()


@dataclass
class State:
    """Rows between two blocks: what is accumulated without the block at hand, which is p."""

    reference: Values
    p: Values  # before rounding
    acc: Values
    row_sum: Values
    alpha: Values
    moved: list[int] = field(default_factory=list)  # warps, of each time that a reference moved
    products: list[Values] = field(default_factory=list)  # P of each product, rounded

    @classmethod
    def first(cls, task: Task) -> State:
        """After the first block; acc and row_sum as if there had been others, not yet referred."""
        numbers = np.random.default_rng(1)
        scores = _scores(task, 0)
        reference = np.fmax.reduce(scores, 1).astype(np.float32).astype(np.float64)
        p = np.exp2((scores - reference[:, None]) * np.float32(task.multiplier))
        acc = numbers.standard_normal((ROWS, 128)).astype(np.float32).astype(np.float64)
        alpha = np.where(np.arange(ROWS) % 3 == 0, 1, numbers.random(ROWS, np.float32))
        return cls(reference, p, acc, 3 * numbers.random(ROWS), alpha)

    def last(self, task: Task) -> State:
        """After all blocks."""
        acc, total = self.acc * self.alpha[:, None], self.row_sum * self.alpha + self.p.sum(1)
        reference, p, moved, products = self.reference.copy(), self.p, list(self.moved), []
        scale = float(np.float32(task.multiplier))
        for number in range(1, task.blocks):
            products.append(rounded(p))
            acc = acc + products[-1] @ task.block(task.v, number - 1).double().numpy()
            scores = _scores(task, number)
            p = np.exp2((scores - reference[:, None]) * scale)
            for warp in range(ROWS // WARP_ROWS):
                rows = slice(WARP_ROWS * warp, WARP_ROWS * (warp + 1))
                if (rounded(p[rows]) <= LARGEST).all():  # not of NaN
                    continue
                moved.append(warp)
                new = np.fmax(reference[rows], np.fmax.reduce(scores[rows], 1))
                factor = np.exp2((reference[rows] - new) * scale)
                reference[rows] = new
                acc[rows] *= factor[:, None]
                total[rows] *= factor
                p[rows] = np.exp2((scores[rows] - new[:, None]) * scale)
            total = total + p.sum(1)
        return State(reference, p, acc, total, np.ones(ROWS), moved, products)


def _scores(task: Task, number: int) -> Values:
    return task.q.double().numpy() @ task.block(task.k, number).double().numpy().T


def _pieces(matrix: torch.Tensor) -> Values:
    """Rows of 128 bytes: 64 columns, then the next 64."""
    parts = [matrix[:, first : first + PIECE] for first in range(0, matrix.shape[1], PIECE)]
    return np.concatenate([part.contiguous().view(torch.uint8).numpy() for part in parts])


def _parts(matrix: torch.Tensor) -> tuple[Values, ...]:
    first, rest = _pieces(matrix[:, :128]), matrix[:, 128:]
    return (first, _pieces(rest)) if rest.shape[1] else (first,)


def _rings(task: Task) -> Rings:
    numbers = iter(range(10**6))
    rings = Rings(
        task.stages,
        [_parts(task.block(task.k, number)) for number in range(task.blocks)],
        [_pieces(task.block(task.v, number)) for number in range(task.blocks)],
        behind=np.empty((0, BLOCK_N), np.uint8),
        base=task.base,
        at=1,
        looks=lambda: task.looks[next(numbers) % len(task.looks)],
    )
    for name, part in zip(("q_first", "q_rest"), _parts(task.q), strict=False):
        mine = swizzled(part)
        tiles = [np.full_like(mine, _NAN), np.full_like(mine, _NAN)]
        tiles[task.warpgroup] = mine
        rings.address[name] = len(rings.bytes)
        for index, tile in enumerate(tiles):
            first = len(rings.bytes)
            rings.bytes = np.concatenate([rings.bytes, tile])
            where = f"{name}[{index}]"
            rings.places[where] = Place(where, ((first, len(rings.bytes)),), True, {0, 1, 2, 3})
    return rings


def interface(headdim: int) -> Bfloat16Interface:
    """Registers by their names."""

    def several(name: str, count: int) -> list[str]:
        return [f"{name}{index}" for index in range(count)]

    names: dict[str, Any] = {name: name for name in (*_SCALARS, *_ADDRESSES)}
    if headdim == 128:
        names |= {"k_rest": None, "q_rest": None}
    return Bfloat16Interface(
        **names, p=several("p", 32), acc_o=several("o", 64), row_max=several("m", 2),
        alpha=several("alpha", 2), row_sum=several("l", 2), block_sum=several("b", 2),
    )  # fmt: skip


def text_of(task: Task) -> str:
    """The loop as it is spliced in."""
    return build_bfloat16(task.parameters, interface(task.headdim), "L")


class Run:
    """A loop's text run to its end on a task, and what it left."""

    def __init__(self, task: Task, change: Callable[[str], str] = lambda text: text) -> None:
        self.task, self.at = task, interface(task.headdim)
        self.entry = State.first(task)
        with np.errstate(all="ignore"):
            self.model = self.entry.last(task)
        self.rings = _rings(task)
        self.threads = Threads(
            change(text_of(task)), THREADS, self._handed(), tiles=self.rings,
            barriers=self.rings.barriers,
        )  # fmt: skip
        group = self.threads.warpgroup
        assert group is not None
        self.rings.reading = lambda: {tile for each in group.under_way() for tile in each.tiles}
        self.threads.run()

    def _handed(self) -> dict[str, Values]:
        task, at, entry, number = self.task, self.at, self.entry, self.task.base + 1
        scalars = {
            "first": 1, "last": task.blocks, "warpgroup": task.warpgroup,
            "multiplier": np.float32(task.multiplier).view(np.uint32),
            **_places(number, task.stages),
            **{name: self.rings.address[name] for name in _ADDRESSES if name in self.rings.address},
        }  # fmt: skip
        registers = {name: np.full(THREADS, value, np.uint32) for name, value in scalars.items()}
        referred = entry.acc * entry.alpha[:, None] if task.referred else entry.acc
        halves = to_result(rounded(entry.p).astype(np.float32).view(np.uint32) >> np.uint32(16))
        many = {
            **dict(zip(at.acc_o, _bits(referred), strict=True)),
            **dict(zip(at.p, halves[::2] | halves[1::2] << np.uint32(16), strict=True)),
        }
        per_row = {"row_max": entry.reference, "alpha": entry.alpha, "row_sum": entry.row_sum}
        for name, values in {**per_row, "block_sum": entry.p.sum(1)}.items():
            both = _bits(np.repeat(values[:, None], 8, 1))[::2]
            many |= dict(zip(getattr(at, name), both, strict=True))
        return {**registers, **{name: value.reshape(-1).copy() for name, value in many.items()}}

    def _matrix(self, names: Sequence[str]) -> Values:
        values = np.array([self.threads.register(name) for name in names])
        return from_result(values.reshape(len(names), 4, 32))

    def floats(self, names: Sequence[str]) -> Values:
        return self._matrix(names).view(np.float32).astype(np.float64)

    def rows(self, names: Sequence[str]) -> Values:
        """One number a row; all lanes of a row must agree."""
        several = self.floats([name for name in names for _ in range(2)])
        assert np.array_equal(several, several[:, :1].repeat(8, 1), equal_nan=True), names
        return several[:, 0]

    @property
    def p(self) -> Values:
        """P of the block at hand."""
        words = np.array([self.threads.register(name) for name in self.at.p]).reshape(-1, 4, 32)
        halves = np.stack([words << np.uint32(16), words & np.uint32(0xFFFF0000)], 1)
        return from_result(halves.reshape(-1, 4, 32)).view(np.float32).astype(np.float64)

    @property
    def products(self) -> list[Values]:
        """P of each block that was multiplied with V."""
        group = self.threads.warpgroup
        assert group is not None
        parts = [a for tile, a in group.operands if tile.startswith("v")]
        return [np.concatenate(parts[first:][:_STEPS], 1) for first in range(0, len(parts), _STEPS)]

    def check(self) -> None:
        """AssertionError where anything differs from what it should be."""
        task, at, model = self.task, self.at, self.model
        number = task.base + task.blocks
        for name, value in _places(number, task.stages).items():
            assert (self.threads.register(name) == value).all(), name
        arrived = sorted(self.rings.given_back)
        blocks = range(task.base + 1, number)
        assert arrived == sorted((b % task.stages, w) for b in blocks for w in range(4)), "arrivals"
        if task.blocks == 1:  # nothing is done
            acc = self.entry.acc * self.entry.alpha[:, None] if task.referred else self.entry.acc
            assert np.array_equal(self.floats(at.acc_o), acc.astype(np.float32)), "outputs"
            assert np.array_equal(self.rows(at.alpha), self.entry.alpha), "alpha"
            return
        assert (self.rows(at.alpha) == 1).all() and (self.rows(at.block_sum) == 0).all()
        largest = max(np.nanmax(np.abs(_scores(task, number))) for number in range(task.blocks))
        slack = _ROUNDINGS * _ULP * float(largest) * task.multiplier  # of P, relative
        for got, wanted in zip(
            [*self.products, self.p], [*model.products, rounded(model.p)], strict=True
        ):
            _rounded_alike(got, wanted, slack)
        _near(self.floats(at.acc_o), model.acc, 2.0**-9 + slack, "outputs")
        _near(self.rows(at.row_sum), model.row_sum, 2.0**-18 + slack, "row sums")
        _near(self.rows(at.row_max), model.reference, 2.0**-20, "references")


def _places(number: int, stages: int) -> dict[str, int]:
    """Places and phases where block `number` of K comes next."""
    (k_phase, k_slot), (v_phase, v_slot) = (divmod(n, stages) for n in (number, number - 1))
    return {"k_slot": k_slot, "k_phase": k_phase & 1, "v_slot": v_slot, "v_phase": v_phase & 1}


def _bits(matrix: Values) -> Values:
    return to_result(matrix.astype(np.float32)).view(np.uint32)


def _rounded_alike(got: Values, wanted: Values, slack: float) -> None:
    """P made in float32 may round the other way, by 2^-7 of it; few do."""
    close = np.isclose(got, wanted, rtol=2.0**-7 + slack, atol=1e-30, equal_nan=True)
    assert close.all(), f"P: {int((~close).sum())} differ"
    same = np.isclose(got, wanted, rtol=1e-12, atol=1e-30, equal_nan=True)
    assert (~same).mean() < 0.01 + 2.0**8 * slack, f"P: {int((~same).sum())} round otherwise"


def _near(got: Values, wanted: Values, relative: float, what: str) -> None:
    """By the largest number of each row; float32 has no room for smaller ones than _SMALLEST."""
    assert np.array_equal(np.isnan(got), np.isnan(wanted)), f"{what}: NaN differ"
    sizes = np.abs(np.nan_to_num(wanted)).reshape(ROWS, -1).max(1).clip(_SMALLEST)
    away = np.abs(np.nan_to_num(got - wanted)).reshape(ROWS, -1).max(1)
    assert (away <= relative * sizes).all(), f"{what}: {float((away / sizes).max()):.1e}"
