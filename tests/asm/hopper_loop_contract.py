"""Decides what the generated Hopper loop should compute: the contract's arithmetic, block by block,
and, for Lean codes, when a warp's rows move their reference and how
(asm_overrides/recipes/attention_sm90/lean_softmax.py).

It knows scores and values as plain matrices: no registers, no order of instructions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from zyfa_triton import numerics

ROWS, WARP_ROWS, PARTED = 64, 16, 8  # rows of a warp that one lane holds one of stay together
NO_KEY = -1e30
DEPTH = 32  # of the head dim: a rounding after each
TOP, ROOM, FAR = 126.0, 24.0, 138.0  # codes
FLAT = 6 * 448.0
SUM_OF_TWO = 1095  # 8 times the octaves of 2 * 448, from the exponent's bias, rounded up
HALF_SUM = 255.0  # 2^8 (1 - 2^-8): what float16 sums of P times 2^-8 count
NAN_CODE = 0x7F


def scores_of(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """Raw scores, float32 (queries, keys), of float64 matrices: exact over DEPTH, then rounded."""
    total = torch.zeros(q.shape[0], k.shape[0])
    for first in range(0, q.shape[1], DEPTH):
        part = q[:, first : first + DEPTH] @ k[:, first : first + DEPTH].T
        total = (total.double() + part).float()
    return total


@dataclass(frozen=True)
class Moves:
    """How often Lean's loop went the ways that cost time; all but the first of PARTED rows."""

    asked: int = 0  # warps which of their rows exceed the reference
    anew: int = 0  # codes from scores once more
    lowered: int = 0
    scaled: int = 0  # outputs multiplied


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
    first: bool = True  # the loop has seen no block
    moves: Moves = Moves()

    @classmethod
    def start(cls, p_mode: str, scale: torch.Tensor) -> Rows:
        column, zeros = torch.zeros(ROWS, 1), torch.zeros(ROWS, 128)
        no = torch.zeros(ROWS, 1, dtype=torch.bool)
        return cls(
            p_mode, scale, column + NO_KEY, column, zeros, column + 1, zeros.to(torch.uint8),
            torch.zeros(128, 128, dtype=torch.float64), zeros, zeros.double(), column, no,
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
            offset=offset_of(self.scale, self.reference),
        )

    def by_loop(self, scores: torch.Tensor, v: torch.Tensor) -> Rows:
        """A block as the loop has it. Alpha is 1 before and behind: all is multiplied at once."""
        if self.p_mode == "exact":
            return self.by_contract(scores, v)._referred()
        rows = self.add()
        raw = numerics.fma32(scores, (8 * self.scale).expand_as(scores), self._wide(self.offset))
        raw = raw.clamp(min=0).round().nan_to_num(nan=torch.inf)
        kept = replace(rows, codes=self._codes(scores, raw), v=v)
        if self.first:
            every = torch.ones(ROWS, 1, dtype=torch.bool)
            anew = kept._from_scores(scores, raw, every)
            raw = anew.codes.where(anew.codes != NAN_CODE, 255).float()
            changed = anew._lowered(raw, anew._room(anew._known(self.sums * anew.alpha)))
            return replace(changed, first=False)._moved(0, every, changed.alpha)._referred()
        over = raw.amax(1, keepdim=True).clamp(min=TOP) - TOP
        exactly = (over > 0) & ((over > FAR - TOP) | (self.sums < FLAT))
        exactly = exactly.reshape(-1, PARTED).any(1).repeat_interleave(PARTED)[:, None]
        anew = kept._from_scores(scores, raw, exactly)
        room = (_octaves(self.sums) - over).clamp(0, ROOM)
        by = torch.where(exactly | (over == 0), 0.0, over + room)
        asked = int((over.reshape(-1, WARP_ROWS) > 0).any(1).sum())
        changed = anew._lowered(raw, by)
        return changed._moved(asked, exactly, changed.alpha)._referred()

    def _moved(self, asked: int, anew: torch.Tensor, alpha: torch.Tensor) -> Rows:
        moves = replace(
            self.moves,
            asked=self.moves.asked + asked,
            anew=self.moves.anew + _parted(anew),
            scaled=self.moves.scaled + _parted(alpha != 1),
        )
        return replace(self, moves=moves)

    def _known(self, sums: torch.Tensor) -> torch.Tensor:
        """Row sums that the first block's codes give, with those known before: as a lane adds
        float16, columns 8 g + 2 t and 8 g + 2 t + 1 over g, then lanes t."""
        halves = numerics.e4m3_values(self.codes).float().mul(2.0**-8).half()
        parts = halves.reshape(ROWS, 16, 4, 2)
        total = parts[:, 0]
        for g in range(1, 16):
            total = total + parts[:, g]
        lanes = total[..., 0].float() + total[..., 1].float()
        pairs = (lanes[:, 0] + lanes[:, 1]) + (lanes[:, 2] + lanes[:, 3])
        return numerics.fma32(pairs[:, None], torch.full_like(sums, HALF_SUM), sums)

    def _room(self, known: torch.Tensor) -> torch.Tensor:
        is_normal = self.scale * 2.0**-21 >= 2.0**-126  # a code's 2^-24 times 8 to the octave
        return torch.where((known >= FLAT) & is_normal, _octaves(known).clamp(0, ROOM), 0.0)

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

    def _from_scores(self, scores: torch.Tensor, raw: torch.Tensor, which: torch.Tensor) -> Rows:
        largest = scores.nan_to_num(nan=-torch.inf).amax(1, keepdim=True)
        offset = torch.fmin(offset_of(self.scale, largest), self.offset)
        offset = torch.where(which, offset, self.offset)
        moves = offset < self.offset
        rows = replace(
            self,
            offset=offset,
            reference=torch.where(moves, largest, self.reference),
            by_codes=self.by_codes & ~moves,
            alpha=numerics.exp2_32((offset - self.offset) * 0.125),
        )
        return replace(rows, codes=torch.where(which, rows._codes(scores, raw), self.codes))

    def _lowered(self, raw: torch.Tensor, by: torch.Tensor) -> Rows:
        """Codes, as they were before they are clamped, lower by `by`."""
        moves = replace(self.moves, lowered=self.moves.lowered + _parted(by > 0))
        return replace(
            self,
            offset=self.offset - by,
            by_codes=self.by_codes | (by > 0),
            alpha=self.alpha * numerics.exp2_32(-by / 8),
            codes=torch.where(by > 0, (raw - by).clamp(0, 255).to(torch.uint8), self.codes),
            moves=moves,
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


def offset_of(scale: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """What is added to a score's codes so that those at the reference become TOP."""
    top = torch.full_like(reference, TOP)
    offset = numerics.fma32((-8 * scale).expand_as(reference), reference, top)
    return numerics.fma32(offset.abs(), torch.full_like(offset, -(2.0**-22)), offset)


def _parted(which: torch.Tensor) -> int:
    """In how many of the groups of rows that stay together any row is such."""
    return int(which.reshape(-1, PARTED).any(1).sum())


def _octaves(sums: torch.Tensor) -> torch.Tensor:
    """Room that sums allow, in codes."""
    return (sums.view(torch.int32) >> 20) - SUM_OF_TWO
