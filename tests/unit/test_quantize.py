"""Quantisation: scales, edge values, K's mean, and that the Triton kernels give the same bits."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from zyfa_triton import flash_attn_fp8_func, flash_attn_func, quantize, quantize_fp8
from zyfa_triton.backends import interpreter
from zyfa_triton.problem import FP8
from zyfa_triton.reference import attention_ref
from zyfa_triton.testing import LAYOUTS, make_inputs


def restored(
    codes: torch.Tensor, descale: torch.Tensor, mean: torch.Tensor | None = None
) -> torch.Tensor:
    """What the codes stand for, float64."""
    groups = codes.shape[2] // descale.shape[1]
    values = codes.double() * descale.double().repeat_interleave(groups, 1)[:, None, :, None]
    return values if mean is None else values + mean.double()[:, None]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_every_element_is_within_half_an_e4m3_step(dtype: torch.dtype) -> None:
    x = make_inputs(200, 1, batch=2, nheads=6, dtype=dtype).q * 7
    codes, descale = quantize_fp8(x, nheads_k=2)
    assert (codes.dtype, codes.shape, descale.shape) == (FP8, x.shape, (2, 2))
    error = (restored(codes, descale) - x.double()).abs()
    step = descale.double().repeat_interleave(3, 1)[:, None, :, None]
    allowed = torch.maximum(x.double().abs() * 2**-4, step * 2**-10) * (1 + 2**-20)
    assert bool((error <= allowed).all())


def test_a_scale_covers_the_heads_that_share_a_key_head_and_reaches_448() -> None:
    x = make_inputs(50, 1, batch=2, nheads=6).q
    codes, descale = quantize_fp8(x, nheads_k=3)
    amax = x.float().abs().amax((1, 3)).reshape(2, 3, 2).amax(-1)
    assert torch.equal(descale, amax / torch.tensor(448.0).expand(2, 3))
    largest = codes.float().abs().amax((1, 3)).reshape(2, 3, 2).amax(-1)
    assert bool((largest == 448).all())


def test_granularity_tensor_is_one_scale_as_an_expanded_view() -> None:
    x = make_inputs(50, 1, batch=2, nheads=6).q
    codes, descale = quantize_fp8(x, "tensor", nheads_k=3)
    assert descale.shape == (2, 3)
    assert descale.stride() == (0, 0)
    assert descale[0, 0] == x.float().abs().max() / 448
    assert codes.float().abs().max() == 448


def test_zero_heads_get_scale_one_and_broken_heads_nan() -> None:
    x = make_inputs(20, 1, nheads=6, dtype=torch.float32).q
    x[:, :, 0] = 0.0
    x[:, :, 1] *= 1e-36
    x[:, :, 2] *= 1e37
    x[0, 3, 3, 0] = float("-inf")
    x[0, 3, 4, 0] = float("nan")
    codes, descale = quantize_fp8(x)
    assert descale[0, 0] == 1
    assert bool((codes[:, :, 0].float() == 0).all())
    assert bool(codes[:, :, [1, 2, 5]].float().isfinite().all())
    assert bool((descale[0, [1, 2, 5]] > 0).all())
    assert float((restored(codes, descale)[:, :, 2] - x[:, :, 2]).abs().max()) < 1e37 * 0.5
    assert bool(descale[0, 3:5].isnan().all())
    assert bool(codes[:, :, 3:5].float().isnan().all())


def test_mean_is_removed_and_given_back() -> None:
    x = make_inputs(300, 1, batch=2).q + 40 * torch.randn(2, 1, 4, 128).to(torch.bfloat16)
    codes, descale, mean = quantize_fp8(x, subtract_mean=True)
    torch.testing.assert_close(mean.double(), x.double().mean(1), rtol=1e-5, atol=1e-5)
    error = (restored(codes, descale, mean) - x.double()).abs().max()
    plain = (restored(*quantize_fp8(x)) - x.double()).abs().max()
    assert error < plain / 8


def test_empty_sequences() -> None:
    x = torch.empty(2, 0, 4, 128, dtype=torch.bfloat16)
    codes, descale, mean = quantize_fp8(x, subtract_mean=True)
    assert codes.shape == x.shape
    assert torch.equal(descale, torch.ones(2, 4))
    assert torch.equal(mean, torch.zeros(2, 4, 128))


def test_codes_are_all_that_is_allocated_for_a_strided_input() -> None:
    x = make_inputs(30, 30, batch=2, layout="packed").k
    codes, _ = quantize_fp8(x)
    assert codes.is_contiguous()
    assert torch.equal(codes.view(torch.uint8), quantize_fp8(x.contiguous())[0].view(torch.uint8))


def test_removing_ks_mean_helps_and_lse_is_that_of_the_given_k() -> None:
    """The softmax does not see a bias of all keys, but e4m3 does."""
    x = make_inputs(200, 200, seed=1)
    k = x.k + 20 * torch.randn(128, generator=torch.Generator().manual_seed(1)).to(x.k)
    ref, ref_lse = attention_ref(x.q, k, x.v, causal=True)
    errors = {}
    for subtract in (False, True):
        out, lse = flash_attn_fp8_func(
            x.q, k, x.v, causal=True, subtract_k_mean=subtract, return_lse=True
        )
        by_default = flash_attn_fp8_func(x.q, k, x.v, causal=True)
        assert torch.equal(by_default, out) == subtract
        errors[subtract] = float((out.double() - ref).norm() / ref.norm())
        if subtract:
            assert float((lse.double() - ref_lse).abs().max()) < 0.3
            assert float(ref_lse.abs().max()) > 5  # the mean's share is not small
    assert errors[True] < 0.08
    assert errors[False] > 3 * errors[True]


def test_removing_vs_mean_helps_and_is_the_default() -> None:
    """A bias of V's channels takes the codes' range, and has its share in every sum of P V."""
    x = make_inputs(200, 200, seed=1)
    v = x.v + 20 * torch.randn(128, generator=torch.Generator().manual_seed(1)).to(x.v)
    ref, ref_lse = attention_ref(x.q, x.k, v, causal=True)
    errors = {}
    for subtract in (False, True):
        out, lse = flash_attn_fp8_func(
            x.q, x.k, v, causal=True, subtract_v_mean=subtract, return_lse=True
        )
        by_default = flash_attn_fp8_func(x.q, x.k, v, causal=True)
        assert torch.equal(by_default, out) == subtract
        errors[subtract] = float((out.double() - ref).norm() / ref.norm())
        assert float((lse.double() - ref_lse).abs().max()) < 0.3
    assert errors[True] < 0.004  # of a result that is mostly bias, rounded to bfloat16
    assert errors[False] > 3 * errors[True]


def test_rows_without_keys_are_zero_whatever_vs_mean_is() -> None:
    x = make_inputs(9, 4)
    out = flash_attn_fp8_func(x.q, x.k, x.v + 5, causal=True)
    assert not out[:, :5].any()
    assert bool((out[:, 5:] > 0).all())


@pytest.mark.parametrize("seqlen_k", [1, 64, 1100])
def test_equal_values_are_their_mean_and_come_out_exactly(seqlen_k: int) -> None:
    x = make_inputs(9, seqlen_k)
    v = x.v[:, :1].expand(x.v.shape)
    out = flash_attn_fp8_func(x.q, x.k, v)
    want = v[:, :1].repeat_interleave(2, 2).expand(out.shape)
    torch.testing.assert_close(out, want, rtol=2**-8, atol=2**-12)
    if seqlen_k != 1100:  # a sum of equal numbers, over a power of two
        assert torch.equal(out, want)


@pytest.mark.parametrize("seqlen_k", [1, 64, 1100])
def test_equal_keys_are_their_mean_and_rows_average_v(seqlen_k: int) -> None:
    x = make_inputs(9, seqlen_k)
    k = x.k[:, :1].expand(x.k.shape).contiguous()
    ref, ref_lse = attention_ref(x.q, k, x.v)
    out, lse = flash_attn_fp8_func(x.q, k, x.v, return_lse=True)
    assert float((out.double() - ref).norm() / ref.norm()) < 0.05  # rounding of V
    torch.testing.assert_close(lse.double(), ref_lse, rtol=1e-5, atol=1e-5)


def test_without_keys_there_is_no_mean() -> None:
    x = make_inputs(9, 0)
    out, lse = flash_attn_fp8_func(x.q, x.k, x.v, return_lse=True)
    assert bool((out == 0).all())
    assert bool((lse == float("-inf")).all())


def wide_keys(seqlen: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """(1, seqlen, 4, 128), finite; in head 1 channels whose sum, mean or difference from the mean
    is not, or not by much."""
    k = make_inputs(seqlen, 1, nheads=4, dtype=dtype).q
    top = torch.finfo(dtype).max
    k[0, :, 1, 5] = top  # infinite sum
    k[0, :, 1, 6] = -top / 2
    k[0, :, 1, 7] = -1.5 * top / seqlen  # finite sum
    k[0, 0, 1, 7] = top  # and top - mean would be infinite
    k[0, :, 1, 8] = 2.0**99 * (1 + torch.arange(seqlen) % 2)  # a mean below the limit
    k[0, :, 1, 9] = 2.0**100  # and one at it
    return k


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_finite_keys_have_finite_codes_whatever_their_mean_is(dtype: torch.dtype) -> None:
    k = wide_keys(1030, dtype)
    codes, descale, mean = quantize_fp8(k, subtract_mean=True)
    assert bool(codes.float().isfinite().all()) and bool(descale.isfinite().all())
    assert bool((mean[0, 1, [5, 6, 7, 9]] == 0).all())
    assert 2.0**100 > float(mean[0, 1, 8]) > 2.0**99
    plain = quantize_fp8(k)
    assert float(descale[0, 1]) == float(plain[1][0, 1])
    assert torch.equal(codes[:, :, 1].float(), plain[0][:, :, 1].float())
    clean = quantize_fp8(make_inputs(1030, 1, nheads=4, dtype=dtype).q, subtract_mean=True)
    for ours, same in zip((codes[:, :, 2], mean[:, 2]), (clean[0][:, :, 2], clean[2][:, 2]),
                          strict=True):  # fmt: skip
        assert torch.equal(ours.float(), same.float())
    if dtype == torch.bfloat16:
        x = make_inputs(9, 1030, nheads_k=4)
        assert bool(flash_attn_fp8_func(x.q, k, x.v).isfinite().all())


@pytest.mark.parametrize("granularity", ["head", "tensor"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")], ids=str)
def test_a_key_that_is_no_number_spoils_what_it_did_without_the_mean(
    value: float, granularity: Any
) -> None:
    """All rows of what shares its scale, seen by them or not, and nothing else."""
    x = make_inputs(20, 30)
    clean = flash_attn_fp8_func(x.q, x.k, x.v, causal=True, granularity=granularity)
    x.k[0, 29, 1, 5] = value  # the last query alone sees it; query heads 2 and 3
    spoilt = torch.zeros(20, 4, dtype=torch.bool)
    spoilt[:, 2 if granularity == "head" else 0 :] = True
    for subtract in (False, True):
        out, lse = flash_attn_fp8_func(
            x.q, x.k, x.v, causal=True, granularity=granularity, subtract_k_mean=subtract,
            return_lse=True,
        )  # fmt: skip
        assert torch.equal(out[0].isnan(), spoilt[..., None].expand(20, 4, 128))
        assert torch.equal(lse[0].T.isnan(), spoilt)
        if subtract and granularity == "head":
            assert torch.equal(out[:, :, :2], clean[:, :, :2])


def test_lse_of_rows_without_keys_stays_minus_infinity() -> None:
    x = make_inputs(9, 4)
    _, lse = flash_attn_fp8_func(x.q, x.k, x.v, causal=True, subtract_k_mean=True, return_lse=True)
    assert bool((lse[:, :, :5] == float("-inf")).all())
    assert bool(lse[:, :, 5:].isfinite().all())


def test_fp8_function_is_near_the_exact_one() -> None:
    x = make_inputs(200, 300)
    ref, _ = attention_ref(x.q, x.k, x.v)
    for granularity in ("head", "tensor"):
        out = flash_attn_fp8_func(x.q, x.k, x.v, granularity=granularity)
        assert float((out.double() - ref).norm() / ref.norm()) < 0.06
    assert float((flash_attn_func(x.q, x.k, x.v).double() - ref).norm() / ref.norm()) < 3e-3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": torch.zeros(2, 3, 4)}, r"x: got shape \(2, 3, 4\); accepted: 4 axes"),
        ({"x": torch.zeros(1, 2, 2, 8).to(FP8)}, r"x: got torch.float8_e4m3fn; accepted"),
        ({"x": torch.zeros(1, 2, 2, 257)}, r"x: got headdim 257; accepted: 1 to 256"),
        ({"nheads_k": 3}, r"nheads_k: got 3; accepted: a divisor of the 4 heads of x"),
        ({"nheads_k": 0}, r"nheads_k: got 0; accepted: a divisor of the 4 heads of x"),
        ({"nheads_k": 2.0}, r"nheads_k: got 2.0; accepted: an int, or None"),
        ({"nheads_k": "2"}, r"nheads_k: got '2'; accepted: an int, or None"),
        ({"nheads_k": torch.tensor(2)}, r"nheads_k: got tensor\(2\); accepted: an int, or None"),
        ({"nheads_k": True}, r"nheads_k: got True; accepted: an int, or None"),
        ({"granularity": "row"}, r"granularity: got 'row'; accepted: \"head\", \"tensor\""),
        ({"subtract_mean": None}, r"subtract_mean: got None; accepted: True, False"),
    ],
)
def test_refuses(change: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"x": torch.zeros(1, 2, 4, 128)}
    with pytest.raises((TypeError, ValueError), match=message):
        quantize_fp8(**arguments | change)


def kernel_bits(
    x: torch.Tensor, *, nheads_k: int, per_tensor: bool, subtract_mean: bool
) -> list[torch.Tensor]:
    """What the Triton kernels compute, by Triton's interpreter, over outputs filled with NaN."""
    outputs = quantize.empty_outputs(
        x, nheads_k=nheads_k, per_tensor=per_tensor, subtract_mean=subtract_mean
    )
    for output in outputs:
        output.fill_(float("nan"))
    codes, descale, mean = outputs
    interpreter.call("quantize", x, codes, descale, mean if subtract_mean else None)
    return [output.view(torch.uint8) for output in outputs]


