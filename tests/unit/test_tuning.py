"""Which configuration a call takes, that files are read and written soundly, that few compile."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from zyfa_triton import compile as offline_compile
from zyfa_triton import tuning, warmup
from zyfa_triton.backends import device
from zyfa_triton.kernels import launch
from zyfa_triton.problem import FP8, Problem
from zyfa_triton.splice.errors import SpliceError
from zyfa_triton.testing import make_inputs
from zyfa_triton.tuning import TuningKey, autotune, choice, configurations, store
from zyfa_triton.tuning.__main__ import main as tune_command
from zyfa_triton.tuning.key import BUCKETS, bucket_of
from zyfa_triton.tuning.store import NONE

KEY = TuningKey("sm90", "e4m3", 128, 128, True, "lean", False, 4096, False)
CONFIG = {"BLOCK_M": 64, "BLOCK_N": 32, "num_warps": 4, "num_stages": 1}
OTHER = {**CONFIG, "num_stages": 2}


@pytest.fixture(autouse=True)
def files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A user file of the test's own, and a folder without shipped entries."""
    monkeypatch.setenv("ZYFA_TUNING_FILE", str(tmp_path / "user.json"))
    monkeypatch.setattr(store, "SHIPPED", tmp_path / "shipped")
    monkeypatch.setattr(choice, "_files", choice._Files())
    yield tmp_path
    monkeypatch.undo()


def problem(seqlen_q: int, seqlen_k: int, **change: Any) -> Problem:
    x = make_inputs(seqlen_q, seqlen_k, dtype=FP8)
    return replace(
        Problem.of(
            x.q, x.k, x.v, causal=True, p_mode="lean", block_scale=False,
            out_dtype=torch.bfloat16, return_lse=False,
        ),
        **change,
    )  # fmt: skip


def test_a_hundred_lengths_are_a_handful_of_keys() -> None:
    base = problem(1, 1)
    keys = {
        tuning.key_of(replace(base, seqlen_q=n, seqlen_k=n), "sm90") for n in range(1, 10_001, 100)
    }
    assert len(keys) <= 8
    every = {
        tuning.key_of(replace(base, seqlen_q=n, seqlen_k=n), "x") for n in range(1, 300_000, 99)
    }
    assert len(every) <= len(BUCKETS) + 1


def test_a_hundred_lengths_are_a_handful_of_compilations() -> None:
    """Counts what Triton specialises on: configuration, types, constants, divisibility."""
    from zyfa_triton.kernels.attention import attention_forward

    unspecialised = frozenset(p.name for p in attention_forward.params if p.do_not_specialize)
    compiled = set()
    for length in range(1, 1600, 16):
        x = make_inputs(1, 1, dtype=FP8)
        q = torch.empty(1, length, 4, 128, dtype=FP8)
        kv = torch.empty(1, length, 2, 128, dtype=FP8)
        out = torch.empty(1, length, 4, 128, dtype=torch.bfloat16)
        it = replace(problem(1, 1), seqlen_q=length, seqlen_k=length)
        arguments = launch.launch_arguments(
            it, q, kv, kv, out, None, softmax_scale=0.1, q_descale=x.q_descale,
            k_descale=x.k_descale, v_descale=x.v_descale,
        )  # fmt: skip
        constants = launch.kernel_constants(it, arguments)
        signature = offline_compile.signature_of(arguments, constants, unspecialised)
        config = tuning.resolve(tuning.key_of(it, "sm90"))
        compiled.add((signature, tuple(config.items())))
    assert len(compiled) <= 4


@pytest.mark.parametrize(
    ("seqlen", "bucket"),
    [(0, 256), (1, 256), (256, 256), (257, 512), (4096, 4096), (10**9, 131072)],
)
def test_buckets(seqlen: int, bucket: int) -> None:
    assert bucket_of(seqlen) == bucket


