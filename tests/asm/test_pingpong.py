"""The ping-pong loop inside Triton's kernel: codes of the contract, bits of Triton's own loop."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.asm.pingpong_runs import assert_codes, assert_same, run
from zyfa_triton import activations, flash_attn_func, offline, splice, tuning
from zyfa_triton.backends import emulated
from zyfa_triton.compile import compile_call
from zyfa_triton.kernels import pingpong
from zyfa_triton.kernels.launch import launch_arguments
from zyfa_triton.problem import FP8, Problem
from zyfa_triton.report import report
from zyfa_triton.testing import Inputs, make_inputs

EDGES = (1, 63, 64, 65, 127, 129, 191, 193, 255, 256, 257, 319, 321, 511, 513, 1023, 1024, 1025)
SEEDS = range(20)


@pytest.fixture(autouse=True)
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop that does not fit is an error here, never Triton's own loop."""
    monkeypatch.setenv("ZYFA_STRICT", "1")


@pytest.mark.parametrize("seqlen", EDGES)
def test_lengths_around_tile_edges(seqlen: int) -> None:
    assert_codes(make_inputs(seqlen, seqlen, nheads=1, nheads_k=1, dtype=FP8))


@pytest.mark.parametrize("p_mode", ["lean", "exact"])
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "full"])
def test_modes(causal: bool, p_mode: str) -> None:
    inputs = make_inputs(300, 450, nheads=1, nheads_k=1, dtype=FP8, deviation=3.0)
    assert_codes(inputs, causal=causal, p_mode=p_mode)


SETTINGS = [
    ("lean", {"pack": "op_sel"}),
    ("lean", {"multiply_add": "packed"}),
    ("lean", {"pack": "op_sel", "multiply_add": "packed", "row_sum": "dense"}),
    ("exact", {"multiply_add": "packed", "row_sum": "dense"}),
]


@pytest.mark.parametrize(("p_mode", "settings"), SETTINGS, ids=str)
def test_every_setting_gives_the_same_bits(p_mode: str, settings: dict[str, Any]) -> None:
    inputs = make_inputs(256, 400, nheads=1, nheads_k=1, dtype=FP8, deviation=2.0)
    name = "_".join(("setting", p_mode, *settings.values())).replace("op_sel", "opsel")
    recipe = pingpong.PingPongLoop(name=name, p_mode=p_mode, is_causal=True, **settings)
    config = {**pingpong.CONFIG, "LOOP": splice.use(recipe)}
    assert_same(
        run(inputs, "pingpong", p_mode=p_mode), run(inputs, "triton", p_mode=p_mode, config=config)
    )


SHAPES = {
    "q-shorter": {"seqlen_q": 100, "seqlen_k": 300, "nheads": 2, "nheads_k": 2},
    "q-longer": {"seqlen_q": 300, "seqlen_k": 100, "nheads": 1, "nheads_k": 1},
    "gqa6-batch2": {"seqlen_q": 131, "seqlen_k": 131, "nheads": 6, "nheads_k": 1, "batch": 2},
    "transposed": {"seqlen_q": 200, "seqlen_k": 200, "nheads": 2, "layout": "transposed"},
    "packed": {"seqlen_q": 200, "seqlen_k": 200, "nheads": 2, "layout": "packed"},
    "v_mean": {"seqlen_q": 257, "seqlen_k": 300, "nheads": 4, "batch": 2, "v_mean": True},
    "v_mean-q-longer": {"seqlen_q": 300, "seqlen_k": 100, "nheads": 2, "v_mean": True},
}


@pytest.mark.parametrize("shape", SHAPES)
def test_shapes_and_strides(shape: str) -> None:
    inputs = make_inputs(**SHAPES[shape], dtype=FP8)
    assert_codes(inputs)
    assert_same(run(inputs, "triton"), run(inputs, "pingpong"))


@pytest.mark.parametrize("out_dtype", [torch.bfloat16, torch.float32], ids=["bf16", "fp32"])
@pytest.mark.parametrize("return_lse", [True, False], ids=["lse", "no-lse"])
@pytest.mark.parametrize("headdim", [128, 192, "192-in-parts"])
def test_the_mean_of_v_leaves_the_loop_its_registers(
    headdim: int | str, return_lse: bool, out_dtype: torch.dtype
) -> None:
    """Nothing of what the output needs is kept, and so spilled, while the loop runs."""
    x = make_inputs(300, 300, headdim=128 if headdim == 128 else 192, dtype=FP8, v_mean=True)
    q, k, rope = x.q, x.k, None
    if headdim == "192-in-parts":
        (q, q_rope), (k, k_rope) = (part.split((128, 64), 3) for part in (x.q, x.k))
        rope = (q_rope, k_rope[:, :, :1])
    problem = Problem.of(
        q, k, x.v, causal=True, p_mode="lean", block_scale=True, out_dtype=out_dtype,
        return_lse=return_lse, rope=rope,
    )  # fmt: skip
    out = torch.empty(1, 300, 4, 128, dtype=out_dtype)
    lse = torch.empty(1, 4, 300) if return_lse else None
    arguments = launch_arguments(
        problem, q, k, x.v, out, lse, softmax_scale=0.1, v_mean=x.v_mean, rope=rope, **x.descales
    )
    key = tuning.key_of(problem, "gfx950")
    config = tuning.select(
        "pingpong", problem, key, arguments, lambda left: tuning.resolve(key, left)
    )
    compiled = compile_call("pingpong", problem, arguments, tuning.launchable(config, key))
    assert not compiled.kept_own_loop
    costs = report(compiled.amdgcn, dynamic_lds=compiled.shared)
    assert costs.vgpr_spills == 0 and costs.sgpr_spills == 0 and costs.scratch_bytes == 0


