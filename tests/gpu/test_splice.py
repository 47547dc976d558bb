"""Loops replaced by PTX on a Hopper device: the same bits as Triton's loop, or fp64's product."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from triton import knobs

from examples import scaled_product as example
from examples import scaled_product_sm90 as hopper
from tests.asm.splice_sm90_cases import WorkLoop, twice
from zyfa_triton import arch, splice


@pytest.fixture(autouse=True)
def strict_on_hopper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    name = arch.arch_of(0).name
    if name != "sm90":
        pytest.skip(f"the loops are written for sm90, this is {name}")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    monkeypatch.setenv("ZYFA_STRICT", "1")
    before = knobs.runtime.add_stages_inspection_hook
    yield
    knobs.runtime.add_stages_inspection_hook = before


@pytest.mark.parametrize("blocks", [0, 1, 2, 9])
def test_two_copies_of_a_loop_give_the_bits_of_tritons(device: torch.device, blocks: int) -> None:
    """The scale is a power of two: fused or not, a multiplication and an addition are the same."""
    loop = splice.use(WorkLoop())
    results = []
    for asked in ("", loop):
        out = torch.full((2, 64, 64), float("nan"), device=device)
        compiled = twice[(1,)](out, blocks, 0.5, LOOP=asked, OTHER=asked, num_warps=4)
        assert getattr(compiled.metadata, "splice", "") == asked
        results.append(out.cpu())
    assert torch.isfinite(results[1]).all()
    assert torch.equal(*results)


@pytest.mark.parametrize("steps", [0, 1, 2, 5, 32])
def test_the_example_computes_the_product(device: torch.device, steps: int) -> None:
    """wgmma keeps fewer bits of an FP8 sum than mma.sync does: each loop has its own budget."""
    size_k = steps * example.BLOCK_K
    arguments = example.example_arguments(
        2 * example.BLOCK_M, 2 * example.BLOCK_N, max(size_k, example.BLOCK_K)
    )
    arguments["size_k"] = size_k
    a, b = (arguments[name][:, :size_k].double() for name in ("a_ptr", "b_ptr"))
    expected = {"c_ptr": a @ b.T * arguments["scale"], "row_sum_ptr": a.sum(1)}
    loop = splice.use(hopper.ScaledProductPtxLoop())
    for asked, budget in (("", 1e-2), (loop, 1e-4)):
        moved, compiled = hopper.product_on(device, arguments, asked)
        assert getattr(compiled.metadata, "splice", "") == asked
        for name, truth in expected.items():
            error = (moved[name].double().cpu() - truth).abs().max()
            assert error <= budget * truth.abs().max().clamp(min=1.0), (asked, name)


def test_repeats_give_the_same_bits(device: torch.device) -> None:
    arguments = example.example_arguments(
        4 * example.BLOCK_M, 4 * example.BLOCK_N, 9 * example.BLOCK_K
    )
    loop = splice.use(hopper.ScaledProductPtxLoop())
    first, _ = hopper.product_on(device, arguments, loop)
    for _ in range(50):
        again, _ = hopper.product_on(device, arguments, loop)
        for name in ("c_ptr", "row_sum_ptr"):
            assert torch.equal(first[name], again[name])