def test_a_key_tells_problems_apart_that_compile_differently() -> None:
    base = problem(512, 512)
    key = tuning.key_of(base, "sm90")
    for change in (
        {"dtype": torch.bfloat16}, {"headdim": 192}, {"causal": False}, {"p_mode": "exact"},
        {"block_scale": True}, {"seqlen_k": 5000}, {"seqlen_q": 1},
    ):  # fmt: skip
        assert tuning.key_of(replace(base, **change), "sm90") != key
    assert tuning.key_of(base, "gfx950") != key
    same = replace(base, batch=7, nheads=16, nheads_k=1, seqlen_k=400, return_lse=True)
    assert tuning.key_of(same, "sm90") == key


def all_keys() -> Iterator[TuningKey]:
    for target, dtype, headdim, causal, scaled, short in itertools.product(
        ("gfx950", "sm90", "sm89", "gfx942", "sm120"), ("e4m3", "bf16", "fp16"), (128, 192),
        (True, False), (True, False), (True, False),
    ):  # fmt: skip
        if scaled and dtype != "e4m3":
            continue
        p_mode = "lean" if dtype == "e4m3" else "exact"
        yield TuningKey(target, dtype, headdim, 128, causal, p_mode, scaled, 1024, short)


def test_defaults_and_candidates_can_be_launched() -> None:
    for key in all_keys():
        found = tuning.candidates(key)
        assert found[0] == tuning.default(key)
        assert len(found) >= 2
        assert len({tuple(config.items()) for config in found}) == len(found)
        for config in found:
            assert configurations.complaint(config, key) is None, (key, config)
            assert max(config["BLOCK_M"], config["BLOCK_N"]) <= launch.MAX_TILE
            if key.target == "sm90":
                assert configurations._shared_bytes(config, key) <= 227 * 1024


@pytest.mark.parametrize("causal", [True, False])
def test_heads_come_fastest_in_causal_launches_on_gfx950_only(causal: bool) -> None:
    gfx950 = replace(KEY, target="gfx950", causal=causal)
    for config in (*configurations.candidates(gfx950), {**CONFIG, "kernel": "pingpong"}):
        launched = tuning.launchable(config, replace(gfx950, block_scale=True))
        assert launched["HEADS_FASTEST"] == causal
        own = tuning.launchable({**config, "HEADS_FASTEST": not causal}, gfx950)
        assert own["HEADS_FASTEST"] == (not causal)
    for target in ("sm90", "sm89", "gfx942"):
        key = replace(gfx950, target=target)
        launched = [tuning.launchable(each, key) for each in configurations.candidates(key)]
        assert not any("HEADS_FASTEST" in each for each in launched)


def test_a_file_comes_back_as_it_was_written(files: Path) -> None:
    path = files / "deep" / "file.json"
    store.save(path, KEY, CONFIG, {"milliseconds": 0.5})
    other = replace(KEY, causal=False)
    store.save(path, other, OTHER, {})
    store.save(path, KEY, OTHER, {"milliseconds": 0.25})
    entries = store.load(path)
    found = {key: of_key[NONE]["config"] for key, of_key in entries.items()}
    assert found == {KEY: OTHER, other: OTHER}
    assert entries[KEY][NONE]["milliseconds"] == 0.25
    assert {p.name for p in path.parent.iterdir()} - {"file.json.lock"} == {"file.json"}
    data = json.loads(path.read_text())
    assert data["version"] == 1
    assert data["entries"][0]["target"] == "sm90"


def entry(**change: Any) -> dict[str, Any]:
    fields = {**KEY.__dict__, "config": CONFIG, **change}
    return {name: value for name, value in fields.items() if value is not ...}


def wide(*, dtype: str = "bf16", kernel: str = "ptx", **config: Any) -> dict[str, Any]:
    config |= {"BLOCK_N": 128, "kernel": kernel}
    return entry(dtype=dtype, headdim=192, p_mode="exact", config=config)


