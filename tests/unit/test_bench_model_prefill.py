"""The shapes that whole passes are timed with are those of the models they are named after."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM

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


def test_the_table_compares_with_the_first_implementation_of_the_same_length() -> None:
    found = [
        Timing("m", 4096, "a", whole=[4.0, 2.0, 9.0], attention=[1.0, 1.0, 3.0], difference=0.0),
        Timing("m", 4096, "b", whole=[2.0, 2.0, 2.0], attention=[0.5, 0.5, 0.5], difference=0.01),
        Timing("m", 4096, "c", missing="out of memory"),
    ]
    lines = readable(found).splitlines()
    assert lines[2].split() == ["m", "4096", "a", "4.0", "1.0", "25%", "1.000", "0.0000"]
    assert lines[3].split() == ["m", "4096", "b", "2.0", "0.5", "25%", "2.000", "0.0100"]
    assert "out of memory" in lines[4]
