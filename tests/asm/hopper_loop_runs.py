"""Decides how the generated Hopper loop is run and judged: what it is handed, what it hands back.

What it should compute is hopper_loop_contract's, how PTX executes tests/asm/ptx's."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch

from asm_overrides.recipes.attention_sm90 import Interface, Parameters, build
from asm_overrides.recipes.lean import CODE_UNIT
from tests.asm.hopper_loop_contract import ROWS, Moves, Rows, scores_of
from tests.asm.ptx.fragments import from_result, to_result
from tests.asm.ptx.operations import Values, e4m3
from tests.asm.ptx.rings import Rings
from tests.asm.ptx.threads import Threads
from zyfa_triton import numerics

BLOCK_N, HEADDIM_V, THREADS = 128, 128, 128
_ONE = 0x38
_STATE = ("k_slot", "k_phase", "v_slot", "v_phase")
_ADDRESSES = ("k_first", "values", "k_full", "v_full", "used")
_ULP = 2.0**-23


@dataclass(frozen=True)
class Task:
    """What a loop is run on. Tensors are e4m3: q (64, headdim), k (keys, headdim), v (keys, 128).

    Blocks of keys are visited from the last one to the first; `before` of them (at least one, with
    a mask) before the loop begins. base: blocks that this workgroup has copied before. seqlen_k:
    keys of them that there are; queries lie at the end, so that row i of a causal task sees the
    keys up to i + seqlen_k - 64. looks: of copies, until they are there, repeated.
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    softmax_scale: float
    before: int = 1
    base: int = 0
    causal: bool = False
    seqlen_k: int = 0
    looks: tuple[int, ...] = (0, 2, 5, 1)

    @property
    def blocks(self) -> int:
        return self.k.shape[0] // BLOCK_N

    @property
    def scale(self) -> torch.Tensor:
        """Octaves of a raw score."""
        return torch.tensor(numerics.code_scale_log2(self.softmax_scale))

    @property
    def has_nan(self) -> bool:
        return any(bool(each.float().isnan().any()) for each in (self.q, self.k, self.v))

    def block(self, tensor: torch.Tensor, visit: int) -> torch.Tensor:
        """A block's rows of k or v, by the order in which blocks are visited."""
        first = (self.blocks - 1 - visit) * BLOCK_N
        return tensor[first : first + BLOCK_N]

    def scores(self, visit: int) -> torch.Tensor:
        scores = scores_of(self.q.double(), self.block(self.k, visit).double())
        if self.causal:
            keys = torch.arange(BLOCK_N) + (self.blocks - 1 - visit) * BLOCK_N
            last = torch.arange(ROWS) + self.seqlen_k - ROWS
            hidden = keys[None, :] > last[:, None]
            assert visit < self.before or not hidden.any(), "the loop knows no mask"
            scores.masked_fill_(hidden, -torch.inf)
        return scores

    def states(self, p_mode: str) -> list[Rows]:
        """After each block: by the contract up to where the loop begins, then by its rule."""
        rows = Rows.start(p_mode, self.scale)
        for visit in range(self.before):
            rows = rows.by_contract(self.scores(visit), self.block(self.v, visit).double())
        states = [rows, rows.enter()]
        for visit in range(self.before, self.blocks):
            scores = self.scores(visit)
            states.append(states[-1].by_loop(scores, self.block(self.v, visit).double()))
        return states


def key_of_place() -> Values:
    """The key that each column of V^T holds: place 4 t + 2 g + e has key 8 g + 2 t + e."""
    t, g, e = np.meshgrid(np.arange(4), np.arange(2), np.arange(2), indexing="ij")
    inside = (8 * g + 2 * t + e).reshape(-1)
    return (np.arange(0, BLOCK_N, 16)[:, None] + inside).reshape(-1)