def pingpong(**change: Any) -> dict[str, Any]:
    config = {**CONFIG, "BLOCK_N": 64, "kernel": "pingpong"}
    return entry(target="gfx950", block_scale=True, config=config, **change)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not JSON"),
        ("[]", 'must be an object with "version": 1'),
        ({"version": 2, "entries": []}, '"version": 1'),
        ({"version": 1}, '"entries" must be a list'),
        ({"version": 1, "entries": [3]}, "entry 0: must be an object"),
        ([entry(target=...)], "entry 0: target is None, not of type str"),
        ([entry(causal=1)], "entry 0: causal is 1, not of type bool"),
        ([entry(headdim="128")], "entry 0: headdim is '128', not of type int"),
        ([entry(), entry(config=...)], "entry 1: config must be an object"),
        ([entry(config={**CONFIG, "num_warps": 3})], "num_warps is 3, not a power of two"),
        ([entry(config={**CONFIG, "BLOCK_M": 512})], "must lie in 16 to 256"),
        ([entry(config={**CONFIG, "num_stages": 0})], "num_stages is 0, not a positive integer"),
        ([entry(block_scale=True)], "BLOCK_N is 32; with block_scale it is 64"),
        ([entry(config={**CONFIG, "kernel": "cuda"})], "kernel is 'cuda', not one of triton"),
        ([entry(config={**CONFIG, "kernel": "hip"})], "kernel is 'hip', which is gfx950 machine"),
        ([entry(dtype="fp8")], "dtype is 'fp8', not one of e4m3, bf16, fp16"),
        ([entry(headdim=64)], "headdim is 64, not one of 128, 192"),
        ([entry(headdim_v=192)], "headdim_v is 192, not one of 128"),
        ([entry(p_mode="fast")], "p_mode is 'fast', not one of lean, exact, unscaled"),
        ([entry(seqlen_bucket=4000)], "seqlen_bucket is 4000, not one of 256, 512"),
        ([entry(without="ptx")], "without is 'ptx', not a list of some of triton"),
        ([entry(without=["cuda"])], "without is ['cuda'], not a list of some of triton"),
        ([entry(without=["triton"])], "but the configuration is one of triton"),
        ([wide(num_stages=8, CLUSTER=2)], "CLUSTER is 2 for torch.bfloat16, not one of (1,) (ptx)"),
        ([wide(num_stages=8, CLUSTER=1)], "num_stages is 8: with BLOCK_N 128 that takes 712704 by"),
        ([wide(num_stages=3, CLUSTER=1)], "bytes of shared memory of 232448 (ptx)"),
        ([wide(kernel="gluon", num_stages=3, OVERLAP=True)], "of shared memory of 232448 (gluon)"),
        ([wide(dtype="fp16", num_stages=2, CLUSTER=1)], "it takes e4m3 and bfloat16 inputs, not"),
        ([pingpong(p_mode="unscaled")], "it has no p_mode 'unscaled'"),
        ([pingpong(dtype="bf16")], "it takes e4m3 inputs"),
    ],
)
def test_a_broken_file_is_an_error_that_says_where(files: Path, content: Any, message: str) -> None:
    path = files / "broken.json"
    if isinstance(content, list):
        content = {"version": 1, "entries": content}
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(store.TuningFileError) as caught:
        store.load(path)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)


def save_slowly(path: Path, has_read: Any, may_write: Any) -> None:
    """Says when it has read the file, and then waits before it writes."""
    write = store._write

    def slow(*arguments: Any) -> None:
        has_read.set()
        may_write.wait(2)
        write(*arguments)

    store._write = slow
    store.save(path, KEY, CONFIG, {})


@pytest.mark.parametrize("kind", ["entry", "machine"])
def test_processes_that_write_at_once_lose_nothing_of_each_other(files: Path, kind: str) -> None:
    path = files / "shared.json"
    spawn = multiprocessing.get_context("spawn")
    has_read, may_write = spawn.Event(), spawn.Event()
    other = spawn.Process(target=save_slowly, args=(path, has_read, may_write))
    other.start()
    assert has_read.wait(60)
    if kind == "entry":
        store.save(path, replace(KEY, causal=False), OTHER, {})
    else:
        store.save_machine(path, "gfx950", {"pack": "op_sel"}, {})
    may_write.set()
    other.join()
    assert other.exitcode == 0
    found = {key.causal for key in store.load(path)}
    assert found == ({True, False} if kind == "entry" else {True})
    assert len(store.load_machines(path)) == (kind == "machine")


