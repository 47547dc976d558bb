"""The torch operators: fake tensors, torch.compile without breaks, no silent gradient."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch._dynamo.testing import CompileCounter
from torch._subclasses.fake_tensor import FakeTensorMode

from zyfa_triton import flash_attn_fp8_func, flash_attn_func, ops, quantize_fp8
from zyfa_triton.problem import FP8
from zyfa_triton.testing import Inputs, make_inputs

# All of torch.compile but code generation, which would take a C++ compiler half a minute here.
TRACER = "aot_eager"


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def op_arguments(x: Inputs) -> tuple[Any, ...]:
    """Arguments of the operators up to `backend`."""
    scale = x.q.shape[3] ** -0.5
    return (x.q, x.k, x.v, *x.descales.values(), scale, True, "lean", "auto", "auto", "auto")


@pytest.mark.parametrize("dtype", [torch.bfloat16, FP8], ids=["bf16", "e4m3"])
def test_operators_keep_torchs_rules(dtype: torch.dtype) -> None:
    """Schema, fake tensor and dispatch consistency, as torch checks them."""
    x = make_inputs(5, 7, dtype=dtype)
    checks = ["test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic"]
    if dtype != FP8:
        checks.append("test_schema")  # torch multiplies the inputs for it, which e4m3 cannot do
    out = torch.empty(1, 5, 4, 128, dtype=torch.bfloat16)
    for mean in ((), (None, None, torch.ones(1, 2, 128))) if dtype == FP8 else ((),):
        arguments = (*op_arguments(x), torch.bfloat16, True, *mean)
        torch.library.opcheck(ops._attention, arguments, test_utils=checks)
        arguments = (*op_arguments(x), True, out, *mean)
        torch.library.opcheck(ops._attention_out, arguments, test_utils=checks)


def test_quantising_operators_keep_torchs_rules() -> None:
    x = make_inputs(5, 7)
    torch.library.opcheck(ops._quantize, (x.q, 2, False, True))
    torch.library.opcheck(ops._quantize, (x.q, 2, True, False))
    arguments = (x.q, x.k, x.v, 0.1, True, False, True, True, "lean", *["auto"] * 3, True)
    torch.library.opcheck(ops._attention_fp8, arguments)
    out = torch.empty(1, 5, 4, 128, dtype=torch.bfloat16)
    torch.library.opcheck(ops._attention_fp8_out, (*arguments, out))


@pytest.mark.parametrize("return_lse", [True, False])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_fake_tensors_have_the_shapes_of_real_ones(device: str, return_lse: bool) -> None:
    """Also for a device that is not here: nothing is launched."""
    with FakeTensorMode():
        q = torch.empty(2, 5, 6, 192, dtype=FP8, device=device)
        k = torch.empty(2, 7, 3, 192, dtype=FP8, device=device)
        v = torch.empty(2, 7, 3, 128, dtype=FP8, device=device)
        mean = torch.empty(2, 3, 128, device=device)
        result = flash_attn_func(q, k, v, return_lse=return_lse, v_descale=2.0, v_mean=mean)
        out, lse = result if return_lse else (result, None)
        assert (out.shape, out.dtype, out.device.type) == ((2, 5, 6, 128), torch.bfloat16, device)
        assert out.is_contiguous()
        if lse is not None:
            assert (lse.shape, lse.dtype) == ((2, 6, 5), torch.float32)
        into = torch.empty(2, 5, 6, 128, dtype=torch.float32, device=device)
        assert flash_attn_func(q, k, v, out=into) is into
        codes, descale, mean = quantize_fp8(
            torch.empty(2, 5, 6, 192, dtype=torch.float16, device=device),
            nheads_k=3,
            subtract_mean=True,
        )
        assert (codes.shape, codes.dtype) == ((2, 5, 6, 192), FP8)
        assert (descale.shape, mean.shape) == ((2, 3), (2, 6, 192))


def test_meta_tensors_give_shapes() -> None:
    q = torch.empty(1, 3, 2, 128, dtype=torch.bfloat16, device="meta")
    assert flash_attn_func(q, q, q).shape == (1, 3, 2, 128)


@pytest.mark.parametrize("dtype", [torch.bfloat16, FP8], ids=["bf16", "e4m3"])
def test_compiles_as_one_graph(dtype: torch.dtype) -> None:
    x = make_inputs(9, 12, dtype=dtype, batch=2, v_mean=dtype == FP8)

    def layer(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        out, lse = flash_attn_func(
            q, k, v, causal=True, return_lse=True, v_mean=x.v_mean, **x.descales
        )
        return out.float() * 2, lse + 1

    compiled = torch.compile(layer, backend=TRACER, fullgraph=True)
    for ours, eager in zip(compiled(x.q, x.k, x.v), layer(x.q, x.k, x.v), strict=True):
        torch.testing.assert_close(ours, eager)


def test_compiles_the_fp8_function_and_numbers_as_descales() -> None:
    x = make_inputs(9, 12)

    def layer(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        out, lse = flash_attn_fp8_func(q, k, v, subtract_k_mean=True, return_lse=True)
        codes, _ = quantize_fp8(v)
        again = flash_attn_func(codes, codes, codes, q_descale=0.5, block_scale=False)
        return out.sum() + lse.sum() + again.sum()

    torch.testing.assert_close(
        torch.compile(layer, backend=TRACER, fullgraph=True)(x.q, x.k, x.v), layer(x.q, x.k, x.v)
    )


def test_compiles_with_out_which_is_written_to_in_place() -> None:
    x = make_inputs(6, 6)

    def layer(q: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        returned = flash_attn_func(q, x.k, x.v, out=out)
        return returned + out

    out = torch.full((1, 6, 4, 128), float("nan"), dtype=torch.bfloat16)
    twice = torch.compile(layer, backend=TRACER, fullgraph=True)(x.q, out)
    eager = flash_attn_func(x.q, x.k, x.v)
    assert torch.equal(out, eager)
    assert torch.equal(twice, eager + eager)


@pytest.mark.parametrize("function", [flash_attn_func, flash_attn_fp8_func])
def test_other_lengths_do_not_recompile(function: Any) -> None:
    """Once for the first length, once when the lengths turn out to vary, never again."""
    counter = CompileCounter()
    compiled = torch.compile(function, backend=counter, fullgraph=True)
    lengths = [(8, 9), (10, 13), *((n, 2 * n + 3) for n in range(11, 40, 4)), (40, 6)]
    for seqlen_q, seqlen_k in lengths:
        x = make_inputs(seqlen_q, seqlen_k, nheads=2, nheads_k=2)
        compiled(x.q, x.k, x.v, causal=True)
    assert counter.frame_count <= 2


def test_marked_dynamic_batches_and_lengths_compile_once() -> None:
    counter = CompileCounter()
    compiled = torch.compile(flash_attn_func, backend=counter, fullgraph=True, dynamic=True)
    for batch, length in ((3, 7), (5, 11), (3, 30), (6, 64)):
        x = make_inputs(length, length, batch=batch, dtype=FP8, v_mean=True)
        compiled(x.q, x.k, x.v, v_mean=x.v_mean, **x.descales)
    assert counter.frame_count == 1


def test_refuses_gradients_while_compiling_too() -> None:
    x = make_inputs(4, 4)
    q = x.q.clone().requires_grad_()
    with pytest.raises(Exception, match="requires grad, in grad mode"):
        torch.compile(flash_attn_func, backend=TRACER, fullgraph=True)(q, x.k, x.v)


def test_the_operator_itself_has_no_silent_gradient() -> None:
    """Who calls it past the checks gets an error from autograd, not a gradient of zero."""
    x = make_inputs(4, 4)
    q = x.q.clone().requires_grad_()
    out, _ = ops._attention(q, *op_arguments(x)[1:], torch.bfloat16, False)
    with pytest.raises(RuntimeError, match="autograd"):
        out.sum().backward()


def test_outputs_are_repeatable_bit_for_bit() -> None:
    x = make_inputs(70, 90, dtype=FP8)
    first, second = (flash_attn_func(x.q, x.k, x.v, **x.descales) for _ in range(2))
    assert torch.equal(first, second)
