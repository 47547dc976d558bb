"""Decides whether anybody's gfx950 code may be trusted without running it; executes nothing.

Judged on every path of the control flow: opcodes, wait states, waits for memory, ends, registers
against the descriptor. Races, addresses and values need a run (asm_overrides.emulator.run).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from asm_overrides.emulator import elf
from asm_overrides.emulator.findings import Finding
from asm_overrides.emulator.flow import control_flow
from asm_overrides.emulator.hazards import find_hazards
from asm_overrides.emulator.kernel import Descriptor, Kernel
from asm_overrides.emulator.loader import LoadError, load_code_object, load_text
from asm_overrides.emulator.waits import find_missing_waits
from asm_overrides.isa import registers
from asm_overrides.isa.instruction import Instruction
from asm_overrides.isa.parse import ParseError, parse

_ELF_MAGIC = b"\x7fELF"
_UNREADABLE_LINES = 100
"""Lines that cannot be parsed are findings up to this many; then the file is not gfx950 code."""

_KERNEL = re.compile(r"^\s*\.amdhsa_kernel\s+(\S+)", re.MULTILINE)
_LINE = re.compile(r"^line (\d+): ")


def check_file(
    path: str | Path, *, strict: bool = False, objdump: str | None = None
) -> list[Finding]:
    """Findings of the static checks for every kernel in a file.

    Args:
        path: assembler text (with or without kernel descriptors), an llvm-objdump listing, or an
            ELF code object.
        strict: see hazards.find_hazards; for code that no compiler made.
        objdump: see loader.load_code_object.
    Raises:
        OSError: the file cannot be read.
        LoadError, ParseError: it is no gfx950 code at all.
    """
    data = Path(path).read_bytes()
    if data.startswith(_ELF_MAGIC):
        return _check_code_object(data, strict, objdump)
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise LoadError(f"{path} is neither text nor an ELF code object") from None
    return check_text(text, strict=strict)


def check_text(text: str, *, strict: bool = False) -> list[Finding]:
    """Findings of the static checks for assembler text or a listing; see check_file."""
    found, text = _unreadable_lines(text)
    xnack = "xnack-" not in text
    names = _KERNEL.findall(text)
    for name in names:
        found += check_kernel(load_text(text, name), strict=strict, xnack=xnack)
    if not names:
        program = parse(text)
        if not program.instructions:
            raise LoadError("the file holds no instruction")
        found += check_instructions(
            program.instructions, program.labels, (0,), strict=strict, xnack=xnack
        )
    return _once(found)


def check_kernel(kernel: Kernel, *, strict: bool = False, xnack: bool = True) -> list[Finding]:
    """Findings of the static checks for one kernel."""
    entries = tuple(dict.fromkeys((kernel.entry, kernel.fallback_entry)))
    found = check_instructions(
        kernel.instructions, kernel.labels, entries, strict=strict, xnack=xnack
    )
    reachable = _reachable(kernel.instructions, kernel.labels, entries)
    found += _registers_beyond(kernel.descriptor, reachable)
    found += _scratch_without_memory(kernel.descriptor, reachable)
    return _once(found)


def check_instructions(
    instructions: list[Instruction],
    labels: dict[str, int],
    entries: tuple[int, ...] = (0,),
    *,
    strict: bool = False,
    xnack: bool = True,
) -> list[Finding]:
    """Findings for a program without descriptor, from each of its entries."""
    found: list[Finding] = []
    for entry in entries:
        for hazard in find_hazards(instructions, labels, entry, strict=strict, xnack=xnack):
            consumer = instructions[hazard.consumer]
            found.append(_finding("hazard", consumer, hazard.describe(instructions)))
        found += _wait_findings(instructions, labels, entry)
        flow = control_flow(instructions, labels, entry)
        last = len(instructions) - 1
        if flow.reachable[last] and not _ends(instructions[last]):
            found.append(
                _finding(
                    "runs-off-the-end", instructions[last], "the program ends without s_endpgm"
                )
            )
    return _once(found)


def _wait_findings(
    instructions: list[Instruction], labels: dict[str, int], entry: int
) -> list[Finding]:
    try:
        missing = find_missing_waits(instructions, labels, entry)
    except OverflowError as error:
        return [_finding("waits-not-proved", instructions[entry], str(error))]
    return [
        _finding(each.kind, instructions[each.index], each.describe(instructions))
        for each in missing
    ]


def _check_code_object(data: bytes, strict: bool, objdump: str | None) -> list[Finding]:
    image = elf.parse(data)
    names = [symbol[:-3] for symbol in image.symbols if symbol.endswith(".kd")]
    if not names:
        raise LoadError("the code object holds no kernel")
    found: list[Finding] = []
    for name in names:
        found += check_kernel(load_code_object(data, name, objdump), strict=strict)
    return _once(found)


def _unreadable_lines(text: str) -> tuple[list[Finding], str]:
    """Findings for lines that are no gfx950 instruction, and the text without them."""
    found: list[Finding] = []
    lines = text.splitlines()
    while True:
        try:
            parse("\n".join(lines))
        except ParseError as error:
            message = str(error)
            match = _LINE.match(message)
            if match is None or len(found) == _UNREADABLE_LINES:
                raise
            number = int(match[1])
            kind = "unknown-opcode" if "unknown opcode" in message else "malformed"
            reason = message[match.end() :]
            instruction = lines[number - 1].strip()
            found.append(Finding(kind, (0, 0, 0), -1, instruction, number, reason))
            lines[number - 1] = ""
        else:
            return found, "\n".join(lines)


def _finding(kind: str, instruction: Instruction, message: str) -> Finding:
    return Finding(kind, (0, 0, 0), -1, instruction.text, instruction.line, message)


def _once(findings: Iterable[Finding]) -> list[Finding]:
    """In order of lines, without repetitions."""
    return sorted(dict.fromkeys(findings), key=lambda finding: (finding.line, finding.kind))


def _ends(instruction: Instruction) -> bool:
    return instruction.opcode in ("s_endpgm", "s_branch", "s_setpc_b64", "s_trap")


def _reachable(
    instructions: list[Instruction], labels: dict[str, int], entries: tuple[int, ...]
) -> list[Instruction]:
    flows = [control_flow(instructions, labels, entry).reachable for entry in entries]
    return [
        instruction
        for index, instruction in enumerate(instructions)
        if any(flow[index] for flow in flows)
    ]


def _registers_beyond(descriptor: Descriptor, code: list[Instruction]) -> list[Finding]:
    """Registers that the descriptor does not allocate."""
    found = []
    plain = min(descriptor.accum_offset, descriptor.vgprs)
    accumulators = descriptor.vgprs - descriptor.accum_offset
    for instruction in code:
        for register in sorted(instruction.reads | instruction.writes):
            if register < registers.AGPR:
                allocated, kind = register < plain, f"{plain} VGPRs"
            elif register < registers.SGPR:
                allocated = register - registers.AGPR < accumulators
                kind = f"{max(0, accumulators)} accumulation registers"
            elif register < registers.SGPR + registers.SGPR_COUNT:
                allocated = register - registers.SGPR < descriptor.sgprs
                kind = f"{descriptor.sgprs} SGPRs"
            else:
                continue
            if not allocated:
                name = registers.register_name(register)
                found.append(
                    _finding(
                        "register-not-allocated",
                        instruction,
                        f"{name}: the descriptor allocates {kind}",
                    )
                )
                break
    return found


def _scratch_without_memory(descriptor: Descriptor, code: list[Instruction]) -> list[Finding]:
    if descriptor.scratch_bytes:
        return []
    return [
        _finding("no-scratch", instruction, "the descriptor allocates no scratch memory")
        for instruction in code
        if instruction.opcode.startswith("scratch_")
    ][:1]
