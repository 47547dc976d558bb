"""The CPU fallback: the contract for e4m3, exact attention for 16 bits, at every kind of length."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch

from zyfa_triton import flash_attn_fp8_func, flash_attn_func, numerics
from zyfa_triton.backends import reference
from zyfa_triton.problem import FP8
from zyfa_triton.testing import LAYOUTS, check_lse, check_output, expected, make_inputs

LENGTHS = [
    (0, 0), (0, 5), (5, 0), (1, 1), (1, 70), (63, 64), (64, 65), (65, 63), (129, 40), (40, 129),
]  # fmt: skip


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize(
    ("dtype", "headdim"), [(FP8, 128), (FP8, 192), (torch.bfloat16, 128)], ids=str
)
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_lengths(lengths: tuple[int, int], dtype: torch.dtype, headdim: int, causal: bool) -> None:
    check(lengths, dtype, headdim, causal, batch=1)


@pytest.mark.parametrize("headdim", [128, 192])
def test_float16_and_batches(headdim: int) -> None:
    check((40, 129), torch.float16, headdim, causal=True, batch=2)


def check(
    lengths: tuple[int, int], dtype: torch.dtype, headdim: int, causal: bool, batch: int
) -> None:
    x = make_inputs(*lengths, headdim=headdim, batch=batch, dtype=dtype)
    out, lse = flash_attn_func(x.q, x.k, x.v, causal=causal, return_lse=True, **x.descales)
    ref, low = expected(x, causal=causal, block_scale=dtype == FP8)
    check_output(out, ref[0], low[0], is_fp8=dtype == FP8)
    check_lse(lse, ref[1], low[1], x)


@pytest.mark.parametrize("lengths", [(0, 5), (5, 0), (1, 70), (129, 40)], ids=str)
def test_a_mean_of_v(lengths: tuple[int, int]) -> None:
    x = make_inputs(*lengths, batch=2, dtype=FP8, v_mean=True)
    out, lse = flash_attn_func(
        x.q, x.k, x.v, causal=True, return_lse=True, v_mean=x.v_mean, **x.descales
    )
    ref, low = expected(x, causal=True, block_scale=True)
    check_output(out, ref[0], low[0], is_fp8=True)
    check_lse(lse, ref[1], low[1], x)
    without = max(lengths[0] - lengths[1], 0)
    assert not out[:, :without].any()
    assert bool((out[:, without:].float().abs().amax(-1) > 1.0).all())


@pytest.mark.parametrize("has_mean", [False, True], ids=["plain", "v_mean"])
@pytest.mark.parametrize("p_mode", ["lean", "exact", "unscaled"])
@pytest.mark.parametrize("block_scale", [False, True])
def test_e4m3_is_the_contract_bit_for_bit(p_mode: Any, block_scale: bool, has_mean: bool) -> None:
    if p_mode == "unscaled" and block_scale:
        return
    x = make_inputs(100, 130, batch=2, dtype=FP8, v_mean=has_mean)
    out = torch.empty(2, 100, 4, 128)
    options: dict[str, Any] = {"p_mode": p_mode, "block_scale": block_scale, "v_mean": x.v_mean}
    flash_attn_func(x.q, x.k, x.v, 0.1, True, out=out, **options, **x.descales)
    model = numerics.attention(
        x.q,
        x.k,
        x.v,
        softmax_scale=0.1,
        causal=True,
        options=numerics.ContractOptions(p_mode, block_scale),
        q_descale=x.q_descale,
        k_descale=x.k_descale,
        v_descale=x.v_descale,
        v_mean=x.v_mean,
    )
    assert torch.equal(out, model.out)


@pytest.mark.parametrize("dtype", [FP8, torch.bfloat16], ids=["e4m3", "bf16"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layout_changes_nothing(layout: str, dtype: torch.dtype) -> None:
    x = make_inputs(40, 40, batch=2, dtype=dtype, layout=layout)
    views = flash_attn_func(x.q, x.k, x.v, causal=True, **x.descales)
    copies = flash_attn_func(
        x.q.contiguous(), x.k.contiguous(), x.v.contiguous(), causal=True, **x.descales
    )
    torch.testing.assert_close(views, copies, rtol=2**-8, atol=2**-9)


def test_blocks_of_queries_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    x = make_inputs(130, 300, nheads=6)
    whole = flash_attn_func(x.q, x.k, x.v, causal=True, return_lse=True)
    monkeypatch.setattr(reference, "_CHUNK_SCORES", 7 * 3 * 300)
    blocks = flash_attn_func(x.q, x.k, x.v, causal=True, return_lse=True)
    for ours, same in zip(blocks, whole, strict=True):
        torch.testing.assert_close(ours, same, rtol=2**-8, atol=1e-5)


def test_rows_without_keys_are_zero() -> None:
    for dtype in (FP8, torch.bfloat16):
        x = make_inputs(10, 4, dtype=dtype)
        out, lse = flash_attn_func(x.q, x.k, x.v, causal=True, return_lse=True)
        assert bool((out[:, :6] == 0).all())
        assert bool((lse[:, :, :6] == float("-inf")).all())


def test_nan_and_infinity_reach_the_output_of_their_heads_only() -> None:
    for bad in (float("nan"), float("inf")):
        x = make_inputs(70, 70)
        x.q[0, 3, 2, 5] = bad
        exact, fp8 = flash_attn_func(x.q, x.k, x.v), flash_attn_fp8_func(x.q, x.k, x.v)
        assert bool(exact[0, 3, 2].isnan().all())
        assert bool(exact[0, :, :2].isfinite().all())
        assert bool(fp8[0, :, 2:].isnan().all())  # the scale is the key head's
        assert bool(fp8[0, :, :2].isfinite().all())


def test_a_4k_layer_takes_seconds() -> None:
    x = make_inputs(4096, 4096, nheads=12, nheads_k=2)
    began = time.perf_counter()
    flash_attn_func(x.q, x.k, x.v, causal=True)
    assert time.perf_counter() - began < 30
