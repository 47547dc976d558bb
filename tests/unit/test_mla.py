"""q and k in two parts: what is refused, the bits of one tensor each, and the joint scales."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from zyfa_triton import (
    activations,
    checks,
    flash_attn_fp8_func,
    flash_attn_func,
    flash_attn_mla_fp8_func,
    flash_attn_mla_func,
    joint_scale,
    ops,
    quantize,
    quantize_fp8,
    quantize_mla_fp8,
    warmup,
)
from zyfa_triton.backends import interpreter
from zyfa_triton.problem import FP8
from zyfa_triton.reference import attention_ref

NAMES = ("q_nope", "q_rope", "k_nope", "k_rope", "v")
Parts = dict[str, torch.Tensor]


def make_parts(
    seqlen_q: int = 40,
    seqlen_k: int = 70,
    *,
    batch: int = 2,
    nheads: int = 4,
    nheads_k: int = 2,
    heads_rope: int = 1,
    dtype: torch.dtype = torch.bfloat16,
    seed: int = 0,
    spread: tuple[float, float] = (1.0, 1.0),
) -> Parts:
    """Normal inputs; the nope part of k times spread[0], the rope part of k times spread[1]."""
    generator = torch.Generator().manual_seed(seed)
    shapes = (
        (batch, seqlen_q, nheads, 128),
        (batch, seqlen_q, nheads, 64),
        (batch, seqlen_k, nheads_k, 128),
        (batch, seqlen_k, heads_rope, 64),
        (batch, seqlen_k, nheads_k, 128),
    )
    values = [torch.randn(shape, generator=generator) for shape in shapes]
    values[2] *= spread[0]
    values[3] *= spread[1]
    return dict(zip(NAMES, (value.to(dtype) for value in values), strict=True))


def together(parts: Parts) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q, k, v with both parts in a row."""
    k_nope = parts["k_nope"]
    k_rope = parts["k_rope"].expand(*k_nope.shape[:3], 64)
    q = torch.cat((parts["q_nope"], parts["q_rope"]), 3)
    return q, torch.cat((k_nope, k_rope), 3), parts["v"]


class Refusal(NamedTuple):
    id: str
    change: Callable[[Parts], dict[str, Any]]
    error: type[Exception]
    message: str


def cut(name: str, *index: Any) -> Callable[[Parts], dict[str, Any]]:
    return lambda parts: {name: parts[name][index]}


ALL = slice(None)
REFUSALS = [
    Refusal("type", lambda _: {"k_rope": [1]}, TypeError, "k_rope: got list; accepted: a torch"),
    Refusal("axes", cut("q_rope", 0), ValueError, r"q_rope: got shape \(40, 4, 64\); accepted: 4"),
    Refusal(
        "dtype",
        lambda parts: {"k_rope": parts["k_rope"].half()},
        TypeError,
        "k_rope: got torch.float16; accepted: torch.bfloat16, the dtype of q_nope",
    ),
    Refusal(
        "device",
        lambda parts: {"v": parts["v"].to("meta")},
        ValueError,
        "v: got a tensor on meta; accepted: cpu, where q_nope is",
    ),
    Refusal(
        "q_nope",
        cut("q_nope", ..., slice(64)),
        ValueError,
        r"q_nope: got shape \(2, 40, 4, 64\); accepted: \(2, 40, 4, 128\)",
    ),
    Refusal(
        "q_rope",
        cut("q_rope", ALL, ALL, slice(2)),
        ValueError,
        r"q_rope: got shape \(2, 40, 2, 64\); accepted: \(2, 40, 4, 64\)",
    ),
    Refusal("batch", cut("k_nope", slice(1)), ValueError, r"k_nope: .*accepted: \(2, 70, 2, 128\)"),
    Refusal(
        "k_rope",
        lambda parts: {"k_rope": parts["k_rope"].expand(2, 70, 3, 64)},
        ValueError,
        r"k_rope: got shape \(2, 70, 3, 64\); accepted: \(2, 70, 1, 64\) or \(2, 70, 2, 64\)",
    ),
    Refusal("v", cut("v", ALL, slice(9)), ValueError, r"v: .*\(2, 9, 2, 128\); accepted: \(2, 70"),
    Refusal(
        "heads",
        lambda parts: {
            name: parts[name][:, :, :3] for name in ("q_nope", "q_rope")
        },
        ValueError,
        "q_nope: got 3 heads with 2 heads of k_nope; accepted: a positive multiple",
    ),
    Refusal(
        "strides",
        lambda parts: {"q_rope": torch.zeros(2, 40, 64, 4).bfloat16().transpose(2, 3)},
        ValueError,
        "q_rope: got strides .*; accepted: a last stride of 1",
    ),
    Refusal("scale", lambda _: {"softmax_scale": 0.0}, ValueError, "softmax_scale: got 0.0"),
    Refusal("p_mode", lambda _: {"p_mode": "fast"}, ValueError, "p_mode: got 'fast'"),
    Refusal(
        "out",
        lambda parts: {"out": parts["q_nope"]},
        ValueError,
        "out: got memory that q_nope uses; accepted: memory that no input uses",
    ),
    Refusal(
        "grad",
        lambda parts: {"k_rope": parts["k_rope"].clone().requires_grad_()},
        NotImplementedError,
        r"k_rope: got a tensor that requires grad.*k_rope\.detach",
    ),
]  # fmt: skip


