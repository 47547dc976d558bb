"""gfx950 machine code of the op, executed: P's codes against the contract, outputs against fp64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from zyfa_triton import activations, numerics
from zyfa_triton.backends import emulated
from zyfa_triton.kernels.launch import launch_arguments
from zyfa_triton.problem import FP8, Problem
from zyfa_triton.reference import attention_ref
from zyfa_triton.testing import Inputs, make_inputs

LENGTHS = (1, 255, 256, 257, 640)
SCALED = [("lean", True), ("exact", True)]
UNSCALED = [("lean", False), ("exact", False), ("unscaled", False)]


def emulate(
    inputs: Inputs,
    *,
    causal: bool = True,
    p_mode: str = "lean",
    block_scale: bool = True,
    **options: Any,
) -> tuple[torch.Tensor, torch.Tensor, emulated.Emulation]:
    """(out, lse, run) of the machine code; outputs start as NaN."""
    q, k, v = inputs.q, inputs.k, inputs.v
    problem = Problem.of(
        q,
        k,
        v,
        causal=causal,
        p_mode=p_mode,
        block_scale=block_scale,
        out_dtype=q.dtype if q.dtype != FP8 else torch.bfloat16,
        return_lse=True,
    )
    out = torch.full((*q.shape[:3], v.shape[3]), float("nan"), dtype=problem.out_dtype)
    lse = torch.full((q.shape[0], q.shape[2], q.shape[1]), float("nan"))
    more = {"v_mean": inputs.v_mean, **inputs.descales}
    arguments = launch_arguments(
        problem, q, k, v, out, lse, softmax_scale=q.shape[3] ** -0.5, **more
    )
    run = emulated.emulate(problem, arguments, **options)
    return out, lse, run


def assert_matches_contract(
    inputs: Inputs, *, causal: bool, p_mode: str, block_scale: bool
) -> None:
    """Codes bit for bit, outputs to the rounding of bf16, lse to a few float32 roundings."""
    out, lse, run = emulate(
        inputs, causal=causal, p_mode=p_mode, block_scale=block_scale, capture=True
    )
    assert run.findings == []
    model = numerics.attention(
        inputs.q,
        inputs.k,
        inputs.v,
        softmax_scale=inputs.q.shape[3] ** -0.5,
        causal=causal,
        options=numerics.ContractOptions(p_mode, block_scale),
        return_codes=True,
        v_mean=inputs.v_mean,
        **inputs.descales,
    )
    assert run.codes is not None and model.codes is not None
    assert torch.equal(run.codes, model.codes)
    half_ulp = model.out.abs() * 2.0**-8 + 1e-6
    assert ((out.float() - model.out).abs() <= half_ulp).all()
    seen = torch.isfinite(model.lse)
    assert torch.equal(torch.isfinite(lse), seen)
    torch.testing.assert_close(lse[seen], model.lse[seen], atol=4e-6, rtol=1e-6)


@pytest.mark.parametrize("seqlen", LENGTHS)
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "full"])
@pytest.mark.parametrize(("p_mode", "block_scale"), SCALED, ids=["lean", "exact"])
@pytest.mark.parametrize("headdim", [128, 192])
def test_fp8_codes_and_outputs(
    headdim: int, p_mode: str, block_scale: bool, causal: bool, seqlen: int
) -> None:
    inputs = make_inputs(seqlen, seqlen, nheads=1, nheads_k=1, headdim=headdim, dtype=FP8)
    assert_matches_contract(inputs, causal=causal, p_mode=p_mode, block_scale=block_scale)


@pytest.mark.parametrize(("p_mode", "block_scale"), UNSCALED, ids=["lean", "exact", "unscaled"])
def test_fp8_without_block_scale(p_mode: str, block_scale: bool) -> None:
    inputs = make_inputs(257, 257, nheads=1, nheads_k=1, dtype=FP8, deviation=4.0)
    assert_matches_contract(inputs, causal=True, p_mode=p_mode, block_scale=block_scale)


SHAPES = {
    "gqa6": {"seqlen_q": 257, "seqlen_k": 257, "nheads": 6, "nheads_k": 1},
    "q-shorter": {"seqlen_q": 100, "seqlen_k": 300, "nheads": 2, "nheads_k": 2},
    "q-longer": {"seqlen_q": 300, "seqlen_k": 100, "nheads": 1, "nheads_k": 1},
    "batch2": {"seqlen_q": 70, "seqlen_k": 131, "nheads": 2, "nheads_k": 1, "batch": 2},
}


@pytest.mark.parametrize("p_mode", ["lean", "exact"])
@pytest.mark.parametrize("shape", SHAPES)
def test_fp8_shapes(shape: str, p_mode: str) -> None:
    inputs = make_inputs(**SHAPES[shape], dtype=FP8)
    assert_matches_contract(inputs, causal=True, p_mode=p_mode, block_scale=True)


@pytest.mark.parametrize("layout", ["transposed", "packed", "offset"])
def test_fp8_strides(layout: str) -> None:
    inputs = make_inputs(130, 130, nheads=2, nheads_k=1, dtype=FP8, layout=layout)
    assert_matches_contract(inputs, causal=True, p_mode="lean", block_scale=True)


MEANS = {
    "128": {"seqlen_q": 257, "seqlen_k": 257, "nheads": 1, "nheads_k": 1},
    "192": {"seqlen_q": 130, "seqlen_k": 200, "nheads": 1, "nheads_k": 1, "headdim": 192},
    "rows-without-keys": {"seqlen_q": 300, "seqlen_k": 100, "nheads": 1, "nheads_k": 1},
    "gqa2-batch2": {"seqlen_q": 70, "seqlen_k": 131, "nheads": 4, "nheads_k": 2, "batch": 2},
    "packed": {"seqlen_q": 130, "seqlen_k": 130, "nheads": 2, "nheads_k": 1, "layout": "packed"},
}


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "full"])
@pytest.mark.parametrize("shape", MEANS)
def test_fp8_with_the_mean_of_v(shape: str, causal: bool) -> None:
    inputs = make_inputs(**MEANS[shape], dtype=FP8, v_mean=True)
    assert_matches_contract(inputs, causal=causal, p_mode="lean", block_scale=True)
    if shape == "rows-without-keys" and causal:
        out, _, _ = emulate(inputs)
        assert not out[:, :200].any()


def test_a_mean_of_v_with_other_strides() -> None:
    inputs = make_inputs(70, 70, nheads=4, nheads_k=2, batch=2, dtype=FP8, v_mean=True)
    assert inputs.v_mean is not None
    wide = torch.full((3, 3, 131), float("nan"))
    wide[1:, :2, 3:] = inputs.v_mean
    there, _, run = emulate(replace(inputs, v_mean=wide[1:, :2, 3:]))
    assert run.findings == []
    assert torch.equal(there, emulate(inputs)[0])


def test_fp8_real_activations() -> None:
    """The shipped sample: peaked rows with a sink, 6 query heads of one key head cut to 2."""
    sample = activations.load(activations.SAMPLE).cut(seqlen=320, heads=2)
    scales = [t.float().abs().amax((1, 3)) / 448.0 for t in (sample.q, sample.k, sample.v)]
    scales[0] = scales[0].amax(1, keepdim=True)
    q, k, v = (
        (t.float() / scale[:, None, :, None]).to(FP8)
        for t, scale in zip((sample.q, sample.k, sample.v), scales, strict=True)
    )
    inputs = Inputs(q, k, v, *scales)
    for p_mode in ("lean", "exact"):
        assert_matches_contract(inputs, causal=True, p_mode=p_mode, block_scale=True)


def real_inputs(seqlen: int, headdim: int, dtype: torch.dtype, heads: int = 1) -> Inputs:
    """Real q, k, v; for 192 the next query head's (or V's) first 64 channels are appended."""
    sample = activations.load(activations.SAMPLE).cut(seqlen=seqlen)
    q, k, v = sample.q[:, :, :heads], sample.k, sample.v
    if headdim == 192:
        q = torch.cat([q, sample.q[:, :, -1:, :64].expand(-1, -1, heads, -1)], -1)
        k = torch.cat([k, v[..., :64]], -1)
    return Inputs(q.to(dtype), k.to(dtype), v.to(dtype))


@pytest.mark.parametrize("seqlen", LENGTHS)
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "full"])
@pytest.mark.parametrize("headdim", [128, 192])
def test_bf16_against_fp64(headdim: int, causal: bool, seqlen: int) -> None:
    inputs = real_inputs(seqlen, headdim, torch.bfloat16)
    out, lse, run = emulate(inputs, causal=causal)
    assert run.findings == []
    ref, ref_lse = attention_ref(inputs.q, inputs.k, inputs.v, causal=causal)
    assert (out.double() - ref).norm() <= 2e-3 * ref.norm()
    torch.testing.assert_close(lse.double(), ref_lse, atol=1e-4, rtol=1e-6)


def test_fp16_grouped_heads_against_fp64() -> None:
    inputs = real_inputs(257, 128, torch.float16, heads=2)
    out, _, run = emulate(inputs)
    assert run.findings == []
    ref, _ = attention_ref(inputs.q, inputs.k, inputs.v, causal=True)
    assert (out.double() - ref).norm() <= 3e-4 * ref.norm()


@pytest.mark.parametrize("seed", range(4))
def test_results_do_not_depend_on_the_interleaving(seed: int) -> None:
    inputs = make_inputs(200, 330, nheads=1, nheads_k=1, dtype=FP8)
    lockstep, lse, _ = emulate(inputs)
    interleaved, other_lse, run = emulate(inputs, seed=seed)
    assert run.findings == []
    assert torch.equal(lockstep, interleaved) and torch.equal(lse, other_lse)


@pytest.mark.parametrize("config", [(128, 4, 1), (64, 2, 2), (256, 8, 2)], ids=str)
def test_other_configurations(config: tuple[int, int, int]) -> None:
    block_m, num_warps, num_stages = config
    inputs = make_inputs(300, 300, nheads=1, nheads_k=1, dtype=FP8)
    first, _, _ = emulate(inputs)
    out, _, run = emulate(
        inputs,
        config={
            "BLOCK_M": block_m,
            "BLOCK_N": 64,
            "num_warps": num_warps,
            "num_stages": num_stages,
            "waves_per_eu": 2,
        },
    )
    assert run.findings == []
    assert torch.equal(out, first)


def test_equal_rows_of_v_are_refused_by_the_capture() -> None:
    inputs = make_inputs(64, 64, nheads=1, nheads_k=1, dtype=FP8)
    inputs.v[:, 1] = inputs.v[:, 0]
    with pytest.raises(RuntimeError, match="rows of V are equal"):
        emulate(inputs, capture=True)


def test_findings_are_errors_for_the_op(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tensor that ends too early: the machine code reads past it, and the call says so."""
    from zyfa_triton import flash_attn_func

    inputs = make_inputs(64, 64, nheads=1, nheads_k=1, dtype=torch.bfloat16)
    real = emulated._span

    def cut(tensor: torch.Tensor) -> Any:
        span = real(tensor)
        return span[: len(span) // 2] if tensor is inputs.k else span

    monkeypatch.setattr(emulated, "_span", cut)
    with pytest.raises(emulated.EmulatorFindingsError, match="of 'k'"):
        flash_attn_func(inputs.q, inputs.k, inputs.v, backend="emulated")
