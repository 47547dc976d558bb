"""How runs are compared: the error measures themselves, and that a wrong output is seen."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from zyfa_triton import activations, numerics
from zyfa_triton.measure import (
    ContractMatch,
    Inputs,
    _contract_match,
    measure,
    relative_error,
    row_errors,
)


def sample(dtype: str = "fp8", seqlen: int = 96) -> Inputs:
    return Inputs.of(activations.load(activations.SAMPLE).cut(seqlen=seqlen, heads=1), dtype)


def test_relative_error_is_a_ratio_of_norms() -> None:
    truth = torch.tensor([3.0, 4.0], dtype=torch.float64)
    assert relative_error(truth + torch.tensor([0.0, 0.5]), truth) == pytest.approx(0.1)
    assert relative_error(truth, truth) == 0.0
    assert relative_error(torch.zeros(2), torch.zeros(2)) == 0.0
    assert relative_error(torch.tensor([math.nan, 4.0]), truth) == math.inf


def test_row_errors_have_one_entry_a_row() -> None:
    truth = torch.ones(1, 3, 2, 4, dtype=torch.float64)
    out = truth.clone()
    out[0, 1, 0] *= 1.25
    errors = row_errors(out, truth)
    assert errors.shape == (1, 3, 2)
    assert errors[0, 1, 0].item() == pytest.approx(0.25)
    assert errors.sum().item() == pytest.approx(0.25)


def test_quantised_inputs_carry_their_scales() -> None:
    inputs = sample()
    original = inputs.original.k.double()
    assert inputs.k_descale is not None
    back = inputs.k.double() * inputs.k_descale.double()[:, None, :, None]
    assert relative_error(back, original) < 0.04  # e4m3 has 3 fraction bits
    assert inputs.k.double().abs().max().item() == 448.0
    plain = sample("bf16")
    assert plain.k_descale is None
    assert torch.equal(plain.k, plain.original.k)


def test_error_on_the_same_inputs_leaves_the_quantisation_of_the_inputs_out() -> None:
    row = measure(sample(), backend="reference").row
    assert row.rel_err_same_inputs < 0.01 < 0.05 < row.rel_err_original_inputs


def test_reference_back_end_keeps_the_contract() -> None:
    for p_mode in numerics.P_MODES:
        row = measure(sample(), backend="reference", p_mode=p_mode).row
        assert row.matches_contract == ContractMatch(None, 0.0)
        assert row.block_scale is (p_mode != "unscaled")


def test_one_wrong_code_of_p_is_seen() -> None:
    inputs = sample()
    model = numerics.attention(
        inputs.q, inputs.k, inputs.v, causal=True, return_codes=True, **inputs.scales()
    )
    assert model.codes is not None
    out = model.out.to(torch.bfloat16)
    good = _contract_match(inputs, True, "lean", True, out, model.codes)
    assert good == ContractMatch(True, 0.0)
    wrong = model.codes.clone()
    wrong[0, 0, 40, 3] += 1
    bad = _contract_match(inputs, True, "lean", True, out, wrong)
    assert bad == ContractMatch(False, 0.0)


def test_another_p_mode_is_not_taken_for_the_contract() -> None:
    inputs = sample()
    exact = measure(inputs, backend="reference", p_mode="exact").out
    match = _contract_match(inputs, True, "lean", True, exact, None)
    assert match is not None
    assert match.max_output_difference > 0


def test_fp8_keeps_more_error_than_16_bit() -> None:
    fp8 = measure(sample(), backend="reference").row
    bf16 = measure(sample("bf16"), backend="reference").row
    assert bf16.matches_contract is None
    assert bf16.p_mode == "exact"
    assert bf16.rel_err_same_inputs < fp8.rel_err_same_inputs
    assert replace(bf16, seconds=0.0).as_json()["seconds"] == 0.0