@pytest.mark.parametrize("function", [flash_attn_mla_func, flash_attn_mla_fp8_func])
@pytest.mark.parametrize("case", REFUSALS, ids=lambda case: case.id)
def test_refuses(case: Refusal, function: Callable[..., Any]) -> None:
    parts = make_parts()
    with pytest.raises(case.error, match=case.message):
        function(**{**parts, **case.change(parts)})


def test_refuses_what_only_one_of_them_takes() -> None:
    parts = make_parts()
    with pytest.raises(ValueError, match="k_descale: got a descale; accepted: None"):
        flash_attn_mla_func(**parts, k_descale=1.0)
    with pytest.raises(TypeError, match="subtract_k_mean: got 1; accepted: True, False"):
        flash_attn_mla_fp8_func(**parts, subtract_k_mean=1)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="subtract_v_mean: got 1; accepted: True, False"):
        flash_attn_mla_fp8_func(**parts, subtract_v_mean=1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="v_mean: got a mean; accepted: None"):
        flash_attn_mla_func(**parts, v_mean=torch.ones(2, 2, 128))
    with pytest.raises(ValueError, match=r"v_mean: got shape \(2, 4, 128\); accepted: .*2, 2, 128"):
        flash_attn_mla_func(**make_parts(dtype=FP8), v_mean=torch.ones(2, 4, 128))
    with pytest.raises(TypeError, match=r"q_nope: got torch\.float32; accepted"):
        flash_attn_mla_fp8_func(**make_parts(dtype=torch.float32))
    with pytest.raises(TypeError, match=r"q_nope: got torch\.float8_e4m3fn; accepted"):
        quantize_mla_fp8(**{n: x for n, x in make_parts(dtype=FP8).items() if n != "v"})


@pytest.mark.parametrize("backend", ["reference", "interpreter"])
@pytest.mark.parametrize("heads_rope", [1, 2], ids=["shared", "a-head"])
@pytest.mark.parametrize(
    ("dtype", "options"),
    [
        (FP8, {"q_descale": 0.5, "p_mode": "lean", "block_scale": False}),
        (FP8, {"v_descale": 2.0, "p_mode": "exact", "causal": True, "block_scale": False}),
        (FP8, {"v_mean": torch.linspace(-3, 3, 512).reshape(2, 2, 128), "block_scale": False}),
        (torch.bfloat16, {"causal": True}),
        (torch.float16, {}),
    ],
    ids=["e4m3-lean", "e4m3-exact", "e4m3-mean", "bf16", "fp16"],
)
def test_parts_give_the_bits_of_one_tensor(
    dtype: torch.dtype, options: dict[str, Any], heads_rope: int, backend: str
) -> None:
    parts = make_parts(heads_rope=heads_rope, dtype=dtype)
    parts["k_rope"] = parts["k_rope"].transpose(1, 2).contiguous().transpose(1, 2)
    options = {**options, "backend": backend, "return_lse": True}
    for ours, whole in zip(
        flash_attn_mla_func(**parts, **options),
        flash_attn_func(*together(parts), **options),
        strict=True,
    ):
        assert torch.equal(ours, whole)


