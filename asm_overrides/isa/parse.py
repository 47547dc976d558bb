"""Decides how AMDGCN text becomes instructions; does not execute them or read kernel descriptors.

Two spellings are understood: assembler input as LLVM and Triton print it (directives, labels,
comments, `.set` symbols) and llvm-objdump's listing (addresses and encodings in `//` comments).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from asm_overrides.isa import expressions, registers
from asm_overrides.isa.instruction import Instruction, ModifierValue
from asm_overrides.isa.operands import (
    Constant,
    HardwareField,
    Label,
    Operand,
    Register,
    Symbolic,
    WaitCounts,
)
from asm_overrides.isa.swizzle import pattern_bits
from asm_overrides.isa.table import OpSpec, Role, UnknownOpcodeError, lookup


class ParseError(ValueError):
    """Text that is not gfx950 assembly; the message names the line."""


@dataclass(slots=True)
class Program:
    """Instructions of one text with its labels.

    Attributes:
        instructions: in program order.
        labels: label -> index of the instruction that follows it.
        aligned: indices of instructions that a `.p2align` precedes -> its exponent.
        symbols: values of `.set` symbols.
        directives: (line, text) of every other directive.
    """

    instructions: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    aligned: dict[int, int] = field(default_factory=dict)
    symbols: dict[str, int] = field(default_factory=dict)
    directives: list[tuple[int, str]] = field(default_factory=list)


_LABEL = re.compile(r"^([A-Za-z_.$][\w.$@]*):\s*")
_LISTING_LABEL = re.compile(r"^([0-9a-f]{8,16}) <([^>]+)>:\s*$")
_LISTING_COMMENT = re.compile(r"//\s*([0-9A-Fa-f]{6,16}):((?:\s+[0-9A-Fa-f]{8})+)(?:\s+<([^>]+)>)?")
_SUFFIX = re.compile(r"_(e32|e64|dpp|sdwa|e64_dpp)$")
_DATA_SECTION = re.compile(r"^\.(section|rodata|data|bss)\b")


def parse(text: str) -> Program:
    """Program of an assembly text or listing.

    Raises:
        ParseError: unknown opcode, malformed operand, wrong register width; names the line.
    """
    program = Program()
    in_code = True
    in_metadata = False
    addresses: dict[int, int] = {}
    for number, raw in enumerate(text.splitlines(), start=1):
        if in_metadata:
            in_metadata = ".end_amdgpu_metadata" not in raw
            continue
        line, listing = _strip_comment(raw)
        label = _LISTING_LABEL.match(line)
        if label:
            program.labels[label[2]] = len(program.instructions)
            continue
        while match := _LABEL.match(line):
            program.labels[match[1]] = len(program.instructions)
            line = line[match.end() :].strip()
        if not line:
            continue
        if line.startswith("."):
            in_metadata = line.startswith(".amdgpu_metadata")
            in_code = _directive(program, line, number, in_code)
            continue
        if in_code and _is_instruction(line):
            instruction = parse_instruction(line, number, program.symbols, listing)
            if instruction.address is not None:
                addresses[instruction.address] = len(program.instructions)
            program.instructions.append(instruction)
    _resolve_listing_branches(program, addresses)
    return program


def _is_instruction(line: str) -> bool:
    """False for the headings of llvm-objdump."""
    return not line.endswith(":") and "file format" not in line and line[:3] != "..."


def _strip_comment(raw: str) -> tuple[str, re.Match[str] | None]:
    """Line without comment, and the address comment of a listing if there is one."""
    listing = None
    if "//" in raw:
        listing = _LISTING_COMMENT.search(raw)
        raw = raw[: raw.index("//")]
    if ";" in raw:
        raw = raw[: raw.index(";")]
    return raw.strip(), listing


def _directive(program: Program, line: str, number: int, in_code: bool) -> bool:
    """Note a directive; returns whether what follows is code."""
    program.directives.append((number, line))
    if line.startswith(".text"):
        return True
    if _DATA_SECTION.match(line):
        return ".text" in line
    if line.startswith((".p2align", ".align")):
        exponent = int(line.split()[1].rstrip(","), 0)
        program.aligned[len(program.instructions)] = exponent
    if line.startswith((".set", ".equ")):
        name, _, expression = line.split(None, 1)[1].partition(",")
        value = expressions.evaluate(expression, program.symbols)
        if value is not None:
            program.symbols[name.strip()] = value
    return in_code


def parse_instruction(
    line: str,
    number: int = 1,
    symbols: dict[str, int] | None = None,
    listing: re.Match[str] | None = None,
) -> Instruction:
    """One instruction from its text without comment."""
    mnemonic, _, rest = line.partition(" ")
    if "\t" in mnemonic:
        mnemonic, _, more = mnemonic.partition("\t")
        rest = f"{more} {rest}"
    opcode, encoding = _split_suffix(mnemonic)
    try:
        spec = lookup(opcode)
        opcode = spec.opcode
        pieces, modifiers = _split_operands(rest.strip())
        operands = _parse_operands(opcode, pieces, symbols or {})
        operands = _normalise(opcode, operands, modifiers)
        instruction = Instruction(opcode, operands, modifiers, spec, encoding, number, line)
        _derive_accesses(instruction)
    except UnknownOpcodeError as error:
        raise ParseError(f"line {number}: {error} ({line})") from None
    except (ValueError, IndexError) as error:
        raise ParseError(f"line {number}: {error} in {line!r}") from None
    if listing is not None:
        instruction.address = int(listing[1], 16)
        if spec.port == "branch" and listing[3]:
            instruction.operands = (*operands[:-1], _listing_target(listing[3]))
    return instruction


def _split_suffix(mnemonic: str) -> tuple[str, str]:
    match = _SUFFIX.search(mnemonic)
    if match is None:
        return mnemonic, ""
    return mnemonic[: match.start()], match[1]


def _listing_target(text: str) -> Label:
    name, _, offset = text.partition("+")
    return Label(name, int(offset, 16) if offset else 0)


_MODIFIER = re.compile(r"^([a-z_0-9]+):(\[[^\]]*\]|swizzle\([^)]*\)|[-\w.]+)$")
_FLAGS = frozenset(
    (
        "offen",
        "idxen",
        "addr64",
        "lds",
        "glc",
        "slc",
        "dlc",
        "sc0",
        "sc1",
        "nt",
        "clamp",
        "gds",
        "tfe",
        "off16",
        "r128",
        "high",
        "row_mirror",
        "row_half_mirror",
    )
)


def _split_operands(rest: str) -> tuple[list[str], dict[str, ModifierValue]]:
    """Operand texts and modifiers of what follows the mnemonic."""
    pieces = _split_commas(rest)
    modifiers: dict[str, ModifierValue] = {}
    if not pieces:
        return [], modifiers
    words = _split_words(pieces[-1])
    kept: list[str] = []
    for word in words:
        match = _MODIFIER.match(word)
        if match:
            modifiers[match[1]] = _modifier_value(match[2])
        elif word in _FLAGS:
            modifiers[word] = 1
        else:
            kept.append(word)
    last = " ".join(kept)
    return [*pieces[:-1], *([last] if last else [])], modifiers


def _split_commas(text: str) -> list[str]:
    """Split at commas outside brackets."""
    pieces: list[str] = []
    depth = start = 0
    for position, character in enumerate(text):
        if character in "[(":
            depth += 1
        elif character in "])":
            depth -= 1
        elif character == "," and depth == 0:
            pieces.append(text[start:position].strip())
            start = position + 1
    if depth:
        raise ValueError("unbalanced brackets")
    tail = text[start:].strip()
    return [*pieces, tail] if tail else pieces


def _split_words(text: str) -> list[str]:
    """Split at blanks outside brackets."""
    return re.findall(r"(?:\[[^\]]*\]|\([^)]*\)|[^\s\[(])+", text)


def _modifier_value(text: str) -> ModifierValue:
    if text.startswith("["):
        return tuple(int(part, 0) for part in text[1:-1].split(",") if part.strip())
    if text.startswith("swizzle("):
        return pattern_bits(text)
    try:
        return int(text, 0)
    except ValueError:
        return text


_REGISTER = re.compile(r"^(v|a|s|ttmp)(?:(\d+)|\[(\d+)(?::(\d+))?\])$")
_HWREG = re.compile(r"^hwreg\(\s*(\w+)\s*(?:,\s*(\w+)\s*,\s*(\w+)\s*)?\)$")
_SYMBOLIC = frozenset(
    (
        "off",
        "src_shared_base",
        "src_shared_limit",
        "src_private_base",
        "src_private_limit",
        "src_vccz",
        "src_execz",
        "vccz",
        "execz",
        "src_lds_direct",
        "lds_direct",
        "shared_base",
        "private_base",
        "null",
    )
)
_FLOAT = re.compile(r"^\d+\.\d*(?:e[-+]?\d+)?$", re.IGNORECASE)


def _parse_operands(opcode: str, pieces: list[str], symbols: dict[str, int]) -> tuple[Operand, ...]:
    if opcode == "s_waitcnt":
        return (_wait_counts(pieces),)
    return tuple(_parse_operand(piece, symbols) for piece in pieces)


def _parse_operand(text: str, symbols: dict[str, int]) -> Operand:
    if text.startswith("neg(") and text.endswith(")"):
        text = "-" + text[4:-1]
    if text.startswith("sext(") and text.endswith(")"):
        return _modified(_parse_operand(text[5:-1], symbols), sext=True)
    if text.startswith("abs(") and text.endswith(")"):
        text = f"|{text[4:-1]}|"
    if text.startswith("|") and text.endswith("|") and len(text) > 2:
        return _modified(_parse_operand(text[1:-1], symbols), absolute=True)
    register = _parse_register(text)
    if register is not None:
        return register
    if text in _SYMBOLIC or text.startswith(("sendmsg(", "gpr_idx(")):
        return Symbolic(text)
    match = _HWREG.match(text)
    if match:
        return HardwareField(match[1], int(match[2] or "0", 0), int(match[3] or "32", 0))
    if _FLOAT.match(text):
        return Constant(float(text))
    if text.startswith("-") and not text[1:2].isdigit():
        return _modified(_parse_operand(text[1:], symbols), negate=True)
    if text.startswith("-") and _FLOAT.match(text[1:]):
        return Constant(-float(text[1:]))
    value = expressions.evaluate(text, symbols)
    if value is not None:
        return Constant(value)
    if re.match(r"^[A-Za-z_.$][\w.$@]*(?:\+\w+)?$", text):
        name, _, offset = text.partition("+")
        return Label(name, int(offset, 0) if offset else 0)
    raise ValueError(f"operand {text!r} is neither a register, a constant nor a label")


def _parse_register(text: str) -> Register | None:
    if text in registers.NAMED:
        return Register(*registers.NAMED[text])
    match = _REGISTER.match(text)
    if match is None:
        return None
    low = int(match[2] if match[2] is not None else match[3])
    high = int(match[4]) if match[4] is not None else low
    first = registers.register_id(match[1], low)
    registers.register_id(match[1], high)
    if high < low:
        raise ValueError(f"register range {text} runs backwards")
    return Register(first, high - low + 1)


def _modified(
    operand: Operand, negate: bool = False, absolute: bool = False, sext: bool = False
) -> Operand:
    if isinstance(operand, Register):
        return Register(
            operand.first,
            operand.count,
            operand.negate != negate,
            operand.absolute or absolute,
            operand.sext or sext,
        )
    if isinstance(operand, Constant):
        return Constant(operand.value, operand.negate != negate, operand.absolute or absolute)
    raise ValueError(f"operand {operand} cannot carry a source modifier")


def _wait_counts(pieces: list[str]) -> WaitCounts:
    """s_waitcnt in symbolic or numeric form."""
    text = " ".join(pieces).replace("&", " ")
    counts = {name: int(value, 0) for name, value in re.findall(r"(\w+)\((\w+)\)", text)}
    if counts or not text:
        unknown = set(counts) - {"vmcnt", "expcnt", "lgkmcnt"}
        if unknown:
            raise ValueError(f"unknown wait counter {sorted(unknown)[0]!r}")
        return WaitCounts(counts.get("vmcnt"), counts.get("expcnt"), counts.get("lgkmcnt"))
    bits = int(text, 0)
    vmcnt = bits & 0xF | (bits >> 14 & 3) << 4
    expcnt, lgkmcnt = bits >> 4 & 7, bits >> 8 & 15
    return WaitCounts(
        None if vmcnt == 63 else vmcnt,
        None if expcnt == 7 else expcnt,
        None if lgkmcnt == 15 else lgkmcnt,
    )


def _normalise(
    opcode: str, operands: tuple[Operand, ...], modifiers: dict[str, ModifierValue]
) -> tuple[Operand, ...]:
    """Bring equivalent spellings to one."""
    for name in ("op_sel", "op_sel_hi", "neg_lo", "neg_hi"):
        value = modifiers.get(name)
        if isinstance(value, tuple) and name != "op_sel_hi" and not any(value):
            del modifiers[name]
    if modifiers.get("offset") == 0:
        del modifiers["offset"]
    if opcode.endswith("_e64"):
        raise ValueError("encoding suffix was not removed")
    return operands


def effective_roles(
    spec: OpSpec, operands: tuple[Operand, ...], modifiers: dict[str, ModifierValue]
) -> tuple[Role, ...]:
    """Roles that match the operands written: LDS-direct loads lack a destination, atomics with
    sc0 have one more."""
    roles = spec.roles
    if modifiers.get("lds") and spec.access == "load":
        return roles[1:]
    if spec.access == "atomic" and spec.port == "vmem" and len(operands) == len(roles) + 1:
        data = next(role for role in roles if role.kind == "v" and role is not roles[0])
        return (Role("w", "v", data.widths), *roles)
    if spec.opcode.startswith("buffer_atomic") and modifiers.get("sc0"):
        return (Role("b", "v", roles[0].widths), *roles[1:])
    return roles


def _derive_accesses(instruction: Instruction) -> None:
    """Check operands against roles and fill in reads and writes."""
    spec, operands = instruction.spec, instruction.operands
    roles = effective_roles(spec, operands, instruction.modifiers)
    if len(operands) != len(roles):
        raise ValueError(f"{spec.opcode} takes {len(roles)} operands, got {len(operands)}")
    reads, writes = set(spec.reads), set(spec.writes)
    for role, operand in zip(roles, operands, strict=True):
        if not isinstance(operand, Register):
            if role.writes and role.kind != "i":
                raise ValueError(f"{operand} cannot be written")
            continue
        _check_register(spec, role, operand)
        if role.reads:
            reads.update(operand.ids)
        if role.writes:
            writes.update(operand.ids)
    _modifier_accesses(instruction, roles, reads)
    instruction.reads, instruction.writes = frozenset(reads), frozenset(writes)


def _check_register(spec: OpSpec, role: Role, operand: Register) -> None:
    if operand.count not in role.widths:
        accepted = " or ".join(str(width) for width in role.widths)
        if not (spec.opcode.startswith("v_pk_") and operand.count == 1):
            raise ValueError(f"{operand} has {operand.count} registers, {accepted} accepted")
    if role.kind == "v" and not operand.is_vector:
        raise ValueError(f"{operand} must be a vector register")
    if role.kind in "sm" and operand.is_vector:
        raise ValueError(f"{operand} must be a scalar register")
    if operand.first >= registers.SGPR and operand.count > 1 and operand.first % 2:
        raise ValueError(f"scalar registers {operand} must start at an even one")
    if operand.is_vector and operand.count > 1 and operand.first % 2:
        raise ValueError(f"vector registers {operand} must start at an even one on gfx950")


def _modifier_accesses(instruction: Instruction, roles: tuple[Role, ...], reads: set[int]) -> None:
    """Registers read because of modifiers: LDS-direct needs M0, partial writes keep the rest."""
    modifiers = instruction.modifiers
    if modifiers.get("lds"):
        reads.add(registers.M0)
    keeps_rest = instruction.encoding == "dpp" and not (
        modifiers.get("bound_ctrl") is not None
        and modifiers.get("row_mask", 15) == 15
        and modifiers.get("bank_mask", 15) == 15
    )
    if instruction.encoding == "sdwa":
        keeps_rest = modifiers.get("dst_unused") == "UNUSED_PRESERVE"
    op_sel = modifiers.get("op_sel")
    writes_half = (
        isinstance(op_sel, tuple) and len(op_sel) == len(roles) and "16" in (instruction.opcode)
    )
    if keeps_rest or writes_half:
        for role, operand in zip(roles, instruction.operands, strict=True):
            if role.access == "w" and isinstance(operand, Register) and operand.is_vector:
                reads.update(operand.ids)


def _resolve_listing_branches(program: Program, addresses: dict[int, int]) -> None:
    """Give numeric branch targets of a listing the labels of their instructions."""
    if not addresses:
        return
    at_label = dict(program.labels)
    for instruction in program.instructions:
        if instruction.spec.port != "branch" or instruction.address is None:
            continue
        target = instruction.operands[-1] if instruction.operands else None
        if isinstance(target, Label):
            base = program.instructions[at_label[target.name]].address or 0
            destination = base + target.offset
        elif isinstance(target, Constant) and instruction.spec.roles[-1].kind == "i":
            words = int(target.value) & 0xFFFF
            destination = instruction.address + 4 + 4 * (words - 0x10000 * (words >> 15))
        else:
            continue
        if destination not in addresses:
            raise ParseError(f"line {instruction.line}: branch to {destination:#x}, no instruction")
        name = f"L{destination:x}"
        program.labels[name] = addresses[destination]
        instruction.operands = (*instruction.operands[:-1], Label(name))


def registers_of(operands: tuple[Operand, ...]) -> Iterator[Register]:
    """The register operands among `operands`."""
    return (operand for operand in operands if isinstance(operand, Register))
