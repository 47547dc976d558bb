"""How P's codes are seen in a run: as the operand that a matrix instruction multiplies with V.

It does not judge them. No layout of the compiler is assumed: V's own rows, found in the other
operand, tell which key each of P's codes belongs to, so the same capture serves any loop.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from asm_overrides.isa.instruction import Instruction
from zyfa_triton.problem import Problem

_ROWS_A_WAVE = 32  # queries of one matrix instruction
_COLUMNS = 32  # of V, that one matrix instruction takes
_TILE = 64  # keys of one matrix instruction
Codes = NDArray[np.uint8]


class CaptureError(RuntimeError):
    """P's codes cannot be told apart from outside."""


class ProbabilityCapture:
    """Observer that collects P's codes: uint8 (batch, nheads, seqlen_q, seqlen_k), 0 elsewhere."""

    def __init__(
        self, problem: Problem, v: torch.Tensor, block_m: int, *, heads_fastest: bool = False
    ) -> None:
        """v: e4m3 (batch, seqlen_k, nheads_k, headdim_v), what the kernel was given. heads_fastest:
        the kernel's HEADS_FASTEST."""
        if not problem.is_fp8:
            raise CaptureError(f"P is captured for e4m3 inputs, got {problem.dtype}")
        self._problem = problem
        self._block_m = block_m
        self._heads_fastest = heads_fastest
        self._m_blocks = -(-problem.seqlen_q // block_m)
        shape = (problem.batch, problem.nheads, problem.seqlen_q, problem.seqlen_k)
        self._codes = np.zeros(shape, np.uint8)
        first = v[..., :_COLUMNS].contiguous().view(torch.uint8).numpy()
        self._keys = {
            (b, h): _positions(first[b, :, h])
            for b in range(problem.batch)
            for h in range(problem.nheads_k)
        }

    @property
    def codes(self) -> torch.Tensor:
        """What was collected."""
        return torch.from_numpy(self._codes)

    def on_mfma(
        self,
        workgroup: tuple[int, int, int],
        waves: slice,
        instruction: Instruction,
        a: NDArray[Any],
        b: NDArray[Any],
        scale_a: NDArray[np.uint32] | None,
        scale_b: NDArray[np.uint32] | None,
    ) -> None:
        """See asm_overrides.emulator.checks.Observer."""
        if a.dtype != np.uint8 or a.shape[1:] != (1, _COLUMNS, _TILE) or b.shape != a.shape:
            return
        batch, head, row_first = self._place(workgroup[0])
        table = self._keys[batch, head // self._problem.group_size]
        for value, p in ((a, b), (b, a)):
            keys = _keys_of(value[0, 0], table)
            if keys is not None:
                self._record(batch, head, row_first, waves, keys, p[:, 0])
                return

    def _place(self, program: int) -> tuple[int, int, int]:
        """(batch, head, first query) of a workgroup, as attention_forward deals them out."""
        if self._heads_fastest:
            rest, head = divmod(program, self._problem.nheads)
            batch, m_block = divmod(rest, self._m_blocks)
        else:
            rest, m_block = divmod(program, self._m_blocks)
            batch, head = divmod(rest, self._problem.nheads)
        if self._problem.causal:
            m_block = self._m_blocks - 1 - m_block
        return batch, head, m_block * self._block_m

    def _record(
        self, batch: int, head: int, row_first: int, waves: slice, keys: NDArray[np.int64], p: Codes
    ) -> None:
        """p: (waves, rows, slots); keys: (slots,), -1 for slots behind the last key."""
        real = keys >= 0
        for index, wave in enumerate(range(waves.start, waves.stop)):
            if (wave + 1) * _ROWS_A_WAVE > self._block_m:
                raise CaptureError(
                    f"BLOCK_M is {self._block_m}: P is captured with 32 queries a wave"
                )
            row = row_first + wave * _ROWS_A_WAVE
            count = min(_ROWS_A_WAVE, self._problem.seqlen_q - row)
            if count > 0:
                target = self._codes[batch, head, row : row + count]
                target[:, keys[real]] = p[index, :count][:, real]


def _positions(rows: Codes) -> dict[bytes, int]:
    """Row bytes -> key. Raises CaptureError where two keys have the same first columns."""
    table = {row.tobytes(): key for key, row in enumerate(rows)}
    if len(table) != len(rows):
        raise CaptureError("rows of V are equal in their first 32 columns")
    return table


def _keys_of(operand: Codes, table: dict[bytes, int]) -> NDArray[np.int64] | None:
    """Keys of an operand (columns of V, slots), or None if it is not V's first columns."""
    slots = np.ascontiguousarray(operand.T)
    keys = np.array([table.get(slot.tobytes(), -1) for slot in slots])
    unknown = slots[keys < 0]
    if len(unknown) == len(slots) or unknown.any():
        return None
    return keys
