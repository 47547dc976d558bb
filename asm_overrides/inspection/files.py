"""Decides how anybody's gfx950 code is taken apart for inspection; counts nothing itself."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asm_overrides.emulator import elf, metadata
from asm_overrides.emulator.flow import control_flow
from asm_overrides.emulator.kernel import Kernel
from asm_overrides.emulator.loader import LoadError, load_code_object, load_text
from asm_overrides.inspection.cost import Cost, steady_cost
from asm_overrides.isa import registers
from asm_overrides.isa.instruction import Instruction
from asm_overrides.isa.parse import parse

_ELF_MAGIC = b"\x7fELF"
_KERNEL = re.compile(r"^\s*\.amdhsa_kernel\s+(\S+)", re.MULTILINE)


@dataclass(frozen=True)
class KernelCost:
    """What a kernel's main loop costs, and the kernel's resources.

    Attributes:
        name: of the kernel, "" for code without one.
        cost: of the main loop. others: of the other loops with matrix instructions.
        vgprs: vector registers of a lane, accumulation registers included; without metadata those
            that the code names.
        spills: vector registers that the compiler spilled; None without metadata.
        lds_bytes: of a workgroup; None where only the launcher knows.
    """

    name: str
    cost: Cost
    others: tuple[Cost, ...]
    vgprs: int
    spills: int | None
    lds_bytes: int | None


def inspect_file(
    path: str | Path, *, dynamic_lds: int | None = None, objdump: str | None = None
) -> list[KernelCost]:
    """Costs of every kernel in a file that has a loop with matrix instructions.

    Args:
        path: assembler text (with or without kernel descriptors), an llvm-objdump listing, or an
            ELF code object.
        dynamic_lds: bytes of LDS that the launcher adds, where known.
        objdump: see loader.load_code_object.
    Raises:
        OSError: the file cannot be read.
        LoadError, ParseError: it is no gfx950 code, or has no such loop.
    """
    data = Path(path).read_bytes()
    if data.startswith(_ELF_MAGIC):
        return _inspect_code_object(data, dynamic_lds, objdump)
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise LoadError("neither text nor an ELF code object") from None
    return inspect_text(text, dynamic_lds=dynamic_lds)


def inspect_text(text: str, *, dynamic_lds: int | None = None) -> list[KernelCost]:
    """Costs of every kernel of an assembler text or a listing; see inspect_file."""
    names = _KERNEL.findall(text)
    if names:
        kernels = [load_text(text, name) for name in names]
        return _inspect_kernels(kernels, metadata.from_text(text), dynamic_lds)
    program = parse(text)
    cost, others = steady_cost(program.instructions, program.labels)
    if cost is None:
        raise LoadError("no loop with matrix instructions")
    lds_bytes = _lds_bytes(0, dynamic_lds, program.instructions)
    return [KernelCost("", cost, others, _named(program.instructions), None, lds_bytes)]


def _inspect_code_object(
    data: bytes, dynamic_lds: int | None, objdump: str | None
) -> list[KernelCost]:
    image = elf.parse(data)
    names = [symbol[:-3] for symbol in image.symbols if symbol.endswith(".kd")]
    kernels = [load_code_object(data, name, objdump) for name in names]
    return _inspect_kernels(kernels, metadata.from_note(image.note), dynamic_lds)


def _inspect_kernels(
    kernels: Sequence[Kernel], described: Sequence[Mapping[str, Any]], dynamic_lds: int | None
) -> list[KernelCost]:
    by_name = {str(each.get(".name")): each for each in described}
    found = []
    for kernel in kernels:
        instructions = kernel.instructions
        if len(kernels) > 1:  # each then sees the code of all
            instructions = _own(kernel)
        cost, others = steady_cost(instructions, kernel.labels)
        if cost is not None:
            known = by_name.get(kernel.name, {})
            static = kernel.descriptor.lds_bytes
            found.append(
                KernelCost(
                    kernel.name,
                    cost,
                    others,
                    int(known.get(".vgpr_count", 0)) or _named(instructions),
                    known.get(".vgpr_spill_count"),
                    _lds_bytes(static, dynamic_lds, instructions),
                )
            )
    if not found:
        raise LoadError("no kernel here has a loop with matrix instructions")
    return found


def _own(kernel: Kernel) -> list[Instruction]:
    """Instructions up to the last that a kernel's entry reaches, those before its start removed."""
    reachable = control_flow(kernel.instructions, kernel.labels, kernel.entry).reachable
    last = max(index for index, is_reached in enumerate(reachable) if is_reached)
    blank = parse("s_nop 0").instructions
    return [*(blank * kernel.entry), *kernel.instructions[kernel.entry : last + 1]]


def _named(instructions: Sequence[Instruction]) -> int:
    """Vector registers up to the highest that the code names, of each kind."""
    used = {register for each in instructions for register in each.reads | each.writes}
    plain = [register + 1 for register in used if register < registers.AGPR]
    accumulators = [
        register + 1 - registers.AGPR
        for register in used
        if registers.AGPR <= register < registers.SGPR
    ]
    return max(plain, default=0) + max(accumulators, default=0)


def _lds_bytes(static: int, dynamic: int | None, code: Sequence[Instruction]) -> int | None:
    if dynamic is not None:
        return static + dynamic
    uses = any(each.spec.port == "lds" or each.modifiers.get("lds") for each in code)
    return None if uses and not static else static
