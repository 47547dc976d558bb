"""The BF16 kernel in HIP C++: its machine code in the emulator, its resources and its loop."""

from __future__ import annotations

import itertools
import math
import re
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from asm_overrides.check import check_text
from asm_overrides.timing import predict, steady_text
from zyfa_triton import activations, flash_attn_func, offline, tuning
from zyfa_triton.backends import emulated
from zyfa_triton.compile import compile_hip
from zyfa_triton.hip import compiler, found_compiler
from zyfa_triton.hip.sources import source
from zyfa_triton.kernels import hip
from zyfa_triton.kernels.launch import launch_arguments
from zyfa_triton.problem import FP8, Problem
from zyfa_triton.reference import attention_ref
from zyfa_triton.report import report
from zyfa_triton.testing import Inputs, check_lse, check_output, expected, make_inputs
from zyfa_triton.tuning import configurations

EDGES = (1, 31, 32, 33, 63, 64, 65, 127, 129, 191, 193, 255, 256, 257, 319, 321, 511, 513, 1025)
SEEDS = range(20)
INSTANCES = [
    hip.Instance(*settings)
    for settings in itertools.product((128, 192), (True, False), (True, False))
]
ERROR_FACTOR = 1.05
"""Error that is allowed, relative to torch's own bf16 attention on the same inputs."""
HIPKITTENS_USEFUL = 0.908
"""Worst useful share that the same model predicts for HipKittens' loop (docs/cycle-model.md)."""


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Each instance is compiled here once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ZYFA_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


def call(
    inputs: Inputs, *, causal: bool = True, scale: float | None = None
) -> tuple[Problem, dict[str, Any], torch.Tensor, torch.Tensor]:
    """(problem, arguments, out, lse); the outputs start as NaN."""
    q, k, v = inputs.q, inputs.k, inputs.v
    out = torch.full((*q.shape[:3], 128), float("nan"), dtype=torch.bfloat16)
    lse = torch.full((q.shape[0], q.shape[2], q.shape[1]), float("nan"))
    problem = Problem.of(
        q, k, v, causal=causal, p_mode="exact", block_scale=False,
        out_dtype=torch.bfloat16, return_lse=True,
    )  # fmt: skip
    arguments = launch_arguments(
        problem, q, k, v, out, lse, softmax_scale=scale or q.shape[3] ** -0.5,
        q_descale=None, k_descale=None, v_descale=None,
    )  # fmt: skip
    return problem, arguments, out, lse


def run(
    inputs: Inputs, *, causal: bool = True, scale: float | None = None, **options: Any
) -> tuple[torch.Tensor, torch.Tensor, emulated.Emulation]:
    """(out, lse, run) of machine code without findings."""
    problem, arguments, out, lse = call(inputs, causal=causal, scale=scale)
    result = emulated.emulate(problem, arguments, kernel="hip", **options)
    assert result.findings == []
    assert result.kernel == "hip"
    return out, lse, result


def assert_right(inputs: Inputs, *, causal: bool = True, scale: float | None = None) -> None:
    out, lse, _ = run(inputs, causal=causal, scale=scale)
    (ref, ref_lse), (low, low_lse) = expected(inputs, causal=causal, softmax_scale=scale)
    check_output(out, ref, low, is_fp8=False)
    check_lse(lse, ref_lse, low_lse, inputs, scale)


@pytest.mark.parametrize("seqlen", EDGES)
def test_lengths_around_tile_edges(seqlen: int) -> None:
    assert_right(make_inputs(seqlen, seqlen, nheads=1, nheads_k=1))


@pytest.mark.parametrize("seqlen", [1, 63, 64, 65, 191, 193, 256])
def test_lengths_without_a_mask(seqlen: int) -> None:
    assert_right(make_inputs(40, seqlen, nheads=1, nheads_k=1), causal=False)


