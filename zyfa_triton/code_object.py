"""How gfx950 assembly that Triton did not write is launched: by Triton's assembler and driver.

No ROCm and no LLVM are needed besides Triton. It does not judge what a kernel does.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any

from zyfa_triton.arch import GFX950

LANES = 64


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
    """A kernel, loaded on the current device.

    name, text: the kernel's, and the assembly that holds it. types: of its arguments as Triton
    names them ("*bf16", "fp32", "i64"). waves: of a workgroup. LDS is what its descriptor states.
    """

    def __init__(self, name: str, text: str, types: Sequence[str], waves: int) -> None:
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
        source = SimpleNamespace(constants={}, signature=dict(enumerate(types)))
        self._launcher = self._driver.launcher_cls(source, metadata)
        self._packed = _backend().pack_metadata(metadata)
        self._loaded = self._driver.utils.load_binary(
            name, assemble(text), 0, self._driver.get_current_device()
        )

    def launch(self, grid: tuple[int, int, int], *arguments: Any) -> None:
        """Enqueues the grid's workgroups; a pointer argument is a tensor, or 0."""
        stream = self._driver.get_current_stream(self._driver.get_current_device())
        function = self._loaded[1]
        self._launcher(*grid, stream, function, self._packed, None, None, None, *arguments)
