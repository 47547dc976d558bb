"""Triton's own loop, put back as text through the splice, gives the same results bit for bit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from asm_overrides.emulator import GlobalMemory, load_text, run
from examples import scaled_product as example
from tests.asm.splice_cases import BLOCKS, compile_kernel, instructions
from tests.asm.splice_identity import loop_text, show_results
from zyfa_triton import splice
from zyfa_triton.splice import Input, LoopRecipe, MatrixLayout, Output
from zyfa_triton.splice.layout import matrix_layout


@pytest.fixture(autouse=True)
def strict(fresh_splice: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("ZYFA_STRICT", "1")
    yield


@triton.jit
def product_loop(
    end, a_ptr, b_ptr, stride_a, stride_b,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """The loop of `scaled_product` alone, from its inputs to its results."""
    rows, columns, offs_k = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_K)
    ones = tl.full([BLOCK_K, BLOCK_N], 0x38, tl.uint8).to(tl.float8e4nv, bitcast=True)
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    row_sum = tl.zeros([BLOCK_M], tl.float32)
    for k in range(0, end, BLOCK_K):
        a = tl.load(a_ptr + rows[:, None] * stride_a + (k + offs_k)[None, :])
        b = tl.load(b_ptr + columns[None, :] * stride_b + (k + offs_k)[:, None])
        acc = tl.dot(a, b, acc)
        row_sum += tl.max(tl.dot(a, ones), 1)
    show_results(acc)
    show_results(row_sum)


@dataclass(frozen=True, kw_only=True)
class TritonsProductLoop(LoopRecipe):
    """Its text is what Triton made of `product_loop`."""

    amdgcn: str = field(repr=False)
    name: str = "tritons_product"
    inputs: tuple[Input, ...] = example.ScaledProductLoop.inputs
    outputs: tuple[Output, ...] = (
        Output("acc", 64, 16, (example.BLOCK_M, example.BLOCK_N), 0.0),
        Output("row_sum", 80, 1, (example.BLOCK_M,), 0.0),
    )
    clobbers: tuple[str, ...] = ("v[24:63]", "v[81:255]", "s[36:95]")
    operations: Mapping[str, int] = field(default_factory=lambda: {"tt.dot": 2})
    saves: Mapping[str, str] = field(default_factory=lambda: {"m0": "s36"})

    def text(self, label: str, layout: MatrixLayout) -> str:
        # the kernel's argument block is padded: a pointer starts at a multiple of 8
        arguments = ["s24", "s24", "s20", "s21", "s22", "s23", "s25", "s26"]
        return loop_text(self.amdgcn, arguments, range(64, 81), 82, 40, label)


@pytest.mark.parametrize("steps", [0, 1, 5])
def test_tritons_product_loop_put_back_as_text_changes_no_bit(steps: int) -> None:
    size_k = steps * example.BLOCK_K
    arguments = example.example_arguments(example.BLOCK_M, example.BLOCK_N, max(size_k, 128))
    arguments["size_k"] = size_k
    names = ("size_k", "a_ptr", "b_ptr", "stride_a", "stride_b")
    alone = {name if name != "size_k" else "end": arguments[name] for name in names}
    options = {**example.OPTIONS, "matrix_instr_nonkdim": 32}
    own = compile_kernel(product_loop, alone, BLOCKS, **options)
    assert any(one.startswith("v_mfma") for one in instructions(own.asm["amdgcn"]))
    recipe = TritonsProductLoop(amdgcn=own.asm["amdgcn"], lds_bytes=own.metadata.shared)
    spliced = example.compile_product(arguments, splice.use(recipe))
    plain = example.compile_product(arguments, "")
    assert matrix_layout(own.asm["ttgir"]) == example.LAYOUT
    expected, _ = example.emulate(plain, arguments)
    results, findings = example.emulate(spliced, arguments)
    assert not findings
    for name, array in expected.items():
        assert np.isfinite(array).all()
        assert results[name].tobytes() == array.tobytes()
