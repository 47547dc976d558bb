"""Transformers models whose prefill runs on the device, against eager attention in float32."""

from __future__ import annotations

import pytest
import torch

from tests.unit.test_transformers import (
    CONFIGS,
    FAMILIES,
    Calls,
    Expected,
    build,
    cached_logits,
    logits,
    prefill_logits,
    tokens,
)
from zyfa_triton.integrations.transformers import PRECISIONS, register

LENGTH = 200


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    return Calls(monkeypatch)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("family", FAMILIES)
def test_prefill_in_one_call_and_in_parts(family: str, precision: str, calls: Calls) -> None:
    config, ids = CONFIGS[family](), tokens(2, LENGTH)
    if getattr(config, "sliding_window", None) is not None:
        config.sliding_window = LENGTH
    expected = Expected(config, precision, input_ids=ids)
    name = register(precision=precision, fallback="error")
    model = build(config, name, torch.bfloat16).to("cuda")
    expected.check(logits(model, input_ids=ids.to("cuda")).cpu())
    expected.check(cached_logits(model, ids.to("cuda"), (130, 7, 63)).cpu())
    assert len(calls.shapes) == 4 * config.num_hidden_layers


def test_generating(calls: Calls) -> None:
    config, ids = CONFIGS["llama"](), tokens(1, LENGTH).to("cuda")
    model = build(config, register(), torch.bfloat16).to("cuda")
    out = model.generate(ids, max_new_tokens=3, do_sample=False)
    assert out.shape[1] > LENGTH
    assert [q[1] for q, _ in calls.shapes] == [LENGTH] * config.num_hidden_layers


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_model_compiled_by_inductor(precision: str, calls: Calls) -> None:
    config, ids = CONFIGS["llama"](), tokens(1, LENGTH)
    expected = Expected(config, precision, input_ids=ids)
    model = build(config, register(precision=precision), torch.bfloat16).to("cuda")
    compiled = torch.compile(model, fullgraph=True)
    expected.check(prefill_logits(compiled, ids.to("cuda")).cpu())
    assert calls.shapes