def test_default_scale_and_out() -> None:
    parts = make_parts()
    out = torch.full((2, 40, 4, 128), float("nan"), dtype=torch.bfloat16)
    assert flash_attn_mla_func(**parts, out=out) is out
    assert torch.equal(out, flash_attn_mla_func(**parts, softmax_scale=192**-0.5))
    out.fill_(float("nan"))
    assert flash_attn_mla_fp8_func(**parts, out=out) is out
    assert torch.equal(out, flash_attn_mla_fp8_func(**parts, softmax_scale=192**-0.5))


@pytest.mark.parametrize("empty", ["q", "k"])
def test_no_queries_or_no_keys(empty: str) -> None:
    parts = make_parts(0 if empty == "q" else 3, 0 if empty == "k" else 5)
    for function in (flash_attn_mla_func, flash_attn_mla_fp8_func):
        out, lse = function(**parts, return_lse=True)
        assert out.shape == (2, 0 if empty == "q" else 3, 4, 128)
        assert bool((out == 0).all()) and bool((lse == float("-inf")).all())


def quantised(parts: Parts) -> tuple[Parts, torch.Tensor, torch.Tensor]:
    codes, q_descale, k_descale = quantize_mla_fp8(*(parts[name] for name in NAMES[:4]))
    return dict(zip(NAMES[:4], codes, strict=True)), q_descale, k_descale


@pytest.mark.parametrize("spread", [(1.0, 1.0), (0.01, 3.0), (50.0, 0.1), (1e-7, 1.0)], ids=str)
def test_one_product_of_scales_serves_both_parts(spread: tuple[float, float]) -> None:
    """Scores from codes are within e4m3's rounding of the true ones, however unlike the parts."""
    error, bound = torch.zeros(()), torch.zeros(())
    parts = make_parts(spread=spread)
    codes, q_descale, k_descale = quantised(parts)
    assert codes["k_rope"].shape == (2, 70, 1, 64)
    assert (q_descale.shape, k_descale.shape) == ((2, 2), (2, 2))
    for name in ("q_nope", "q_rope", "k_nope", "k_rope"):
        assert float(codes[name].float().abs().max()) <= 448
    largest = torch.maximum(*(codes[n].float().abs().amax((1, 3)) for n in ("q_nope", "q_rope")))
    assert bool((largest.reshape(2, 2, 2).amax(2) == 448).all())
    product = (q_descale * k_descale).repeat_interleave(2, 1)
    for part in ("nope", "rope"):
        q, k = parts[f"q_{part}"].double(), parts[f"k_{part}"].double()
        q_code, k_code = codes[f"q_{part}"].double(), codes[f"k_{part}"].double()
        k, k_code = (x.expand(-1, -1, 2, -1).repeat_interleave(2, 2) for x in (k, k_code))
        got = torch.einsum("bqhd,bkhd->bhqk", q_code, k_code) * product[:, :, None, None]
        truth = torch.einsum("bqhd,bkhd->bhqk", q, k)
        error = error + (got - truth)
        bound = bound + torch.einsum("bqhd,bkhd->bhqk", q.abs(), k.abs())
    assert bool((error.abs() <= bound * (2 * 2.0**-4 + 2.0**-8)).all())


@pytest.mark.parametrize("spread", [(1.0, 1.0), (0.02, 2.0)], ids=str)
@pytest.mark.parametrize("subtract_k_mean", [False, True])
def test_accuracy_is_that_of_scales_a_head_for_whole_rows(
    subtract_k_mean: bool, spread: tuple[float, float]
) -> None:
    parts = make_parts(100, 150, spread=spread)
    parts["k_rope"] = parts["k_rope"] + 3 * spread[1] * torch.randn(64).bfloat16()
    q, k, v = together(parts)
    truth, truth_lse = attention_ref(q, k, v)
    options = {"subtract_k_mean": subtract_k_mean, "return_lse": True}
    out, lse = flash_attn_mla_fp8_func(**parts, **options)
    whole, _ = flash_attn_fp8_func(q, k, v, **options)
    error, error_whole = ((x.double() - truth).norm() for x in (out, whole))
    assert error <= 1.1 * error_whole
    assert error <= 0.15 * truth.norm()
    by_default = flash_attn_mla_fp8_func(**parts)
    assert torch.equal(by_default, out) == subtract_k_mean
    assert (lse.double() - truth_lse).abs().max() < 0.5
    _, lse_exact = flash_attn_mla_fp8_func(**parts, p_mode="exact", **options)
    assert (lse_exact.double() - truth_lse).norm() < 0.03 * truth_lse.norm()


