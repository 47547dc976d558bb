"""Triton's own loop, put back as text through the splice, gives the same results bit for bit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from triton import knobs

from examples import scaled_product as example
from tests.asm.splice_cases import OPTIONS, attention_case, compile_kernel, instructions
from tests.asm.splice_identity import RegisterLimit, loop_text, show_results
from zyfa_triton import splice
from zyfa_triton.backends.emulated import emulate
from zyfa_triton.kernels.attention import _load_queries, _tile
from zyfa_triton.kernels.attention_loop import AttentionLoop
from zyfa_triton.kernels.launch import LAUNCH_OPTIONS
from zyfa_triton.splice import Input, LoopRecipe, MatrixLayout, Output
from zyfa_triton.splice.gfx950.layout import matrix_layout


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
    options = {**OPTIONS, "matrix_instr_nonkdim": 32}
    own = compile_kernel(product_loop, alone, example.BLOCKS, **options)
    assert any(one.startswith("v_mfma") for one in instructions(own.asm["amdgcn"]))
    recipe = TritonsProductLoop(amdgcn=own.asm["amdgcn"], lds_bytes=own.metadata.shared)
    assert matrix_layout(own.asm["ttgir"]) == example.LAYOUT
    outputs = {name: arguments[name] for name in ("c_ptr", "row_sum_ptr")}
    example.try_product(arguments, "")
    expected = {name: tensor.clone() for name, tensor in outputs.items()}
    for tensor in outputs.values():
        tensor.fill_(float("nan"))
    trial = example.try_product(arguments, splice.use(recipe))
    assert not trial.findings
    for name, tensor in outputs.items():
        assert torch.isfinite(tensor).all()
        assert torch.equal(tensor.view(torch.int32), expected[name].view(torch.int32)), name


@triton.jit
def attention_loop(
    q_ptr, k_ptr, v_ptr, end, full_end, stride_qs, stride_ks, stride_vs, scale_log2, row_0,
    seqlen_q, seqlen_k, P_MODE: tl.constexpr, IS_CAUSAL: tl.constexpr,
):  # fmt: skip
    """Both tile loops of `attention_forward` alone, from their inputs to their results."""
    rows = tl.arange(0, 256)
    q = _load_queries(q_ptr, rows, stride_qs, seqlen_q - row_0, 0, 128, False)
    m_i = tl.full([256], float("-inf"), tl.float32)
    l_i = tl.zeros([256], tl.float32)
    acc_o = tl.zeros([256, 128], tl.float32)
    for start_n in range(0, full_end, 64):
        m_i, l_i, acc_o = _tile(
            q, q, k_ptr, k_ptr, v_ptr, stride_ks, stride_ks, stride_vs, start_n, row_0 + rows,
            seqlen_q, seqlen_k, scale_log2, m_i, l_i, acc_o, False, IS_CAUSAL, True, P_MODE, True,
            128, 128, 128, 256, 64, False)  # fmt: skip
    for start_n in range(full_end, end, 64):
        m_i, l_i, acc_o = _tile(
            q, q, k_ptr, k_ptr, v_ptr, stride_ks, stride_ks, stride_vs, start_n, row_0 + rows,
            seqlen_q, seqlen_k, scale_log2, m_i, l_i, acc_o, True, IS_CAUSAL, True, P_MODE, True,
            128, 128, 128, 256, 64, False)  # fmt: skip
    show_results(m_i)
    show_results(l_i)
    show_results(acc_o)


@dataclass(frozen=True, kw_only=True)
class TritonsAttentionLoop(AttentionLoop):
    """Its text is what Triton made of `attention_loop`."""

    amdgcn: str = field(repr=False)
    name: str = "tritons_attention"
    saves: Mapping[str, str] = field(default_factory=lambda: {"fp8_saturation": "s95"})

    def text(self, label: str, layout: MatrixLayout) -> str:
        pointers = ["s20", "s21", "s22", "s23", "s26", "s27"]
        scalars = ["s24", "s29", "s30", "s31", "s35", "s25", "s28", "s33", "s34"]
        results = [128, 129, *range(64, 128)]
        return loop_text(self.amdgcn, [*pointers, *scalars], results, 10, 56, label)


@pytest.mark.parametrize(
    ("p_mode", "is_causal"),
    [("lean", True), ("exact", False)],
    ids=["lean-causal", "exact-full"],
)
def test_tritons_attention_loop_put_back_as_text_changes_no_bit(
    p_mode: str, is_causal: bool
) -> None:
    problem, arguments = attention_case(p_mode, is_causal)
    config = {"BLOCK_M": 256, "BLOCK_N": 64, "num_warps": 8, "num_stages": 1}
    config |= {"matrix_instr_nonkdim": 32}
    names = ("stride_qs", "stride_ks", "stride_vs")
    alone: dict[str, Any] = {name: arguments[name] for name in ("q_ptr", "k_ptr", "v_ptr")}
    alone |= {"end": 256, "full_end": 64} | {name: arguments[name] for name in names}
    alone |= {"scale_log2": 0.5, "row_0": 256, "seqlen_q": 300, "seqlen_k": 429}
    options = {"num_warps": 8, "num_stages": 1, "matrix_instr_nonkdim": 32, **LAUNCH_OPTIONS}
    knobs.runtime.add_stages_inspection_hook = RegisterLimit(44, 244)
    own = compile_kernel(
        attention_loop, alone, {"P_MODE": p_mode, "IS_CAUSAL": is_causal}, **options
    )
    knobs.runtime.add_stages_inspection_hook = None
    recipe = TritonsAttentionLoop(
        p_mode=p_mode, is_causal=is_causal, amdgcn=own.asm["amdgcn"], lds_bytes=own.metadata.shared
    )
    outputs = {name: arguments[name] for name in ("o_ptr", "lse_ptr")}
    emulate(problem, arguments, config=config)
    expected = {name: tensor.clone() for name, tensor in outputs.items()}
    for tensor in outputs.values():
        tensor.fill_(float("nan"))
    result = emulate(problem, arguments, config={**config, "LOOP": splice.use(recipe)}, seed=1)
    assert result.compiled.splice.startswith("tritons_attention__")
    assert not result.findings
    for name, tensor in outputs.items():
        assert torch.isfinite(tensor).any(), "nothing was computed"
        assert torch.equal(tensor.view(torch.int32), expected[name].view(torch.int32)), name