def interface(p: Parameters) -> Interface:
    """Registers by plain names."""

    def several(name: str, count: int) -> list[str]:
        return [f"{name}{index}" for index in range(count)]

    return Interface(
        first="first", last="last", multiplier="multiplier", scale_log2="scale_log2",
        q=several("q", p.headdim // 8), k_rest="k_rest" if p.headdim > 128 else None,
        ones="ones" if p.ones == "apart" else None,
        p=several("p", 32 if p.p_mode == "lean" else 64), acc_o=several("o", 64),
        acc_l=several("l", 4), row_max=several("m", 2), alpha=several("alpha", 2),
        **{name: name for name in (*_ADDRESSES, *_STATE)},
    )  # fmt: skip


def text_of(p: Parameters) -> str:
    """The loop as it is spliced in."""
    return build(p, interface(p), "L")


def _codes(tensor: torch.Tensor) -> Values:
    return tensor.contiguous().view(torch.uint8).numpy()


def _rings(p: Parameters, task: Task) -> Rings:
    k, v = [], []
    for visit in range(task.blocks):
        rows = _codes(task.block(task.k, visit))
        k.append((rows[:, :128], rows[:, 128:])[: 1 + (p.headdim > 128)])
        v.append(np.ascontiguousarray(_codes(task.block(task.v, visit)).T[:, key_of_place()]))
    ones = np.full((8, BLOCK_N), _ONE, np.uint8)
    number = iter(range(10**6))
    rings = Rings(
        p.stages, k, v,
        behind=ones if p.ones == "behind" else ones[:0],
        base=task.base,
        at=task.before,
        looks=lambda: task.looks[next(number) % len(task.looks)],
    )  # fmt: skip
    if p.ones == "apart":
        rings.write("ones", ones)
    return rings


def _columns(values: torch.Tensor, count: int) -> Values:
    """(64, 1) -> (registers, warps, 32) of a matrix of 2 * count equal columns, as bits."""
    return _registers(values.expand(ROWS, 2 * count))


def _registers(values: torch.Tensor) -> Values:
    return to_result(values.numpy().astype(np.float32)).view(np.uint32)


def _handed(p: Parameters, task: Task, entry: Rows, rings: Rings) -> dict[str, Values]:
    number = task.base + task.before
    scale = np.float32(task.scale.item())
    multiplier = scale * np.float32(8 * CODE_UNIT) if p.p_mode == "lean" else scale
    bits = np.array([scale, multiplier], np.float32).view(np.uint32)
    scalars = {
        "first": task.before, "last": task.blocks, "scale_log2": bits[0], "multiplier": bits[1],
        "k_slot": number % p.stages, "k_phase": number // p.stages & 1,
        "v_slot": (number - 1) % p.stages, "v_phase": (number - 1) // p.stages & 1,
        **{name: rings.address[name] for name in (*_ADDRESSES, "k_rest", "ones")
           if name in rings.address},
    }  # fmt: skip
    registers = {name: np.full(THREADS, value, np.uint32) for name, value in scalars.items()}
    at = interface(p)
    reference = to_result(entry.reference.numpy().repeat(8, 1)).view(np.uint32)
    alpha = to_result(entry.alpha.numpy().repeat(8, 1)).view(np.uint32)
    acc = entry.acc * entry.alpha if p.referred else entry.acc
    per_row = {at.row_max[row]: reference[2 * row] for row in range(2)}
    per_row |= {at.alpha[row]: alpha[2 * row] for row in range(2)}
    many: dict[str, Values] = {
        **per_row,
        **dict(zip(at.acc_o, _registers(acc), strict=True)),
        **dict(zip(at.acc_l, _columns(entry.sums, 4), strict=True)),
        **dict(zip(at.q, _left_words(_codes(task.q)), strict=True)),
        **dict(zip(at.p, _handed_p(p, entry), strict=True)),
    }
    return {**registers, **{name: values.reshape(-1) for name, values in many.items()}}


def _handed_p(p: Parameters, entry: Rows) -> Values:
    if p.p_mode == "exact":
        return _registers(entry.p)
    halves = to_result(entry.codes.numpy().astype(np.uint32))
    return halves[::2] | halves[1::2] << np.uint32(16)


def _left_words(codes: Values) -> Values:
    """A operands of a matrix (64, columns) of bytes: (4 * columns / 32, warps, 32)."""
    lane = np.arange(32)
    words = []
    for first in range(0, codes.shape[1], 32):
        for index in range(4):
            row = np.arange(4)[:, None] * 16 + lane // 4 + 8 * (index % 2)
            column = first + 16 * (index // 2) + 4 * (lane % 4)
            parts = codes[row[..., None], column[:, None] + np.arange(4)]
            words.append(np.ascontiguousarray(parts).view(np.uint32)[..., 0])
    return np.array(words)


class Run:
    """A loop's text run to its end on a task, and what it left."""

    def __init__(self, p: Parameters, task: Task, text: str, states: Sequence[Rows]) -> None:
        self.p, self.task, self.states = p, task, states
        self.at = interface(p)
        self.rings = _rings(p, task)
        registers = _handed(p, task, states[0], self.rings)
        self.threads = Threads(
            text, THREADS, registers, tiles=self.rings, barriers=self.rings.barriers
        )
        group = self.threads.warpgroup
        assert group is not None
        self.rings.reading = lambda: {product.tile for product in group.under_way()}
        self.group = group
        self.threads.run()

    def _matrix(self, names: Sequence[str]) -> Values:
        values = np.array([self.threads.register(name) for name in names])
        return from_result(values.reshape(len(names), 4, 32))

    def _floats(self, names: Sequence[str]) -> torch.Tensor:
        return torch.from_numpy(self._matrix(names).view(np.float32).copy())

    @cached_property
    def last_codes(self) -> Values:
        """Values of P's codes that were left for the block at hand."""
        if self.p.p_mode == "exact":
            return self._floats(self.at.p).double().numpy()
        words = np.array([self.threads.register(name) for name in self.at.p]).reshape(-1, 4, 32)
        low, high = words & np.uint32(0xFF), words >> np.uint32(16) & np.uint32(0xFF)
        codes = np.stack([low, high], 1).reshape(-1, 4, 32).astype(np.uint8)
        return e4m3(from_result(codes))

    @cached_property
    def codes(self) -> list[Values]:
        """Values of P of each block whose product was made here, and of the one at hand."""
        parts = [a for tile, a in self.group.operands if tile.startswith("v")]
        assert len(parts) % 4 == 0, "products with V"
        blocks = [np.concatenate(parts[first : first + 4], 1) for first in range(0, len(parts), 4)]
        by_key = []
        for block in blocks:
            keys = np.empty_like(block)
            keys[:, key_of_place()] = block
            by_key.append(keys)
        return [*by_key, self.last_codes]

    @cached_property
    def final(self) -> Rows:
        """The state as it was left, to be finished as the kernel does."""
        last = self.states[-1]
        return Rows(**{**last.__dict__, "acc": self._floats(self.at.acc_o),
                       "sums": self._floats(self.at.acc_l)[:, :1],
                       "reference": self.reference, "by_codes": torch.zeros(ROWS, 1).bool(),
                       "alpha": self._row(self.at.alpha)})  # fmt: skip

    def _row(self, names: Sequence[str]) -> torch.Tensor:
        return self._floats([name for name in names for _ in range(2)])[:, :1]

    @cached_property
    def reference(self) -> torch.Tensor:
        return self._row(self.at.row_max)

    def check(self) -> None:
        """AssertionError where anything differs from what it should be."""
        number = self.task.base + self.task.blocks
        expected = {
            "k_slot": number % self.p.stages, "k_phase": number // self.p.stages & 1,
            "v_slot": (number - 1) % self.p.stages, "v_phase": (number - 1) // self.p.stages & 1,
        }  # fmt: skip
        in_loop = self.task.blocks - self.task.before
        if in_loop:
            for name, value in expected.items():
                assert (self.threads.register(name) == value).all(), name
            assert (self._row(self.at.alpha) == 1).all(), "alpha"
        blocks = range(self.task.base + self.task.before, number)
        places = [(each % self.p.stages, warp) for each in blocks for warp in range(4)]
        assert sorted_by_block(self.rings.given_back) == places, "arrivals"
        there = places if self.p.cluster > 1 else []
        assert sorted_by_block(self.rings.given_there) == there, "arrivals at the other workgroup"
        self._check_codes(in_loop)
        self._check_state(in_loop)
        if self.p.p_mode == "lean":
            self._check_moves(in_loop)

    def _check_moves(self, in_loop: int) -> None:
        """What is seldom needed is executed as seldom."""
        last, count = self.states[-1].moves, self.threads.count
        got = Moves(
            asked=count(", L_top_0, L_top_1, 0x5410"),
            anew=count("min.f32 L_offset"),
            lowered=count("prmt.b32 L_by"),
            scaled=count("mul.rn.f32 o0,") + count("mul.rn.f32 o2,"),
        )
        if in_loop and not self.p.referred:  # where the loop begins, all are multiplied
            got = replace(got, scaled=got.scaled - 2 * 4)
        assert got == last, f"{got}, not {last}"

    def _check_codes(self, in_loop: int) -> None:
        states = self.states[1:]
        got = self.codes
        assert len(got) == in_loop + 1
        # of Exact's P at hand nothing was rounded where the loop was left at once
        first = 0 if in_loop or self.p.p_mode == "lean" else 1
        for block, state in list(enumerate(states))[first:]:
            wanted = numerics.e4m3_values(state.codes).numpy()
            same = (got[block] == wanted) | (np.isnan(got[block]) & np.isnan(wanted))
            assert same.all(), f"codes of block {block}: {int((~same).sum())} differ"
            # with numbers all around
            assert self.task.has_nan or not np.isnan(got[block]).any(), f"NaN in block {block}"

    def _check_state(self, in_loop: int) -> None:
        last = self.states[-1] if in_loop else self.states[0]
        sums = self._floats(self.at.acc_l)
        assert torch.equal(sums[:, :1].expand_as(sums).nan_to_num(nan=-1), sums.nan_to_num(nan=-1))
        _near(sums[:, :1], last.sums, 8 * _ULP * last.sums.abs(), "row sums")
        # four roundings a block, one more where it is multiplied
        bound = 3 * _ULP * (self.task.blocks + 1) * last.size
        acc = last.acc if in_loop or not self.p.referred else self.states[1].acc
        _near(self._floats(self.at.acc_o), acc, bound, "outputs")
        if self.p.p_mode == "exact":
            assert torch.equal(self.reference, last.reference), "row_max"
            return
        # what stands at the offset, where that is another than where the loop began
        moved = last.offset != self.states[1].offset
        back = (126 - last.offset) / (8 * last.scale)
        wanted = torch.where(moved, back, self.states[0].reference)
        assert torch.equal(self.reference, wanted if in_loop else last.reference), "row_max"


def _near(got: torch.Tensor, wanted: torch.Tensor, bound: torch.Tensor, what: str) -> None:
    close = (got.double() - wanted.double()).abs() <= bound.double()
    same = close | (got.isnan() & wanted.isnan()) | (got == wanted)
    assert same.all(), f"{what}: {int((~same).sum())} differ"


def sorted_by_block(given_back: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Arrivals with the four of a block in the order of warps."""
    pairs = list(given_back)
    groups = [pairs[first : first + 4] for first in range(0, len(pairs), 4)]
    return [pair for group in groups for pair in sorted(group, key=lambda pair: pair[1])]


def execute(p: Parameters, task: Task, change: Callable[[str], str] = lambda text: text) -> Run:
    """Runs and checks the loop, or what `change` makes of its text."""
    run = Run(p, task, change(text_of(p)), task.states(p.p_mode))
    run.check()
    return run


def octaves_of_one(p_mode: str) -> float:
    """What a row sum counts for a key at the reference."""
    return math.log2(448.0) if p_mode == "lean" else numerics.EXACT_OCTAVES
