"""Decides how Triton's HIP driver and launcher are run against a runtime that has no GPU.

Triton compiles its own C launcher as it would on a machine with a card; only libamdhip64.so is
another (fake_hip.c), and keeps what would be launched. It tests nothing.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import struct
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

_ARGUMENTS, _NAME_BYTES = 64, 128


class _Launch(ctypes.Structure):
    _fields_ = (
        ("kernel", ctypes.c_char * _NAME_BYTES),
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("shared_bytes", ctypes.c_uint32),
        ("arguments", ctypes.c_uint64 * _ARGUMENTS),
    )


@dataclass(frozen=True)
class Launch:
    """One launch as the runtime got it. arguments: 8 bytes each, upper ones undefined if unused."""

    kernel: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    shared_bytes: int
    arguments: tuple[int, ...]

    def values(self, types: Sequence[str]) -> tuple[Any, ...]:
        """The arguments as values of Triton's types."""
        return tuple(_decode(raw, kind) for raw, kind in zip(self.arguments, types, strict=False))


def _decode(raw: int, kind: str) -> Any:
    if kind.startswith("*"):
        return raw
    data = raw.to_bytes(8, "little")
    return struct.unpack_from({"i32": "<i", "i64": "<q", "fp32": "<f"}[kind], data)[0]


def build_library(folder: Path) -> Path:
    """Compile fake_hip.c under the name by which Triton looks for the runtime."""
    import triton.backends.amd as amd

    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("cc")
    assert compiler, "tests of the launch need a C compiler, as Triton's launcher does"
    headers = Path(amd.__path__[0]) / "include"
    library = folder / "libamdhip64.so"
    source = Path(__file__).with_name("fake_hip.c")
    flags = ["-shared", "-fPIC", "-D__HIP_PLATFORM_AMD__", "-I", str(headers)]
    subprocess.run([compiler, *flags, "-o", str(library), str(source)], check=True)
    return library


class FakeRuntime:
    """The library's record of launches."""

    def __init__(self, library: Path) -> None:
        self._library = ctypes.CDLL(str(library))
        self._library.fake_launch.restype = ctypes.POINTER(_Launch)

    def reset(self, arguments: int) -> None:
        """Forget all launches; the next ones have so many arguments."""
        self._library.fake_reset(arguments)

    @property
    def launches(self) -> list[Launch]:
        found = []
        for index in range(self._library.fake_launch_count()):
            one = self._library.fake_launch(index).contents
            found.append(
                Launch(one.kernel.decode(), tuple(one.grid), tuple(one.block), one.shared_bytes,
                       tuple(one.arguments))
            )  # fmt: skip
        return found


def make_driver() -> Any:
    """Triton's HIP driver; only what it would ask torch about the current device is answered here.

    TRITON_LIBHIP_PATH must name the library.
    """
    from triton.backends.amd import driver as hip

    hip._get_path_to_hip_runtime_dylib.cache_clear()
    if hasattr(hip.HIPUtils, "instance"):
        del hip.HIPUtils.instance

    class Driver(hip.HIPDriver):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.get_current_device = lambda: 0
            self.get_current_stream = lambda device: 0
            self.set_current_device = lambda device: None

        def get_active_torch_device(self) -> torch.device:
            return torch.device("cpu")

    return Driver()