@pytest.mark.parametrize("seqlen", [1, 63, 65, 191, 255, 257, 320, 513])
def test_lengths_with_wide_heads(seqlen: int) -> None:
    assert_right(make_inputs(seqlen, seqlen, nheads=1, nheads_k=1, headdim=192))


SHAPES = {
    "q-shorter": {"seqlen_q": 100, "seqlen_k": 300, "nheads": 2, "nheads_k": 2},
    "q-longer": {"seqlen_q": 300, "seqlen_k": 100, "nheads": 1, "nheads_k": 1},
    "one-query": {"seqlen_q": 1, "seqlen_k": 700, "nheads": 2, "nheads_k": 1},
    "one-key": {"seqlen_q": 260, "seqlen_k": 1, "nheads": 1, "nheads_k": 1},
    "gqa3-batch2": {"seqlen_q": 40, "seqlen_k": 70, "nheads": 3, "nheads_k": 1, "batch": 2},
    "mha3": {"seqlen_q": 40, "seqlen_k": 70, "nheads": 3, "nheads_k": 3},
    "transposed": {"seqlen_q": 100, "seqlen_k": 100, "layout": "transposed", "batch": 2},
    "packed": {"seqlen_q": 100, "seqlen_k": 100, "layout": "packed"},
    "expanded": {"seqlen_q": 70, "seqlen_k": 130, "layout": "expanded", "batch": 2},
    "in-nan": {"seqlen_q": 70, "seqlen_k": 130, "nheads": 2, "layout": "offset"},
}


@pytest.mark.parametrize("shape", SHAPES)
def test_shapes_and_strides(shape: str) -> None:
    assert_right(make_inputs(**SHAPES[shape]))


@pytest.mark.parametrize("shape", ["q-shorter", "q-longer", "gqa3-batch2", "in-nan"])
def test_shapes_and_strides_with_wide_heads_and_without_mask(shape: str) -> None:
    assert_right(make_inputs(**SHAPES[shape], headdim=192), causal=False)


@pytest.mark.parametrize("scale", [-0.1, 1e-30, 3.0], ids=["negative", "none", "sharp"])
def test_scales(scale: float) -> None:
    """A negative scale moves into Q; without one all keys count alike; with a large one few do."""
    assert_right(make_inputs(70, 200, nheads=1, nheads_k=1), scale=scale)


def test_the_reference_lags_and_is_raised() -> None:
    """Scores that grow along the keys raise the reference again and again, in single lanes."""
    inputs = make_inputs(256, 512, nheads=1, nheads_k=1)
    growth = torch.linspace(0.05, 3.0, 512).bfloat16()[None, :, None, None]
    grown = Inputs(inputs.q, inputs.k * growth, inputs.v)
    assert_right(grown, scale=1.0)
    steps = torch.where(torch.arange(512) % 128 < 64, 1.0, 8.0).bfloat16()[None, :, None, None]
    assert_right(Inputs(inputs.q, inputs.k * steps, inputs.v), causal=False)


def test_infinite_and_missing_numbers_stay_where_they_belong() -> None:
    inputs = make_inputs(64, 64, nheads=1, nheads_k=1)
    inputs.q[0, 5] = float("nan")
    out, lse, _ = run(inputs, causal=False)
    rows = torch.arange(64)
    assert torch.isnan(out[0, :, 0]).all(1).equal(rows == 5)
    assert torch.isnan(lse[0, 0]).equal(rows == 5)


def sdpa_error_factor(inputs: Inputs, causal: bool) -> float:
    """Error of the kernel over that of torch's attention in bf16, both against fp64.

    V is as wide as K for torch, with zeros: otherwise it would compute in float32.
    """
    out, _, _ = run(inputs, causal=causal)
    ref = attention_ref(
        inputs.q, inputs.k, inputs.v, softmax_scale=inputs.q.shape[3] ** -0.5, causal=causal
    )[0]
    q, k, v = (t.transpose(1, 2) for t in (inputs.q, inputs.k, inputs.v))
    v = torch.nn.functional.pad(v, (0, k.shape[3] - v.shape[3]))
    theirs = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, is_causal=causal, enable_gqa=True
    ).transpose(1, 2)[..., : out.shape[3]]
    return float((out.double() - ref).norm() / (theirs.double() - ref).norm())


