"""Which kernel and back end run; no choice falls back; those that cannot run say why."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import zyfa_triton
from zyfa_triton import BackendUnavailableError, arch, dispatch, flash_attn_func
from zyfa_triton.backends import NAMES, Unavailable, device, interpreter, reference
from zyfa_triton.problem import FP8, Problem
from zyfa_triton.testing import make_inputs

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)


def test_auto_is_the_device_of_the_tensors() -> None:
    assert dispatch.choose_backend("auto", CPU) == "reference"
    assert dispatch.choose_backend("auto", CUDA) == "device"
    assert dispatch.choose_kernel("auto") == "auto"  # the back end knows target and tuning


@pytest.mark.parametrize("backend", NAMES)
def test_an_explicit_back_end_is_kept_or_refused(backend: str) -> None:
    on_cpu, on_cuda = backend != "device", backend == "device"
    for where, accepted in ((CPU, on_cpu), (CUDA, on_cuda)):
        if accepted:
            assert dispatch.choose_backend(backend, where) == backend
        else:
            with pytest.raises(ValueError, match=f"backend: '?\"?{backend}"):
                dispatch.choose_backend(backend, where)


@pytest.mark.parametrize("backend", ["interpreter", "emulated", "reference"])
def test_a_back_end_that_cannot_run_is_an_error_and_nothing_else_runs(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unavailable() -> Unavailable:
        return Unavailable("it is away", "Wait for it")

    def run(*arguments: Any, **options: Any) -> None:
        raise AssertionError("ran")

    for name in ("interpreter", "emulated", "reference"):
        monkeypatch.setattr(dispatch.load_backend(name), "run", run)
    monkeypatch.setattr(dispatch.load_backend(backend), "unavailable", unavailable)
    x = make_inputs(3, 3)
    with pytest.raises(BackendUnavailableError) as caught:
        flash_attn_func(x.q, x.k, x.v, backend=backend)
    assert str(caught.value) == f'backend="{backend}" cannot run here: it is away. Wait for it'


def test_the_problem_that_reaches_a_back_end(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Problem] = []

    def run(problem: Problem, kernel: str, *tensors: torch.Tensor, **options: Any) -> None:
        assert kernel == "auto"
        seen.append(problem)
        tensors[3].zero_()

    monkeypatch.setattr(reference, "run", run)
    x = make_inputs(3, 5, headdim=192, nheads=6, batch=2, dtype=FP8)
    flash_attn_func(x.q, x.k, x.v, causal=True, p_mode="exact", return_lse=True)
    assert seen == [
        Problem(
            dtype=FP8,
            headdim=192,
            headdim_v=128,
            nheads=6,
            nheads_k=2,
            batch=2,
            seqlen_q=3,
            seqlen_k=5,
            causal=True,
            p_mode="exact",
            block_scale=True,
            out_dtype=torch.bfloat16,
            return_lse=True,
            device="cpu",
        )
    ]
    assert seen[0].group_size == 3


@pytest.mark.parametrize("p_mode", ["lean", "exact", "unscaled"])
def test_16_bit_inputs_have_one_mode_and_no_block_scale(
    p_mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Problem] = []
    original = reference.run

    def run(problem: Problem, *arguments: Any, **options: Any) -> None:
        seen.append(problem)
        original(problem, *arguments, **options)

    monkeypatch.setattr(reference, "run", run)
    x = make_inputs(9, 9)
    out = flash_attn_func(x.q, x.k, x.v, p_mode=p_mode)  # type: ignore[arg-type]
    assert (seen[0].p_mode, seen[0].block_scale) == ("exact", False)
    assert torch.equal(out, flash_attn_func(x.q, x.k, x.v))


def test_block_scale_is_on_where_it_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    def auto(backend: str, where: torch.device, **change: Any) -> bool:
        options = {"dtype": FP8, "p_mode": "lean", **change}
        return dispatch.choose_block_scale("auto", backend=backend, device=where, **options)

    for backend in ("interpreter", "emulated", "reference"):
        assert auto(backend, CPU)
        assert not auto(backend, CPU, p_mode="unscaled")
        assert not auto(backend, CPU, dtype=torch.bfloat16)
    for target, free in (
        (arch.GFX950, True),
        (arch.cuda_arch(9, 0), False),
        (arch.amd_arch("gfx942:sramecc+:xnack-"), False),
    ):
        monkeypatch.setattr(arch, "arch_of", lambda index, target=target: target)
        assert auto("device", CUDA) is free
    assert (
        dispatch.choose_block_scale(
            False, dtype=FP8, p_mode="lean", backend="reference", device=CPU
        )
        is False
    )


def test_targets_know_what_they_can() -> None:
    assert arch.cuda_arch(9, 0) == arch.Arch("sm90", has_e4m3=True)
    assert arch.cuda_arch(8, 9).has_e4m3
    assert not arch.cuda_arch(8, 0).has_e4m3
    assert arch.amd_arch("gfx950:sramecc+:xnack-") is arch.GFX950
    assert not arch.amd_arch("gfx942").has_e4m3  # fnuz only
    assert arch.GFX950.has_scaled_matrix


def test_a_device_without_e4m3_says_so() -> None:
    x = make_inputs(3, 3, dtype=FP8)
    problem = Problem.of(
        x.q, x.k, x.v, causal=False, p_mode="lean", block_scale=False,
        out_dtype=torch.bfloat16, return_lse=False,
    )  # fmt: skip
    with pytest.raises(BackendUnavailableError, match=r"gfx942 has no float8_e4m3fn.*bfloat16"):
        device._check_arch(problem, arch.amd_arch("gfx942"))


def test_capabilities_name_every_back_end_with_detail_or_reason_and_remedy() -> None:
    found = dispatch.capabilities()
    assert [one.backend for one in found] == list(NAMES)
    for one in found:
        assert bool(one.detail) == one.available
        assert bool(one.reason) == bool(one.remedy) == (not one.available)
    by_name = {one.backend: one for one in found}
    assert by_name["reference"].available
    if not torch.cuda.is_available():
        assert "no CUDA or ROCm device" in by_name["device"].reason


def test_unsupported_triton_versions_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import triton

    for version, accepted in (("3.5.1", False), ("3.6.0", True), ("3.9.2", True), ("3.10", False)):
        monkeypatch.setattr(triton, "__version__", version)
        why = interpreter.unavailable()
        assert (why is None) is accepted
        if why is not None:
            assert version in why.reason
            assert 'pip install "triton>=3.6,<3.10"' in why.remedy


BLOCKED = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "triton":
            raise ImportError("triton is not here")

sys.meta_path.insert(0, Blocker())
import importlib.util
real = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "triton" else real(name, *rest)
import torch
import zyfa_triton
from zyfa_triton import dispatch

q = torch.randn(1, 4, 2, 128).to(torch.bfloat16)
assert zyfa_triton.flash_attn_func(q, q, q).shape == q.shape
assert zyfa_triton.flash_attn_fp8_func(q, q, q, subtract_k_mean=True).shape == q.shape
works = {one.backend: one for one in dispatch.capabilities()}
assert works["reference"].available
for name in ("device", "interpreter", "emulated"):
    assert works[name].reason == "Triton is not installed", works[name]
    assert "pip install" in works[name].remedy
try:
    zyfa_triton.flash_attn_func(q, q, q, backend="interpreter")
except zyfa_triton.BackendUnavailableError as error:
    assert "Triton is not installed" in str(error)
else:
    raise SystemExit("the interpreter ran without Triton")
try:
    zyfa_triton.language
except ImportError:
    pass
else:
    raise SystemExit("language was imported without Triton")
"""


def test_without_triton_the_reference_works_and_the_others_say_why() -> None:
    root = str(Path(zyfa_triton.__file__).parent.parent)
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED], cwd=root, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_building_blocks_are_public() -> None:
    assert hasattr(zyfa_triton.language, "lean_codes")
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = zyfa_triton.nothing
