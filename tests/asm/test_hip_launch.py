"""What reaches the HIP runtime when the kernel in HIP C++ is launched, and that it computes there.

The runtime is the fake one; what it was asked to launch is executed by the emulator, from the code
object and the addresses that it got.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from triton.runtime.driver import driver

from asm_overrides.emulator import GlobalMemory, load_code_object
from asm_overrides.emulator import run as run_kernel
from tests.asm.fake_hip import FakeRuntime, Launch, build_library, make_driver
from zyfa_triton import code_object, dispatch, flash_attn_func, tuning
from zyfa_triton.arch import GFX950
from zyfa_triton.backends import device, launching
from zyfa_triton.kernels import hip
from zyfa_triton.testing import Inputs, check_output, expected, make_inputs
from zyfa_triton.tuning import choice

CODES: dict[str, bytes] = {}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_library(tmp_path_factory.mktemp("hip"))


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ZYFA_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def runtime(
    library: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[FakeRuntime]:
    """Triton believes that there is one gfx950, and the op that CPU tensors lie on it."""
    monkeypatch.setenv("TRITON_LIBHIP_PATH", str(library))
    monkeypatch.setenv("ZYFA_TUNING_FILE", str(tmp_path / "tuning.json"))
    monkeypatch.setattr(choice, "_files", choice._Files())
    monkeypatch.setattr(driver, "_active", make_driver())
    monkeypatch.setattr(device, "arch_of", lambda index: GFX950)
    monkeypatch.setattr(device, "unavailable", lambda: None)
    monkeypatch.setattr(dispatch, "choose_backend", lambda backend, of: "device")
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    assemble = code_object.assemble

    def assemble_and_keep(text: str) -> bytes:
        code = assemble(text)
        CODES[text.split(".amdhsa_kernel ")[1].split()[0]] = code
        return code

    monkeypatch.setattr(code_object, "assemble", assemble_and_keep)
    fake = FakeRuntime(library)
    fake.reset(len(hip.TYPES))
    hip.launchable.cache_clear()
    yield fake
    hip.launchable.cache_clear()


def execute(launch: Launch, tensors: dict[str, torch.Tensor | None]) -> list[Any]:
    """Do a launch in the memory of this process, with the addresses that the runtime got."""
    memory = GlobalMemory()
    values = list(launch.values(list(hip.TYPES.values())))
    for place, tensor in enumerate(tensors.values()):
        if tensor is None:
            assert values[place] == 0
            continue
        assert values[place] == tensor.data_ptr()
        data = (ctypes.c_uint8 * tensor.nbytes).from_address(tensor.data_ptr())
        values[place] = memory.alloc(str(place), np.frombuffer(data, np.uint8))
    kernel = load_code_object(CODES[launch.kernel])
    result = run_kernel(
        kernel,
        grid=launch.grid,
        kernarg=kernel.pack(values),
        memory=memory,
        num_waves=launch.block[0] // 64,
        dynamic_lds=launch.shared_bytes,
    )
    out = tensors["out"]
    assert out is not None
    out.view(torch.uint8).numpy().reshape(-1)[:] = memory.array(values[3])
    return result.findings


def call(inputs: Inputs, **options: Any) -> torch.Tensor:
    result = flash_attn_func(inputs.q, inputs.k, inputs.v, causal=True, **options)
    return result[0] if isinstance(result, tuple) else result


@pytest.mark.parametrize("headdim", [128, 192])
def test_the_op_launches_it_and_the_launched_code_computes(
    runtime: FakeRuntime, headdim: int
) -> None:
    inputs = make_inputs(100, 140, nheads=2, nheads_k=1, headdim=headdim)
    out = call(inputs, kernel="hip")
    (launch,) = runtime.launches
    assert launch.kernel == f"attention_forward_bf16_d{headdim}_causal"
    assert (launch.grid, launch.block, launch.shared_bytes) == ((2, 1, 1), (512, 1, 1), 0)
    tensors = {"q": inputs.q, "k": inputs.k, "v": inputs.v, "out": out, "lse": None}
    out.fill_(float("nan"))
    assert execute(launch, tensors) == []
    (ref, _), (low, _) = expected(inputs, causal=True)
    check_output(out, ref, low, is_fp8=False)


def test_the_arguments_are_passed_in_order(runtime: FakeRuntime) -> None:
    inputs = make_inputs(30, 50, batch=2, nheads=6, nheads_k=2, layout="transposed")
    out, lse = flash_attn_func(
        inputs.q, inputs.k, inputs.v, softmax_scale=0.25, return_lse=True, kernel="hip"
    )
    (launch,) = runtime.launches
    assert launch.kernel.endswith("_full_lse") and launch.grid == (12, 1, 1)
    values = dict(zip(hip.TYPES, launch.values(list(hip.TYPES.values())), strict=True))
    assert values["lse_ptr"] == lse.data_ptr()
    assert values["softmax_scale_log2"] == pytest.approx(0.25 * 1.4426950408889634)
    for name, tensor in {"q": inputs.q, "k": inputs.k, "v": inputs.v, "o": out}.items():
        strides = [values[f"stride_{name}{axis}"] for axis in "bsh"]
        assert strides == list(tensor.stride()[:3]), name
    counts = [values[name] for name in ("nheads", "group_size", "seqlen_q", "seqlen_k")]
    assert counts == [6, 3, 30, 50]


def test_a_second_call_compiles_and_loads_nothing(
    runtime: FakeRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = make_inputs(40, 40, nheads=1, nheads_k=1)
    call(inputs, kernel="hip")

    def never(*arguments: Any) -> Any:
        raise AssertionError("a second call compiled or loaded something")

    monkeypatch.setattr(hip.Instance, "assembly", never)
    monkeypatch.setattr(hip, "Kernel", never)
    call(inputs, kernel="hip")
    assert len(runtime.launches) == 2


def test_a_graph_captures_it_only_after_it_was_loaded(
    runtime: FakeRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = make_inputs(40, 40, nheads=1, nheads_k=1)
    with monkeypatch.context() as capturing:
        capturing.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        with pytest.raises(launching.NotWarmedUpError, match="d128_causal is not compiled"):
            call(inputs, kernel="hip")
    call(inputs, kernel="hip")
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    call(inputs, kernel="hip")
    assert len(runtime.launches) == 2


def test_auto_launches_what_the_tuning_file_names(
    runtime: FakeRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = make_inputs(40, 40, nheads=1, nheads_k=1)
    stored = {**hip.CONFIG, "kernel": "hip"}
    monkeypatch.setattr(tuning, "requested", lambda key, without, **options: stored)
    call(inputs)
    assert runtime.launches[-1].kernel == "attention_forward_bf16_d128_causal"
