"""Decides what the generated Hopper loop should compute: the contract's arithmetic, block by block,
and, for Lean codes, when a warp's rows move their reference and how
(asm_overrides/recipes/attention_sm90/softmax.py).

It knows scores and values as plain matrices: no registers, no order of instructions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from zyfa_triton import numerics

ROWS, WARP_ROWS = 64, 16
NO_KEY = -1e30
DEPTH = 32  # of the head dim: a rounding after each
TOP, ROOM, FAR = 126.0, 24.0, 138.0  # codes
FLAT = 6 * 448.0
SUM_OF_TWO = 1095  # 8 times the octaves of 2 * 448, from the exponent's bias, rounded up
NAN_CODE = 0x7F


def scores_of(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """Raw scores, float32 (queries, keys), of float64 matrices: exact over DEPTH, then rounded."""
    total = torch.zeros(q.shape[0], k.shape[0])
    for first in range(0, q.shape[1], DEPTH):
        part = q[:, first : first + DEPTH] @ k[:, first : first + DEPTH].T
        total = (total.double() + part).float()
    return total


@dataclass(frozen=True)
class Rows:
    """State of 64 rows between two blocks.

    reference: raw score (64, 1). sums (64, 1), acc (64, 128): of all blocks but the last one,
    before alpha (64, 1), which its reference asks for. codes: P of the last block, uint8 (64, 128),
    v its values, float64. p: exact P before it was rounded. size: sums of |P V|, for tolerances.
    """

    p_mode: str
    scale: torch.Tensor
    reference: torch.Tensor
    sums: torch.Tensor
    acc: torch.Tensor
    alpha: torch.Tensor
    codes: torch.Tensor
    v: torch.Tensor
    p: torch.Tensor
    size: torch.Tensor
    offset: torch.Tensor  # in codes; Lean
    by_codes: torch.Tensor  # bool (64, 1): the offset is no reference's
    fresh: torch.Tensor  # bool (64, 1), alike in a warp: it has got no room yet
    paths: tuple[str, ...] = ()  # of each warp and block in which codes were made anew or lowered

    @classmethod
    def start(cls, p_mode: str, scale: torch.Tensor) -> Rows:
        column, zeros = torch.zeros(ROWS, 1), torch.zeros(ROWS, 128)
        no = torch.zeros(ROWS, 1, dtype=torch.bool)
        return cls(
            p_mode, scale, column + NO_KEY, column, zeros, column + 1, zeros.to(torch.uint8),
            torch.zeros(128, 128, dtype=torch.float64), zeros, zeros.double(), column, no, ~no,
        )  # fmt: skip

    def add(self) -> Rows:
        """With the last block's P V and row sum in what was accumulated, under its reference."""
        p = numerics.e4m3_values(self.codes)
        return replace(
            self,
            sums=((self.sums * self.alpha).double() + p.sum(1, keepdim=True)).float(),
            acc=((self.acc * self.alpha).double() + p @ self.v).float(),
            size=self.size * self.alpha + p @ self.v.abs(),
            alpha=torch.ones(ROWS, 1),
        )

    def by_contract(self, scores: torch.Tensor, v: torch.Tensor) -> Rows:
        """A block as the contract has it: the reference moves always."""
        rows, scale = self.add(), self.scale
        largest = scores.nan_to_num(nan=-torch.inf).amax(1, keepdim=True)
        reference = torch.maximum(self.reference, largest)
        alpha = numerics.exp2_32((self.reference - reference) * scale)
        p = torch.zeros_like(scores)
        if self.p_mode == "lean":
            codes = _lean(scores, scale, reference)
        else:
            zero = torch.zeros_like(reference)
            p = numerics.exact_probabilities(scores, scale, reference, zero, numerics.EXACT_OCTAVES)
            codes = numerics.e4m3_codes(p)
        return replace(rows, reference=reference, alpha=alpha, codes=codes, p=p, v=v)

    def enter(self) -> Rows:
        """Where the loop begins: Lean's offset, sums and outputs referred to the reference."""
        return replace(
            self,
            sums=self.sums * self.alpha,
            acc=self.acc * self.alpha,
            size=self.size * self.alpha,
            alpha=torch.ones(ROWS, 1),
            offset=_offset(self.scale, self.reference),
        )

    def by_loop(self, scores: torch.Tensor, v: torch.Tensor) -> Rows:
        """A block as the loop has it. Alpha is 1 before and behind: all is multiplied at once."""
        if self.p_mode == "exact":
            return self.by_contract(scores, v)._referred()
        rows = self.add()
        raw = numerics.fma32(scores, (8 * self.scale).expand_as(scores), self._wide(self.offset))
        raw = raw.clamp(min=0).round().nan_to_num(nan=torch.inf)
        grew = _any_of_warp(raw > TOP)
        far = _any_of_warp(raw > FAR) | _any_of_warp(self.sums < FLAT)
        kept = replace(rows, codes=self._codes(scores, raw), v=v)
        anew, lowered = kept._from_scores(scores, raw), kept._lowered(raw, self.sums)
        made = tuple(
            "from scores" if is_far else "by codes"
            for is_grown, is_far in zip(grew[::WARP_ROWS], far[::WARP_ROWS], strict=True)
            if is_grown
        )
        changed = _choose(far, anew, lowered)
        return replace(_choose(grew, changed, kept), paths=self.paths + made)._referred()

    def _wide(self, column: torch.Tensor) -> torch.Tensor:
        return column.expand(ROWS, 128)

    def _referred(self) -> Rows:
        return replace(
            self,
            sums=self.sums * self.alpha,
            acc=self.acc * self.alpha,
            size=self.size * self.alpha,
            alpha=torch.ones(ROWS, 1),
        )

    def _codes(self, scores: torch.Tensor, raw: torch.Tensor) -> torch.Tensor:
        """The contract's codes where the reference is a score, else by the offset."""
        by_offset = raw.clamp(max=255).to(torch.uint8)
        codes = torch.where(self.by_codes, by_offset, _lean(scores, self.scale, self.reference))
        return torch.where(scores.isnan(), NAN_CODE, codes)

    def _from_scores(self, scores: torch.Tensor, raw: torch.Tensor) -> Rows:
        largest = scores.nan_to_num(nan=-torch.inf).amax(1, keepdim=True)
        offset = torch.fmin(_offset(self.scale, largest), self.offset)
        moves = offset < self.offset
        rows = replace(
            self,
            offset=offset,
            reference=torch.where(moves, largest, self.reference),
            by_codes=self.by_codes & ~moves,
            alpha=numerics.exp2_32((offset - self.offset) * 0.125),
        )
        return replace(rows, codes=rows._codes(scores, raw))

    def _lowered(self, raw: torch.Tensor, sums: torch.Tensor) -> Rows:
        """sums: what the loop knows of them, without the block whose product is under way."""
        over = raw.amax(1, keepdim=True).clamp(min=TOP) - TOP
        eighths = sums.view(torch.int32) >> 20
        room = (eighths - SUM_OF_TWO - over).clamp(0, ROOM)
        by = over + torch.where((over > 0) | self.fresh, room, 0.0)
        return replace(
            self,
            offset=self.offset - by,
            by_codes=self.by_codes | (by > 0),
            fresh=torch.zeros(ROWS, 1, dtype=torch.bool),
            alpha=numerics.exp2_32(-by / 8),
            codes=(raw - by).clamp(0, 255).to(torch.uint8),
        )

    def result(self, octaves_of_one: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Output and lse once the last block's P is in."""
        rows = self.add()
        top = rows.reference * self.scale
        if self.p_mode == "lean":
            top = torch.where(self.by_codes, (TOP - self.offset) / 8, top)
        lse = (top.double() + rows.sums.double().log2() - octaves_of_one) * torch.log(
            torch.tensor(2.0, dtype=torch.float64)
        )
        return rows.acc / rows.sums, lse.squeeze(1)


def _lean(scores: torch.Tensor, scale: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    codes = numerics.lean_codes_float16(scores.nan_to_num(nan=0.0), scale, reference)
    return torch.where(scores.isnan(), NAN_CODE, codes)


def _offset(scale: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    top = torch.full_like(reference, TOP)
    offset = numerics.fma32((-8 * scale).expand_as(reference), reference, top)
    return numerics.fma32(offset.abs(), torch.full_like(offset, -(2.0**-22)), offset)


def _any_of_warp(which: torch.Tensor) -> torch.Tensor:
    """bool (64, n) -> (64, 1): whether any of the row's warp is."""
    by_warp = which.reshape(ROWS // WARP_ROWS, -1).any(1)
    return by_warp.repeat_interleave(WARP_ROWS)[:, None]


def _choose(which: torch.Tensor, yes: Rows, no: Rows) -> Rows:
    names: tuple[str, ...] = (
        "reference", "sums", "acc", "size", "alpha", "codes", "offset", "by_codes", "fresh",
    )  # fmt: skip
    chosen = {name: torch.where(which, getattr(yes, name), getattr(no, name)) for name in names}
    return replace(no, **chosen)
