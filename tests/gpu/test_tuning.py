"""Tuning on a device: measured once, stored in a file, used from then on; few compilations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from zyfa_triton import arch, flash_attn_func, tuning, warmup
from zyfa_triton.kernels.attention import attention_forward
from zyfa_triton.problem import FP8
from zyfa_triton.testing import make_inputs
from zyfa_triton.tuning import autotune, choice, configurations, selection, store


@pytest.fixture(autouse=True)
def own_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    path = tmp_path / "tuning.json"
    monkeypatch.setenv("ZYFA_TUNING_FILE", str(path))
    monkeypatch.setattr(choice, "_files", choice._Files())
    return path


def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three candidates, of which one fits no device."""

    def candidates(key: tuning.TuningKey) -> list[dict[str, Any]]:
        default = configurations.default(key)
        return [default | {"BLOCK_M": 64, "num_warps": 4}, default, default | {"num_stages": 20}]

    monkeypatch.setattr(selection, "candidates", candidates)


def test_warmup_measures_stores_and_later_calls_use_it(
    e4m3_device: torch.device, own_file: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    few(monkeypatch)
    x = make_inputs(500, 500, dtype=FP8, device=e4m3_device)
    before = flash_attn_func(x.q, x.k, x.v, causal=True, **x.descales)
    config = warmup(x.q, x.k, x.v, causal=True, tune=True, **x.descales)
    (entry,) = json.loads(own_file.read_text())["entries"]
    assert entry["config"] == config
    assert entry["target"] == arch.arch_of(0).name
    assert entry["seqlen_bucket"] == 512
    assert 0 < entry["milliseconds"] < 100
    assert config["num_stages"] != 20

    def measure(*arguments: Any) -> Any:
        raise AssertionError("measured again")

    monkeypatch.setattr(autotune, "measure", measure)
    monkeypatch.setenv("ZYFA_TUNE", "on")
    with tuning.observed() as seen:
        after = flash_attn_func(x.q, x.k, x.v, causal=True, **x.descales)
    assert seen == [config]
    torch.testing.assert_close(after, before, rtol=2**-5, atol=2**-5)


def test_a_call_measures_only_if_tuning_is_on(
    e4m3_device: torch.device, own_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few(monkeypatch)
    x = make_inputs(100, 100, dtype=torch.bfloat16, device=e4m3_device)
    monkeypatch.setattr(store, "SHIPPED", own_file.parent / "nothing")
    flash_attn_func(x.q, x.k, x.v)
    assert not own_file.exists()
    monkeypatch.setenv("ZYFA_TUNE", "on")
    flash_attn_func(x.q, x.k, x.v)
    assert len(store.load(own_file)) == 1


def test_the_users_file_decides(e4m3_device: torch.device, own_file: Path) -> None:
    x = make_inputs(300, 300, dtype=torch.bfloat16, device=e4m3_device)
    key = tuning.TuningKey(arch.arch_of(0).name, "bf16", 128, 128, True, "exact", False, 512, False)
    mine = {"BLOCK_M": 64, "BLOCK_N": 32, "num_warps": 4, "num_stages": 1}
    store.save(own_file, key, mine, {})
    with tuning.observed() as seen:
        flash_attn_func(x.q, x.k, x.v, causal=True)
    assert seen == [mine]


def test_all_candidates_failing_is_an_error_with_the_reason(
    e4m3_device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        selection,
        "candidates",
        lambda key: [configurations.default(key) | {"num_stages": n} for n in (40, 50)],
    )
    x = make_inputs(300, 300, dtype=torch.float16, device=e4m3_device)
    with pytest.raises(autotune.NoConfigurationRanError, match="none of 2 configurations runs"):
        warmup(x.q, x.k, x.v, tune=True)


def test_a_hundred_lengths_compile_a_handful_of_kernels(e4m3_device: torch.device) -> None:
    attention_forward.device_caches.clear()
    for length in range(1, 3000, 29):
        x = make_inputs(length, length, dtype=FP8, device=e4m3_device)
        flash_attn_func(x.q, x.k, x.v, causal=True, kernel="triton", **x.descales)
    compiled = len(attention_forward.device_caches[0][0])
    assert 1 <= compiled <= 6, compiled


def test_every_candidate_of_this_target_is_right_or_refused(e4m3_device: torch.device) -> None:
    """A configuration changes speed, not results (beyond the order of sums)."""
    from zyfa_triton import dispatch

    x = make_inputs(300, 300, dtype=FP8, device=e4m3_device)
    key = tuning.TuningKey(arch.arch_of(0).name, "e4m3", 128, 128, True, "lean", False, 512, False)
    results = []
    for config in tuning.candidates(key)[:8]:
        out = torch.full((1, 300, 4, 128), float("nan"), device=e4m3_device)
        dispatch.run(
            x.q, x.k, x.v, out, None, softmax_scale=0.1, causal=True, p_mode="lean",
            block_scale=False, kernel="auto", backend="auto", config=config, **x.descales,
        )  # fmt: skip
        results.append(out)
    for out in results[1:]:
        assert float((out - results[0]).norm() / results[0].norm()) < 0.02
