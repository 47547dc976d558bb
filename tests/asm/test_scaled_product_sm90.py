"""The example's loop in PTX: it compiles, without shared memory, and is refused elsewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from examples import scaled_product as example
from examples import scaled_product_sm90 as hopper
from tests.asm.ptx.threads import Threads
from tests.asm.splice_cases import compile_kernel
from tests.asm.splice_sm90_cases import HOPPER
from zyfa_triton import splice
from zyfa_triton.splice import MmaLayout, Names


@pytest.fixture(autouse=True)
def strict(fresh_splice: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("ZYFA_STRICT", "1")
    yield


def compile_product(loop: str, **options: Any) -> Any:
    arguments = example.example_arguments(example.BLOCK_M, example.BLOCK_N, 2 * example.BLOCK_K)
    constants = {**example.BLOCKS, "LOOP": loop}
    return compile_kernel(
        example.scaled_product, arguments, constants, HOPPER, **{**hopper.OPTIONS, **options}
    )


def test_the_kernel_with_the_loop_compiles() -> None:
    loop = splice.use(hopper.ScaledProductPtxLoop())
    compiled = compile_product(loop)
    assert compiled.metadata.splice == loop
    ptx = compiled.asm["ptx"]
    steps, parts = 4, example.BLOCK_K // 32  # two copies, each with a step ahead and without
    products = hopper.ROW_TILES * (hopper.COLUMN_TILES + 1)
    assert ptx.count(hopper.MMA) == steps * parts * products
    assert "wgmma" not in ptx
    plain = compile_product("")
    assert "wgmma" in plain.asm["ptx"]
    assert compiled.metadata.shared < plain.metadata.shared  # what the epilogue exchanges


def test_names_are_used_once_declared_and_all_of_the_results_are_written() -> None:
    text = splice_text(compile_product(splice.use(hopper.ScaledProductPtxLoop())).asm["ptx"])
    for name, count in (("acc", 32), ("row_sum", 4)):
        written = set(re.findall(rf"zy0c_{name}_\d+", text))
        assert written == {f"zy0c_{name}_{index}" for index in range(count)}
    assert re.findall(r"^(zy0t_\w+):", text, re.MULTILINE) == [
        "zy0t_product_loop", "zy0t_product_last_0", "zy0t_product_last_1", "zy0t_product_done",
    ]  # fmt: skip


def splice_text(ptx: str) -> str:
    return ptx.partition(": begin\n")[2].partition("// splice ")[0]


def test_a_layout_that_it_is_not_written_for_is_refused() -> None:
    with pytest.raises(splice.SpliceError, match="acc needs 64 registers"):
        compile_product(splice.use(hopper.ScaledProductPtxLoop()), num_warps=4)
    names = Names("L", "lower", "upper", {}, {}, {}, {"acc": MmaLayout((4, 2), 16, 3)})
    with pytest.raises(splice.SpliceError, match="acc is written for"):
        hopper.ScaledProductPtxLoop().text(names)


@pytest.mark.parametrize(("lower", "steps"), [(0, 0), (0, 1), (0, 2), (0, 5), (128, 3)])
def test_the_text_computes_the_product(lower: int, steps: int) -> None:
    """Executed here: each element where Triton's layout expects it, on top of what came in."""
    size_k = lower + steps * example.BLOCK_K
    stride_a, stride_b = size_k + 16, size_k + 32
    generator = torch.Generator().manual_seed(steps)
    a, b = (
        torch.randn(rows, stride, generator=generator).to(torch.float8_e4m3fn)
        for rows, stride in ((example.BLOCK_M, stride_a), (example.BLOCK_N, stride_b))
    )
    memory = torch.cat([one.view(torch.uint8).flatten() for one in (a, b)]).numpy()
    recipe, threads = hopper.ScaledProductPtxLoop(), 256
    names = Names(
        "L", "lower", "upper", {one.name: f"in_{one.name}" for one in recipe.inputs}, {},
        {each.name: tuple(f"{each.name}{i}" for i in range(each.registers))
         for each in recipe.carried},
        {"acc": hopper.LAYOUT, "row_sum": hopper.LAYOUT},
    )  # fmt: skip
    scalars = {
        "lower": lower, "upper": size_k, "in_a": 0, "in_b": a.numel(), "in_stride_a": stride_a,
        "in_stride_b": stride_b,
    }  # fmt: skip
    start = np.float32(0.5)
    pointers = ("in_a", "in_b")
    registers = {
        name: np.full(threads, value, np.uint64 if name in pointers else np.uint32)
        for name, value in scalars.items()
    }
    for name in (*names.carried["acc"], *names.carried["row_sum"]):
        registers[name] = np.full(threads, start.view(np.uint32))
    run = Threads(recipe.text(names), threads, registers, memory=memory)
    run.run()
    a_used, b_used = (one.double()[:, lower:size_k] for one in (a, b))
    expected = {"acc": a_used @ b_used.T + 0.5, "row_sum": a_used.sum(1) + 0.5}
    for each in recipe.carried:
        got = torch.full(each.shape, float("nan"), dtype=torch.float64)
        for index, name in enumerate(names.carried[each.name]):
            values = run.register(name).view(np.float32)
            for thread in range(threads):
                place = hopper.LAYOUT.coordinates(each.shape, index, thread % 32, thread // 32)
                got[place] = float(values[thread])
        assert torch.allclose(got, expected[each.name], rtol=0, atol=1e-4)
