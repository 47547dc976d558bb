"""The gate: right results pass in every precision, and each kind of wrong one is stopped."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from zyfa_triton import activations, flash_attn_func
from zyfa_triton.arch import cuda_arch
from zyfa_triton.benchmark import gate, inputs
from zyfa_triton.benchmark.gate import Gate, Output
from zyfa_triton.benchmark.inputs import Problem
from zyfa_triton.benchmark.shapes import Case, Shape
from zyfa_triton.problem import FP8
from zyfa_triton.reference import attention_ref
from zyfa_triton.testing import check_gain, check_output

SHAPE = Shape(200, 2, 1, batch=2)
REAL = activations.load(activations.SAMPLE)
Change = Callable[[torch.Tensor], torch.Tensor]


def problem(shape: Shape = SHAPE, captured: activations.Activations | None = None) -> Problem:
    case = Case(shape, ("fp8", "bf16"))
    return inputs.make(case, captured, device=torch.device("cpu"), l2_bytes=1)


def truth(made: Problem, dtype: str, causal: bool = True) -> torch.Tensor:
    seen = made.sets[0].seen(dtype)
    return attention_ref(**seen, softmax_scale=made.softmax_scale, causal=causal)[0]


@pytest.mark.parametrize("captured", [None, REAL], ids=["gaussian", "real"])
@pytest.mark.parametrize("p_mode", ["lean", "exact"])
def test_our_fp8_passes(p_mode: str, captured: activations.Activations | None) -> None:
    made = problem(captured=captured)
    first = made.sets[0]
    q, k, v = first.codes()
    out = flash_attn_func(
        q, k, v, made.softmax_scale, True, p_mode=p_mode, block_scale=False, **first.descales()
    )
    judge = Gate(made, "fp8")
    verdict = judge.judge(Output(out))
    assert verdict.complaint == ""
    expected = (out.double() - truth(made, "fp8")).norm() / truth(made, "fp8").norm()
    assert verdict.rel_err == pytest.approx(expected.item())
    # "exact" is the model's scheme, but it sums the rounded P, which is better
    ratio = verdict.rel_err / judge.model_error
    assert 0.5 < ratio < (1.2 if p_mode == "lean" else 1.05)


@pytest.mark.parametrize("headdim", [128, 192])
@pytest.mark.parametrize("causal", [True, False])
def test_bf16_passes(headdim: int, causal: bool) -> None:
    made = problem(Shape(257, 3, 1, headdim=headdim, causal=causal))
    first = made.sets[0]
    out = flash_attn_func(first.q, first.k, first.v, made.softmax_scale, causal)
    verdict = Gate(made, "bf16").judge(Output(out))
    assert verdict.complaint == "" and verdict.rel_err < 4e-3


def test_an_e4m3_output_passes_with_its_scale_and_not_without() -> None:
    made = problem()
    ref = truth(made, "fp8")
    scale = 448.0 / ref.abs().max().item()
    codes = (ref * scale).float().to(FP8)
    assert Gate(made, "fp8").judge(Output(codes, 1.0 / scale)).complaint == ""
    assert Gate(made, "fp8").judge(Output(codes)).complaint != ""


def test_a_bfloat16_output_is_not_allowed_the_rounding_of_e4m3() -> None:
    made = problem()
    ref = truth(made, "bf16")
    coarse = ref.float().to(FP8).float().to(torch.bfloat16)
    assert "error" in Gate(made, "bf16").judge(Output(coarse)).complaint


def late_row(out: torch.Tensor) -> torch.Tensor:
    out[1, -1, 1] *= 1.2  # small values, which a norm over all rows does not see
    return out


def not_written(out: torch.Tensor) -> torch.Tensor:
    out[0, 150, 1, 64:] = float("nan")
    return out


def heads_swapped(out: torch.Tensor) -> torch.Tensor:
    return out[:, :, [1, 0]]


def batch_swapped(out: torch.Tensor) -> torch.Tensor:
    return out.flip(0)


WRONG: dict[str, Change] = {
    "late row": late_row,
    "not written": not_written,
    "heads swapped": heads_swapped,
    "batch entries swapped": batch_swapped,
    "scaled": lambda out: out * 1.02,
    "zeros": torch.zeros_like,
    "shape": lambda out: out[:, :-1],
}


@pytest.mark.parametrize("dtype", ["fp8", "bf16"])
@pytest.mark.parametrize("name", WRONG)
def test_wrong_results_are_stopped(name: str, dtype: str) -> None:
    made = problem()
    out = truth(made, dtype).to(torch.bfloat16)
    judge = Gate(made, dtype)
    assert judge.judge(Output(out)).complaint == ""
    assert judge.judge(Output(WRONG[name](out.clone()))).complaint != ""


@pytest.mark.parametrize("dtype", ["fp8", "bf16"])
def test_a_missing_mask_is_stopped(dtype: str) -> None:
    made = problem()
    out = truth(made, dtype, causal=False).to(torch.bfloat16)
    assert Gate(made, dtype).judge(Output(out)).complaint != ""


def test_all_rows_are_looked_at_where_there_are_few() -> None:
    assert torch.equal(gate.sampled_rows(SHAPE), torch.arange(200))


@pytest.mark.parametrize("seqlen", [16384, 131072, 100_003])
def test_rows_are_spread_where_there_are_many(seqlen: int) -> None:
    shape = Shape(seqlen, 128, 128)
    rows = gate.sampled_rows(shape)
    assert bool((rows[1:] > rows[:-1]).all())
    assert rows[0] == 0 and rows[-1] == seqlen - 1
    assert {1, 127, 128, 129} <= set(rows.tolist())
    spacing = (rows[1:] - rows[:-1]).max().item()
    assert spacing <= 2 * seqlen / len(rows) + 1
    assert 256 <= len(rows) <= max(256, gate.MAX_SCORES // (seqlen * 128)) + 7


@pytest.mark.parametrize("causal", [True, False])
def test_reference_of_some_rows_is_that_of_all(
    causal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "_CHUNK_SCORES", 5000)  # several chunks
    made = problem(Shape(300, 4, 2, batch=2, causal=causal))
    rows = torch.tensor([0, 1, 7, 128, 150, 151, 298, 299])
    ref, low, lost = gate.reference_rows(
        **made.sets[0].seen("fp8"), rows=rows, softmax_scale=made.softmax_scale, causal=causal
    )
    expected = truth(made, "fp8", causal)[:, rows]
    assert lost is None
    assert torch.allclose(ref, expected, rtol=1e-12, atol=1e-14)
    error = (low - ref).norm() / ref.norm()
    assert 1e-4 < error < 3e-2


def test_a_wrong_row_is_found_among_sampled_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "MAX_SCORES", 1)
    made = problem(Shape(2048, 1, 1))
    judge = Gate(made, "bf16")
    assert len(judge.rows) < 300
    out = truth(made, "bf16").to(torch.bfloat16)
    assert judge.judge(Output(out)).complaint == ""
    out[0, 1024:] *= 1.2
    assert judge.judge(Output(out)).complaint != ""


def truncated(p: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """p @ values as Hopper accumulates it: 32 keys at a time, 13 fraction bits, towards zero."""
    total = torch.zeros(p.shape[0], values.shape[1], dtype=torch.float64)
    for first in range(0, p.shape[1], 32):
        added = p[:, first : first + 32] @ values[first : first + 32]
        larger = torch.maximum(total.abs(), added.abs()).clamp(min=1e-300)
        unit = torch.exp2(torch.floor(torch.log2(larger)) - 13)
        total = torch.trunc((total + added) / unit) * unit
    return total


def long_rows(seqlen: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Probabilities of 24 rows and values, without a mask."""
    generator = torch.Generator().manual_seed(1)
    scores = torch.randn(24, seqlen, generator=generator, dtype=torch.float64)
    values = torch.randn(seqlen, 128, generator=generator, dtype=torch.float64)
    return torch.softmax(scores, -1), values