def test_the_mean_of_v_is_taken_off_by_default() -> None:
    parts = make_parts(100, 150)
    parts["v"] = parts["v"] + 20 * torch.randn(128).bfloat16()
    truth, _ = attention_ref(*together(parts))
    errors = {}
    for subtracts in (True, False):
        out = flash_attn_mla_fp8_func(**parts, subtract_v_mean=subtracts)
        assert torch.equal(flash_attn_mla_fp8_func(**parts), out) == subtracts
        errors[subtracts] = float((out.double() - truth).norm() / truth.norm())
    assert errors[True] < 0.004 and errors[False] > 3 * errors[True]


def test_a_broken_head_is_nan_and_alone() -> None:
    clean = flash_attn_mla_fp8_func(**make_parts())
    parts = make_parts()
    parts["q_rope"][0, 3, 1, 5] = float("nan")  # query heads 0 and 1 have key head 0
    parts["k_nope"][1, 60, 1, 9] = float("inf")
    out = flash_attn_mla_fp8_func(**parts)
    assert bool(out[0, :, :2].isnan().all()) and bool(out[1, :, 2:].isnan().all())
    assert torch.equal(out[0, :, 2:], clean[0, :, 2:])
    assert torch.equal(out[1, :, :2], clean[1, :, :2])
    parts = make_parts()
    parts["k_rope"][1, 2, 0, 0] = float("-inf")  # belongs to every head
    out = flash_attn_mla_fp8_func(**parts)
    assert bool(out[1].isnan().all())
    assert torch.equal(out[0], clean[0])


def test_ranges_of_zero_tiny_and_unlike_parts() -> None:
    zero, one = torch.zeros(1, 1), torch.ones(1, 1)
    for amax in (
        (zero, zero, zero, zero),
        (one, one, zero, one),
        (one, one, one, zero),
        (one * 1e-38, one, one * 1e-38, one),
        (one, one * 1e-38, one, one * 1e30),
        (one * 1e-30, zero, zero, one * 1e-20),
    ):
        found = joint_scale.part_ranges(*amax)
        assert all(bool((each > 0).all() and each.isfinite().all()) for each in found)
        for given, range_ in zip(amax, found, strict=True):
            assert bool((range_ >= given * (1 - 2.0**-22)).all())
        products = found.q_nope.double() * found.k_nope, found.q_rope.double() * found.k_rope
        torch.testing.assert_close(*products, rtol=1e-6, atol=0)
        assert float(products[0]) / 448**2 > 2.0**-115  # float32 holds it times a softmax scale


@pytest.mark.parametrize("p_mode", ["lean", "exact"])
def test_zero_q_and_k_give_the_mean_of_v(p_mode: str) -> None:
    """As in a batch entry that is padding; the other entry is what it is without."""
    parts = make_parts(20, 30, batch=2, heads_rope=1)
    clean = flash_attn_mla_fp8_func(**parts, p_mode=p_mode)
    for name in NAMES[:4]:
        parts[name] = parts[name].clone()
        parts[name][1] = 0
    out, lse = flash_attn_mla_fp8_func(**parts, p_mode=p_mode, return_lse=True)
    assert torch.equal(out[0], clean[0])
    mean = parts["v"][1].float().mean(0)
    heads = out.shape[2] // mean.shape[0]
    assert torch.allclose(out[1].float(), mean.repeat_interleave(heads, 0).expand(20, -1, -1),
                          atol=0.05)  # fmt: skip
    assert torch.allclose(lse[1], torch.full_like(lse[1], math.log(30)), atol=1e-4)


@pytest.mark.parametrize("subtract_k_mean", [False, True], ids=["plain", "mean"])
@pytest.mark.parametrize("heads_rope", [1, 2], ids=["shared", "a-head"])
def test_kernels_give_the_bits_of_the_cpu(heads_rope: int, subtract_k_mean: bool) -> None:
    parts = make_parts(70, 1030, batch=2, heads_rope=heads_rope, spread=(0.1, 4.0))
    parts["q_rope"][1, 3, 2, 5] = float("inf")
    parts["k_nope"][0, 3, 1, 5] = float("nan")  # k has finite scales in any case
    parts["k_rope"][1, 1029, 0, 63] = float("nan")
    parts["k_nope"][0, :, 0, 7] = 3e38  # a sum of these is infinite
    inputs = [parts[name] for name in NAMES[:4]]
    ours = quantize.quantize_parts(*inputs, subtract_k_mean=subtract_k_mean)
    found = quantize.empty_part_outputs(*inputs, subtract_k_mean=subtract_k_mean)
    for output in (each for group in found for each in group):
        output.fill_(float("nan"))
    codes, descales, k_means = found
    means = k_means if subtract_k_mean else (None, None)
    interpreter.call("quantize_parts", *inputs, *codes, *descales, None, None, *means)
    for name, cpu, kernel in zip(("codes", "descales", "means"), ours, found, strict=True):
        for one, other in zip(cpu, kernel, strict=True):
            assert torch.equal(one.view(torch.uint8), other.view(torch.uint8)), name


