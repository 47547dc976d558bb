"""What a compiled kernel costs by its assembly: registers, spills, cycles of a loop iteration.

Counted, not simulated: each instruction that an iteration of a loop's steady state runs (see
`asm_overrides.inspection.loops`) is taken with the cycles of the table in `asm_overrides.isa`.
Overlap, waits and barriers are not modelled. `zyfa_triton.inspection` says what cycles are for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from asm_overrides.inspection import loops
from asm_overrides.isa.instruction import Instruction


@dataclass(frozen=True)
class LoopReport:
    """One innermost loop that holds matrix instructions: one wave, one iteration, steady state.

    first_line, last_line: lines of the assembly text. valu_cycles count transcendental ones too.
    """

    label: str
    first_line: int
    last_line: int
    instructions: int
    matrix_instructions: int
    mfma_cycles: int
    valu_cycles: int
    transcendental_instructions: int
    memory_instructions: int
    lds_instructions: int
    barriers: int


@dataclass(frozen=True)
class KernelReport:
    """Resources of a kernel.

    vgprs: all vector registers of a lane, agprs included. lds_bytes: static and dynamic together.
    Spills count registers.
    """

    name: str
    vgprs: int
    agprs: int
    sgprs: int
    vgpr_spills: int
    sgpr_spills: int
    scratch_bytes: int
    lds_bytes: int
    instructions: int
    loops: tuple[LoopReport, ...]


def report(assembly: str, *, dynamic_lds: int = 0) -> KernelReport:
    """Report on the first kernel of AMDGCN text as Triton returns it in asm["amdgcn"].

    dynamic_lds: bytes that the launcher adds to the kernel's static LDS. Raises ValueError where
    the text has no kernel metadata or an opcode that the table does not know.
    """
    from asm_overrides.emulator import load_text

    kernel = load_text(assembly)
    return KernelReport(
        name=kernel.name,
        vgprs=metadata_integer(assembly, "vgpr_count"),
        agprs=metadata_integer(assembly, "agpr_count"),
        sgprs=metadata_integer(assembly, "sgpr_count"),
        vgpr_spills=metadata_integer(assembly, "vgpr_spill_count"),
        sgpr_spills=metadata_integer(assembly, "sgpr_spill_count"),
        scratch_bytes=metadata_integer(assembly, "private_segment_fixed_size"),
        lds_bytes=metadata_integer(assembly, "group_segment_fixed_size") + dynamic_lds,
        instructions=len(kernel.instructions),
        loops=tuple(matrix_loops(kernel.instructions, kernel.labels)),
    )


def metadata_integer(assembly: str, key: str) -> int:
    """An integer of the kernel metadata at the end of the text."""
    match = re.search(rf"^[ \t-]+\.{key}:\s+(\d+)\s*$", assembly, re.MULTILINE)
    if match is None:
        raise ValueError(f"the assembly's metadata has no .{key}")
    return int(match[1])


def matrix_loops(
    instructions: Sequence[Instruction], labels: Mapping[str, int]
) -> list[LoopReport]:
    """Innermost loops that hold matrix instructions, in the order of the text."""
    return [_loop_report(loop, instructions) for loop in loops.matrix_loops(instructions, labels)]


def _loop_report(loop: loops.Loop, instructions: Sequence[Instruction]) -> LoopReport:
    body = [instructions[index] for index in loop.path]

    def on(*ports: str) -> list[Instruction]:
        return [one for one in body if one.spec.port in ports]

    return LoopReport(
        label=loop.label,
        first_line=instructions[loop.first].line,
        last_line=instructions[loop.last].line,
        instructions=len(body),
        matrix_instructions=len(on("mfma")),
        mfma_cycles=sum(loops.cycles(one) for one in on("mfma")),
        valu_cycles=sum(loops.cycles(one) for one in on(*loops.VALU_PORTS)),
        transcendental_instructions=len(on("trans")),
        memory_instructions=len(on("vmem")),
        lds_instructions=len(on("lds")),
        barriers=sum(one.opcode == "s_barrier" for one in body),
    )
