"""What reaches the HIP runtime when a kernel with a replaced loop is launched, and at what cost."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
from triton.runtime.driver import driver

from examples import scaled_product as example
from tests.asm.fake_hip import FakeRuntime, build_library, make_driver
from tests.asm.splice_cases import (
    IdleAttentionLoop,
    ProductLoop,
    attention_case,
    compile_attention,
    compile_product,
)
from zyfa_triton import dispatch, flash_attn_func, splice
from zyfa_triton.arch import GFX950
from zyfa_triton.backends import device
from zyfa_triton.kernels.attention import attention_forward
from zyfa_triton.splice import SpliceWarning
from zyfa_triton.testing import make_inputs

SECONDS_ALLOWED = 3.0
CONFIG = {"BLOCK_M": 256, "BLOCK_N": 64, "num_warps": 8, "num_stages": 2, "waves_per_eu": 2}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_library(tmp_path_factory.mktemp("hip"))


@pytest.fixture
def runtime(
    library: Path, fresh_splice: None, monkeypatch: pytest.MonkeyPatch
) -> Iterator[FakeRuntime]:
    """Triton believes that there is one gfx950; its driver and launcher are its own."""
    monkeypatch.setenv("TRITON_LIBHIP_PATH", str(library))
    monkeypatch.setattr(driver, "_active", make_driver())
    yield FakeRuntime(library)
    for kernel in (attention_forward, example.scaled_product):
        kernel.device_caches.clear()


@pytest.fixture
def gfx950(runtime: FakeRuntime, monkeypatch: pytest.MonkeyPatch) -> FakeRuntime:
    """The device back end takes CPU tensors for tensors of that device."""
    monkeypatch.setattr(device, "arch_of", lambda index: GFX950)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    return runtime


def run_attention(config: dict[str, Any]) -> dict[str, Any]:
    """Call the device back end; returns the run-time arguments that it should have passed on."""
    problem, arguments = attention_case("lean")
    descales = {f"{name}_descale": arguments[f"{name}_descale_ptr"] for name in "qkv"}
    tensors = [arguments[f"{name}_ptr"] for name in ("q", "k", "v", "o", "lse")]
    device.run(problem, "triton", *tensors, softmax_scale=0.0884, config=config, **descales)
    return arguments


def expected_values(arguments: dict[str, Any]) -> list[Any]:
    """What the launcher passes: everything but what Triton made a constant of."""
    values = []
    for name, value in arguments.items():
        if isinstance(value, torch.Tensor):
            values.append((value.data_ptr(), "*"))
        elif isinstance(value, float):
            values.append((torch.tensor(value).item(), "fp32"))
        elif value is not None and (value != 1 or name in ("seqlen_q", "seqlen_k")):
            values.append((value, "i32"))
    return values


def test_the_launcher_passes_the_attention_kernel_on_as_it_is(gfx950: FakeRuntime) -> None:
    loop = splice.use(IdleAttentionLoop(p_mode="lean", is_causal=True))
    _, arguments = attention_case("lean")
    gfx950.reset(len(expected_values(arguments)))
    passed = run_attention({**CONFIG, "LOOP": loop})
    values = expected_values(passed)
    (launch,) = gfx950.launches
    assert launch.kernel == "attention_forward"
    assert launch.grid == (2 * 2, 1, 1)  # query tiles x heads x batch
    assert launch.block == (512, 1, 1)
    assert launch.shared_bytes == 98304  # the recipe's, more than the kernel around it needs
    assert list(launch.values([kind for _, kind in values])) == [value for value, _ in values]


def test_the_op_launches_the_ping_pong_loop(
    gfx950: FakeRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the public function down: nothing but Triton's launcher runs, with the loop's LDS."""
    monkeypatch.setattr(dispatch, "choose_backend", lambda backend, of: "device")
    monkeypatch.setattr(device, "unavailable", lambda: None)
    x = make_inputs(300, 300, nheads=2, nheads_k=1, dtype=torch.float8_e4m3fn)
    gfx950.reset(1)
    for _ in range(2):
        flash_attn_func(
            x.q, x.k, x.v, causal=True, kernel="pingpong", block_scale=True, **x.descales
        )
    first, second = gfx950.launches
    for launch in (first, second):
        assert launch.kernel == "attention_forward"
        assert launch.grid == (2 * 2, 1, 1)  # query tiles x heads
        assert launch.block == (512, 1, 1)
        assert launch.shared_bytes == 64 * 1024
    flash_attn_func(x.q, x.k, x.v, causal=True, kernel="triton", block_scale=True, **x.descales)
    assert gfx950.launches[-1].shared_bytes < 64 * 1024


