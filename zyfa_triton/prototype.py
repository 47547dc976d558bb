"""How a kernel of your own is compiled for gfx950, executed on this CPU and judged.

It holds no kernel and no numerics: blocks to build one with are in `zyfa_triton.language`, and a
complete example is examples/sliding_window.py.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from asm_overrides.emulator.findings import Finding
from zyfa_triton.backends import emulated
from zyfa_triton.compile import CompiledKernel, compile_kernel
from zyfa_triton.report import KernelReport, report


@dataclass(frozen=True)
class Trial:
    """What one emulated launch tells.

    compiled: assembly and code object. report: registers, spills and cycles of its loops.
    findings: what hardware might not forgive; empty is good. seconds: spent in the emulator.
    """

    compiled: CompiledKernel
    report: KernelReport
    findings: list[Finding]
    wave_instructions: int
    seconds: float


def compile_for_gfx950(
    kernel: Any,
    arguments: Mapping[str, Any],
    constants: Mapping[str, Any],
    **options: Any,
) -> tuple[CompiledKernel, KernelReport]:
    """Machine code of a `@triton.jit` function, and what it costs. No GPU is needed.

    Args:
        kernel: the function, as decorated.
        arguments: run-time arguments by name in the function's order: tensors (on any device,
            "meta" included), ints, floats or None. Triton specialises on their types, alignments
            and values as it does in a launch.
        constants: `tl.constexpr` arguments by name.
        options: of the launch: num_warps, num_stages, waves_per_eu, matrix_instr_nonkdim, ...
    """
    compiled = compile_kernel(kernel, arguments, constants, options)
    return compiled, report(compiled.amdgcn, dynamic_lds=compiled.shared)


def try_on_gfx950(
    kernel: Any,
    grid: Sequence[int],
    arguments: Mapping[str, Any],
    constants: Mapping[str, Any],
    *,
    outputs: Collection[str],
    seed: int | None = None,
    **options: Any,
) -> Trial:
    """Compiles a function and executes its machine code on this CPU, with all checks.

    Args:
        grid: programs in x, y and z; fewer numbers mean 1.
        arguments: as in `compile_for_gfx950`, CPU tensors.
        outputs: names of the arguments that the kernel writes; they are filled in place.
        seed: None runs waves in lockstep; a number interleaves them at random, which must not
            change the result.
    """
    compiled, costs = compile_for_gfx950(kernel, arguments, constants, **options)
    result = emulated.execute(compiled, arguments, grid, outputs=outputs, seed=seed)
    return Trial(compiled, costs, result.findings, result.wave_instructions, result.seconds)
