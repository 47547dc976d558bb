"""Which whole kernels a self-test runs, and with what a result is compared.

On a card: with the emulator's bits. Without: the emulator's result with the contract model, in the
error budget. It compiles and launches through the op alone.
"""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass
from typing import Any

import torch

from zyfa_triton import dispatch, flash_attn_func, testing
from zyfa_triton.hip import found_compiler
from zyfa_triton.problem import FP8
from zyfa_triton.selftest.rows import Row
from zyfa_triton.splice import SpliceWarning

_QUERIES, _KEYS = 200, 200  # one tile of queries, the last block of keys masked
_WITHIN = "within the error budget"
BITS, BUDGET = "bit for bit as emulated", f"emulated: {_WITHIN}"


@dataclass(frozen=True)
class Case:
    """A variant of the op."""

    name: str
    dtype: torch.dtype
    p_mode: str
    kernel: str

    @property
    def question(self) -> str:
        mode = f", {self.p_mode} P" if self.dtype == FP8 else ""
        return f"causal attention of {str(self.dtype).removeprefix('torch.')}{mode}, {self.kernel}"


_MADE_BY_TRITON = (
    Case("kernels/fp8-lean-triton", FP8, "lean", "triton"),
    Case("kernels/fp8-exact-triton", FP8, "exact", "triton"),
    Case("kernels/fp8-lean-pingpong", FP8, "lean", "pingpong"),
    Case("kernels/fp8-exact-pingpong", FP8, "exact", "pingpong"),
    Case("kernels/bf16-triton", torch.bfloat16, "lean", "triton"),
)
_MADE_BY_CLANG = Case("kernels/bf16-hip", torch.bfloat16, "lean", "hip")


def cases() -> tuple[Case, ...]:
    """The kernel in HIP is among them where a compiler is found that knows gfx950."""
    return _MADE_BY_TRITON if found_compiler() is None else (*_MADE_BY_TRITON, _MADE_BY_CLANG)


def check(case: Case, *, on_card: bool) -> Row:
    """Run a case and compare."""
    started = time.perf_counter()
    inputs = testing.make_inputs(_QUERIES, _KEYS, nheads=1, nheads_k=1, dtype=case.dtype)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", SpliceWarning)
            emulated = _run(case, inputs, "emulated")
            if on_card:
                seen = _run(case, inputs, "device")
                outcome = _difference(seen, emulated)
                if outcome != BITS:
                    outcome += f"; {_beyond_budget(case, inputs, seen) or _WITHIN}"
            else:
                wrong = _beyond_budget(case, inputs, emulated)
                outcome = f"emulated: {wrong or _WITHIN}"
    except (RuntimeError, SpliceWarning) as error:
        outcome = f"failed: {error}".splitlines()[0]
    assumed = BITS if on_card else BUDGET
    return Row(
        kind="kernel",
        name=case.name,
        question=case.question,
        assumed=assumed,
        outcome=outcome,
        agrees=outcome == assumed,
        seconds=time.perf_counter() - started,
    )


Pair = tuple[torch.Tensor, torch.Tensor]


def _run(case: Case, inputs: testing.Inputs, backend: str) -> Pair:
    """(out, lse) on the CPU."""
    where = "cuda" if backend == "device" else "cpu"
    scales: dict[str, Any] = {
        name: None if descale is None else descale.to(where)
        for name, descale in inputs.descales.items()
    }
    result = flash_attn_func(
        inputs.q.to(where),
        inputs.k.to(where),
        inputs.v.to(where),
        causal=True,
        p_mode=case.p_mode,  # type: ignore[arg-type]
        kernel=case.kernel,
        backend=backend,
        return_lse=True,
        **scales,
    )
    assert isinstance(result, tuple)
    return result[0].cpu(), result[1].cpu()


def _difference(seen: Pair, emulated: Pair) -> str:
    """`BITS`, or how many numbers differ and by how much."""
    found = []
    for name, a, b in zip(("out", "lse"), seen, emulated, strict=True):
        differs = a.view(torch.uint8) != b.view(torch.uint8)
        if bool(differs.any()):
            count = int(differs.view(*a.shape, a.element_size()).any(-1).sum())
            largest = float((a.double() - b.double()).abs().max())
            found.append(f"{count} of {a.numel()} of {name} differ, by up to {largest:.1e}")
    return "; ".join(found) or BITS


def _beyond_budget(case: Case, inputs: testing.Inputs, result: Pair) -> str:
    """What is wrong beyond the error budget, or ""."""
    block_scale = dispatch.choose_block_scale(
        "auto", dtype=case.dtype, p_mode=case.p_mode, backend="emulated", device=torch.device("cpu")
    )
    (ref, ref_lse), (low, low_lse) = testing.expected(
        inputs, causal=True, p_mode=case.p_mode, block_scale=block_scale
    )
    try:
        testing.check_output(result[0], ref, low, is_fp8=case.dtype == FP8)
        testing.check_lse(result[1], ref_lse, low_lse, inputs)
    except AssertionError as error:
        return str(error)
    return ""