def test_operators_keep_torchs_rules() -> None:
    parts = make_parts(3, 5)
    inputs = [parts[name] for name in NAMES[:4]]
    torch.library.opcheck(ops._quantize_parts, (*inputs, True))
    q_nope, q_rope, k_nope, k_rope, v = parts.values()
    shared = (None, None, None, 0.1, True, "lean", "auto", "auto", "auto")
    arguments = (q_nope, k_nope, v, *shared, torch.bfloat16, True, q_rope, k_rope)
    torch.library.opcheck(ops._attention, arguments)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_fake_tensors_have_the_shapes_of_real_ones(device: str) -> None:
    with FakeTensorMode():
        parts = {n: torch.empty_like(x, device=device) for n, x in make_parts().items()}
        out, lse = flash_attn_mla_func(**parts, return_lse=True)
        assert (out.shape, lse.shape, out.device.type) == ((2, 40, 4, 128), (2, 4, 40), device)
        assert flash_attn_mla_fp8_func(**parts).shape == (2, 40, 4, 128)


def test_compiles_as_one_graph() -> None:
    parts = make_parts()

    def layer(*tensors: torch.Tensor) -> torch.Tensor:
        out, lse = flash_attn_mla_fp8_func(*tensors, subtract_k_mean=True, return_lse=True)
        codes, q_descale, k_descale = quantize_mla_fp8(*tensors[:4])
        v, v_descale = quantize_fp8(tensors[4])
        again = flash_attn_mla_func(
            *codes, v, q_descale=q_descale, k_descale=k_descale, v_descale=v_descale
        )
        return out.float().sum() + lse.sum() + again.float().sum()

    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(*parts.values()), layer(*parts.values()))


def test_warmup_takes_the_rope_parts() -> None:
    parts = make_parts()
    q_nope, q_rope, k_nope, k_rope, v = parts.values()
    for quantises in (False, True):
        assert warmup(q_nope, k_nope, v, rope=(q_rope, k_rope), quantize=quantises) == {}
    with pytest.raises(ValueError, match="q_rope: got shape"):
        warmup(q_nope, k_nope, v, rope=(q_rope[:, 1:], k_rope))


def test_activations_get_a_rope_part() -> None:
    sample = activations.load(activations.SAMPLE).cut(seqlen=10)
    found = sample.with_rope_part()
    assert found.q.shape[3] == found.k.shape[3] == 192 and found.v.shape[3] == 128
    assert torch.equal(found.k[..., 128:160], sample.k[..., :32])
    assert torch.equal(found.q[..., 160:], sample.q[..., 64:96])
    assert found.name == f"{sample.name}+rope"
    with pytest.raises(activations.ActivationsError, match="has head dim 192, 128 is needed"):
        found.with_rope_part()


def test_the_checks_name_the_parts_in_the_order_of_the_signature() -> None:
    with pytest.raises(TypeError, match="q_nope: got NoneType"):
        checks.check_parts(None, None, None, None, None)  # type: ignore[arg-type]


@pytest.mark.parametrize("empty", ["seqlen_q", "seqlen_k"])
def test_parts_without_elements_have_codes_0_and_scales_1(empty: str) -> None:
    lengths = {"seqlen_q": 3, "seqlen_k": 5, empty: 0}
    q, k = (
        [torch.randn(2, lengths[name], heads, width).bfloat16() for width in (128, 64)]
        for name, heads in (("seqlen_q", 4), ("seqlen_k", 2))
    )
    codes, q_descale, k_descale = quantize_mla_fp8(*q, *k)
    for code, part in zip(codes, (*q, *k), strict=True):
        assert code.shape == part.shape and not code.view(torch.uint8).any()
    ones = torch.ones(2, 2)
    assert torch.equal(q_descale, ones) and torch.equal(k_descale, ones)