@pytest.mark.parametrize("subtract_mean", [False, True], ids=["plain", "mean"])
@pytest.mark.parametrize("per_tensor", [False, True], ids=["head", "tensor"])
@pytest.mark.parametrize("seqlen", [1, 63, 150, 1030])
def test_kernels_give_the_bits_of_the_cpu(
    seqlen: int, per_tensor: bool, subtract_mean: bool
) -> None:
    dtype = {1: torch.float16, 63: torch.float32}.get(seqlen, torch.bfloat16)
    layout = LAYOUTS[seqlen % len(LAYOUTS)]
    if layout == "packed":
        layout = "offset"
    x = make_inputs(seqlen, 1, nheads=4, headdim=192, dtype=dtype, layout=layout).q
    ours = quantize.quantize(x, nheads_k=2, per_tensor=per_tensor, subtract_mean=subtract_mean)
    kernels = kernel_bits(x, nheads_k=2, per_tensor=per_tensor, subtract_mean=subtract_mean)
    for name, cpu, kernel in zip(("codes", "descale", "mean"), ours, kernels, strict=True):
        assert torch.equal(cpu.view(torch.uint8), kernel), name


def test_kernels_agree_on_zero_tiny_huge_and_broken_heads() -> None:
    x = make_inputs(70, 1, nheads=6, dtype=torch.float32).q
    x[:, :, 0] = 0.0
    x[:, :, 1] *= 1e-36
    x[:, :, 2] *= 1e37
    x[0, 3, 3, 0] = float("-inf")
    x[0, 69, 4, 127] = float("nan")
    codes, descale, _ = quantize.quantize(x, nheads_k=6, per_tensor=False, subtract_mean=False)
    kernel_codes, kernel_descale, _ = kernel_bits(
        x, nheads_k=6, per_tensor=False, subtract_mean=False
    )
    assert torch.equal(kernel_codes, codes.view(torch.uint8))
    assert torch.equal(kernel_descale, descale.view(torch.uint8))
    assert bool((kernel_codes[:, :, 3:5] == quantize.NAN_CODE).all())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_kernels_leave_the_same_means_in(dtype: torch.dtype) -> None:
    x = wide_keys(1030, dtype)
    x[0, 1029, 3, 127] = float("nan")
    ours = quantize.quantize(x, nheads_k=4, per_tensor=False, subtract_mean=True)
    kernels = kernel_bits(x, nheads_k=4, per_tensor=False, subtract_mean=True)
    for name, cpu, kernel in zip(("codes", "descale", "mean"), ours, kernels, strict=True):
        assert torch.equal(cpu.view(torch.uint8), kernel), name
    assert bool(ours[2].isfinite().all())


def test_lse_kernel_agrees_with_the_cpu() -> None:
    x = make_inputs(100, 1, batch=2, headdim=192, layout="transposed")
    mean = torch.randn(2, 2, 192)
    lse = torch.randn(2, 4, 100)
    lse[1, 2, 5] = float("-inf")
    x.q[1, 5, 2, 0] = float("inf")  # an infinite share is not added to -inf
    mean[1, 1, 0] = 1.0
    ours, kernel = lse.clone(), lse.clone()
    quantize.add_mean_to_lse(ours, x.q, mean, 0.1)
    interpreter.call("add_mean_to_lse", kernel, x.q, mean, 0.1)
    torch.testing.assert_close(kernel, ours, rtol=1e-5, atol=1e-5)
    assert not torch.equal(ours, lse)
    assert ours[1, 2, 5] == kernel[1, 2, 5] == float("-inf")
