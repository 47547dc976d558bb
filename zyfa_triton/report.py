"""What a compiled kernel costs by its assembly: registers, spills, cycles of a loop iteration.

Counted, not simulated: each instruction of a loop is taken once with the cycles that the table in
`asm_overrides.isa` gives it on its port. Overlap, waits and barriers are not modelled here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from asm_overrides.isa.instruction import Instruction
from asm_overrides.isa.operands import Label

_VALU_PORTS = ("valu", "trans")


@dataclass(frozen=True)
class LoopReport:
    """One innermost loop that holds matrix instructions; cycles of one wave and one iteration.

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


def innermost_loops(
    instructions: Sequence[Instruction], labels: Mapping[str, int]
) -> list[tuple[str, int, int]]:
    """Loops without a loop inside: (label, index of the first instruction, of the closing branch).

    A loop is a branch back to a label; several branches back to one label are one loop.
    """
    last_branch: dict[str, int] = {}
    for index, instruction in enumerate(instructions):
        if instruction.spec.port != "branch":
            continue
        for operand in instruction.operands:
            if isinstance(operand, Label) and labels.get(operand.name, index + 1) <= index:
                last_branch[operand.name] = index
    loops = sorted((labels[name], last, name) for name, last in last_branch.items())

    def holds_another(first: int, last: int) -> bool:
        return any(
            first <= other_first
            and other_last <= last
            and (other_first, other_last) != (first, last)
            for other_first, other_last, _ in loops
        )

    return [(name, first, last) for first, last, name in loops if not holds_another(first, last)]


def matrix_loops(
    instructions: Sequence[Instruction], labels: Mapping[str, int]
) -> list[LoopReport]:
    """Innermost loops that hold matrix instructions, in the order of the text."""
    found = []
    for label, first, last in innermost_loops(instructions, labels):
        body = instructions[first : last + 1]
        if any(one.spec.port == "mfma" for one in body):
            found.append(_loop_report(label, body))
    return found


def _loop_report(label: str, body: Sequence[Instruction]) -> LoopReport:
    def on(*ports: str) -> list[Instruction]:
        return [one for one in body if one.spec.port in ports]

    return LoopReport(
        label=label,
        first_line=body[0].line,
        last_line=body[-1].line,
        instructions=len(body),
        matrix_instructions=len(on("mfma")),
        mfma_cycles=sum(one.spec.cycles for one in on("mfma")),
        valu_cycles=sum(one.spec.cycles for one in on(*_VALU_PORTS)),
        transcendental_instructions=len(on("trans")),
        memory_instructions=len(on("vmem")),
        lds_instructions=len(on("lds")),
        barriers=sum(one.opcode == "s_barrier" for one in body),
    )
