"""How a text in gfx950 assembly runs on a card: Triton's LLVM assembles it, its driver launches it.

No ROCm and no LLVM are needed besides Triton. It does not judge what comes back.
"""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from asm_overrides.probes import Probe
from asm_overrides.probes.builder import LANES, UNWRITTEN, Words
from zyfa_triton.arch import GFX950, arch_of
from zyfa_triton.backends import device

_POINTERS = ("output", "input")


def missing() -> str:
    """Why nothing can be launched on a gfx950 here; "" where one is the current device."""
    why = device.unavailable()
    if why is not None:
        return why.reason
    name = arch_of(torch.cuda.current_device()).name
    return "" if name == GFX950.name else f"the current device is {name}, not {GFX950.name}"


def describe() -> str:
    """The card's name as its driver gives it."""
    return torch.cuda.get_device_name(torch.cuda.current_device())


@cache
def _backend() -> Any:
    from triton.backends.amd.compiler import HIPBackend
    from triton.backends.compiler import GPUTarget

    return HIPBackend(GPUTarget("hip", GFX950.name, LANES))


def assemble(text: str) -> bytes:
    """The code object of an assembly file with one kernel.

    Raises RuntimeError where the text does not assemble; LLVM says why on stderr.
    """
    from triton._C.libtriton import llvm

    llvm.init_targets()  # as every compilation does; a second time it does nothing
    backend = _backend()
    code: bytes = backend.make_hsaco(text, {}, backend.parse_options({"enable_fp_fusion": False}))
    if not code.startswith(b"\x7fELF"):
        raise RuntimeError("Triton's assembler made no code object of this text")
    return code


class Kernel:
    """A kernel of two pointers, loaded on the current device."""

    def __init__(self, name: str, text: str, waves: int) -> None:
        from triton.runtime.driver import driver

        self._driver = driver.active
        metadata = SimpleNamespace(
            name=name,
            num_warps=waves,
            num_ctas=1,
            shared=0,  # besides what the descriptor states
            warp_size=LANES,
            launch_cooperative_grid=False,
            tensordesc_meta=None,
            global_scratch_size=0,
            global_scratch_align=1,
            profile_scratch_size=0,
            profile_scratch_align=1,
        )
        signature = {index: "*i32" for index, _ in enumerate(_POINTERS)}
        source = SimpleNamespace(constants={}, signature=signature)
        self._launcher = self._driver.launcher_cls(source, metadata)
        self._packed = _backend().pack_metadata(metadata)
        self._loaded = self._driver.utils.load_binary(
            name, assemble(text), 0, self._driver.get_current_device()
        )

    def launch(self, output: torch.Tensor, source: torch.Tensor) -> None:
        """One workgroup; returns before it is done."""
        stream = self._driver.get_current_stream(self._driver.get_current_device())
        function = self._loaded[1]
        self._launcher(
            1, 1, 1, stream, function, self._packed, None, None, None, output, source
        )  # fmt: skip


def execute(probe: Probe) -> Words:
    """The probe's output, (words,), from the current device."""
    from triton.runtime.driver import driver

    where = driver.active.get_active_torch_device()
    unwritten = torch.from_numpy(np.full(probe.words, UNWRITTEN, np.uint32).view(np.int32))
    output = unwritten.to(where)
    source = torch.from_numpy(probe.source.view(np.int32).copy()).to(where)
    Kernel(probe.kernel, probe.text, probe.waves).launch(output, source)
    words: Words = output.cpu().numpy().view(np.uint32)  # waits for the launch
    return words
