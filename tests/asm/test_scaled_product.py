"""The example of a hand-written loop: right, trusted, and every wait of it needed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch

from examples import scaled_product as example
from zyfa_triton import splice
from zyfa_triton.prototype import Trial
from zyfa_triton.splice import MatrixLayout

OUTPUTS = ("c_ptr", "row_sum_ptr")


@pytest.fixture(autouse=True)
def strict(fresh_splice: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("ZYFA_STRICT", "1")
    yield


def run(
    arguments: dict[str, Any], loop: str, seed: int | None = None
) -> tuple[list[torch.Tensor], Trial]:
    for name in OUTPUTS:
        arguments[name].fill_(float("nan"))
    trial = example.try_product(arguments, loop, seed)
    return [arguments[name].clone() for name in OUTPUTS], trial


@pytest.mark.parametrize("steps", [0, 1, 2, 5])
def test_both_loops_give_the_same_bits(steps: int) -> None:
    size_k = steps * example.BLOCK_K
    arguments = example.example_arguments(
        2 * example.BLOCK_M, 2 * example.BLOCK_N, max(size_k, example.BLOCK_K)
    )
    arguments["size_k"] = size_k
    plain, _ = run(arguments, "")
    loop = splice.use(example.ScaledProductLoop())
    ours, trial = run(arguments, loop, seed=steps)
    assert trial.compiled.splice == loop
    assert not trial.findings
    for a, b in zip(plain, ours, strict=True):
        assert torch.isfinite(b).all() and torch.equal(a, b)
    a, b = arguments["a_ptr"][:, :size_k].double(), arguments["b_ptr"][:, :size_k].double()
    assert torch.allclose(ours[0].double(), a @ b.T * arguments["scale"], rtol=0, atol=1e-5)
    assert torch.equal(ours[1].double(), a.sum(1))


@dataclass(frozen=True, kw_only=True)
class Mutant(example.ScaledProductLoop):
    """The loop without its n-th waiting instruction."""

    without: int

    def text(self, label: str, layout: MatrixLayout) -> str:
        lines = super().text(label, layout).splitlines()
        waits = [index for index, line in enumerate(lines) if WAIT.match(line)]
        del lines[waits[self.without]]
        return "\n".join(lines)


WAIT = re.compile(r"s_waitcnt|s_nop")


@cache
def waits() -> list[str]:
    lines = example.ScaledProductLoop().text("L", example.LAYOUT).splitlines()
    return [line for line in lines if WAIT.match(line)]


def test_every_wait_of_the_loop_is_needed() -> None:
    """Without it the emulator finds something, or the result is another, for an even or an odd
    number of steps."""
    survivors = set(range(len(waits())))
    for steps in (4, 5):
        arguments = example.example_arguments(
            example.BLOCK_M, example.BLOCK_N, steps * example.BLOCK_K
        )
        right, _ = run(arguments, splice.use(example.ScaledProductLoop()))
        for index in sorted(survivors):
            wrong, trial = run(arguments, splice.use(Mutant(without=index)))
            same = all(torch.equal(a, b) for a, b in zip(right, wrong, strict=True))
            if trial.findings or not same:
                survivors.discard(index)
    assert len(waits()) == 6
    assert not [waits()[index] for index in sorted(survivors)]


def test_a_layout_that_it_is_not_written_for_is_refused() -> None:
    other = MatrixLayout(waves=(4, 2), instruction=(32, 32, 64), is_transposed=True, version=4)
    with pytest.raises(splice.SpliceError, match="is written for"):
        example.ScaledProductLoop().text("L", other)
