"""The Hopper kernel's decisions without a device: what it serves, its PTX's numbers, contract."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from asm_overrides.recipes.lean import CODE_UNIT
from zyfa_triton import dispatch, flash_attn_func, interface, numerics, tuning, warmup
from zyfa_triton.arch import cuda_arch
from zyfa_triton.backends import device
from zyfa_triton.kernels.hopper import launch, ptx
from zyfa_triton.kernels.launch import launch_arguments
from zyfa_triton.kernels.registry import FAMILIES, QUANTISING, misfit
from zyfa_triton.problem import FP8, Problem
from zyfa_triton.reference import attention_ref
from zyfa_triton.testing import Inputs, check_output, make_inputs
from zyfa_triton.tuning import __main__ as tuning_command
from zyfa_triton.tuning import ahead, configurations, store

GLUON = FAMILIES["gluon"]


def problem_and_arguments(
    *,
    seqlen: int = 64,
    layout: str = "contiguous",
    p_mode: str = "lean",
    block_scale: bool = False,
    **shape: Any,
) -> tuple[Problem, dict[str, Any]]:
    x = make_inputs(seqlen, seqlen, layout=layout, **shape)
    out = torch.empty(*x.q.shape[:3], 128, dtype=torch.bfloat16)
    problem = Problem.of(
        x.q, x.k, x.v, causal=True, p_mode=p_mode, block_scale=block_scale,
        out_dtype=torch.bfloat16, return_lse=False,
    )  # fmt: skip
    arguments = launch_arguments(problem, x.q, x.k, x.v, out, None, softmax_scale=0.1, **x.descales)
    return problem, arguments


@pytest.mark.parametrize("dtype", [FP8, torch.bfloat16], ids=["e4m3", "bf16"])
@pytest.mark.parametrize("layout", ["contiguous", "transposed", "packed", "expanded", "offset"])
@pytest.mark.parametrize("headdim", [128, 192])
def test_it_serves_every_layout_of_aligned_rows(
    dtype: torch.dtype, layout: str, headdim: int
) -> None:
    problem, arguments = problem_and_arguments(dtype=dtype, layout=layout, headdim=headdim)
    assert misfit("gluon", "sm90", problem, arguments) == ""
    assert misfit("gluon", "sm89", problem, arguments) == "it is sm90 Gluon code"


def test_what_it_does_not_serve_is_said() -> None:
    for options, reason in (
        ({"dtype": torch.float16}, "it takes e4m3 and bfloat16 inputs, not torch.float16"),
        ({"dtype": FP8, "p_mode": "unscaled"}, "it has no p_mode 'unscaled'"),
        ({"dtype": FP8, "block_scale": True}, "it has no block_scale"),
    ):
        assert misfit("gluon", "sm90", *problem_and_arguments(**options)) == reason
    problem, arguments = problem_and_arguments(dtype=FP8)
    odd = torch.empty(64 * 2 * 136 + 16, dtype=torch.uint8).view(FP8)
    for name, tensor in (
        ("k", odd[8 : 8 + 64 * 2 * 136].view(1, 64, 2, 136)[..., :128]),
        ("q", odd[: 64 * 2 * 136].view(1, 64, 2, 136)[..., :128]),
    ):
        found = misfit("gluon", "sm90", problem, {**arguments, f"{name}_ptr": tensor})
        assert found == f"{name}'s rows do not all start at multiples of 16 bytes"
    # v is transposed by a pass of its own, which takes any rows
    assert misfit("gluon", "sm90", problem, {**arguments, "v_ptr": odd}) == ""
    strides = (0, 2**40, 128, 1)
    wide = torch.empty_strided((1, 64, 2, 128), strides, dtype=FP8, device="meta")
    found = misfit("gluon", "sm90", problem, {**arguments, "k_ptr": wide})
    assert found == f"k has a stride of {2**40} bytes or more"


def test_a_request_by_name_is_kept_or_refused() -> None:
    problem, arguments = problem_and_arguments(dtype=FP8)
    key = tuning.key_of(problem, "sm90")
    for name in ("gluon", "auto", "triton"):
        config = tuning.select(name, problem, key, arguments, lambda _: tuning.default(key))
        assert tuning.kernel_of(config) == ("gluon" if name == "gluon" else "triton")
    stored = {"kernel": "gluon", "BLOCK_N": 128, "num_stages": 4, "OVERLAP": True}
    for name in ("gluon", "auto"):
        assert tuning.select(name, problem, key, arguments, lambda _: stored) == stored
    assert tuning.launchable(stored, key) == {"BLOCK_N": 128, "num_stages": 4, "OVERLAP": True}
    odd = {
        **arguments,
        "k_ptr": torch.zeros(129, dtype=torch.uint8)[1:].view(FP8).view(1, 1, 1, -1),
    }
    misplaced = r'got "gluon"; k\'s rows do not all start at multiples of 16 bytes\. Accepted here'
    with pytest.raises(ValueError, match=misplaced):
        tuning.select("gluon", problem, key, odd, lambda _: stored)
    left_out: list[tuning.Kernels] = []
    config = tuning.select("auto", problem, key, odd, lambda left: left_out.append(left) or stored)
    assert config == tuning.default(key) and left_out == [{"gluon", "ptx"}]
    scaled, it = problem_and_arguments(dtype=FP8, block_scale=True)
    with pytest.raises(
        ValueError, match=r'got "gluon"; it has no block_scale\. Accepted here: "au'
    ):
        tuning.select("gluon", scaled, key, it, lambda _: stored)
    assert tuning.kernel_of(tuning.select("auto", scaled, key, it, lambda _: stored)) == "triton"
    x = make_inputs(4, 4)
    with pytest.raises(
        ValueError, match=r"\"gluon\", which is Gluon code, with backend 'reference'"
    ):
        flash_attn_func(x.q, x.k, x.v, kernel="gluon")


def described(descriptor: Any) -> torch.Tensor:
    """The tensor that a descriptor lays over memory: (batch, heads, seqlen, columns)."""
    return descriptor.base.as_strided(descriptor.shape, descriptor.strides)


@pytest.mark.parametrize("shared", [True, False], ids=["shared", "a-head"])
@pytest.mark.parametrize("dtype", [FP8, torch.bfloat16], ids=["e4m3", "bf16"])
def test_parts_are_copied_from_where_they_are(dtype: torch.dtype, shared: bool) -> None:
    """The same rows by descriptors of one tensor and of two."""
    x = make_inputs(40, 70, batch=2, nheads=4, nheads_k=2, headdim=192, dtype=dtype)
    (q_nope, q_rope), (k_nope, k_rope) = (each.split((128, 64), 3) for each in (x.q, x.k))
    k_rope = k_rope[:, :, :1] if shared else k_rope
    whole_k = torch.cat((k_nope, k_rope.expand(-1, -1, 2, -1)), 3)
    out = torch.empty(2, 40, 4, 128, dtype=torch.bfloat16)
    found: list[dict[str, Any]] = []
    for q, k, rope in ((x.q, whole_k, None), (q_nope, k_nope.contiguous(), (q_rope, k_rope))):
        problem = Problem.of(
            q, k, x.v, causal=True, p_mode="exact", block_scale=False, out_dtype=out.dtype,
            return_lse=False, rope=rope,
        )  # fmt: skip
        arguments = launch_arguments(
            problem, q, k, x.v, out, None, softmax_scale=0.1, rope=rope, **x.descales
        )
        assert misfit("gluon", "sm90", problem, arguments) == ""
        config = {"BLOCK_N": 128, "num_stages": 2, "OVERLAP": True}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(launch, "_multiprocessors", lambda device: 132)
            GLUON.launch(lambda kernel, grid, a: found.append(dict(a)), problem, arguments, config)
    one, two = (each for each in found if "q_first" in each)
    assert described(two["k_first"]).shape[3] == 128
    for name in ("q_first", "q_rest", "k_first", "k_rest"):
        for a, b in zip(*(described(each[name]) for each in (one, two)), strict=True):
            columns = 64 if "rest" in name else 128
            assert torch.equal(
                a[..., :columns].contiguous().view(torch.uint8),
                b[..., :columns].contiguous().view(torch.uint8),
            ), name
    arguments["q_rope_ptr"] = torch.zeros(2, 40, 4, 72, dtype=dtype)[..., 1:65]
    assert misfit("gluon", "sm90", problem, arguments).startswith("q_rope's rows do not all start")


@pytest.mark.parametrize("dtype", [FP8, torch.bfloat16], ids=["e4m3", "bf16"])
@pytest.mark.parametrize("headdim", [128, 192])
def test_configurations_fit_and_are_sound(dtype: torch.dtype, headdim: int) -> None:
    problem, _ = problem_and_arguments(dtype=dtype, headdim=headdim)
    key = tuning.key_of(problem, "sm90")
    found = GLUON.configurations(problem)
    assert 1 <= len(found) == len({tuple(config.items()) for config in found})
    for config in found:
        size = launch.shared_bytes(problem, config["BLOCK_N"], config["num_stages"])
        assert size <= launch.SHARED_BYTES
        assert configurations.complaint({**config, "kernel": "gluon"}, key) is None


def test_complaints_name_what_is_wrong() -> None:
    problem, _ = problem_and_arguments(dtype=FP8)
    key = tuning.key_of(problem, "sm90")
    good = {"kernel": "gluon", "BLOCK_N": 128, "num_stages": 4, "OVERLAP": True}
    for change, words in (
        ({"BLOCK_N": 64}, "BLOCK_N is 64, not one of (128,)"),
        ({"num_stages": 1}, "num_stages is 1, not 2 to 8"),
        ({"num_stages": True}, "num_stages is True"),
        ({"num_stages": 7}, "num_stages is 7: with BLOCK_N 128 that takes 261120 bytes of shared"),
        ({"BLOCK_N": 128.0}, "BLOCK_N is 128.0, not one of"),
        ({"OVERLAP": 1}, "OVERLAP is 1, not true or false"),
    ):
        assert words in str(configurations.complaint({**good, **change}, key))
    scaled = replace(key, block_scale=True)
    assert "no block_scale" in str(configurations.complaint(good, scaled))
    for change, words in (
        ({"target": "gfx950"}, "kernel is 'gluon', which is sm90 Gluon code"),
        ({"dtype": "fp16"}, "it takes e4m3 and bfloat16 inputs, not torch.float16 (gluon)"),
        ({"p_mode": "unscaled"}, "it has no p_mode 'unscaled' (gluon)"),
        ({"dtype": "bf16", "headdim": 192}, "num_stages is 4: with BLOCK_N 128 that takes"),
    ):
        assert words in str(configurations.complaint(good, replace(key, **change)))


def test_heads_share_a_tile_where_queries_are_few() -> None:
    problem, _ = problem_and_arguments(dtype=FP8, nheads=16, nheads_k=2)
    for seqlen_q, expected in ((1, 8), (8, 8), (16, 8), (17, 4), (64, 2), (65, 1), (4096, 1)):
        assert launch.packed_heads(replace(problem, seqlen_q=seqlen_q)) == expected
    assert launch.packed_heads(replace(problem, nheads=6, seqlen_q=1)) == 1  # groups of three
    assert launch.packed_heads(replace(problem, nheads=64, seqlen_q=1)) == 16


def test_float16_subnormals_are_the_codes() -> None:
    """The conversion that the PTX uses: bits of float16(u 2^-24) are u rounded, ties to even."""
    u = np.concatenate([np.arange(0, 127, 0.25), [0.49999997, 0.50000006, 125.5, 126.49999]])
    halves = (u.astype(np.float32) * np.float32(CODE_UNIT)).astype(np.float16)
    assert (halves.view(np.uint16) == np.round(u)).all()


def test_no_code_exceeds_the_top_one_whatever_the_scores() -> None:
    """A score equal to the reference gives 126, or less where float32 is too coarse; never NaN."""
    generator = torch.Generator().manual_seed(0)
    for magnitude in (1.0, 1e3, 1e5, 1e7, 1e12, 1e20):
        scores = (torch.rand(64, 256, generator=generator) * 2 - 1) * magnitude
        reference = scores.amax(-1, keepdim=True)
        scale = torch.rand(64, 1, generator=generator) + 0.01
        codes = numerics.lean_codes_float16(scores, scale, reference)
        assert int(codes.max()) <= 126
        if magnitude <= 1e3:
            assert bool((codes.amax(-1) >= 125).all())


@pytest.mark.parametrize("p_mode", ["lean", "exact"])
def test_its_contract_is_as_near_as_that_of_the_portable_kernel(p_mode: str) -> None:
    x = make_inputs(200, 500, dtype=FP8)
    ref, _ = attention_ref(x.q, x.k, x.v, softmax_scale=0.1, causal=True, **x.descales)
    results = []
    for options in (numerics.HOPPER[p_mode], numerics.ContractOptions(p_mode, block_scale=False)):
        results.append(
            numerics.attention(
                x.q, x.k, x.v, softmax_scale=0.1, causal=True, options=options, **x.descales
            ).out
        )
    check_output(results[0], ref, results[1], is_fp8=True)


def test_a_sink_at_the_first_key_costs_no_precision() -> None:
    """Visited last, it leaves the codes of all other keys large; visited first, they would be 0."""
    x = make_inputs(64, 1024, nheads=1, nheads_k=1, dtype=FP8, deviation=2.0)
    k = x.k.float()
    k[:, 0] = x.q.float().mean(1)[:, :1] * 0 + 3.0
    q = x.q.float() + 1.0  # every query agrees with the sink
    q8, k8 = q.to(FP8), k.to(FP8)
    ref, _ = attention_ref(q8, k8, x.v, softmax_scale=0.05)

    def error(**change: Any) -> float:
        options = replace(numerics.HOPPER["lean"], **change)
        out = numerics.attention(q8, k8, x.v, softmax_scale=0.05, options=options).out
        return float((out.double() - ref).norm() / ref.norm())

    assert error() < 0.02
    assert error(reverse=False) > 3 * error()


def test_contract_options_are_checked() -> None:
    with pytest.raises(ValueError, match="code_map: got 'up', accepted are 'floor', 'float16'"):
        numerics.ContractOptions(code_map="up")
    with pytest.raises(ValueError, match="code_map: got 'float16' with block_scale=True"):
        numerics.ContractOptions(code_map="float16")


def test_preparing_passes_give_what_quantising_gives() -> None:
    """In Triton's interpreter, in a process of its own: codes, V^T, descales and mean, all bits."""
    root = Path(__file__).parents[2]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(root)}
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("hopper_preparation.py"))],
        cwd=root, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip() == "equal"


