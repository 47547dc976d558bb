"""Probes reach a card through Triton's assembler, driver and launcher, and its answer comes back.

The runtime is the fake one; what it was asked to launch is executed by the emulator, from the code
object and the addresses that it got.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from triton.runtime.driver import driver

from asm_overrides.emulator import GlobalMemory, Machine, load_code_object
from asm_overrides.emulator import run as run_kernel
from asm_overrides.probes import all_probes
from tests.asm.fake_hip import FakeRuntime, build_library, make_driver
from zyfa_triton import arch, code_object, tuning
from zyfa_triton.arch import GFX950
from zyfa_triton.backends import device
from zyfa_triton.cli import main
from zyfa_triton.selftest import card
from zyfa_triton.tuning import choice, store

POINTERS = 2


class EmulatedCard:
    """Executes what the fake runtime was asked to launch."""

    def __init__(self, runtime: FakeRuntime, machine: Machine) -> None:
        self.runtime, self.machine = runtime, machine
        self.codes: dict[str, bytes] = {}
        self.sizes: dict[int, int] = {}

    def synchronize(self) -> None:
        """Do the last launch, in the memory of this process."""
        launch = self.runtime.launches[-1]
        kernel = load_code_object(self.codes[launch.kernel])
        memory = GlobalMemory()
        output, source = launch.arguments[:POINTERS]
        placed = [
            memory.alloc(name, self.memory(pointer))
            for name, pointer in (("output", output), ("input", source))
        ]
        run_kernel(
            kernel,
            grid=launch.grid,
            kernarg=kernel.pack(placed),
            memory=memory,
            num_waves=launch.block[0] // 64,
            dynamic_lds=launch.shared_bytes,
            checks=False,
            machine=self.machine,
        )
        self.memory(output)[:] = memory.array(placed[0])

    def memory(self, pointer: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """The bytes of a tensor that was passed."""
        array = (ctypes.c_uint8 * self.sizes[pointer]).from_address(pointer)
        return np.frombuffer(array, np.uint8)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_library(tmp_path_factory.mktemp("hip"))


@pytest.fixture
def emulated_card(
    library: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[EmulatedCard]:
    """One gfx950, as far as this package can tell."""
    monkeypatch.setenv("TRITON_LIBHIP_PATH", str(library))
    monkeypatch.setenv("ZYFA_TUNING_FILE", str(tmp_path / "tuning.json"))
    monkeypatch.setattr(choice, "_files", choice._Files())
    monkeypatch.setattr(driver, "_active", make_driver())
    monkeypatch.setattr(device, "unavailable", lambda: None)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "AMD Instinct MI355X")
    monkeypatch.setattr(card, "arch_of", lambda index: GFX950)
    chip = EmulatedCard(FakeRuntime(library), Machine())
    assemble, launch = code_object.assemble, code_object.Kernel.launch

    def assemble_and_keep(text: str) -> bytes:
        code = assemble(text)
        chip.codes[text.split(".amdhsa_kernel ")[1].split()[0]] = code
        return code

    def launch_and_wait(
        kernel: code_object.Kernel, grid: tuple[int, int, int], *tensors: torch.Tensor
    ) -> None:
        chip.sizes = {each.data_ptr(): each.nbytes for each in tensors}
        chip.runtime.reset(POINTERS)
        launch(kernel, grid, *tensors)
        chip.synchronize()

    monkeypatch.setattr(code_object, "assemble", assemble_and_keep)
    monkeypatch.setattr(code_object.Kernel, "launch", launch_and_wait)
    yield chip


def probe_named(name: str) -> card.Probe:
    (found,) = (probe for probe in all_probes() if probe.name == name)
    return found


@pytest.mark.parametrize("name", ["matrix/accumulation", "memory/direct-bounds", "entry/preload"])
def test_a_probe_is_launched_as_written(emulated_card: EmulatedCard, name: str) -> None:
    probe = probe_named(name)
    assert probe.judge(card.execute(probe)) == probe.assumed
    (launch,) = emulated_card.runtime.launches
    assert (launch.kernel, launch.grid, launch.block) == (probe.kernel, (1, 1, 1), (64, 1, 1))
    assert launch.shared_bytes == 0  # LDS is the descriptor's


def test_the_command_stores_what_a_card_allows(
    emulated_card: EmulatedCard, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    rows = tmp_path / "rows.json"
    assert main(["selftest", "packing", "--json", str(rows)]) == 0
    shown = capsys.readouterr().out
    assert "answered by AMD Instinct MI355X" in shown
    assert f"allowed: pack=op_sel in {tmp_path / 'tuning.json'}" in shown
    assert json.loads(rows.read_text())["allowed"] == {"pack": "op_sel"}
    stored = store.load_machines(tmp_path / "tuning.json")["gfx950"]
    assert stored["settings"] == {"pack": "op_sel"} and stored["device"] == "AMD Instinct MI355X"
    assert choice.machine_settings("gfx950") == {"pack": "op_sel"}


def test_a_card_that_answers_otherwise_fails_and_takes_the_permission_back(
    emulated_card: EmulatedCard, capsys: pytest.CaptureFixture[str]
) -> None:
    tuning.allow(GFX950.name, {"pack": "op_sel"}, {})
    emulated_card.machine = Machine(ashr_pk_keeps_other_half=False)
    assert main(["selftest", "packing"]) == 1
    shown = capsys.readouterr().out
    assert "packing/ashr-pk-other-half" in shown and "zeroed" in shown
    assert choice.machine_settings(GFX950.name) == {"pack": "perm"}


def test_nothing_is_stored_if_not_wanted(
    emulated_card: EmulatedCard, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["selftest", "packing", "--no-store"]) == 0
    assert "allowed: pack=op_sel (not stored)" in capsys.readouterr().out
    assert not (tmp_path / "tuning.json").exists()


def test_a_launch_that_fails_is_an_answer(
    emulated_card: EmulatedCard, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*arguments: object) -> None:
        raise RuntimeError("Triton Error [HIP]: Code: 1")

    monkeypatch.setattr(card.Kernel, "launch", refuse)
    assert main(["selftest", "packing/short-results", "cycles/barrier"]) == 1
    assert capsys.readouterr().out.count("failed: Triton Error [HIP]: Code: 1") == 2


def test_another_card_is_no_gfx950(
    emulated_card: EmulatedCard, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert card.missing() == ""
    monkeypatch.setattr(card, "arch_of", lambda index: arch.cuda_arch(9, 0))
    assert card.missing() == "the current device is sm90, not gfx950"
    monkeypatch.setattr(
        device, "unavailable", lambda: device.Unavailable("Triton is not installed", "")
    )
    assert card.missing() == "Triton is not installed"
