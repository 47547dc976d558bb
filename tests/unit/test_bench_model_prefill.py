"""The shapes that whole passes are timed with are those of the models they are named after."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from bench import model_prefill
from bench.model_prefill import CONFIGS, Timing, config_of, readable

# Parameters as the models' cards give them, in thousand millions.
PARAMETERS = {"Mistral-7B": 7.25, "Qwen3-8B": 8.19, "DeepSeek-V2-Lite": 15.7}


@pytest.mark.parametrize("name", CONFIGS)
def test_parameters(name: str) -> None:
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config_of(name), dtype=torch.bfloat16)
    count = sum(parameter.numel() for parameter in model.parameters())
    assert count / 1e9 == pytest.approx(PARAMETERS[name], rel=0.01)


def test_mla_has_the_scale_of_its_position_embedding() -> None:
    """The yarn factor enters the softmax scale: (0.1 * 0.707 ln 40 + 1)^2 / sqrt(192)."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config_of("DeepSeek-V2-Lite"))
    assert model.model.layers[0].self_attn.scaling == pytest.approx(0.114722, rel=1e-4)


class Event:
    """A CUDA event where there is no CUDA: the clock is the number of events so far."""

    clock = 0

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        Event.clock += 1
        self.at = Event.clock

    def elapsed_time(self, last: Event) -> float:
        return float(last.at - self.at)


def tiny_model() -> Any:
    config = LlamaConfig(
        vocab_size=50, hidden_size=256, intermediate_size=64, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=2, head_dim=128,
    )  # fmt: skip
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()


def test_passes_take_turns_and_kernels_that_cannot_run_are_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    cudnn, *others = model_prefill.timings(
        "tiny", tiny_model(), 40, model_prefill.implementations("auto"), rounds=2
    )
    assert cudnn.implementation == "torch-cudnn" and not cudnn.whole
    assert "scaled_dot_product_attention" in cudnn.missing
    for timing in others:
        # a pass is two events around three layers of two events each
        assert timing.whole == [7.0, 7.0] and timing.attention == [3.0, 3.0], timing
        assert timing.error is not None and 0 < timing.error < 0.1


def test_attention_that_is_wrong_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    functions = model_prefill.implementations("auto")
    right = functions["zyfa-bf16"].function

    def not_causal(*arguments: Any, **options: Any) -> Any:
        return right(*arguments, **{**options, "is_causal": False})

    functions["zyfa-fp8"].function = not_causal
    model = tiny_model()
    *_, bf16, wrong = model_prefill.timings("tiny", model, 40, functions, rounds=1)
    assert bf16.whole and not bf16.missing
    assert not wrong.whole and wrong.missing.startswith("error ")


def test_the_table_compares_with_the_first_implementation_of_the_same_length() -> None:
    found = [
        Timing("m", 4096, "a", whole=[4.0, 2.0, 9.0], attention=[1.0, 1.0, 3.0], error=0.0),
        Timing("m", 4096, "b", whole=[2.0, 2.0, 2.0], attention=[0.5, 0.5, 0.5], error=0.01),
        Timing("m", 4096, "c", missing="out of memory"),
    ]
    lines = readable(found).splitlines()
    assert lines[2].split() == ["m", "4096", "a", "4.0", "1.0", "25%", "1.000", "0.0000"]
    assert lines[3].split() == ["m", "4096", "b", "2.0", "0.5", "25%", "2.000", "0.0100"]
    assert "out of memory" in lines[4]