def test_tritons_own_loop_is_launched_with_its_own_lds(gfx950: FakeRuntime) -> None:
    _, arguments = attention_case("lean")
    gfx950.reset(len(expected_values(arguments)))
    run_attention({**CONFIG})
    splice.install()
    run_attention({**CONFIG, "LOOP": ""})
    plain = compile_attention("").metadata.shared
    assert [one.shared_bytes for one in gfx950.launches] == [plain, plain]


def test_a_second_call_compiles_and_generates_nothing(
    gfx950: FakeRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = {**CONFIG, "LOOP": splice.use(IdleAttentionLoop(p_mode="lean", is_causal=True))}
    gfx950.reset(1)
    run_attention(config)

    def never(*arguments: Any, **more: Any) -> Any:
        raise AssertionError("a cached call compiled or generated something")

    monkeypatch.setattr(IdleAttentionLoop, "text", never)
    monkeypatch.setattr(triton.compiler, "compile", never)
    monkeypatch.setattr(triton.compiler.compiler, "compile", never)
    monkeypatch.setattr(attention_forward, "_do_compile", never)
    run_attention(config)
    assert len(gfx950.launches) == 2


def test_constants_of_modules_are_not_compared_at_each_launch(gfx950: FakeRuntime) -> None:
    """Triton would; other configurations are compiled with them all the same."""
    gfx950.reset(1)
    for warps in (8, 4):
        run_attention({**CONFIG, "num_warps": warps, "BLOCK_M": 32 * warps})
        assert attention_forward.used_global_vals == {}
    assert [one.block[0] for one in gfx950.launches] == [8 * 64, 4 * 64]


def test_a_fallback_from_the_disk_cache_warns_at_the_launch(
    gfx950: FakeRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    unfit = IdleAttentionLoop(p_mode="exact", is_causal=True)
    config = {**CONFIG, "LOOP": splice.use(unfit)}
    gfx950.reset(1)
    with pytest.warns(SpliceWarning, match="idle stands for"):
        run_attention(config)
    monkeypatch.setattr(splice.hook, "_warned", set())
    attention_forward.device_caches.clear()  # as in another process
    with pytest.warns(SpliceWarning, match="idle stands for"):
        run_attention(config)
    plain = compile_attention("").metadata.shared
    assert [one.shared_bytes for one in gfx950.launches] == [plain, plain]


def test_the_loop_is_a_value_that_the_autotuner_chooses(runtime: FakeRuntime) -> None:
    """Both loops are compiled and timed; here the one with more LDS is always the faster."""
    loop = splice.use(ProductLoop(lds_bytes=163840))
    runtime.reset(1)

    def benchmark(run: Any, quantiles: Any = None, **more: Any) -> Any:
        run()
        milliseconds = 1e6 / (1 + runtime.launches[-1].shared_bytes)
        return [milliseconds] * 3

    configs = [
        triton.Config(
            {**example.BLOCKS, "LOOP": which, "waves_per_eu": 2}, num_warps=8, num_stages=2
        )
        for which in ("", loop)
    ]
    tuned = triton.autotune(configs=configs, key=["size_k"], do_bench=benchmark)(
        example.scaled_product
    )
    arguments = example.example_arguments(example.BLOCK_M, example.BLOCK_N, example.BLOCK_K)
    tuned[(1, 1)](**arguments)
    assert tuned.best_config.kwargs["LOOP"] == loop
    timed = [one.shared_bytes for one in runtime.launches]
    assert len(timed) >= 3 and timed[-1] == 163840 and min(timed) < 163840


@pytest.mark.usefixtures("fresh_splice")
def test_compiling_splicing_and_assembling_is_quick() -> None:
    """Processor time of this process, so that a busy machine does not count."""
    compile_product("")  # what the first compilation of a process loads
    loop = splice.use(IdleAttentionLoop(p_mode="lean", is_causal=True))
    started = time.process_time()
    compiled = compile_attention(loop)
    assert compiled.metadata.splice == loop
    assert time.process_time() - started < SECONDS_ALLOWED
