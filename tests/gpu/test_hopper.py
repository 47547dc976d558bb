"""`kernel="gluon"` on a Hopper device: all lengths, layouts and modes within the budget; bits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.gpu.hopper_calls import KINDS, attention, check, check_gain, check_mean
from zyfa_triton import arch, flash_attn_fp8_func, flash_attn_func, numerics, quantize_fp8
from zyfa_triton.backends import device as device_backend
from zyfa_triton.backends.launching import enqueue
from zyfa_triton.kernels.hopper import preparation
from zyfa_triton.kernels.registry import FAMILIES
from zyfa_triton.problem import FP8, Problem
from zyfa_triton.reference import attention_ref
from zyfa_triton.testing import LAYOUTS, Inputs, check_output, expected, make_inputs

LENGTHS = [
    *((n, n) for n in (1, 2, 127, 128, 129, 255, 256, 257, 640, 1009)),
    *((1, n) for n in (2, 64, 1009)),
    (0, 5),
    (129, 0),
    (129, 640),
    (640, 129),
    (257, 255),
    (1009, 1),
]


@pytest.fixture(autouse=True)
def _needs_hopper() -> None:
    name = arch.arch_of(0).name
    if name != "sm90":
        pytest.skip(f"the Gluon kernel is written for sm90, this is {name}")


def gluon(x: Inputs, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return attention(x, "gluon", **options)


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("headdim", [128, 192])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_lengths(
    device: torch.device, lengths: tuple[int, int], kind: str, headdim: int, causal: bool
) -> None:
    dtype, p_mode = KINDS[kind]
    x = make_inputs(*lengths, headdim=headdim, dtype=dtype, device=device)
    check(x, "gluon", causal=causal, p_mode=p_mode)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("heads", [(4, 4), (6, 1), (6, 2), (16, 2), (1, 1)], ids=str)
@pytest.mark.parametrize("seqlen_q", [3, 50, 129])
def test_head_groups(
    device: torch.device, heads: tuple[int, int], kind: str, seqlen_q: int
) -> None:
    """Few queries: several heads of a group share a tile."""
    dtype, p_mode = KINDS[kind]
    x = make_inputs(
        seqlen_q, 300, batch=3, nheads=heads[0], nheads_k=heads[1], dtype=dtype, device=device
    )
    check(x, "gluon", causal=True, p_mode=p_mode)


@pytest.mark.parametrize("out_dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("p_mode", ["lean", "exact"])
def test_output_types(device: torch.device, p_mode: str, out_dtype: torch.dtype) -> None:
    x = make_inputs(257, 300, dtype=FP8, device=device, deviation=2.0)
    check(x, "gluon", causal=True, p_mode=p_mode, out_dtype=out_dtype)


@pytest.mark.parametrize("kernel", ["gluon", "triton"])
def test_the_mean_of_v(device: torch.device, kernel: str) -> None:
    check_mean(device, kernel)


def test_taking_off_vs_mean_halves_the_error(device: torch.device) -> None:
    check_gain(device, "gluon")


@pytest.mark.parametrize("kind", ["e4m3", "bf16"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layout_changes_no_bit(device: torch.device, layout: str, kind: str) -> None:
    dtype, _ = KINDS[kind]
    for headdim in (128, 192):
        x = make_inputs(
            257, 257, batch=2, headdim=headdim, dtype=dtype, device=device, layout=layout
        )
        copy = replace(x, q=x.q.contiguous(), k=x.k.contiguous(), v=x.v.contiguous())
        for ours, same in zip(gluon(x, causal=True), gluon(copy, causal=True), strict=True):
            assert torch.equal(ours, same)


def test_a_strided_output_is_written_and_what_lies_around_it_is_not(device: torch.device) -> None:
    x = make_inputs(130, 140, batch=2, dtype=FP8, device=device)
    for width, first in ((192, 32), (139, 3)):  # aligned rows, and any
        buffer = torch.full((2, 9, 132, width), float("nan"), device=device).to(torch.bfloat16)
        out = buffer[:, 1:9:2, 1:131, first : first + 128].transpose(1, 2)
        gluon(x, out=out)
        assert torch.equal(out, gluon(x)[0])
        assert int(buffer.isfinite().sum()) == out.numel()


def test_rows_far_apart(device: torch.device) -> None:
    """Row strides beyond 2^22 elements: tile offsets beyond 2^31."""
    x = make_inputs(640, 640, nheads=2, nheads_k=1, dtype=FP8, device=device)
    far = torch.empty(640 * (2**22 + 256), dtype=torch.uint8, device=device)
    k = far.as_strided((1, 640, 1, 128), (0, 2**22 + 256, 128, 1)).view(FP8)
    k.copy_(x.k)
    assert torch.equal(gluon(replace(x, k=k))[0], gluon(x)[0])
    v = k
    v.copy_(x.v)
    assert torch.equal(gluon(replace(x, v=v))[0], gluon(x)[0])


@pytest.mark.parametrize("kind", ["e4m3", "bf16"])
def test_many_tiles_a_workgroup_repeat_their_bits(device: torch.device, kind: str) -> None:
    """What a tile leaves behind does not reach the next one: 8 tiles a workgroup, 1,000 times.

    An arrival that did not wait for loads from shared memory let the next tile's queries in early.
    """
    dtype, p_mode = KINDS[kind]
    x = make_inputs(2048, 2048, nheads=64, nheads_k=8, dtype=dtype, device=device)
    first, _ = gluon(x, causal=True, p_mode=p_mode)
    same = flash_attn_func(x.q, x.k, x.v, causal=True, p_mode=p_mode, kernel="triton", **x.descales)
    assert isinstance(same, torch.Tensor)
    tiles = (first.double() - same.double()).unflatten(1, (-1, 64)).pow(2).sum((2, 4)).sqrt()
    sizes = same.double().unflatten(1, (-1, 64)).pow(2).sum((2, 4)).sqrt()
    assert float((tiles / sizes).max()) < (0.08 if dtype == FP8 else 0.01)
    for _ in range(1000):
        again, _ = gluon(x, causal=True, p_mode=p_mode)
        if not torch.equal(again, first):
            raise AssertionError("a repeat gave other bits")


@pytest.mark.parametrize("headdim", [128, 192])
@pytest.mark.parametrize("kind", KINDS)
def test_configurations_give_the_same_bits(device: torch.device, kind: str, headdim: int) -> None:
    """Also with the softmax beside P V, 100 times: a register touched too early shows now and then.

    Blocks of other sizes round otherwise.
    """
    dtype, p_mode = KINDS[kind]
    x = make_inputs(1100, 1100, nheads=16, headdim=headdim, dtype=dtype, device=device)
    problem = Problem.of(
        x.q, x.k, x.v, causal=True, p_mode=p_mode, block_scale=False, out_dtype=torch.bfloat16,
        return_lse=False,
    )  # fmt: skip
    descales = {f"{name}_descale": x.descales.get(f"{name}_descale") for name in "qkv"}
    first: dict[int, torch.Tensor] = {}
    for config in FAMILIES["gluon"].configurations(problem):
        for _ in range(100):
            out = torch.full((1, 1100, 16, 128), float("nan"), device=device, dtype=torch.bfloat16)
            device_backend.run(
                problem, "gluon", x.q, x.k, x.v, out, None, softmax_scale=0.1,
                config={**config, "kernel": "gluon"}, **descales,
            )  # fmt: skip
            assert bool(out.isfinite().all())
            assert torch.equal(out, first.setdefault(config["BLOCK_N"], out)), config


@pytest.mark.parametrize("p_mode", ["lean", "exact"])
def test_codes_are_the_contracts(device: torch.device, p_mode: str) -> None:
    """Small integers make scores exact, so that nothing but the codes decides the output."""
    generator = torch.Generator().manual_seed(3)
    q, k = (torch.randint(-2, 3, (1, 128, 2, 128), generator=generator) for _ in range(2))
    v = torch.eye(128)[None, :, None].expand(1, 128, 2, 128)  # P itself, over its row sum
    inputs = [tensor.float().to(FP8) for tensor in (q, k, v)]
    out = torch.empty(1, 128, 2, 128, device=device)
    flash_attn_func(*(t.to(device) for t in inputs), 0.07, p_mode=p_mode, kernel="gluon", out=out)  # type: ignore[arg-type]
    result = numerics.attention(*inputs, softmax_scale=0.07, options=numerics.HOPPER[p_mode])
    # to each other: row sums are truncated by the card
    ours, contract = (x / x.amax(-1, keepdim=True) for x in (out.cpu(), result.out))
    close = torch.isclose(ours, contract, rtol=1e-5, atol=0.0, equal_nan=True)  # 0 / 0: no code
    # ex2.approx is not rounded to nearest: an exact code may round the other way
    rows = (~close).any(-1).float().mean()
    assert float(rows) <= (0.0 if p_mode == "lean" else 0.05), float(rows)


def test_short_prompts_of_a_wide_range_of_scores(device: torch.device) -> None:
    x = make_inputs(200, 200, dtype=FP8, device=device, deviation=30.0)
    out, lse = gluon(x, causal=True)
    assert bool(out.isfinite().all() & lse.isfinite().all())


def test_rows_without_keys_are_zero_with_lse_minus_infinity(device: torch.device) -> None:
    for dtype in (FP8, torch.bfloat16):
        x = make_inputs(300, 100, dtype=dtype, device=device)
        out, lse = gluon(x, causal=True)
        assert bool((out[:, :200] == 0).all())
        assert bool((lse[:, :, :200] == float("-inf")).all())
        assert bool(lse[:, :, 200:].isfinite().all())


def test_nan_inputs_reach_the_output_of_their_heads_only(device: torch.device) -> None:
    for name in ("q", "k", "v"):
        x = make_inputs(130, 130, device=device)
        getattr(x, name)[0, 7, -1, 3] = float("nan")  # key head 1: query heads 2 and 3
        out = flash_attn_fp8_func(x.q, x.k, x.v, kernel="gluon")
        assert isinstance(out, torch.Tensor)
        assert bool(out[:, :, :2].isfinite().all()), name
        assert bool(out[:, :, 2:].isnan().all()), name
    x = make_inputs(130, 130, device=device)
    x.k[0, 7, 1, 3] = float("nan")
    out, _ = gluon(x)
    assert bool(out[:, :, :2].isfinite().all())
    assert bool(out[:, :, 2:].isnan().all())


@pytest.mark.parametrize("granularity", ["head", "tensor"])
@pytest.mark.parametrize(
    ("k_mean", "v_mean"),
    [(False, False), (True, False), (False, True), (True, True)],
    ids=["plain", "k-mean", "v-mean", "means"],
)
@pytest.mark.parametrize("headdim", [128, 192])
def test_inputs_are_quantised_as_quantize_fp8_does(
    device: torch.device, headdim: int, k_mean: bool, v_mean: bool, granularity: str
) -> None:
    """Codes, descales, means, and so the bits of the output, in one pass over all inputs."""
    x = make_inputs(
        333, 1100, batch=2, nheads=6, headdim=headdim, device=device, layout="transposed"
    )
    k, v = x.k + 3, x.v - 2
    whole: Any = {"granularity": granularity}
    q_codes, q_descale = quantize_fp8(x.q, nheads_k=2, **whole)
    k_codes, k_descale, *of_k = quantize_fp8(k, subtract_mean=k_mean, **whole)
    v_codes, v_descale, *of_v = quantize_fp8(v, subtract_mean=v_mean, **whole)
    problem = Problem.of(
        x.q, k, v, causal=True, p_mode="lean", block_scale=False, out_dtype=torch.bfloat16,
        return_lse=True, dtype=FP8,
    )  # fmt: skip
    ours = preparation.quantise(
        enqueue, problem, x.q, k, v, granularity == "tensor", k_mean, v_mean
    )
    for name, got, want in (("q", ours.q, q_codes), ("k", ours.k, k_codes)):
        assert torch.equal(got.view(torch.uint8), want.view(torch.uint8)), name
    for got, want in zip(ours.descales, (q_descale, k_descale, v_descale), strict=True):
        assert torch.equal(got, want)
    for mean, wanted in ((ours.k_mean, of_k), (ours.v_mean, of_v)):
        assert (mean is None) == (not wanted)
        assert mean is None or torch.equal(mean, wanted[0])
    options: Any = {"causal": True, "kernel": "gluon", "return_lse": True}
    subtracts = {"subtract_k_mean": k_mean, "subtract_v_mean": v_mean}
    out, lse = flash_attn_fp8_func(x.q, k, v, **subtracts, **whole, **options)
    options["v_mean"] = of_v[0] if of_v else None
    same, same_lse = flash_attn_func(
        q_codes, k_codes, v_codes, q_descale=q_descale, k_descale=k_descale, v_descale=v_descale,
        **options,
    )  # fmt: skip
    assert torch.equal(out, same)
    if not k_mean:
        assert torch.equal(lse, same_lse)
    ref, _ = attention_ref(x.q, k, v, causal=True)
    assert float((out.double() - ref).norm() / ref.norm()) < 0.08


def test_what_it_does_not_serve_is_an_error_and_auto_runs_triton(device: torch.device) -> None:
    x = make_inputs(64, 64, dtype=torch.float16, device=device)
    with pytest.raises(ValueError, match='kernel: got "gluon"; it takes e4m3 and bfloat16 inputs'):
        gluon(x)
    check_output(flash_attn_func(x.q, x.k, x.v), *[r[0] for r in expected(x)], is_fp8=False)  # type: ignore[arg-type]


@pytest.mark.parametrize("kernel", ["gluon", "ptx"])
def test_a_captured_call_replays(device: torch.device, kernel: str) -> None:
    x = make_inputs(600, 700, device=device)

    def call() -> Any:
        return flash_attn_fp8_func(x.q, x.k, x.v, causal=True, kernel=kernel)

    call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = call()
    x.q.mul_(0.5)
    graph.replay()
    assert torch.equal(out, call())