@pytest.fixture(scope="module")
def real() -> Inputs:
    """The shipped sample, 640 tokens and 2 query heads of one key head, a scale a head."""
    sample = activations.load(activations.SAMPLE).cut(seqlen=640, heads=2)
    scales = [t.float().abs().amax((1, 2, 3))[:, None] / 448.0 for t in
              (sample.q, sample.k, sample.v)]  # fmt: skip
    q, k, v = (
        (t.float() / scale[:, None, :, None]).to(FP8)
        for t, scale in zip((sample.q, sample.k, sample.v), scales, strict=True)
    )
    return Inputs(q, k, v, *scales)


@pytest.mark.parametrize("p_mode", ["lean", "exact"])
def test_real_activations(real: Inputs, p_mode: str) -> None:
    assert_codes(real, p_mode=p_mode)
    assert_same(run(real, "triton", p_mode=p_mode), run(real, "pingpong", p_mode=p_mode))


@pytest.fixture(scope="module")
def wrapping() -> Inputs:
    """5 blocks of keys and more, so that the ring of 4 tiles wraps, with a masked tail."""
    return make_inputs(256, 400, nheads=1, nheads_k=1, dtype=FP8, deviation=2.0)


@pytest.mark.parametrize("seed", SEEDS)
def test_results_do_not_depend_on_the_interleaving(wrapping: Inputs, seed: int) -> None:
    assert_same(run(wrapping, "pingpong"), run(wrapping, "pingpong", seed=seed))


def test_explicit_choice_never_falls_back() -> None:
    inputs = make_inputs(64, 64, nheads=1, nheads_k=1, dtype=FP8)
    q, k, v = inputs.q, inputs.k, inputs.v
    with pytest.raises(ValueError, match='kernel: got "pingpong"; it has no p_mode'):
        flash_attn_func(q, k, v, kernel="pingpong", backend="emulated", p_mode="unscaled")
    with pytest.raises(ValueError, match='"pingpong", which is machine code, with backend'):
        flash_attn_func(q, k, v, kernel="pingpong")
    with pytest.raises(ValueError, match="it takes e4m3 inputs"):
        halves = [t.float().bfloat16() for t in (q, k, v)]
        flash_attn_func(*halves, kernel="pingpong", backend="emulated")
    shifted = torch.zeros(64 * 128 + 1, dtype=torch.uint8).view(FP8)[1:].view(1, 64, 1, 128)
    with pytest.raises(ValueError, match="k's rows do not all start at multiples of 16 bytes"):
        flash_attn_func(q, shifted, v, kernel="pingpong", backend="emulated")


def test_auto_takes_what_the_tuner_found_and_only_where_it_fits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inputs = make_inputs(64, 64, nheads=1, nheads_k=1, dtype=FP8)
    stored = {**pingpong.CONFIG, "kernel": "pingpong"}
    monkeypatch.setattr(tuning, "resolve", lambda key, without: stored)
    q, k, v = inputs.q, inputs.k, inputs.v
    problem = Problem.of(
        q, k, v, causal=True, p_mode="lean", block_scale=True,
        out_dtype=torch.bfloat16, return_lse=False,
    )  # fmt: skip
    out = torch.empty(1, 64, 1, 128, dtype=torch.bfloat16)
    arguments = launch_arguments(problem, q, k, v, out, None, softmax_scale=0.1, **inputs.descales)
    assert emulated.emulate(problem, arguments, kernel="auto").kernel == "pingpong"
    assert emulated.emulate(problem, arguments, kernel="triton").kernel == "triton"
    arguments["stride_ks"] = 2**31 // 64
    key = tuning.key_of(problem, "gfx950")
    chosen = tuning.select("auto", problem, key, arguments, lambda left: tuning.resolve(key, left))
    assert tuning.kernel_of(chosen) == "triton"


def test_tuner_measures_the_loop_on_gfx950_only() -> None:
    for headdim, target, expected in ((128, "gfx950", 1), (128, "sm89", 0), (192, "gfx950", 1)):
        asked = offline.problem(headdim=headdim)
        arguments = offline.nominal_arguments(asked)
        key = tuning.key_of(asked, target)
        assert len(tuning.tunable(asked, key, arguments)) == expected, (headdim, target)


def test_registers_and_lds() -> None:
    compiled, report = offline.compile_problem(offline.problem(), kernel="pingpong")
    assert not compiled.kept_own_loop
    assert report.vgprs <= 256 and report.agprs == 0
    assert report.vgpr_spills == 0 and report.sgpr_spills == 0 and report.scratch_bytes == 0
    assert report.lds_bytes == 64 * 1024
