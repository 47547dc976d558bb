"""What the public functions refuse, with which words, and that what they accept reaches the op."""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch.autograd import forward_ad

from zyfa_triton import (
    checks,
    flash_attn_fp8_func,
    flash_attn_func,
    flash_attn_mla_fp8_func,
    flash_attn_mla_func,
    quantize,
    quantize_fp8,
    warmup,
)
from zyfa_triton.numerics import code_scale_log2
from zyfa_triton.problem import FP8
from zyfa_triton.reference import attention_ref
from zyfa_triton.testing import make_inputs

BATCH, SEQLEN, NHEADS, NHEADS_K = 2, 6, 4, 2


def tensor(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.zeros(shape).to(dtype)


def accepted(dtype: torch.dtype = torch.bfloat16) -> dict[str, Any]:
    """Arguments of a call that is accepted; a case changes one."""
    return {
        "q": tensor(BATCH, SEQLEN, NHEADS, 128, dtype=dtype),
        "k": tensor(BATCH, SEQLEN, NHEADS_K, 128, dtype=dtype),
        "v": tensor(BATCH, SEQLEN, NHEADS_K, 128, dtype=dtype),
    }


class Refusal(NamedTuple):
    id: str
    change: Callable[[dict[str, Any]], dict[str, Any]]
    error: type[Exception]
    words: tuple[str, ...]  # the argument, what came, what is accepted
    dtype: torch.dtype = torch.bfloat16


PART = tensor(BATCH, SEQLEN, NHEADS, 64)


def set_to(**values: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda _: values


def cut(name: str, *index: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda arguments: {name: arguments[name][index]}


def to(name: str, dtype: torch.dtype) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda arguments: {name: arguments[name].float().to(dtype)}


ALL = slice(None)
BEYOND_FLOAT32 = [
    (1e39, "1e+39"),
    (2.0**128 - 2.0**103, "3.4028235"),  # the smallest that rounds to infinity
    (1e-46, "1e-46"),
    (2.0**-150, "7.006"),  # the largest that rounds to 0
    (10**400, "an integer of 1329 bits"),  # float() raises OverflowError
    (10**5000, "an integer of 16610 bits"),  # and so does its repr
]
REFUSALS = [
    Refusal("q-type", set_to(q=[1.0]), TypeError, ("q:", "list", "torch.Tensor")),
    Refusal("q-float32", to("q", torch.float32), TypeError, ("q:", "float32", "torch.bfloat16")),
    Refusal("q-e5m2", to("q", torch.float8_e5m2), TypeError, ("q:", "e5m2", "two fraction bits")),
    Refusal("q-fnuz", to("q", torch.float8_e4m3fnuz), TypeError, ("q:", "fnuz", "bias is 8")),
    Refusal("k-e5m2fnuz", to("k", torch.float8_e5m2fnuz), TypeError, ("k:", "e5m2fnuz", "bias")),
    Refusal("k-mixed", to("k", torch.float16), TypeError, ("k:", "float16", "dtype of q")),
    Refusal("v-mixed", to("v", FP8), TypeError, ("v:", "float8_e4m3fn", "dtype of q")),
    Refusal("q-mixed", to("q", FP8), TypeError, ("k:", "bfloat16", "float8_e4m3fn")),
    Refusal(
        "k-device",
        lambda a: {"k": a["k"].to("meta")},
        ValueError,
        ("k:", "meta", "cpu, where q is"),
    ),
    Refusal("q-3d", cut("q", 0), ValueError, ("q:", "(6, 4, 128)", "4 axes", "batch, seqlen")),
    Refusal("v-5d", cut("v", None), ValueError, ("v:", "(1, 2, 6, 2, 128)", "4 axes")),
    Refusal(
        "k-last-stride",
        lambda a: {"k": torch.zeros(2, 6, 2, 256, dtype=torch.bfloat16)[..., ::2]},
        ValueError,
        ("k:", "(3072, 512, 256, 2)", "last stride of 1"),
    ),
    Refusal("k-batch", cut("k", slice(1)), ValueError, ("k:", "batch 1", "2, the batch of q")),
    Refusal("v-batch", cut("v", slice(1)), ValueError, ("v:", "batch 1", "2, the batch of q")),
    Refusal("v-seqlen", cut("v", ALL, slice(5)), ValueError, ("v:", "seqlen 5", "6, the seqlen")),
    Refusal("v-heads", cut("v", ALL, ALL, slice(1)), ValueError, ("v:", "1 heads", "2, the heads")),
    Refusal("heads", cut("q", ALL, ALL, slice(3)), ValueError, ("q:", "3 heads", "multiple")),
    Refusal("no-heads", cut("q", ALL, ALL, slice(0)), ValueError, ("q:", "0 heads", "multiple")),
    Refusal(
        "headdim-64",
        lambda a: {name: t[..., :64] for name, t in a.items()},
        ValueError,
        ("headdim:", "64 of q and k, 64 of v", "128/128, 192/128"),
    ),
    Refusal("headdim-k", cut("k", ..., slice(64)), ValueError, ("k:", "headdim 64", "128")),
    Refusal("headdim-v", cut("v", ..., slice(64)), ValueError, ("headdim:", "64 of v", "192/128")),
    Refusal("sparse", lambda a: {"q": a["q"].to_sparse()}, ValueError, ("q:", "sparse", "strided")),
    Refusal(
        "scale-0", set_to(softmax_scale=0.0), ValueError, ("softmax_scale:", "0.0", "positive")
    ),
    Refusal("scale-negative", set_to(softmax_scale=-1), ValueError, ("softmax_scale:", "-1.0")),
    Refusal("scale-inf", set_to(softmax_scale=float("inf")), ValueError, ("softmax_scale:", "inf")),
    Refusal("scale-nan", set_to(softmax_scale=float("nan")), ValueError, ("softmax_scale:", "nan")),
    *(
        Refusal(
            f"scale-float32-{i}-{dtype}",
            set_to(softmax_scale=scale),
            ValueError,
            ("softmax_scale:", got, "float32, up to 2.35866e+38"),
            dtype,
        )
        for dtype in (torch.bfloat16, FP8)
        for i, (scale, got) in enumerate(
            [*BEYOND_FLOAT32, (2.36e38, "2.36e+38"), (3.4e38, "3.4e+38")]
        )
    ),
    Refusal("scale-type", set_to(softmax_scale="1"), TypeError, ("softmax_scale:", "str", "float")),
    Refusal("scale-bool", set_to(softmax_scale=True), TypeError, ("softmax_scale:", "bool")),
    Refusal("causal", set_to(causal=1), TypeError, ("causal:", "1", "True, False")),
    Refusal("return_lse", set_to(return_lse="yes"), TypeError, ("return_lse:", "yes", "True")),
    Refusal("p_mode", set_to(p_mode="fast"), ValueError, ("p_mode:", "fast", '"lean", "exact"')),
    Refusal("p_mode-type", set_to(p_mode=3), ValueError, ("p_mode:", "3", '"unscaled"')),
    Refusal("kernel", set_to(kernel="cuda"), ValueError, ("kernel:", "cuda", '"auto", "triton"')),
    Refusal("backend", set_to(backend="tpu"), ValueError, ("backend:", "tpu", '"interpreter"')),
    *(
        Refusal(
            f"{name}-{got!r}", set_to(**{name: got}), ValueError, (f"{name}:", repr(got), known)
        )
        for name, known in (("kernel", '"auto", "triton"'), ("backend", '"auto", "device"'))
        for got in (None, 3, b"auto")
    ),
    Refusal("backend-cpu", set_to(backend="device"), ValueError, ("backend:", "cpu", "emulated")),
    Refusal(
        "block_scale", set_to(block_scale="yes"), ValueError, ("block_scale:", "yes", '"auto"')
    ),
    Refusal("block_scale-1", set_to(block_scale=1), ValueError, ("block_scale:", "1", '"auto"')),
    Refusal("block_scale-bf16", set_to(block_scale=True), ValueError, ("block_scale:", "bfloat16")),
    Refusal(
        "block_scale-unscaled",
        set_to(block_scale=True, p_mode="unscaled"),
        ValueError,
        ("block_scale:", "unscaled", "False"),
        FP8,
    ),
    Refusal("descale-16", set_to(q_descale=1.0), ValueError, ("q_descale:", "bfloat16", "None")),
    Refusal("descale-type", set_to(k_descale="1"), TypeError, ("k_descale:", "str", "float"), FP8),
    Refusal("descale-0", set_to(v_descale=0.0), ValueError, ("v_descale:", "0.0", "positive"), FP8),
    *(
        Refusal(
            f"{name}-float32-{i}",
            set_to(**{name: descale}),
            ValueError,
            (f"{name}:", got, "float32, up to 3.40282e+38"),
            FP8,
        )
        for name in ("q_descale", "k_descale", "v_descale")
        for i, (descale, got) in enumerate(BEYOND_FLOAT32)
    ),
    Refusal(
        "descale-sparse",
        set_to(k_descale=torch.ones(2, 2).to_sparse()),
        ValueError,
        ("k_descale:", "sparse", "strided"),
        FP8,
    ),
    Refusal(
        "descale-dtype",
        set_to(q_descale=torch.ones(2, 2, dtype=torch.float64)),
        TypeError,
        ("q_descale:", "float64", "torch.float32"),
        FP8,
    ),
    Refusal(
        "descale-heads-of-q",
        set_to(q_descale=torch.ones(BATCH, NHEADS)),
        ValueError,
        ("q_descale:", "(2, 4)", "(batch, nheads_k) = (2, 2)"),
        FP8,
    ),
    Refusal("descale-1d", set_to(k_descale=torch.ones(2)), ValueError, ("k_descale:", "(2,)"), FP8),
    Refusal(
        "descale-device",
        set_to(v_descale=torch.ones(1, device="meta")),
        ValueError,
        ("v_descale:", "meta", "cpu, where q is"),
        FP8,
    ),
    Refusal(
        "grad",
        lambda a: {"k": a["k"].requires_grad_()},
        NotImplementedError,
        ("k:", "requires grad", "forward only"),
    ),
    Refusal(
        "descale-grad",
        set_to(k_descale=torch.ones(1, requires_grad=True)),
        NotImplementedError,
        ("k_descale:", "requires grad"),
        FP8,
    ),
    Refusal(
        "mean-16",
        set_to(v_mean=torch.ones(2, 2, 128)),
        ValueError,
        ("v_mean:", "a mean", "None: torch.bfloat16 inputs"),
    ),
    Refusal(
        "mean-type", set_to(v_mean=1.0), TypeError, ("v_mean:", "float", "float32 tensor"), FP8
    ),
    Refusal(
        "mean-dtype",
        set_to(v_mean=tensor(2, 2, 128)),
        TypeError,
        ("v_mean:", "bfloat16", "torch.float32"),
        FP8,
    ),
    Refusal(
        "mean-device",
        set_to(v_mean=torch.ones(2, 2, 128, device="meta")),
        ValueError,
        ("v_mean:", "meta", "cpu, where q is"),
        FP8,
    ),
    Refusal(
        "mean-of-query-heads",
        set_to(v_mean=torch.ones(BATCH, NHEADS, 128)),
        ValueError,
        ("v_mean:", "(2, 4, 128)", "(batch, nheads_k, headdim_v) = (2, 2, 128)"),
        FP8,
    ),
    Refusal("mean-2d", set_to(v_mean=torch.ones(2, 128)), ValueError, ("v_mean:", "(2, 128)"), FP8),
    Refusal(
        "mean-last-stride",
        set_to(v_mean=torch.ones(2, 2, 256)[..., ::2]),
        ValueError,
        ("v_mean:", "(512, 256, 2)", "last stride of 1"),
        FP8,
    ),
    Refusal(
        "mean-sparse",
        set_to(v_mean=torch.ones(2, 2, 128).to_sparse()),
        ValueError,
        ("v_mean:", "sparse", "strided"),
        FP8,
    ),
    Refusal(
        "mean-grad",
        set_to(v_mean=torch.ones(2, 2, 128, requires_grad=True)),
        NotImplementedError,
        ("v_mean:", "requires grad"),
        FP8,
    ),
    Refusal(
        "out-is-v_mean",
        lambda a: {"v_mean": (mean := torch.ones(2, 6, 4, 128))[:, 0, :2], "out": mean},
        ValueError,
        ("out:", "memory that v_mean uses"),
        FP8,
    ),
    Refusal("out-type", set_to(out=1), TypeError, ("out:", "int", "torch.Tensor")),
    Refusal(
        "out-dtype",
        set_to(out=tensor(2, 6, 4, 128, dtype=torch.float16)),
        TypeError,
        ("out:", "float16", "torch.bfloat16"),
    ),
    Refusal(
        "out-e4m3", set_to(out=tensor(2, 6, 4, 128, dtype=FP8)), TypeError, ("out:", "e4m3"), FP8
    ),
    Refusal(
        "out-shape",
        set_to(out=tensor(2, 6, 4, 64)),
        ValueError,
        ("out:", "(2, 6, 4, 64)", "(2, 6, 4, 128)"),
    ),
    Refusal("out-ndim", set_to(out=tensor(2, 6, 512)), ValueError, ("out:", "(2, 6, 512)")),
    Refusal(
        "out-device",
        set_to(out=torch.empty(2, 6, 4, 128, dtype=torch.bfloat16, device="meta")),
        ValueError,
        ("out:", "meta", "cpu, where q is"),
    ),
    Refusal(
        "out-last-stride",
        set_to(out=tensor(2, 6, 4, 256)[..., ::2]),
        ValueError,
        ("out:", "last stride of 1"),
    ),
    Refusal(
        "out-sparse",
        set_to(out=tensor(2, 6, 4, 128).to_sparse()),
        ValueError,
        ("out:", "layout torch.sparse_coo", "torch.strided"),
    ),
    Refusal(
        "out-expanded",
        set_to(out=tensor(1, 6, 4, 128).expand(2, 6, 4, 128)),
        ValueError,
        ("out:", "(0, 512, 128, 1)", "do not overlap"),
    ),
    Refusal("out-is-q", lambda a: {"out": a["q"]}, ValueError, ("out:", "memory that q uses")),
    Refusal(
        "out-is-part-of-v",
        lambda a: {"v": (big := tensor(2, 6, 6, 128))[:, :, 3:5], "out": big[:, :, :4]},
        ValueError,
        ("out:", "memory that v uses"),
    ),
    Refusal(
        "out-grad",
        set_to(out=tensor(2, 6, 4, 128).requires_grad_()),
        NotImplementedError,
        ("out:", "requires grad"),
    ),
]


@pytest.mark.parametrize("case", REFUSALS, ids=lambda case: case.id)
def test_refuses(case: Refusal) -> None:
    arguments = accepted(case.dtype)
    flash_attn_func(**arguments)
    arguments |= case.change(arguments)
    with pytest.raises(case.error) as caught:
        flash_attn_func(**arguments)
    for word in case.words:
        assert word in str(caught.value), f"{word!r} is missing in: {caught.value}"
    assert type(caught.value) is case.error
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("scale", [2.0**-149, 1e-45, 2.35e38, 10**38])
@pytest.mark.parametrize("dtype", [torch.bfloat16, FP8])
def test_every_scale_that_is_accepted_reaches_the_op_as_float32(
    scale: float, dtype: torch.dtype
) -> None:
    x = make_inputs(5, 7, dtype=dtype)
    assert 0 < code_scale_log2(checks.scale_or_default(scale, 128)) < math.inf
    out = flash_attn_func(torch.zeros(x.q.shape).to(dtype), x.k, x.v, scale)  # all scores are 0
    assert isinstance(out, torch.Tensor) and bool(out.isfinite().all())


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"quantize": "no"}, TypeError, "quantize: got 'no'; accepted: True, False"),
        ({"tune": "no"}, TypeError, "tune: got 'no'; accepted: True, False"),
        ({"tune": 0}, TypeError, "tune: got 0; accepted: True, False"),
        ({"rope": (PART,)}, TypeError, "rope: got 1 values; accepted: None, or (q_rope, k_rope)"),
        ({"rope": (PART,) * 3}, TypeError, "rope: got 3 values; accepted: None, or (q_rope, k"),
        ({"rope": PART}, TypeError, "rope: got Tensor; accepted: None, or (q_rope, k_rope)"),
        ({"rope": (PART, None)}, TypeError, "k_rope: got NoneType; accepted: a torch.Tensor"),
        ({"q": None}, TypeError, "q: got NoneType; accepted: a torch.Tensor"),
        ({"kernel": None}, ValueError, "kernel: got None; accepted: "),
        ({"backend": 3}, ValueError, "backend: got 3; accepted: "),
    ],
)
def test_warmup_refuses(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error) as caught:
        warmup(**accepted() | options)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("got", [None, 3])
