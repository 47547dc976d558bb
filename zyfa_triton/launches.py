"""Decides whose launches are predicted and how a row of them reads; asm_overrides has the model.

The kernel is compiled as a call would compile it, and the routes of its waves come from running its
machine code in the emulator: once on keys that are all equal, so that no row maximum ever grows,
and once on keys of which each tile is larger than the one before. Times in between are a share of
both.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from typing import Any

import torch

from asm_overrides.emulator.loader import load_text
from asm_overrides.isa.instruction import Instruction
from asm_overrides.timing import (
    DEFAULT,
    MI355X,
    ORDERS,
    Card,
    Constants,
    Makespan,
    RouteRecorder,
    Routes,
    WorkgroupModel,
    WorkgroupTime,
    makespan,
)
from asm_overrides.timing.workgroup import WAVES
from zyfa_triton import offline, tuning
from zyfa_triton.backends import emulated
from zyfa_triton.compile import TARGET, CompiledKernel, compile_attention
from zyfa_triton.kernels import pingpong
from zyfa_triton.kernels.launch import kernel_constants, launch_arguments, launch_grid
from zyfa_triton.problem import Problem

TILE_M, TILE_N = 256, 64
HEAD_DIM_V = 128
TYPICAL_RESCALES = 0.28
"""Share of tiles that are rescaled on a typical layer: bench/rescales.py prose4k_L14.npz."""
TOKENS = 32768
"""Tokens of a batch where none is given: shorter sequences come in more entries."""
CURRENT = {True: "by_entry", False: "by_head"}
"""Order that the op launches in on gfx950, by whether it is causal."""
_WAVES_A_WORKGROUP = 8
_ONE = 0x38
_SMALLEST_NORMAL = 0x08
"""e4m3 codes: 1.0, and the first of those that grow by one code a tile."""


@dataclass(frozen=True)
class Attention:
    """What is launched: FP8 attention, as many queries as keys.

    batch: None takes as many entries as TOKENS tokens have. nheads_k: None takes nheads. headdim:
    of q and k.
    """

    seqlen: int
    nheads: int = 16
    nheads_k: int | None = None
    batch: int | None = None
    causal: bool = True
    headdim: int = 128

    def __post_init__(self) -> None:
        for name in ("seqlen", "nheads", "nheads_k", "batch"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name}: got {value}; accepted: 1 and more")
        if self.nheads % self.heads_k:
            raise ValueError(
                f"nheads_k: got {self.heads_k}; accepted: divisors of nheads, {self.nheads}"
            )

    @property
    def heads_k(self) -> int:
        """Key heads."""
        return self.nheads_k or self.nheads

    @property
    def entries(self) -> int:
        """Batch entries."""
        return self.batch or max(1, TOKENS // self.seqlen)

    @property
    def m_blocks(self) -> int:
        """Query tiles of a head."""
        return -(-self.seqlen // TILE_M)

    @property
    def flop(self) -> int:
        """Two products for each pair of a query and a key that it sees."""
        pairs = self.seqlen * (self.seqlen + 1) // 2 if self.causal else self.seqlen**2
        return self.flop_a_pair * pairs * self.nheads * self.entries

    @property
    def flop_a_pair(self) -> int:
        """Of a query and a key: Q K^T and P V."""
        return 2 * (self.headdim + HEAD_DIM_V)


def key_tiles(m_block: int, seqlen: int, causal: bool) -> tuple[int, int]:
    """Key tiles of a query tile, those without and those with a mask; as attention_forward."""
    end = min((m_block + 1) * TILE_M, seqlen) if causal else seqlen
    full_end = min(m_block * TILE_M + 1, seqlen) if causal else seqlen
    full = full_end // TILE_N
    return full, -(-end // TILE_N) - full


class LaunchModel:
    """Predicted times of launches of one kernel.

    Args:
        kernel: "triton" or "pingpong". pack: of the ping-pong loop, see attention_fp8.Parameters.
        nheads, nheads_k, headdim: of the calls; the code depends on them.
    Raises:
        ValueError: no such kernel for such a problem, or its workgroups do not fill a compute unit.
        RuntimeError: it does not compile here.
    """

    def __init__(
        self,
        kernel: str,
        p_mode: str,
        *,
        causal: bool = True,
        nheads: int = 16,
        nheads_k: int | None = None,
        headdim: int = 128,
        pack: str = "perm",
        constants: Constants = DEFAULT,
    ) -> None:
        self.kernel, self.p_mode, self.causal = kernel, p_mode, causal
        self._nheads, self._nheads_k = nheads, nheads_k or nheads
        self._headdim = headdim
        self._pack = pack
        self._code = ""
        self._constants = constants
        self._models: dict[int, WorkgroupModel] = {}

    def model(self, every: int) -> WorkgroupModel:
        """Of workgroups on keys that are larger after so many tiles each, so that every row's
        maximum grows with them; 0: on equal keys, so that none does."""
        if every not in self._models:
            self._models[every] = WorkgroupModel(
                self._instructions,
                partial(self._routes, every=every),
                most_masked=TILE_M // TILE_N if self.causal else 1,
                constants=self._constants,
            )
        return self._models[every]

    def launch(self, asked: Attention, *, rescales: float = TYPICAL_RESCALES) -> Launch:
        """The launch of a call.

        Args:
            rescales: share of tiles in which the maximum of a row grows in one of the four waves
                that are in the same stage.
        Raises:
            ValueError: the share is none, or the call is not of this model's kind.
        """
        if not 0 <= rescales <= 1:
            raise ValueError(f"rescales: got {rescales}; accepted: 0 to 1")
        kind = (asked.nheads, asked.heads_k, asked.headdim, asked.causal)
        mine = (self._nheads, self._nheads_k, self._headdim, self.causal)
        if kind != mine:
            raise ValueError(
                f"asked: got (nheads, nheads_k, headdim, causal) {kind}; accepted: {mine}, which "
                "the code was compiled for"
            )
        tiles = [key_tiles(m, asked.seqlen, asked.causal) for m in range(asked.m_blocks)]
        calm = [self.model(0).time(*each) for each in tiles]
        extra = [0.0] * len(tiles)
        if rescales:
            growing = [self.model(1).cycles(*each) for each in tiles]
            pairs = zip(calm, growing, strict=True)
            extra = [rescales * (cycles - time.cycles) for time, cycles in pairs]
        return Launch(self, asked, rescales, tuple(calm), tuple(extra))

    @cached_property
    def _instructions(self) -> Sequence[Instruction]:
        _, compiled = self._compiled(TILE_M)
        self._code = compiled.amdgcn
        instructions: Sequence[Instruction] = load_text(compiled.amdgcn).instructions
        return instructions

    def _compiled(self, seqlen: int, every: int = 0) -> tuple[dict[str, Any], CompiledKernel]:
        """Arguments of a call, with its data, and the code that it runs."""
        asked = offline.problem(
            headdim=self._headdim,
            p_mode=self.p_mode,
            causal=self.causal,
            nheads=self._nheads,
            nheads_k=self._nheads_k,
            seqlen=seqlen,
        )
        arguments = _arguments(asked, every)
        key = tuning.key_of(asked, TARGET)
        config = tuning.select(self.kernel, asked, key, arguments, lambda _: tuning.default(key))
        launchable = tuning.launchable(config, key)
        if self.kernel == pingpong.PingPongFamily.name:
            launchable["LOOP"] = pingpong.loop_of(
                asked.p_mode, is_causal=asked.causal, headdim=asked.headdim, pack=self._pack
            )
        compiled = compile_attention(arguments, kernel_constants(asked, arguments), launchable)
        if self.kernel == pingpong.PingPongFamily.name and compiled.kept_own_loop:
            raise RuntimeError(f"the ping-pong loop is not in this kernel: {compiled.splice}")
        if compiled.num_warps != _WAVES_A_WORKGROUP or compiled.config["BLOCK_M"] != TILE_M:
            raise ValueError(
                f"kernel: {self.kernel} has {compiled.num_warps} waves for "
                f"{compiled.config['BLOCK_M']} queries; accepted: {_WAVES_A_WORKGROUP} for {TILE_M}"
            )
        return {"problem": asked, **arguments}, compiled

    def _routes(self, full: int, masked: int, every: int) -> Routes:
        """Routes in the last workgroup of a head, of a call that gives it these tiles."""
        if self.causal:
            seqlen = TILE_N * (full + masked)
            if full % (TILE_M // TILE_N) or not masked:
                raise ValueError(f"causal tiles: got {full} without a mask, {masked} with one")
        else:
            seqlen = TILE_N * full + masked * TILE_N // 2
        arguments, compiled = self._compiled(seqlen, every)
        if compiled.amdgcn != self._code:
            raise RuntimeError(f"the code of {seqlen} keys is not that of {TILE_M}")
        asked: Problem = arguments.pop("problem")
        recorder = RouteRecorder()
        emulated.execute(
            compiled,
            arguments,
            launch_grid(asked)(compiled.config),
            outputs=frozenset(("o_ptr",)),
            checks=recorder,
            workgroups=[(0, 0, 0)],
            processes=1,
        )
        first, second = (recorder.route(wave) for wave in WAVES)
        return first, second


def _arguments(asked: Problem, every: int) -> dict[str, Any]:
    """Arguments whose scores are larger after each `every` tiles of keys; equal in all if 0."""

    def codes(heads: int, width: int) -> torch.Tensor:
        shape = (asked.batch, asked.seqlen_q, heads, width)
        return torch.full(shape, _ONE, dtype=torch.uint8)

    q, k = codes(asked.nheads, asked.headdim), codes(asked.nheads_k, asked.headdim)
    v = codes(asked.nheads_k, asked.headdim_v)
    if every:
        larger = torch.arange(asked.seqlen_k) // (TILE_N * every)
        k[:] = (_SMALLEST_NORMAL + larger).to(torch.uint8)[None, :, None, None]
    out = torch.empty(*q.shape[:3], asked.headdim_v, dtype=asked.out_dtype)
    descale = torch.ones(asked.batch, asked.nheads_k)
    return launch_arguments(
        asked,
        q.view(asked.dtype),
        k.view(asked.dtype),
        v.view(asked.dtype),
        out,
        None,
        softmax_scale=1 / math.sqrt(asked.headdim),
        q_descale=descale,
        k_descale=descale,
        v_descale=descale,
    )


@dataclass(frozen=True)
class Launch:
    """A predicted launch.

    Attributes:
        workgroups: time of each query tile's workgroup without rescales. rescaling: cycles that
            rescales add to each.
    """

    model: LaunchModel
    asked: Attention
    rescales: float
    workgroups: tuple[WorkgroupTime, ...]
    rescaling: tuple[float, ...]

    @property
    def costs(self) -> list[float]:
        """Cycles of each query tile's workgroup."""
        pairs = zip(self.workgroups, self.rescaling, strict=True)
        return [time.cycles + extra for time, extra in pairs]

    def makespan(self, order: str, card: Card = MI355X) -> Makespan:
        """In an order of the workgroups, one of ORDERS."""
        costs = self.costs
        work = ORDERS[order](self.asked.m_blocks, self.asked.nheads, self.asked.entries)
        return makespan([sum(costs[m_block] for m_block in each) for each in work], card)

    @property
    def order(self) -> str:
        """The order that the op launches in."""
        return CURRENT[self.asked.causal]

    def shares(self, card: Card = MI355X) -> Mapping[str, float]:
        """Parts of the time of all compute units, which add up to 1; "idle" is the tail."""
        heads = self.asked.nheads * self.asked.entries
        total = self.makespan(self.order, card).cycles * card.all_units
        parts = {
            each.name: heads * sum(getattr(time, each.name) for time in self.workgroups) / total
            for each in fields(WorkgroupTime)
        }
        parts["rescales"] = heads * sum(self.rescaling) / total
        return parts | {"idle": 1 - sum(parts.values())}

    def as_json(self, card: Card = MI355X) -> dict[str, Any]:
        """The row."""
        span = self.makespan(self.order, card)
        seconds = span.cycles / card.hertz
        balances = {order: self.makespan(order, card).balance for order in ORDERS}
        pool = replace(card, xcds=1, units=card.all_units)
        pooled = {order: self.makespan(order, pool).balance for order in ORDERS}
        tiles = sum(sum(key_tiles(m, self.asked.seqlen, self.asked.causal))
                    for m in range(self.asked.m_blocks))  # fmt: skip
        pairs = TILE_M * TILE_N * tiles * self.asked.nheads * self.asked.entries
        visited = self.asked.flop_a_pair * pairs
        return {
            "kernel": self.model.kernel,
            "p_mode": self.model.p_mode,
            "causal": self.asked.causal,
            "batch": self.asked.entries,
            "nheads": self.asked.nheads,
            "nheads_k": self.asked.heads_k,
            "headdim": self.asked.headdim,
            "seqlen": self.asked.seqlen,
            "rescales": self.rescales,
            "clock_ghz": card.hertz / 1e9,
            "order": self.order,
            "cycles": round(span.cycles),
            "milliseconds": round(1e3 * seconds, 4),
            "tflops": round(self.asked.flop / seconds / 1e12, 1),
            "peak_share": round(self.asked.flop / seconds / card.peak, 4),
            "matrix_share": round(visited / seconds / card.peak, 4),
            "time_shares": {name: round(each, 4) + 0.0 for name, each in self.shares(card).items()},
            "balances": {order: round(each, 4) for order, each in balances.items()},
            "balances_one_queue": {order: round(each, 4) for order, each in pooled.items()},
            "best_order": max(balances, key=lambda order: round(balances[order], 4)),
        }