@pytest.mark.parametrize("dtype", [FP8, torch.bfloat16], ids=["e4m3", "bf16"])
@pytest.mark.parametrize("headdim", [128, 192])
@pytest.mark.parametrize("heads", [(4, 4), (16, 2)], ids=str)
def test_launches_name_every_argument(
    dtype: torch.dtype, headdim: int, heads: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "_multiprocessors", lambda device: 132)
    launched: list[str] = []
    has_mean: list[torch.Tensor | None] = []

    def record(kernel: Any, grid: tuple[int, ...], arguments: Mapping[str, Any]) -> None:
        names = set(kernel.arg_names)
        assert names <= set(arguments), names - set(arguments)
        assert set(arguments) - names <= {"num_warps", "enable_fp_fusion"}
        assert len(grid) == 1 and grid[0] >= 1
        for name, value in arguments.items():  # an offset would be another compilation
            if name.endswith(("amax_ptr", "descale_ptr")) and value is not None:
                assert value.data_ptr() % 16 == 0, name
        launched.append(kernel.__name__)
        if kernel.__name__ == "hopper_attention_forward":
            has_mean.append(arguments["v_mean_ptr"])
            assert grid[0] == min(132, arguments["heads"] * arguments["m_blocks"])
            rows = 128 // arguments["PACK"]
            assert arguments["m_blocks"] == -(-64 // rows)
            assert arguments["heads"] * arguments["PACK"] == heads[0]

    shape: dict[str, Any] = {"nheads": heads[0], "nheads_k": heads[1], "headdim": headdim}
    problem, arguments = problem_and_arguments(dtype=dtype, **shape)
    config = GLUON.configurations(problem)[0]
    GLUON.launch(record, problem, arguments, config)
    prepared = ["transpose_values"] if dtype == FP8 else []
    assert launched == [*prepared, "hopper_attention_forward"]
    if dtype != FP8:
        return
    x = make_inputs(64, 64, **shape)
    out = torch.empty(*x.q.shape[:3], 128, dtype=torch.bfloat16)
    for k_mean, v_mean, sums in (
        (True, True, ["partial_sums_of_both"]),  # one launch for both
        (True, False, ["partial_sums"]),
        (False, True, ["partial_sums"]),
        (False, False, []),
    ):
        launched.clear()
        mean = QUANTISING["gluon"].launch_quantising(
            record, problem, x.q, x.k, x.v, out, None, softmax_scale=0.1, per_tensor=False,
            subtract_k_mean=k_mean, subtract_v_mean=v_mean, config=config,
        )  # fmt: skip
        rest = ["largest_magnitudes", "quantise_inputs", "hopper_attention_forward"]
        assert launched == sums + rest
        assert (mean is not None) == k_mean
        assert (has_mean.pop() is not None) == v_mean


def test_vs_mean_is_given_in_rows_of_aligned_memory() -> None:
    """Kernels take several channels at once of rows that follow each other; others are copied."""
    x = make_inputs(64, 64, dtype=FP8)
    problem, arguments = problem_and_arguments(dtype=FP8)
    assert arguments["v_mean_ptr"] is None
    out, wide, rows = arguments["o_ptr"], torch.randn(1, 5, 132), torch.randn(1, 2, 128)
    for mean in (rows, wide[:, 1:5:2, 1:129], wide[:, :1, :128].expand(1, 2, 128)):
        given = launch_arguments(
            problem, x.q, x.k, x.v, out, None, softmax_scale=0.1, v_mean=mean, **x.descales
        )["v_mean_ptr"]
        assert torch.equal(given, mean)
        assert given.is_contiguous() and given.data_ptr() % 16 == 0
        assert (given is mean) == (mean is rows)


def test_warmup_that_tunes_also_compiles_what_later_calls_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is measured is the e4m3 call; a kernel that quantises on its own launches others."""
    forced: list[bool] = []

    def call(*arguments: Any, **options: Any) -> None:
        watcher = tuning.choice._watchers.get()
        assert watcher is not None
        forced.append(watcher[1])
        tuning.note({"BLOCK_N": 128})

    monkeypatch.setattr(interface, "flash_attn_fp8_func", call)
    monkeypatch.setattr(dispatch, "choose_backend", lambda *arguments: "device")
    x = make_inputs(4, 4)
    assert warmup(x.q, x.k, x.v, quantize=True, tune=True) == {"BLOCK_N": 128}
    assert forced == [True, False]
    warmup(x.q, x.k, x.v, quantize=True)
    assert forced == [True, False, False]


def on_meta(
    seqlen_q: int,
    seqlen_k: int,
    *,
    batch: int,
    nheads: int,
    nheads_k: int,
    headdim: int,
    headdim_v: int,
    dtype: torch.dtype,
    device: object,
) -> Inputs:
    """`make_inputs` without memory."""
    q = torch.empty(batch, seqlen_q, nheads, headdim, dtype=dtype, device="meta")
    k = torch.empty(batch, seqlen_k, nheads_k, headdim, dtype=dtype, device="meta")
    v = torch.empty(batch, seqlen_k, nheads_k, headdim_v, dtype=dtype, device="meta")
    scale = torch.empty(batch, nheads_k, device="meta") if dtype == FP8 else None
    return Inputs(q, k, v, scale, scale, scale)


def test_usual_problems_are_those_that_ship(monkeypatch: pytest.MonkeyPatch) -> None:
    """No key ships that --all would not measure again, and it measures no others."""
    everything = tuning_command.usual_problems(tuning_command._parser().parse_args(["--all"]))
    monkeypatch.setattr(ahead, "make_inputs", on_meta)
    monkeypatch.setattr(dispatch, "choose_block_scale", lambda *a, **options: False)  # as on sm90
    keys = [tuning.key_of(ahead._call(usual, usual.inputs())[0], "sm90") for usual in everything]
    assert len(set(keys)) == len(keys)
    assert set(keys) == {key for key in store.load_shipped() if key.target == "sm90"}
    few = tuning_command.usual_problems(
        tuning_command._parser().parse_args(["--dtype", "e4m3", "--seqlen", "256"])
    )
    assert len(few) == 4 and {each.p_mode for each in few} == {"lean"}
    x = few[0].inputs()
    assert x.q.shape == x.k.shape == (64, 256, 16, 128)
    arguments = ["--dtype", "bf16", "--seqlen", "256", "--few-queries"]
    short = tuning_command.usual_problems(tuning_command._parser().parse_args(arguments))
    assert len(short) == 4 and all(each.queries == 16 for each in short)
    x = short[0].inputs()
    assert x.q.shape == (1, 16, 64, 128) and x.k.shape == (1, 256, 8, 128)


def test_what_is_compiled_ahead_is_what_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a device: the candidates of a problem, and how a process launches one of them."""
    usual = ahead.Usual("e4m3", 128, 128, True, "lean", 64, 2)
    monkeypatch.setattr(ahead, "TOKENS", 64)
    x = usual.inputs("cpu")
    monkeypatch.setattr(ahead.Usual, "inputs", lambda self: x)
    monkeypatch.setattr(ahead, "arch_of", lambda index: cuda_arch(9, 0))
    monkeypatch.setattr(dispatch, "choose_block_scale", lambda *a, **options: False)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    found = ahead._candidates(usual)
    assert {tuning.kernel_of(config) for config in found} == {"triton", "gluon", "ptx"}
    launched: list[Any] = []

    def run(problem: Problem, kernel: str, *tensors: Any, **options: Any) -> None:
        inspect.signature(original).bind(problem, kernel, *tensors, **options)
        launched.append(options["config"])

    original = device.run
    monkeypatch.setattr(device, "run", run)
    assert all(ahead._launch_once(usual, config) for config in found)
    assert launched == found


def test_an_accumulator_is_touched_only_behind_the_wait() -> None:
    text, _ = ptx.rescaled(2, waits=True)
    before, behind = text.split("wgmma.wait_group.sync.aligned 0;")
    assert "mul" not in before and behind.count("mul") == 2
    assert "wait" not in ptx.rescaled(2, waits=False)[0]