@pytest.mark.parametrize("name", ["kernel", "backend"])
@pytest.mark.parametrize(
    "function", [flash_attn_fp8_func, flash_attn_mla_func, flash_attn_mla_fp8_func]
)
def test_every_function_refuses_names_that_are_none(
    function: Callable[..., Any], name: str, got: object
) -> None:
    arguments = list(accepted().values())
    if function is not flash_attn_fp8_func:
        q, k, v = arguments
        arguments = [q, q[..., :64], k, k[..., :64], v]
    function(*arguments)
    with pytest.raises(ValueError, match=f'^{name}: got {got}; accepted: "auto", '):
        function(*arguments, **{name: got})


def test_names_order_and_defaults_are_those_of_flash_attention_3() -> None:
    parameters = inspect.signature(flash_attn_func).parameters
    assert list(parameters) == [
        *("q", "k", "v", "softmax_scale", "causal", "q_descale", "k_descale", "v_descale"),
        *("v_mean", "p_mode", "block_scale", "kernel", "backend", "return_lse", "out"),
    ]
    positional = [p.name for p in parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert positional == ["q", "k", "v", "softmax_scale", "causal"]
    assert parameters["softmax_scale"].default is None
    assert parameters["causal"].default is False


@pytest.mark.parametrize("headdim", [128, 192])
def test_default_scale_comes_from_the_head_dim_of_q(headdim: int) -> None:
    x = make_inputs(33, 47, headdim=headdim)
    default = flash_attn_func(x.q, x.k, x.v)
    assert torch.equal(default, flash_attn_func(x.q, x.k, x.v, headdim**-0.5))
    assert not torch.equal(default, flash_attn_func(x.q, x.k, x.v, 128**-0.5 + 1e-3))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bit_output_has_the_dtype_of_the_inputs(dtype: torch.dtype) -> None:
    x = make_inputs(5, 5, dtype=dtype)
    assert flash_attn_func(x.q, x.k, x.v).dtype == dtype
    assert flash_attn_fp8_func(x.q, x.k, x.v).dtype == dtype


@pytest.mark.parametrize("out_dtype", [None, torch.bfloat16, torch.float16, torch.float32])
def test_e4m3_output_is_bfloat16_or_what_out_is(out_dtype: torch.dtype | None) -> None:
    x = make_inputs(5, 5, dtype=FP8)
    out = None if out_dtype is None else torch.full((1, 5, 4, 128), float("nan"), dtype=out_dtype)
    result = flash_attn_func(x.q, x.k, x.v, out=out)
    assert isinstance(result, torch.Tensor)
    assert result.dtype == (out_dtype or torch.bfloat16)
    assert bool(result.isfinite().all())
    assert out is None or result is out


def test_descales_may_be_numbers_one_element_or_a_head_each() -> None:
    x = make_inputs(9, 9, dtype=FP8, batch=2)
    number = flash_attn_func(x.q, x.k, x.v, q_descale=0.5, k_descale=2, v_descale=3.0)
    for one in (torch.tensor(0.5), torch.tensor([0.5]), torch.tensor([[0.5]]).expand(2, 2)):
        same = flash_attn_func(
            x.q, x.k, x.v, q_descale=one, k_descale=torch.full((2, 2), 2.0), v_descale=3.0
        )
        assert torch.equal(number, same)
    per_head = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    scaled = flash_attn_func(x.q, x.k, x.v, v_descale=per_head)
    plain = flash_attn_func(x.q, x.k, x.v)
    factor = per_head.repeat_interleave(2, 1)[:, None, :, None]
    torch.testing.assert_close(scaled.float(), plain.float() * factor, rtol=2**-7, atol=0)


@pytest.mark.parametrize("function", [flash_attn_func, flash_attn_fp8_func])
def test_forward_mode_derivatives_are_refused(function: Any) -> None:
    """They would be 0."""
    q, k, v = (torch.randn(1, 5, 2, 128, dtype=torch.bfloat16) for _ in range(3))
    with pytest.raises(NotImplementedError, match=r"q: got a dual tensor.*forward only"):
        torch.func.jvp(lambda a: function(a, k, v), (q,), (torch.ones_like(q),))
    with forward_ad.dual_level():
        with pytest.raises(NotImplementedError, match=r"v: .*unpack_dual\(v\)\.primal"):
            function(q, k, forward_ad.make_dual(v, torch.ones_like(v)))
        assert function(q, k, v).shape == q.shape


def test_a_tensor_that_needs_grad_is_accepted_without_grad_mode() -> None:
    arguments = accepted()
    arguments["q"].requires_grad_()
    with torch.no_grad():
        assert not flash_attn_func(**arguments).requires_grad
    with torch.inference_mode():
        flash_attn_func(**arguments)


def test_strided_out_between_other_data_is_filled_and_nothing_else() -> None:
    x = make_inputs(7, 9)
    buffer = torch.full((1, 7, 9, 256), float("nan"), dtype=torch.bfloat16)
    out = buffer[:, :, 1:9:2, 64:192]
    flash_attn_func(x.q, x.k, x.v, out=out)
    assert torch.equal(out, flash_attn_func(x.q, x.k, x.v))
    assert int(buffer.isfinite().sum()) == out.numel()


def test_out_may_lie_between_the_inputs_of_a_packed_buffer() -> None:
    packed = torch.randn(2, 6, 12, 128).to(torch.bfloat16)
    q, k, v, out = packed[:, :, :4], packed[:, :, 4:6], packed[:, :, 6:8], packed[:, :, 8:]
    ref, _ = attention_ref(q, k, v)
    flash_attn_func(q, k, v, out=out)
    torch.testing.assert_close(out.double(), ref, rtol=2**-8, atol=1e-4)


def test_the_mean_of_v_is_what_quantize_fp8_returns() -> None:
    """The op on codes and mean is the op on V, but for the rounding of the codes."""
    x = make_inputs(70, 90, dtype=FP8, batch=2)
    v = make_inputs(1, 90, batch=2, seed=1).v + 3
    codes, descale, mean = quantize_fp8(v, subtract_mean=True)
    options: dict[str, Any] = {**x.descales, "v_descale": descale, "causal": True}
    out = flash_attn_func(x.q, x.k, codes, v_mean=mean, **options)
    plain = flash_attn_func(x.q, x.k, codes, **options)
    assert isinstance(out, torch.Tensor) and isinstance(plain, torch.Tensor)
    shift = mean.repeat_interleave(2, 1)[:, None]
    torch.testing.assert_close(out.float(), plain.float() + shift, rtol=2**-7, atol=2**-7)
    k = x.k.float() * x.k_descale[:, None, :, None]  # type: ignore[index]
    q = x.q.float() * x.q_descale.repeat_interleave(2, 1)[:, None, :, None]  # type: ignore[union-attr]
    ref, _ = attention_ref(q, k, v, causal=True)
    assert float((out.double() - ref).norm() / ref.norm()) < 0.02


@pytest.mark.parametrize(
    ("k_mean", "v_mean"),
    [(None, None), (True, True), (False, False), (True, False), (False, True)],
    ids=["default", "both", "plain", "k", "v"],
)
@pytest.mark.parametrize("granularity", ["head", "tensor"])
def test_fp8_func_quantises_and_calls_the_fp8_path(
    granularity: str, k_mean: bool | None, v_mean: bool | None
) -> None:
    """By default without the means of K, whose share the log-sum-exp gets back, and of V."""
    x = make_inputs(40, 50, batch=2, nheads=6)
    given = {"subtract_k_mean": k_mean, "subtract_v_mean": v_mean}
    options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    ours, lse = flash_attn_fp8_func(
        x.q, x.k, x.v, causal=True, granularity=granularity, return_lse=True, **options
    )
    q, qd = quantize_fp8(x.q, granularity, nheads_k=2)
    k, kd, *mean = quantize_fp8(x.k, granularity, subtract_mean=k_mean is not False)
    v, vd, *of_v = quantize_fp8(x.v, granularity, subtract_mean=v_mean is not False)
    options = {"v_mean": of_v[0] if of_v else None, "causal": True, "return_lse": True}
    same, same_lse = flash_attn_func(q, k, v, q_descale=qd, k_descale=kd, v_descale=vd, **options)
    assert torch.equal(ours, same)
    for each in mean:
        quantize.add_mean_to_lse(same_lse, x.q, each, 128**-0.5)
    assert torch.equal(lse, same_lse)


def test_fp8_func_refuses_what_is_quantised_already_and_unknown_granularity() -> None:
    with pytest.raises(TypeError, match=r"q: got torch.float8_e4m3fn; accepted: torch.bfloat16"):
        flash_attn_fp8_func(**accepted(FP8))
    with pytest.raises(ValueError, match=r"granularity: got 'row'; accepted: \"head\", \"tensor\""):
        flash_attn_fp8_func(**accepted(), granularity="row")
    with pytest.raises(TypeError, match=r"subtract_k_mean: got 1; accepted: True, False"):
        flash_attn_fp8_func(**accepted(), subtract_k_mean=1)
    with pytest.raises(TypeError, match=r"subtract_v_mean: got None; accepted: True, False"):
        flash_attn_fp8_func(**accepted(), subtract_v_mean=None)


def overlaps(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Byte addresses, one by one."""

    def addresses(t: torch.Tensor) -> set[int]:
        found = set()
        for index in itertools.product(*(range(n) for n in t.shape)):
            first = t.data_ptr() + t.element_size() * sum(
                i * s for i, s in zip(index, t.stride(), strict=True)
            )
            found |= set(range(first, first + t.element_size()))
        return found

    return bool(addresses(a) & addresses(b))


def test_overlap_of_equally_strided_views_is_found_exactly() -> None:
    generator = torch.Generator().manual_seed(3)

    def number(limit: int) -> int:
        return int(torch.randint(limit, (), generator=generator))

    buffer = torch.zeros(200, dtype=torch.bfloat16)
    seen = set()
    for _ in range(300):
        strides = (*tuple(number(12) for _ in range(3)), 1)
        views = []
        for _ in range(2):
            shape = (*tuple(1 + number(3) for _ in range(3)), 2)
            views.append(buffer.as_strided(shape, strides, number(60)))
        truth = overlaps(*views)
        assert checks.may_overlap(*views) == truth, [(v.shape, v.stride()) for v in views]
        seen.add(truth)
    assert seen == {True, False}


def test_overlap_of_other_views_is_never_missed() -> None:
    buffer = torch.zeros(64, dtype=torch.bfloat16)
    a, b = buffer.as_strided((2, 2), (8, 1)), buffer.as_strided((2, 2), (4, 1), 4)
    assert not overlaps(a, buffer[32:])
    assert not checks.may_overlap(a, buffer[32:])
    assert checks.may_overlap(a, b) >= overlaps(a, b)
    assert checks.may_overlap(a, buffer.view(torch.uint8)[2:4])
    assert not checks.may_overlap(a, torch.zeros(4))
    assert not checks.may_overlap(a, buffer[:0])
