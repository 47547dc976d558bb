"""Decides what a warpgroup's matrix products (wgmma) compute, and what they leave untouchable.

Asynchrony is taken at its worst: results arrive at the wait that covers them, A's registers and
shared memory are read there too, and every rule of PTX ISA 8.7, section 9.7.15 that would then
matter is checked: registers of a product under way, the fence behind ordinary accesses, memory that
changes. Sums are exact over 32 of K, then rounded once onto the accumulator: the truncation of
addends that a card does is not modelled.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from tests.asm.ptx.fragments import Descriptor, from_result, left, to_result
from tests.asm.ptx.operations import Values, bf16, e4m3
from tests.asm.ptx.program import Finding, Statement, names_in

WARPS = 4
_PRODUCT = re.compile(
    r"wgmma\.mma_async\.sync\.aligned\.m64n(\d+)(k32\.f32\.e4m3\.e4m3|k16\.f32\.bf16\.bf16)"
)
_SIGNS = ["1", "1"]
Registers = Mapping[str, Values]


class Tiles(Protocol):
    """Shared memory as products see it."""

    bytes: Values

    def readable(self, first: int, last: int) -> str:
        """Name of the tile that holds all of these addresses; ValueError if none that is there."""


@dataclass(frozen=True)
class Product:
    """One wgmma.mma_async under way."""

    statement: Statement
    accumulators: tuple[str, ...]
    a: tuple[str, ...] | Values  # registers, or addresses (64, 32) of its bytes
    b: Values  # addresses (columns, 32) of its bytes
    adds: bool
    tiles: tuple[str, ...]
    element: Callable[[Values], Values]

    @property
    def registers(self) -> tuple[str, ...]:
        return (*self.accumulators, *self.a_registers)

    @property
    def a_registers(self) -> tuple[str, ...]:
        return self.a if isinstance(self.a, tuple) else ()

    @property
    def tile(self) -> str:
        """Of B."""
        return self.tiles[0]


@dataclass
class Warpgroup:
    """Products of four warps. touched: registers that were accessed since the last fence.

    operands: (tile, A as float64 (64, 32)) of each product that was waited for.
    """

    tiles: Tiles
    touched: set[str]
    groups: list[list[Product]] = field(default_factory=list)  # committed, oldest first
    open: list[Product] = field(default_factory=list)
    busy: dict[str, Product] = field(default_factory=dict)
    operands: list[tuple[str, Values]] = field(default_factory=list)

    def under_way(self) -> Iterable[Product]:
        return (product for group in (*self.groups, self.open) for product in group)

    def ordinary(self, statement: Statement) -> None:
        """An instruction of one warp that is no matrix product."""
        if self.busy and not statement.names.isdisjoint(self.busy):
            name = min(statement.names & self.busy.keys())
            raise Finding(f"{statement}: {name} is under way since {self.busy[name].statement}")
        self.touched |= statement.names

    def execute(self, statement: Statement, warps: Sequence[dict[str, Values]]) -> None:
        """A wgmma instruction that all four warps have reached."""
        if statement.guard:
            raise Finding(f"{statement}: not all threads execute it")
        if statement.name == "wgmma.fence.sync.aligned":
            self.touched.clear()
        elif statement.name == "wgmma.commit_group.sync.aligned":
            self.groups.append(self.open)
            self.open = []
        elif statement.name == "wgmma.wait_group.sync.aligned":
            self._wait(int(statement.operands[0], 0), warps)
        else:
            self._start(statement, warps)

    def _start(self, statement: Statement, warps: Sequence[dict[str, Values]]) -> None:
        shape = _PRODUCT.fullmatch(statement.name)
        assert shape is not None, f"{statement}: not written down here"
        d, a, b, scale, *signs = statement.operands
        accumulators = tuple(names_in(d))
        words = tuple(names_in(a)) if a.startswith("{") else ()
        columns, is_wide = int(shape[1]), "bf16" in shape[2]
        assert columns % 8 == 0 and columns <= 256, str(statement)
        if len(accumulators) != columns // 2 or len(words) not in (0, 4):
            raise Finding(f"{statement}: {len(accumulators)} and {len(words)} registers")
        # of A only where it comes from memory
        orders = ["0"] * (not words) + ["1" if signs[-1] == "1" else "0"] if is_wide else []
        assert signs == [*_SIGNS, *orders], str(statement)
        self._check_registers(statement, accumulators, words)
        found = _descriptor(statement, b, warps)
        where = (found.columns if orders[-1:] == ["1"] else found.addresses)(columns)
        tiles = [self._tile(statement, where)]
        operand: tuple[str, ...] | Values = words
        if not words:
            operand = _descriptor(statement, a, warps).addresses(16 * WARPS)
            tiles.append(self._tile(statement, operand))
        adds = bool(_alike(statement, scale, warps))
        product = Product(
            statement, accumulators, operand, where, adds, tuple(tiles), bf16 if is_wide else e4m3
        )
        self.open.append(product)
        self.busy.update(dict.fromkeys(product.registers, product))

    def _tile(self, statement: Statement, where: Values) -> str:
        try:
            return self.tiles.readable(int(where.min()), int(where.max()))
        except ValueError as error:
            raise Finding(f"{statement}: {error}") from error

    def _check_registers(
        self, statement: Statement, accumulators: tuple[str, ...], words: tuple[str, ...]
    ) -> None:
        if touched := self.touched.intersection((*accumulators, *words)):
            raise Finding(f"{statement}: no fence since {min(touched)} was accessed")
        if len({*accumulators, *words}) != len(accumulators) + len(words):
            raise Finding(f"{statement}: a register stands twice")
        for other in self.under_way():
            mine, its = set(accumulators), set(other.accumulators)
            shared = (mine & its) if accumulators != other.accumulators else set()
            shared |= (mine & set(other.a_registers)) | (its & set(words))
            if shared:
                raise Finding(f"{statement}: {min(shared)} is under way since {other.statement}")

    def _wait(self, most: int, warps: Sequence[dict[str, Values]]) -> None:
        done = self.groups[: max(0, len(self.groups) - most)]
        self.groups = self.groups[len(done) :]
        results: dict[tuple[str, ...], Values] = {}
        for product in (product for group in done for product in group):
            total = np.zeros((16 * WARPS, 2 * len(product.accumulators)), np.float32)
            if product.adds:
                before = results.get(product.accumulators)
                total = (
                    from_result(_gather(product, product.accumulators, warps).view(np.float32))
                    if before is None
                    else before
                )
            a = product.element(self._left(product, warps))
            self.operands.append((product.tile, a))
            b = product.element(self.tiles.bytes[product.b])
            results[product.accumulators] = (a @ b.T + total).astype(np.float32)
        for accumulators, values in results.items():
            for name, by_warp in zip(accumulators, to_result(values).view(np.uint32), strict=True):
                for warp, mine in zip(warps, by_warp, strict=True):
                    warp[name] = mine
        self.busy = {}
        for product in self.under_way():
            self.busy.update(dict.fromkeys(product.registers, product))

    def _left(self, product: Product, warps: Sequence[Registers]) -> Values:
        if isinstance(product.a, tuple):
            return left(_gather(product, product.a, warps))
        return self.tiles.bytes[product.a]


def _gather(product: Product, names: Sequence[str], warps: Sequence[Registers]) -> Values:
    try:
        return np.array([[warp[name] for warp in warps] for name in names])
    except KeyError as error:
        raise Finding(f"{product.statement}: {error} is read before it is written") from error


def _descriptor(statement: Statement, name: str, warps: Sequence[Registers]) -> Descriptor:
    try:
        return Descriptor.decode(int(_alike(statement, name, warps)))
    except ValueError as error:
        raise Finding(f"{statement}: {error}") from error


def _alike(statement: Statement, name: str, warps: Sequence[Registers]) -> Values:
    """The value of a register that all threads must agree on."""
    if any(name not in warp for warp in warps):
        raise Finding(f"{statement}: {name} is read before it is written")
    values = np.concatenate([warp[name] for warp in warps])
    if (values != values[0]).any():
        raise Finding(f"{statement}: {name} differs between threads")
    return values[0]