@pytest.fixture(scope="module")
def real() -> Inputs:
    """The shipped sample in bf16: 512 tokens, 2 query heads of one key head."""
    return in_bf16(activations.load(activations.SAMPLE).cut(seqlen=512, heads=2))


def in_bf16(sample: activations.Activations) -> Inputs:
    return Inputs(*(t.to(torch.bfloat16) for t in (sample.q, sample.k, sample.v)))


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "full"])
def test_error_on_real_activations_is_that_of_torch(real: Inputs, causal: bool) -> None:
    assert sdpa_error_factor(real, causal) <= ERROR_FACTOR


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "full"])
def test_error_on_real_activations_with_wide_heads_is_that_of_torch(causal: bool) -> None:
    sample = activations.load(activations.SAMPLE).cut(seqlen=448, heads=2).with_rope_part()
    inputs = in_bf16(sample)
    assert inputs.q.shape[3] == 192
    assert sdpa_error_factor(inputs, causal) <= ERROR_FACTOR


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "full"])
@pytest.mark.parametrize(("headdim", "deviation"), [(128, 1.0), (128, 4.0), (192, 1.0)])
def test_error_on_gaussian_inputs_is_that_of_torch(
    headdim: int, deviation: float, causal: bool
) -> None:
    inputs = make_inputs(400, 400, nheads=2, nheads_k=1, headdim=headdim, deviation=deviation)
    assert sdpa_error_factor(inputs, causal) <= ERROR_FACTOR


@pytest.fixture(scope="module")
def wrapping() -> dict[int, Inputs]:
    """5 tiles of keys and more, so that the rings of 4 wrap, with masked tiles at the end."""
    return {d: make_inputs(256, 350, nheads=1, nheads_k=1, headdim=d) for d in (128, 192)}


@pytest.fixture(scope="module")
def lockstep(wrapping: dict[int, Inputs]) -> dict[int, tuple[torch.Tensor, torch.Tensor]]:
    """(out, lse) of waves that advance together."""
    return {d: run(inputs)[:2] for d, inputs in wrapping.items()}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("headdim", [128, 192])
def test_results_do_not_depend_on_the_interleaving(
    wrapping: dict[int, Inputs],
    lockstep: dict[int, tuple[torch.Tensor, torch.Tensor]],
    headdim: int,
    seed: int,
) -> None:
    out, lse, _ = run(wrapping[headdim], seed=seed)
    assert torch.equal(out, lockstep[headdim][0]) and torch.equal(lse, lockstep[headdim][1])


def test_real_activations_under_another_interleaving(real: Inputs) -> None:
    one_head = Inputs(real.q[:, :300, :1], real.k[:, :300], real.v[:, :300])
    together, _, _ = run(one_head)
    assert torch.equal(run(one_head, seed=100)[0], together)


@pytest.mark.parametrize("headdim", [128, 192])
def test_lds_is_read_and_written_without_bank_conflicts(
    wrapping: dict[int, Inputs], headdim: int
) -> None:
    _, _, result = run(wrapping[headdim], count_banks=True)
    reads = [use for use in result.banks if not use.is_write]
    assert {use.instruction.split()[0] for use in reads} == {
        "ds_read_b128", "ds_read_b64_tr_b16",
    }  # fmt: skip
    assert sum(use.accesses for use in reads) > 1000
    assert [use for use in result.banks if use.conflicts] == []


