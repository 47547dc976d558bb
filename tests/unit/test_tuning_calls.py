"""What calls on a Hopper card measure, store and take, without the card: nothing is launched."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from zyfa_triton import (
    arch,
    dispatch,
    flash_attn_fp8_func,
    flash_attn_func,
    flash_attn_mla_func,
    tuning,
    warmup,
)
from zyfa_triton.arch import cuda_arch
from zyfa_triton.backends import device
from zyfa_triton.kernels.hopper import launch, loop
from zyfa_triton.problem import Problem
from zyfa_triton.testing import Inputs, make_inputs
from zyfa_triton.tuning import autotune, choice, store

KEY = tuning.TuningKey("sm90", "bf16", 192, 128, True, "exact", False, 1024, False)
STORED: dict[str, Any] = {"BLOCK_N": 128, "num_stages": 2, "OVERLAP": True, "kernel": "gluon"}


class Card:
    """launched: names of kernels. compared: kernels whose configurations were measured, one set a
    measurement; the last configuration wins."""

    def __init__(self) -> None:
        self.launched: list[str] = []
        self.compared: list[set[str]] = []

    def launch(self, kernel: Any, grid: Any, arguments: Mapping[str, Any]) -> None:
        self.launched.append(kernel.__name__)

    def measure(self, key: Any, configs: Any, launch: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        self.compared.append({tuning.kernel_of(config) for config in configs})
        launch(configs[-1])
        return configs[-1], {"milliseconds": 1.0}


@pytest.fixture(autouse=True)
def card(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Card:
    made = Card()
    for module in (arch, device):
        monkeypatch.setattr(module, "arch_of", lambda index: cuda_arch(9, 0))
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(launch, "_multiprocessors", lambda device: 132)
    monkeypatch.setattr(loop, "loop_of", lambda *kind: f"loop {kind}")
    monkeypatch.setattr(device, "enqueue", made.launch)
    monkeypatch.setattr(device, "unavailable", lambda: None)
    monkeypatch.setattr(dispatch, "choose_backend", lambda asked, device: "device")
    monkeypatch.setattr(dispatch, "choose_block_scale", lambda *arguments, **options: False)
    monkeypatch.setattr(autotune, "measure", made.measure)
    monkeypatch.setenv("ZYFA_TUNING_FILE", str(tmp_path / "user.json"))
    monkeypatch.setattr(store, "SHIPPED", tmp_path / "shipped")
    monkeypatch.setattr(choice, "_files", choice._Files())
    store.save(tmp_path / "shipped" / "sm90.json", KEY, STORED, {})
    return made


def whole() -> Inputs:
    return make_inputs(1000, 1000, nheads=1, nheads_k=1, headdim=192)


def taken(x: Inputs, kernel: str = "auto") -> dict[str, Any]:
    """What a call takes that measures nothing."""
    with tuning.observed() as seen:
        flash_attn_func(x.q, x.k, x.v, causal=True, kernel=kernel)
    (config,) = seen
    return config


def parts(x: Inputs, *, is_aligned: bool = True) -> dict[str, Any]:
    """The arguments of `warmup` for the same call in two parts, k's second with rows of 130 bytes
    if it is not aligned."""
    named = {"q": x.q[..., :128].contiguous(), "k": x.k[..., :128].contiguous(), "v": x.v}
    k_rope = x.k[..., 128:] if is_aligned else x.k.new_zeros(1, 1000, 1, 65)[..., :64]
    return {**named, "rope": (x.q[..., 128:].contiguous(), k_rope)}


def misaligned(x: Inputs) -> Inputs:
    wide = x.k.new_zeros(1, 1000, 1, 193)
    return replace(x, k=wide[..., :192])


def of_parts(x: Inputs, **kind: bool) -> dict[str, Any]:
    given = parts(x, **kind)
    with tuning.observed() as seen:
        flash_attn_mla_func(
            given["q"], given["rope"][0], given["k"], given["rope"][1], x.v, causal=True
        )
    (config,) = seen
    return config


def test_an_old_file_serves_and_does_not_speak_of_others(card: Card) -> None:
    x = whole()
    assert taken(x) == taken(x, "gluon") == STORED
    assert of_parts(x) == STORED
    triton = [taken(x, "triton"), taken(misaligned(x)), of_parts(x, is_aligned=False)]
    assert triton == 3 * [tuning.default(KEY)]
    assert tuning.kernel_of(taken(x, "ptx")) == "ptx"
    assert card.compared == []


def test_what_is_measured_of_misplaced_parts_is_found_by_them_and_displaces_nothing(
    card: Card, tmp_path: Path
) -> None:
    x = whole()
    found = warmup(**parts(x, is_aligned=False), causal=True, tune=True)
    assert card.compared == [{"triton"}]
    assert found == tuning.candidates(KEY)[-1] != tuning.default(KEY)
    triton = [taken(x, "triton"), taken(misaligned(x)), of_parts(x, is_aligned=False)]
    assert triton == 3 * [found]
    assert taken(x) == of_parts(x) == STORED
    (entry,) = json.loads((tmp_path / "user.json").read_text())["entries"]
    assert (entry["without"], entry["config"]) == (["gluon", "ptx"], found)
    # and the other way round
    best = warmup(**parts(x), causal=True, tune=True)
    assert card.compared[1:] == [{"triton", "gluon", "ptx"}]
    assert taken(x) == of_parts(x) == best != STORED
    assert of_parts(x, is_aligned=False) == taken(misaligned(x)) == found


def test_what_is_measured_of_misaligned_rows_displaces_nothing(card: Card) -> None:
    x = misaligned(whole())
    found = warmup(x.q, x.k, x.v, causal=True, tune=True)
    assert card.compared == [{"triton"}]
    assert (taken(x), taken(whole())) == (found, STORED)


@pytest.mark.parametrize("kernel", ["triton", "gluon", "ptx"])
def test_a_kernel_asked_for_by_name_is_measured_alone_and_used_from_then_on(
    card: Card, kernel: str
) -> None:
    x = whole()
    found = warmup(x.q, x.k, x.v, causal=True, tune=True, kernel=kernel)
    assert card.compared == [{kernel}]
    assert tuning.kernel_of(found) == kernel
    assert found == taken(x, kernel)
    assert found not in (STORED, tuning.default(KEY))
    assert taken(x) == STORED


def test_with_tuning_on_calls_of_each_kind_are_measured_once(
    card: Card, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZYFA_TUNE", "on")
    x = whole()
    for _ in range(2):
        taken(x)  # is stored
        of_parts(x)
        of_parts(x, is_aligned=False)
        taken(misaligned(x))
        taken(x, "triton")
        taken(x, "ptx")
    assert card.compared == [{"triton"}, {"ptx"}]


@pytest.mark.parametrize("kernel", ["auto", "gluon", "triton"])
@pytest.mark.parametrize("is_tuning", [False, True])
def test_after_a_warmup_calls_launch_what_it_launched(
    card: Card, monkeypatch: pytest.MonkeyPatch, is_tuning: bool, kernel: str
) -> None:
    """With ZYFA_TUNE=on it measures first, which launches other kernels than a call does."""
    monkeypatch.setenv("ZYFA_TUNE", "on" if is_tuning else "off")
    x = make_inputs(300, 300, nheads=1, nheads_k=1)
    options: dict[str, Any] = {"causal": True, "p_mode": "exact", "kernel": kernel}
    found = warmup(x.q, x.k, x.v, quantize=True, **options)
    assert len(card.compared) == is_tuning
    warm = set(card.launched)
    card.launched.clear()
    with tuning.observed() as seen:
        flash_attn_fp8_func(x.q, x.k, x.v, **options)
    assert seen == [found]
    assert card.launched and set(card.launched) <= warm


def test_on_gfx950_parts_do_not_take_what_only_whole_tensors_do(tmp_path: Path) -> None:
    x = whole()
    key = replace(KEY, target="gfx950")
    problem = Problem.of(
        x.q, x.k, x.v, causal=True, p_mode="exact", block_scale=False,
        out_dtype=torch.bfloat16, return_lse=False,
    )  # fmt: skip
    arguments: dict[str, Any] = {f"{name}_ptr": getattr(x, name) for name in "qkv"}
    arguments |= {"o_ptr": x.v, "k_rope_ptr": None}
    arguments |= {f"stride_{name}{axis}": 1024 for name in "qkvo" for axis in "bsh"}
    in_parts = {**arguments, "k_rope_ptr": x.k}
    assert tuning.ruled_out("auto", problem, key, arguments) == {"pingpong"}
    assert tuning.ruled_out("auto", problem, key, in_parts) == {"pingpong", "hip"}
    hip = {"BLOCK_M": 256, "BLOCK_N": 64, "num_warps": 8, "kernel": "hip"}
    triton = tuning.candidates(key)[-1]
    path = tmp_path / "user.json"
    store.save(path, key, hip, {}, tuning.ruled_out("auto", problem, key, arguments))
    store.save(path, key, triton, {}, tuning.ruled_out("auto", problem, key, in_parts))
    for given, expected in ((arguments, hip), (in_parts, triton)):
        found = tuning.select(
            "auto", problem, key, given, lambda without: tuning.resolve(key, without)
        )
        assert found == expected