@pytest.mark.parametrize("seqlen", [1000, 8192])
def test_what_truncation_loses_is_foreseen(seqlen: int) -> None:
    p, values = long_rows(seqlen)
    foreseen = gate.lost_in_sums(p, values)
    error = (truncated(p, values) - p @ values).square().mean().sqrt()
    assert 0.4 < error / foreseen.square().mean().sqrt() < 1.2


def test_long_truncated_sums_pass_on_hopper_alone() -> None:
    """32K keys, which cost the result 2 % of its size: more than is else allowed."""
    p, values = long_rows(32768)
    ref, lost = p @ values, gate.lost_in_sums(p, values)
    out = truncated(p, values)
    check_gain(out, ref, accumulation=lost)
    with pytest.raises(AssertionError, match="times the reference"):
        check_gain(out, ref)
    check_output(out, ref, ref, is_fp8=True, out_dtype=torch.bfloat16, accumulation=lost)
    with pytest.raises(AssertionError, match="rms error"):
        check_output(out, ref, ref, is_fp8=True, out_dtype=torch.bfloat16)
    for wrong in (out * 1.1, out * 0.9):
        with pytest.raises(AssertionError):
            check_gain(wrong, ref, accumulation=lost)


def test_only_hopper_truncates(monkeypatch: pytest.MonkeyPatch) -> None:
    made = problem()
    assert not Gate(made, "fp8").truncates, "a CPU does not"
    cuda = torch.device("cuda", 0)
    for major, expected in ((8, False), (9, True), (10, False)):
        monkeypatch.setattr(gate, "arch_of", lambda index, major=major: cuda_arch(major, 0))
        assert gate.truncates_sums(cuda) is expected