@pytest.mark.parametrize("instance", INSTANCES, ids=lambda instance: instance.name)
def test_registers_lds_and_static_checks(instance: hip.Instance) -> None:
    text = instance.assembly()
    found = report(text)
    assert (found.vgpr_spills, found.sgpr_spills, found.scratch_bytes, found.agprs) == (0, 0, 0, 0)
    assert found.vgprs <= 256  # two waves a SIMD
    assert found.lds_bytes == 4 * 64 * 2 * (instance.headdim + 128)
    assert check_text(text) == []
    assert "v_pk_" not in text.split("s_endpgm")[0].split("; =>This Inner Loop Header")[1]


@pytest.mark.parametrize("instance", INSTANCES, ids=lambda instance: instance.name)
def test_the_compiler_waits_for_loads_only_where_the_source_does(instance: hip.Instance) -> None:
    """Without what `Forward.run` promises about LDS, it waits for all loads before each read."""
    text = instance.assembly()
    loop = text.split("s_barrier", 1)[1]
    waits = re.findall(r"s_waitcnt .*vmcnt\((\d+)\)", loop)
    loads = instance.headdim // 64 + 2
    assert waits[:-1] == [str(loads)] * len(waits[:-1]) and len(waits) >= 3
    assert waits[-1] == "0"  # at the end, for loads of tiles that do not exist


@pytest.mark.parametrize("instance", INSTANCES, ids=lambda instance: instance.name)
def test_predicted_matrix_share(instance: hip.Instance) -> None:
    """Both waves of a SIMD in opposite stages: the matrix pipe does not wait for either."""
    found = predict(steady_text(instance.assembly())).as_json()
    assert found["useful_share_replay_worst"] >= 0.98 > HIPKITTENS_USEFUL


BROKEN = {
    "a wait for loads": r"s_waitcnt vmcnt\(4\)",
    "the barrier of a stage": "s_barrier",
}


