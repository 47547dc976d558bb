"""`zyfa bench` on a device: our paths are judged, captured in a graph and timed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from zyfa_triton.benchmark import card, sampling
from zyfa_triton.cli import main

SHORT = ["--rounds", "1", "--settle", "0", "--seconds", "0.02"]


@pytest.mark.parametrize("quantise", [False, True])
def test_our_paths_are_timed(quantise: bool, e4m3_device: torch.device, tmp_path: Path) -> None:
    target = tmp_path / "rows.json"
    arguments = ["--seqlen", "640", "--nheads", "4", "--nheads-k", "2", "--batch", "2"]
    arguments += ["--paths", "zyfa-auto*", "--activations", "sample", "--json", str(target)]
    arguments += ["--quantise"] if quantise else []
    assert main(["bench", *arguments, *SHORT]) == 0
    rows = json.loads(target.read_text())
    assert {row["inputs"] for row in rows} == {"gaussian", "prose1k_L14"}
    assert {row["path"] for row in rows} == {"zyfa-auto", "zyfa-auto-lean", "zyfa-auto-exact"}
    for row in rows:
        assert "reason" not in row, row["reason"]
        assert row["graph"] is True and row["calls_a_sample"] >= 2
        assert 0 < row["ms_p20"] <= row["ms_median"] <= row["ms_p80"] < 100
        assert row["rel_err_same_inputs"] < (5e-3 if row["dtype"] == "bf16" else 0.05)
        assert row["environment"]["device"] == torch.cuda.get_device_name()


def test_poisoned_memory_is_what_comes_next(device: torch.device) -> None:
    size = 1 << 28  # larger than what other tests have left free between what they keep
    card.poison(device, size)
    # both first: what isnan() needs comes from the same memory
    fresh = [torch.empty(size // 2, dtype=torch.bfloat16, device=device) for _ in range(2)]
    assert all(bool(memory.isnan().all()) for memory in fresh)


def test_a_sensor_reads_the_clock(device: torch.device) -> None:
    found = card.found()
    assert found is not None
    with found.sampler() as sampler:
        if sampler.source.startswith("none"):
            pytest.skip(sampler.source)
        begun = found.clock()
        a = torch.randn(4096, 4096, device=device)
        while found.clock() - begun < 0.5:
            a @ a
            torch.cuda.synchronize()
        state = sampling.state(sampler.readings, [(begun, found.clock())])
    assert state.clock_mhz is not None and 100 < state.clock_mhz < 4000
    assert state.power_w is not None and 10 < state.power_w < 2000
