"""The "ptx" kernel's decisions without a device: what it serves, configurations, which loop."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from asm_overrides.ptx import Text, hexadecimal, matrix
from asm_overrides.recipes.attention_sm90 import Bfloat16Parameters, Parameters
from tests.unit.test_hopper import problem_and_arguments
from zyfa_triton import dispatch, tuning
from zyfa_triton.arch import cuda_arch
from zyfa_triton.backends import device
from zyfa_triton.kernels.hopper import generated, launch
from zyfa_triton.kernels.registry import FAMILIES, QUANTISING, misfit
from zyfa_triton.problem import FP8
from zyfa_triton.splice import SpliceError, SpliceWarning
from zyfa_triton.testing import make_inputs
from zyfa_triton.tuning import configurations, store

PTX = FAMILIES["ptx"]


@pytest.mark.parametrize("dtype", [FP8, torch.bfloat16], ids=str)
def test_it_serves_what_the_gluon_kernel_serves(dtype: torch.dtype) -> None:
    for options in ({}, {"headdim": 192}, {"layout": "packed"}):
        problem, arguments = problem_and_arguments(dtype=dtype, **options)
        assert misfit("ptx", "sm90", problem, arguments) == ""
    assert misfit("ptx", "sm89", problem, arguments) == "it is sm90 PTX"
    for options, reason in (
        ({"dtype": torch.float16}, "it takes e4m3 and bfloat16 inputs, not torch.float16"),
        ({"dtype": FP8, "p_mode": "unscaled"}, "it has no p_mode 'unscaled'"),
        ({"dtype": FP8, "block_scale": True}, "it has no block_scale"),
    ):
        assert misfit("ptx", "sm90", *problem_and_arguments(**options)) == reason


@pytest.mark.parametrize("dtype", [FP8, torch.bfloat16], ids=str)
@pytest.mark.parametrize("headdim", [128, 192])
def test_configurations_fit_and_are_sound(headdim: int, dtype: torch.dtype) -> None:
    problem, _ = problem_and_arguments(dtype=dtype, headdim=headdim)
    key = tuning.key_of(problem, "sm90")
    found = PTX.configurations(problem)
    assert all(config.keys() == {"BLOCK_N", "num_stages", "CLUSTER"} for config in found)
    assert {config["CLUSTER"] for config in found} == ({1, 2} if dtype == FP8 else {1})
    for config in found:
        size = launch.shared_bytes(problem, config["BLOCK_N"], config["num_stages"])
        assert size <= launch.SHARED_BYTES
        assert configurations.complaint({**config, "kernel": "ptx"}, key) is None
    good = {**found[0], "kernel": "ptx"}
    for change, words in (
        ({"BLOCK_N": 64}, "BLOCK_N is 64, not 128 (ptx)"),
        ({"num_stages": 9}, "num_stages is 9, not 2 to 8"),
        ({"num_stages": 8}, "num_stages is 8: with BLOCK_N 128 that takes"),
        (
            {"CLUSTER": 4},
            f"CLUSTER is 4 for {dtype}, not one of {generated.clusters(problem)} (ptx)",
        ),
        ({"CLUSTER": True}, f"CLUSTER is True for {dtype}, not one of"),
    ):
        assert words in str(configurations.complaint({**good, **change}, key))
    in_two = configurations.complaint({**good, "CLUSTER": 2}, key)
    assert in_two is None if dtype == FP8 else "CLUSTER is 2 for torch.bfloat16" in str(in_two)
    assert configurations.complaint(good, replace(key, block_scale=True)) is not None


@pytest.mark.parametrize(
    ("dtype", "p_mode", "is_quantising"),
    [
        (FP8, "lean", False),
        (FP8, "exact", False),
        (FP8, "lean", True),
        (FP8, "exact", True),
        (torch.bfloat16, "exact", False),
    ],
    ids=str,
)
def test_a_launch_asks_for_the_loop_of_its_kind(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, p_mode: str, is_quantising: bool
) -> None:
    from zyfa_triton.kernels.hopper import loop

    monkeypatch.setattr(launch, "_multiprocessors", lambda device: 132)
    monkeypatch.setattr(loop, "loop_of", lambda *kind: f"loop {kind}")
    launched: list[Mapping[str, Any]] = []

    def record(kernel: Any, grid: Any, arguments: Mapping[str, Any]) -> None:
        if kernel.__name__ == "hopper_attention_forward":
            launched.append(arguments)

    problem, arguments = problem_and_arguments(dtype=dtype, p_mode=p_mode, headdim=192)
    config = PTX.configurations(problem)[0]
    if is_quantising:
        x = make_inputs(64, 64, headdim=192)
        out = torch.empty(*x.q.shape[:3], 128, dtype=torch.bfloat16)
        QUANTISING["ptx"].launch_quantising(
            record, problem, x.q, x.k, x.v, out, None, softmax_scale=0.1, per_tensor=False,
            subtract_k_mean=True, subtract_v_mean=True, config=config,
        )  # fmt: skip
    else:
        PTX.launch(record, problem, arguments, config)
    is_fp8 = dtype == FP8
    overlap = launch.registers_suffice() or not is_fp8
    (given,) = launched
    kind = (192, p_mode, config["num_stages"], overlap, is_fp8, 2 if is_fp8 else 1)
    assert given["LOOP"] == f"loop {kind}"
    assert (given["OVERLAP"], given["CLUSTER"]) == (overlap, kind[-1])


def test_workgroups_of_a_cluster_copy_halves_and_share_a_tile_of_twice_the_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(launch, "_multiprocessors", lambda device: 131)
    launched: list[tuple[Any, Mapping[str, Any]]] = []
    problem, arguments = problem_and_arguments(dtype=FP8, headdim=192, seqlen=700)
    for cluster in (1, 2):
        PTX.launch(
            lambda kernel, grid, given: launched.append((grid, given)), problem, arguments,
            {"BLOCK_N": 128, "num_stages": 3, "CLUSTER": cluster},
        )  # fmt: skip
    (_, alone), (_, pair) = (each for each in launched if "BLOCK_N" in each[1])
    heads = problem.batch * problem.nheads
    assert (alone["m_blocks"], pair["m_blocks"]) == (6, 3)
    assert pair["heads_at_once"] == min(heads, -(-min(65, 3 * heads) // 3))
    blocks = [[x.block_shape for x in (it["k_first"], it["k_rest"], it["v"])]
              for it in (alone, pair)]  # fmt: skip
    assert blocks == [
        [[1, 1, 128, 128], [1, 1, 128, 64], [1, 1, 1, 128, 128]],
        [[1, 1, 64, 128], [1, 1, 64, 64], [1, 1, 1, 64, 128]],
    ]
    grids = [grid for grid, given in launched if "BLOCK_N" in given]
    assert grids == [(min(131, 6 * heads),), (2 * min(65, 3 * heads),)]


@pytest.mark.parametrize("is_strict", [False, True])
def test_what_does_not_become_a_clusters_runs_alone(
    monkeypatch: pytest.MonkeyPatch, is_strict: bool
) -> None:
    monkeypatch.setattr(launch, "_multiprocessors", lambda device: 132)
    monkeypatch.setattr(generated, "_refused", set())
    monkeypatch.setenv("ZYFA_STRICT", str(int(is_strict)))
    problem, arguments = problem_and_arguments(dtype=FP8)
    launched: list[int] = []

    def run(kernel: Any, grid: Any, given: Mapping[str, Any]) -> None:
        if "CLUSTER" in given:
            launched.append(given["CLUSTER"])
            if given["CLUSTER"] == 2:
                raise SpliceError("PTX holds no copy after the mark")

    config = {"BLOCK_N": 128, "num_stages": 3, "CLUSTER": 2}
    if is_strict:
        with pytest.raises(SpliceError, match="no copy after the mark"):
            PTX.launch(run, problem, arguments, config)
        assert launched == [2]
    else:
        with pytest.warns(SpliceWarning, match="no copy after the mark. Its workgroups run alone"):
            PTX.launch(run, problem, arguments, config)
        PTX.launch(run, problem, arguments, config)  # is not compiled again
        assert launched == [2, 1, 1]


def test_bfloat16_has_no_clusters() -> None:
    problem, arguments = problem_and_arguments(dtype=torch.bfloat16)
    with pytest.raises(ValueError, match=r"CLUSTER is 2 for torch.bfloat16, not one of \(1,\)"):
        PTX.launch(
            lambda *_: None, problem, arguments,
            {"BLOCK_N": 128, "num_stages": 2, "CLUSTER": 2},
        )  # fmt: skip


@pytest.mark.parametrize("kernel", [*QUANTISING, "triton", dispatch.AUTO])
def test_16_bit_inputs_reach_the_kernel_that_quantises(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kernel: str
) -> None:
    """Through the same selection as other calls, which looks at every argument."""
    served: list[str] = []

    def record(family: Any, *arguments: Any, **options: Any) -> None:
        served.append(family.name)

    for family in {type(each) for each in QUANTISING.values()}:
        monkeypatch.setattr(family, "launch_quantising", record)
    monkeypatch.setattr(device, "arch_of", lambda index: cuda_arch(9, 0))
    monkeypatch.setattr(torch.cuda, "device", lambda device: torch.no_grad())
    monkeypatch.setenv("ZYFA_TUNING_FILE", str(tmp_path / "tuning.json"))
    monkeypatch.setattr(store, "SHIPPED", tmp_path)  # nothing is stored
    monkeypatch.setattr(tuning.choice, "_files", tuning.choice._Files())
    problem, _ = problem_and_arguments(dtype=FP8)
    x = make_inputs(64, 64)
    out = torch.empty(*x.q.shape[:3], 128, dtype=torch.bfloat16)
    took, _ = device.run_quantising(
        problem, kernel, x.q, x.k, x.v, out, None, softmax_scale=0.1, per_tensor=False,
        subtract_k_mean=False, subtract_v_mean=False,
    )  # fmt: skip
    assert (took, served) == ((True, [kernel]) if kernel in QUANTISING else (False, []))


def test_parameters_and_numbers_that_do_not_exist_are_refused() -> None:
    for name, value in (("headdim", 64), ("p_mode", "fast"), ("stages", 1), ("ones", "there"),
                        ("cluster", 3)):  # fmt: skip
        with pytest.raises(ValueError, match=rf"{name}: got {value!r}; accepted"):
            Parameters(**{name: value})  # type: ignore[arg-type]
    for name, value in (("headdim", 64), ("stages", 9), ("referred", None)):
        with pytest.raises(ValueError, match=rf"{name}: got {value!r}; accepted"):
            Bfloat16Parameters(**{name: value})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"value: got 0\.1; accepted are numbers that float32"):
        hexadecimal(0.1)
    with pytest.raises(ValueError, match="width: got 16; accepted are 128, 64, 32"):
        matrix.descriptor_bits(16)


def test_names_of_a_text_begin_with_its_label() -> None:
    t = Text("a")
    assert t.register("b32", "x") == "a_x"
    assert t.registers("f32", "y", 2) == ["a_y_0", "a_y_1"]
    t.op("mov.b32", "a_x", "0", when="p")
    t.place("end")
    assert t.render().split("\n") == [
        "{", ".reg .b32 a_x;", ".reg .f32 a_y_<2>;", "@p mov.b32 a_x, 0;", "a_end:", "}",
    ]  # fmt: skip


def test_tuning_of_some_kernels_compares_them_with_what_a_call_takes_now(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem, arguments = problem_and_arguments(dtype=FP8)
    key = tuning.key_of(problem, "sm90")
    everything = tuning.measured("auto", problem, key, arguments)
    assert {tuning.kernel_of(each) for each in everything} == {"triton", "gluon", "ptx"}
    present = {"kernel": "gluon", "BLOCK_N": 128, "num_stages": 4, "OVERLAP": True}
    monkeypatch.setattr(tuning.choice, "resolve", lambda key, without: present)
    with tuning.only(["ptx"]):
        found = tuning.measured("auto", problem, key, arguments)
    assert found == [present, *({**c, "kernel": "ptx"} for c in PTX.configurations(problem))]
    with tuning.only(["triton"]):
        found = tuning.measured("auto", problem, key, arguments)
    assert found == [present, *tuning.candidates(key)]
    assert tuning.measured("auto", problem, key, arguments) == everything
    assert tuning.measured("triton", problem, key, arguments) == tuning.candidates(key)
    # what is stored for other tensors of the key may not serve these
    arguments["k_ptr"] = (
        torch.empty(64 * 2 * 136, dtype=torch.uint8)[8:].view(FP8)[:128].expand(1, 64, 2, 128)
    )
    with tuning.only(["gluon"]):
        assert tuning.measured("auto", problem, key, arguments) == [tuning.default(key)]
