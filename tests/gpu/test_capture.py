"""torch.compile and CUDA graph capture on a device: what is captured replays, nothing compiles."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from zyfa_triton import flash_attn_fp8_func, flash_attn_func, quantize_fp8, warmup
from zyfa_triton.backends.launching import NotWarmedUpError
from zyfa_triton.kernels import quantize as quantize_kernels
from zyfa_triton.kernels.attention import attention_forward
from zyfa_triton.kernels.hopper import prepare
from zyfa_triton.kernels.hopper.forward import hopper_attention_forward
from zyfa_triton.problem import FP8
from zyfa_triton.testing import Inputs, make_inputs
from zyfa_triton.tuning import autotune


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def nothing_is_loaded() -> None:
    """Makes Triton forget the kernels that earlier tests loaded; they stay in its disk cache."""
    for kernel in (
        attention_forward,
        quantize_kernels.partial_sums,
        quantize_kernels.partial_amax,
        quantize_kernels.to_e4m3,
        quantize_kernels.lse_shift,
        hopper_attention_forward,
        prepare.transpose_values,
        prepare.partial_sums_of_both,
        prepare.largest_magnitudes,
        prepare.quantise_inputs,
    ):
        kernel.device_caches.clear()


def replace_values(x: Inputs, seed: int) -> None:
    """Other values in the same memory."""
    other = make_inputs(x.q.shape[1], x.k.shape[1], dtype=x.q.dtype, device=x.q.device, seed=seed)
    for ours, new in ((x.q, other.q), (x.k, other.k), (x.v, other.v)):
        ours.copy_(new)


def captured(call: Callable[[], Any]) -> tuple[torch.cuda.CUDAGraph, Any]:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = call()
    return graph, result


@pytest.mark.parametrize("dtype", [FP8, torch.bfloat16], ids=["e4m3", "bf16"])
def test_a_captured_call_replays_on_new_values(
    e4m3_device: torch.device, nothing_is_loaded: None, dtype: torch.dtype
) -> None:
    x = make_inputs(200, 300, dtype=dtype, device=e4m3_device)

    def call() -> Any:
        return flash_attn_func(x.q, x.k, x.v, causal=True, return_lse=True, **x.descales)

    warmup(x.q, x.k, x.v, causal=True, return_lse=True, **x.descales)
    graph, (out, lse) = captured(call)
    for seed in (5, 6):
        replace_values(x, seed)
        out.fill_(float("nan"))
        graph.replay()
        eager, eager_lse = call()
        assert torch.equal(out, eager)
        assert torch.equal(lse, eager_lse)


def test_the_fp8_function_is_captured_with_its_quantisation(
    e4m3_device: torch.device, nothing_is_loaded: None
) -> None:
    x = make_inputs(200, 300, device=e4m3_device)
    options: dict[str, Any] = {"causal": True, "return_lse": True, "subtract_k_mean": True}
    warmup(x.q, x.k, x.v, quantize=True, **options)
    graph, (out, lse) = captured(lambda: flash_attn_fp8_func(x.q, x.k, x.v, **options))
    replace_values(x, 7)
    graph.replay()
    eager, eager_lse = flash_attn_fp8_func(x.q, x.k, x.v, **options)
    assert torch.equal(out, eager)
    assert torch.equal(lse, eager_lse)


def test_a_kernel_that_is_not_loaded_is_an_error_that_names_warmup(
    e4m3_device: torch.device, nothing_is_loaded: None
) -> None:
    x = make_inputs(200, 300, dtype=FP8, device=e4m3_device)
    with pytest.raises(
        NotWarmedUpError, match=r"(attention_forward|transpose_values) .*Call zyfa_triton\.warmup"
    ):
        captured(lambda: flash_attn_func(x.q, x.k, x.v))
    half = make_inputs(200, 300, device=e4m3_device)
    with pytest.raises(NotWarmedUpError, match=r"partial_amax .*Call zyfa_triton\.warmup"):
        captured(lambda: quantize_fp8(half.q))
    # the error leaves nothing behind: the same call works, captured too once it ran
    eager = flash_attn_func(x.q, x.k, x.v)
    graph, out = captured(lambda: flash_attn_func(x.q, x.k, x.v))
    graph.replay()
    assert torch.equal(out, eager)


def test_lengths_of_one_bucket_share_a_warmup(
    e4m3_device: torch.device, nothing_is_loaded: None
) -> None:
    first = make_inputs(600, 600, dtype=FP8, device=e4m3_device)
    warmup(first.q, first.k, first.v, causal=True, **first.descales)
    x = make_inputs(901, 1000, dtype=FP8, device=e4m3_device)
    graph, out = captured(lambda: flash_attn_func(x.q, x.k, x.v, causal=True, **x.descales))
    graph.replay()
    assert torch.equal(out, flash_attn_func(x.q, x.k, x.v, causal=True, **x.descales))


def test_nothing_is_measured_during_capture_even_if_tuning_is_on(
    e4m3_device: torch.device, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    x = make_inputs(150, 150, dtype=FP8, device=e4m3_device)
    warmup(x.q, x.k, x.v, **x.descales)

    def measure(*arguments: Any) -> Any:
        raise AssertionError("measured during capture")

    monkeypatch.setattr(autotune, "measure", measure)
    monkeypatch.setenv("ZYFA_TUNE", "on")
    monkeypatch.setenv("ZYFA_TUNING_FILE", str(tmp_path / "none.json"))
    graph, out = captured(lambda: flash_attn_func(x.q, x.k, x.v, **x.descales))
    graph.replay()
    monkeypatch.setenv("ZYFA_TUNE", "off")
    assert torch.equal(out, flash_attn_func(x.q, x.k, x.v, **x.descales))


@pytest.mark.parametrize("function", [flash_attn_func, flash_attn_fp8_func])
def test_inductor_compiles_one_graph_and_does_not_recompile_for_lengths(
    e4m3_device: torch.device, function: Callable[..., Any]
) -> None:
    def layer(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        out, lse = function(q * 0.5, k, v, causal=True, return_lse=True)
        return out * 2 + lse.transpose(1, 2)[..., None].to(out.dtype)

    counter = CompileCounterWithBackend("inductor")
    compiled = torch.compile(layer, backend=counter, fullgraph=True)
    for lengths in ((64, 80), (70, 96), (129, 200), (301, 301), (257, 1009)):
        x = make_inputs(*lengths, device=e4m3_device)
        torch.testing.assert_close(
            compiled(x.q, x.k, x.v), layer(x.q, x.k, x.v), rtol=2**-6, atol=2**-6
        )
    assert counter.frame_count <= 2


def test_compile_with_cuda_graphs(e4m3_device: torch.device) -> None:
    x = make_inputs(128, 128, dtype=FP8, device=e4m3_device)

    def layer(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return flash_attn_func(q, k, v, causal=True, **x.descales) + 1

    compiled = torch.compile(layer, mode="reduce-overhead", fullgraph=True)
    eager = layer(x.q, x.k, x.v)
    for _ in range(4):  # warms up, records, replays
        torch.compiler.cudagraph_mark_step_begin()
        assert torch.equal(compiled(x.q, x.k, x.v), eager)