@pytest.mark.parametrize("what", BROKEN)
def test_what_the_source_must_say_is_missed_where_it_is_absent(
    wrapping: dict[int, Inputs], what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The emulator sees the loop without one of its waits or barriers.

    Without a causal mask all tiles but the last run the first loop.
    """
    text = hip.Instance(128, False, True).assembly()
    begin = text.index("; =>This Inner Loop Header")
    broken = text[:begin] + re.sub(BROKEN[what], "s_nop 0", text[begin:], count=1)
    assert broken != text
    monkeypatch.setattr(hip.Instance, "assembly", lambda self: broken)
    problem, arguments, _, _ = call(wrapping[128], causal=False)
    found = set()
    for seed in (None, 0, 1, 2):
        result = emulated.emulate(problem, arguments, kernel="hip", seed=seed)
        found |= {finding.kind for finding in result.findings}
    assert found & {"lds-race", "lds-uninitialised", "use-before-wait", "barrier-divergence"}


def test_explicit_choice_never_falls_back() -> None:
    inputs = make_inputs(64, 64, nheads=1, nheads_k=1)
    q, k, v = inputs.q, inputs.k, inputs.v
    with pytest.raises(ValueError, match='"hip", which is machine code, with backend'):
        flash_attn_func(q, k, v, kernel="hip")
    with pytest.raises(ValueError, match='kernel: got "hip"; it takes bfloat16 inputs'):
        flash_attn_func(q.half(), k.half(), v.half(), kernel="hip", backend="emulated")
    with pytest.raises(ValueError, match=r"it takes bfloat16 inputs, not torch\.float8_e4m3fn"):
        flash_attn_func(*(t.to(FP8) for t in (q, k, v)), kernel="hip", backend="emulated")
    shifted = torch.zeros(64 * 128 + 1, dtype=torch.bfloat16)[1:].view(1, 64, 1, 128)
    with pytest.raises(ValueError, match="k's rows do not all start at multiples of 16 bytes"):
        flash_attn_func(q, shifted, v, kernel="hip", backend="emulated")
    problem, arguments, _, _ = call(inputs)
    arguments["stride_vs"] = 2**31 // 128
    assert "rows of v span" in hip.misfit(problem, arguments)


def test_auto_takes_it_only_where_a_tuning_file_says_so(tmp_path: Path) -> None:
    problem, arguments, _, _ = call(make_inputs(64, 64, nheads=1, nheads_k=1))
    assert emulated.emulate(problem, arguments).kernel == "triton"
    key = tuning.key_of(problem, "gfx950")
    stored = {**hip.CONFIG, "kernel": "hip"}
    assert stored in tuning.tunable(problem, key, arguments)
    assert tuning.select("auto", problem, key, arguments, lambda _: stored) == stored
    chosen = tuning.select("triton", problem, key, arguments, lambda _: stored)
    assert tuning.kernel_of(chosen) == "triton"
    arguments["stride_ks"] += 1
    chosen = tuning.select("auto", problem, key, arguments, lambda _: stored)
    assert tuning.kernel_of(chosen) == "triton"
    assert hip.HipFamily().complaint(stored, problem) is None
    assert "256" in str(hip.HipFamily().complaint({**stored, "BLOCK_M": 128}, problem))
    in_fp8 = replace(key, dtype="e4m3")
    assert "it takes bfloat16" in str(configurations.complaint(stored, in_fp8))


def test_compiled_without_data() -> None:
    asked = offline.problem(dtype=torch.bfloat16, headdim=192)
    assert offline.kernels_that_serve(asked) == ("triton", "hip")
    compiled, found = offline.compile_problem(asked, kernel="hip")
    assert (compiled.kernel, compiled.name) == ("hip", "attention_forward_bf16_d192_causal")
    assert compiled.hsaco.startswith(b"\x7fELF") and found.lds_bytes == 160 * 1024
    with pytest.raises(ValueError, match="config: the kernel in HIP has"):
        offline.compile_problem(asked, {"num_warps": 4}, kernel="hip")


@pytest.mark.parametrize(("causal", "second"), [(True, (1, 256)), (False, (0, 256))])
def test_order_of_the_workgroups(causal: bool, second: tuple[int, int]) -> None:
    """With a mask the longest blocks of all heads come first, without one the blocks of a head."""
    problem, arguments, out, _ = call(make_inputs(300, 64, nheads=2, nheads_k=1), causal=causal)
    compiled = compile_hip(problem)
    first = (0, 256 if causal else 0)
    for place, (head, row) in enumerate((first, second)):
        emulated.execute(
            compiled, arguments, (4,), outputs=("o_ptr", "lse_ptr"), workgroups=[(place, 0, 0)]
        )
        rows = range(row, min(row + 256, 300))
        assert not torch.isnan(out[0, rows, head]).any()
        out[0, rows, head] = float("nan")
        assert torch.isnan(out).all()


def test_nobody_asks_for_lse() -> None:
    inputs = make_inputs(40, 40, nheads=1, nheads_k=1)
    out = flash_attn_func(inputs.q, inputs.k, inputs.v, kernel="hip", backend="emulated")
    with_lse, _, _ = run(inputs, causal=False)
    assert torch.equal(out, with_lse)


def test_a_row_without_keys_is_zero() -> None:
    inputs = make_inputs(300, 20, nheads=1, nheads_k=1)
    out, lse, _ = run(inputs)
    assert (out[0, :280] == 0).all() and (lse[0, 0, :280] == -math.inf).all()
    assert torch.isfinite(lse[0, 0, 280:]).all()


@pytest.mark.parametrize("instance", INSTANCES, ids=lambda instance: instance.name)
def test_the_source_compiles_without_a_warning(instance: hip.Instance) -> None:
    flags = [*compiler.FLAGS, *(f"-D{name}={value}" for name, value in instance.defines.items())]
    command = [str(found_compiler()), *flags, "-Wall", "-Wextra", "-Werror", "-fsyntax-only"]
    done = subprocess.run(
        [*command, str(source("attention_forward.hip"))], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