def ship(files: Path, key: TuningKey, config: dict[str, Any]) -> None:
    store.save(files / "shipped" / "made-up.json", key, config, {})


def test_the_users_entry_precedes_the_shipped_one(files: Path) -> None:
    ship(files, KEY, CONFIG)
    assert tuning.resolve(KEY) == CONFIG
    store.save(files / "user.json", KEY, OTHER, {})
    choice._forget()
    assert tuning.resolve(KEY) == OTHER


def test_another_user_file_counts_at_once(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store.save(files / "second.json", KEY, OTHER, {})
    assert tuning.resolve(KEY) == tuning.default(KEY)
    monkeypatch.setenv("ZYFA_TUNING_FILE", str(files / "second.json"))
    assert tuning.resolve(KEY) == OTHER
    tuning.resolve(KEY)["BLOCK_M"] = 16  # the caller's own copy
    assert tuning.resolve(KEY) == OTHER


def test_what_is_read_meanwhile_does_not_become_what_is_kept(
    files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread stores, and reads the file again, while this one looks for a configuration."""
    meanwhile = [KEY]

    def default(key: TuningKey) -> dict[str, Any]:
        if meanwhile:
            meanwhile.clear()

            def store_one() -> None:
                store.save(files / "user.json", KEY, OTHER, {})
                choice._forget()
                assert tuning.resolve(KEY) == OTHER

            thread = threading.Thread(target=store_one)
            thread.start()
            thread.join()
        return configurations.default(key)

    monkeypatch.setattr(choice, "default", default)
    assert tuning.resolve(KEY) in (OTHER, tuning.default(KEY))
    assert tuning.resolve(KEY) == OTHER


def test_threads_may_read_while_others_store(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store.save(files / "user.json", KEY, OTHER, {})
    done = threading.Event()
    failures: list[BaseException] = []

    def read() -> None:
        try:
            while not done.is_set():
                assert tuning.resolve(KEY) == OTHER
        except BaseException as error:
            failures.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    readers = [threading.Thread(target=read) for _ in range(3)]
    try:
        for reader in readers:
            reader.start()
        for number in range(100):
            tuning.allow("gfx950", {}, {"number": number})
    finally:
        done.set()
        for reader in readers:
            reader.join()
        sys.setswitchinterval(interval)
    assert failures == []


PTX: dict[str, Any] = {"BLOCK_N": 128, "num_stages": 4, "CLUSTER": 2, "kernel": "ptx"}
GLUON: dict[str, Any] = {"BLOCK_N": 128, "num_stages": 4, "OVERLAP": True, "kernel": "gluon"}


def test_what_was_found_without_some_kernels_stands_beside_what_was_found_with_all(
    files: Path,
) -> None:
    path, both = files / "user.json", frozenset({"gluon", "ptx"})
    ship(files, KEY, PTX)
    store.save(path, KEY, OTHER, {}, both)
    assert tuning.resolve(KEY) == PTX
    assert tuning.resolve(KEY, both) == OTHER
    # the best of many is the best of some, if it is one of these; the best of fewer is not
    assert tuning.chosen(KEY, frozenset({"gluon"})) == PTX
    assert tuning.chosen(KEY, frozenset({"ptx"})) is None
    assert tuning.resolve(KEY, frozenset({"ptx"})) == OTHER  # Triton's own, better than its default
    store.save(path, KEY, GLUON, {}, frozenset({"ptx"}))
    choice._forget()
    assert tuning.resolve(KEY, frozenset({"ptx"})) == GLUON
    assert tuning.resolve(KEY, frozenset({"ptx", "triton"})) == GLUON
    assert (tuning.resolve(KEY), tuning.resolve(KEY, both)) == (PTX, OTHER)
    near = replace(KEY, seqlen_bucket=1024)
    assert (tuning.resolve(near), tuning.resolve(near, both)) == (PTX, OTHER)
    store.save(path, KEY, CONFIG, {}, both)
    assert [one.get("without") for one in json.loads(path.read_text())["entries"]] == [
        ["gluon", "ptx"], ["ptx"],
    ]  # fmt: skip


def test_the_nearest_length_stands_in_and_else_the_default(files: Path) -> None:
    ship(files, replace(KEY, seqlen_bucket=1024), CONFIG)
    ship(files, replace(KEY, seqlen_bucket=65536), OTHER)
    lengths = ((256, CONFIG), (4096, CONFIG), (8192, OTHER), (16384, OTHER), (131072, OTHER))
    for bucket, expected in lengths:  # 8192 is as far from either
        assert tuning.resolve(replace(KEY, seqlen_bucket=bucket)) == expected
    assert tuning.resolve(replace(KEY, headdim=192)) == tuning.default(replace(KEY, headdim=192))
    assert tuning.chosen(KEY) is None


def test_the_shipped_files_are_sound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    for key, entries in store.load_shipped().items():
        for stored in entries.values():
            assert configurations.complaint(stored["config"], key) is None


class Measured:
    """Stands for autotune.measure and counts."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> tuple[dict[str, Any], dict[str, object]]:
        self.count += 1
        return OTHER, {"milliseconds": 1.0}


def test_nothing_is_measured_by_default() -> None:
    measure = Measured()
    assert tuning.requested(KEY, may_measure=True, measure=measure) == tuning.default(KEY)
    assert measure.count == 0


def test_with_tuning_on_a_key_is_measured_once(
    files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZYFA_TUNE", "on")
    measure = Measured()
    for _ in range(3):
        assert tuning.requested(KEY, may_measure=True, measure=measure) == OTHER
    assert measure.count == 1
    assert store.load(files / "user.json")[KEY][NONE]["milliseconds"] == 1.0
    base = problem(1, 1)
    lengths = [
        tuning.key_of(replace(base, seqlen_q=n, seqlen_k=n), "sm90") for n in range(1, 3000, 30)
    ]
    for key in lengths:
        tuning.requested(key, may_measure=True, measure=measure)
    assert measure.count == 1 + len(set(lengths) - {KEY})
    assert measure.count <= 7


def test_under_capture_nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZYFA_TUNE", "on")
    measure = Measured()
    with tuning.observed(force=True):
        config = tuning.requested(KEY, may_measure=False, measure=measure)
    assert measure.count == 0
    assert config == tuning.default(KEY)


def test_a_forced_measurement_replaces_what_is_stored(files: Path) -> None:
    store.save(files / "user.json", KEY, CONFIG, {})
    measure = Measured()
    with tuning.observed(force=True) as seen:
        assert tuning.requested(KEY, may_measure=True, measure=measure) == OTHER
        tuning.note(OTHER)
    tuning.note(CONFIG)  # nobody observes
    assert (measure.count, seen) == (1, [OTHER])
    assert tuning.resolve(KEY) == OTHER


class Kernel:
    """Stands for a launch: takes as long as its number of stages, or fails."""

    def __init__(self, failing: tuple[int, ...] = (), unfit: tuple[int, ...] = ()) -> None:
        self.failing, self.unfit = failing, unfit
        self.launched: list[int] = []

    def __call__(self, config: dict[str, Any]) -> None:
        from triton.runtime.errors import OutOfResources

        if config["num_stages"] in self.failing:
            raise OutOfResources(300_000, 232_448, "shared memory")
        if config["num_stages"] in self.unfit:
            raise SpliceError("the loop does not fit")
        self.launched.append(config["num_stages"])


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Measures with a clock of its own and records the progress bar."""
    import tqdm
    import triton.testing

    seen: dict[str, Any] = {"updates": 0, "measured": [], "rested": 1.0}
    kernels: list[Kernel] = []

    class Bar:
        def __init__(self, **options: Any) -> None:
            seen.update(options)

        def update(self) -> None:
            seen["updates"] += 1

        def set_postfix_str(self, text: str) -> None:
            seen["best"] = text

        def close(self) -> None:
            seen["closed"] = True

    def replayed(call: Any, return_mode: str) -> float:
        before = set(kernels[0].launched)
        call()
        assert return_mode == "median"
        stages = kernels[0].launched[-1]
        assert stages in before, "a capture does not compile"
        has_rested = seen["measured"][-1:] != [stages]
        seen["measured"].append(stages)
        return stages * (seen["rested"] if has_rested else 1.0)

    monkeypatch.setattr(tqdm, "tqdm", Bar)
    monkeypatch.setattr(triton.testing, "do_bench_cudagraph", replayed)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "made-up")
    seen["kernels"] = kernels
    return seen


def measure_stages(
    bench: dict[str, Any], stages: list[int], kernel: Kernel
) -> tuple[dict[str, Any], dict[str, object]]:
    bench["kernels"].append(kernel)
    return autotune.measure(KEY, [{**CONFIG, "num_stages": n} for n in stages], kernel)


def test_the_fastest_candidate_wins_and_progress_is_shown(bench: dict[str, Any]) -> None:
    kernel = Kernel(failing=(1,))
    config, origin = measure_stages(bench, [3, 1, 2, 4], kernel)
    assert config == {**CONFIG, "num_stages": 2}
    assert origin["milliseconds"] == 2.0
    assert origin["device"] == "made-up"
    assert (bench["total"], bench["updates"], bench["closed"]) == (4, 4, True)
    assert "up to 4096 keys on sm90" in bench["desc"]
    assert bench["best"] == "best 2.000 ms"


def test_a_device_that_has_rested_favours_no_candidate(bench: dict[str, Any]) -> None:
    """It is twice as fast as it will be while it has not measured the candidate yet."""
    bench["rested"] = 0.5
    config, origin = measure_stages(bench, [3, 2, 4], Kernel())
    assert bench["measured"] == [3, 3, 2, 2, 4, 4]
    assert (config["num_stages"], origin["milliseconds"]) == (2, 2.0)


def test_no_candidate_that_runs_is_an_error_with_the_last_reason(bench: dict[str, Any]) -> None:
    with pytest.raises(autotune.NoConfigurationRanError, match=r"none of 2 .* shared memory"):
        measure_stages(bench, [1, 2], Kernel(failing=(1, 2)))


def test_a_loop_that_does_not_fit_in_strict_mode_leaves_the_others(bench: dict[str, Any]) -> None:
    config, _ = measure_stages(bench, [1, 3], Kernel(unfit=(1,)))
    assert config["num_stages"] == 3


def test_a_lone_candidate_is_measured_too(bench: dict[str, Any]) -> None:
    config, origin = measure_stages(bench, [3], Kernel())
    assert (config["num_stages"], origin["milliseconds"]) == (3, 3.0)


def test_warmup_on_a_cpu_computes_and_has_nothing_to_tune() -> None:
    x = make_inputs(4, 4)
    assert warmup(x.q, x.k, x.v, causal=True) == {}
    assert warmup(x.q, x.k, x.v, quantize=True, subtract_k_mean=True) == {}
    with pytest.raises(ValueError, match='tune: got True with backend "reference"'):
        warmup(x.q, x.k, x.v, tune=True)
    with pytest.raises(TypeError, match="unexpected keyword argument 'speed'"):
        warmup(x.q, x.k, x.v, speed=3)


def test_the_command_says_why_it_cannot_measure(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from zyfa_triton.backends import Unavailable

    monkeypatch.setattr(device, "unavailable", lambda: Unavailable("No card", "Buy one"))
    assert tune_command([]) == 2
    assert "No card. Buy one" in capsys.readouterr().err
