"""The compiled form of the contract has the contract's bits."""

from __future__ import annotations

import pytest
import torch

from zyfa_triton import activations, numerics, quantize_fp8
from zyfa_triton.numerics import ContractOptions
from zyfa_triton.numerics_compiled import ROWS, causal_attention

OPTIONS = {
    "lean": ContractOptions("lean", block_scale=True),
    "lean constant": ContractOptions("lean", block_scale=False),
    "exact": ContractOptions("exact", block_scale=True),
    "exact constant": ContractOptions("exact", block_scale=False, row_sum="unrounded"),
    "unscaled": ContractOptions("unscaled", block_scale=False),
}


@pytest.mark.parametrize("removed", [False, True], ids=["plain", "v_mean"])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_every_bit_is_the_contracts(options: ContractOptions, removed: bool) -> None:
    inputs = activations.load(activations.SAMPLE).cut(seqlen=2 * ROWS)
    q, q_descale = quantize_fp8(inputs.q, nheads_k=inputs.nheads_k)[:2]
    k, k_descale = quantize_fp8(inputs.k)[:2]
    v, v_descale, *v_mean = quantize_fp8(inputs.v, subtract_mean=removed)
    arguments = {
        "softmax_scale": inputs.softmax_scale,
        "options": options,
        "q_descale": q_descale,
        "k_descale": k_descale,
        "v_descale": v_descale,
        "v_mean": v_mean[0] if v_mean else None,
    }
    expected = numerics.attention(q, k, v, causal=True, **arguments).out
    assert torch.equal(causal_attention(q, k, v, **arguments), expected)


def test_lengths_and_options_that_it_does_not_do_are_refused() -> None:
    q = torch.zeros(1, ROWS + 1, 1, 128).to(torch.float8_e4m3fn)
    one = torch.ones(1, 1)
    descales = {"q_descale": one, "k_descale": one, "v_descale": one}
    with pytest.raises(ValueError, match=r"^seqlen: got 257"):
        causal_attention(q, q, q, softmax_scale=1.0, options=ContractOptions(), **descales)
    q = q[:, :ROWS]
    with pytest.raises(ValueError, match=r"^options: got"):
        causal_attention(
            q, q, q, softmax_scale=1.0, options=ContractOptions(reverse=True), **descales
        )
