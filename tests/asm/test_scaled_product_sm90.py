"""The example's loop in PTX: it compiles, without shared memory, and is refused elsewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from examples import scaled_product as example
from examples import scaled_product_sm90 as hopper
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
