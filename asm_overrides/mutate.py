"""Decides which small mistakes can be planted in a kernel's text; does not judge who notices.

Each mutation changes or removes one line, so that the rest of the text keeps its line numbers. What
the checks make of them says how far a run without findings may be trusted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from asm_overrides.isa import registers
from asm_overrides.isa.instruction import Instruction
from asm_overrides.isa.operands import Register, WaitCounts
from asm_overrides.isa.parse import parse


@dataclass(frozen=True)
class Mutation:
    """One planted mistake.

    Attributes:
        name: kind and ordinal, such as "wait-removed-3"; the same for the same text.
        kind: what sort of mistake.
        line: 1-based line of the text.
        before, after: the instruction, and what stands in its place ("" if removed).
        partner: line of the instruction `after`, where the two changed places.
    """

    name: str
    kind: str
    line: int
    before: str
    after: str
    partner: int = 0

    @property
    def lines(self) -> tuple[int, ...]:
        """Lines that it changes."""
        return (self.line, self.partner) if self.partner else (self.line,)

    def apply(self, text: str) -> str:
        """The text with the mistake in it.

        Raises:
            ValueError: the text is not the one that the mutation was made for.
        """
        lines = text.split("\n")
        _replace(lines, self.line, self.before, self.after)
        if self.partner:
            _replace(lines, self.partner, self.after, self.before)
        return "\n".join(lines)

    def __str__(self) -> str:
        if self.partner:
            return (
                f"{self.name}: lines {self.line} and {self.partner}: {self.before} <-> {self.after}"
            )
        return f"{self.name}: line {self.line}: {self.before} -> {self.after or '(removed)'}"


def _replace(lines: list[str], line: int, before: str, after: str) -> None:
    old = lines[line - 1]
    if before not in old:
        raise ValueError(f"line {line} does not hold {before!r}")
    lines[line - 1] = old.replace(before, after, 1)


Maker = Callable[[list[Instruction]], Iterator[tuple[Instruction, str]]]


def mutations(text: str, kinds: tuple[str, ...] | None = None) -> list[Mutation]:
    """Every mutation of a text, by kind and then in program order.

    Args:
        kinds: which of KINDS; all by default.
    """
    instructions = parse(text).instructions
    found = []
    for kind in kinds or KINDS:
        for ordinal, (instruction, after) in enumerate(_MAKERS[kind](instructions)):
            name = f"{kind}-{ordinal}"
            found.append(Mutation(name, kind, instruction.line, instruction.text, after))
    return found


def _removed(opcode: str) -> Maker:
    def make(instructions: list[Instruction]) -> Iterator[tuple[Instruction, str]]:
        return ((each, "") for each in instructions if each.opcode == opcode)

    return make


def _weakened_waits(instructions: list[Instruction]) -> Iterator[tuple[Instruction, str]]:
    """One more instruction may be outstanding than the code needs."""
    for instruction in instructions:
        counts = instruction.operands[0] if instruction.opcode == "s_waitcnt" else None
        if not isinstance(counts, WaitCounts):
            continue
        for name in ("vmcnt", "lgkmcnt"):
            count = getattr(counts, name)
            if count is not None:
                old = rf"{name}\({count}\)"
                yield instruction, re.sub(old, f"{name}({count + 1})", instruction.text)


def _shortened_nops(shorter: Callable[[int], int]) -> Maker:
    """Fewer wait states: from the operand of s_nop to another."""

    def make(instructions: list[Instruction]) -> Iterator[tuple[Instruction, str]]:
        for instruction in instructions:
            if instruction.opcode == "s_nop":
                count = int(instruction.text.split()[1], 0)
                if count:
                    yield instruction, f"s_nop {shorter(count)}"

    return make


def _replaced_source(
    chosen: Callable[[Instruction], bool], operand: int, by: Callable[[Register], str]
) -> Maker:
    """Another register in one source position of some instructions."""

    def make(instructions: list[Instruction]) -> Iterator[tuple[Instruction, str]]:
        for instruction in instructions:
            if not chosen(instruction) or operand >= len(instruction.operands):
                continue
            source = instruction.operands[operand]
            if isinstance(source, Register) and source.is_vector:
                after = _with_operand(instruction.text, operand, by(source))
                if after != instruction.text:
                    yield instruction, after

    return make


def _with_operand(text: str, operand: int, new: str) -> str:
    """Instruction text with one operand replaced; what follows the last one is kept."""
    mnemonic, _, rest = text.partition(" ")
    pieces = re.split(r",\s*(?![^\[]*\])", rest)
    old = re.match(r"\S+", pieces[operand])
    assert old is not None
    pieces[operand] = new + pieces[operand][old.end() :]
    return f"{mnemonic} {', '.join(pieces)}"


def _name(first: int, count: int) -> str:
    file, base = ("a", registers.AGPR) if first >= registers.AGPR else ("v", registers.VGPR)
    low = first - base
    return f"{file}{low}" if count == 1 else f"{file}[{low}:{low + count - 1}]"


def _highest(source: Register) -> str:
    """The topmost registers, which hardly any kernel has in use."""
    return _name(registers.AGPR - source.count - source.count % 2, source.count)


def _next(source: Register) -> str:
    """The registers behind the right ones."""
    first = source.first + source.count + source.count % 2 * (source.count > 1)
    limit = registers.AGPR if source.first < registers.AGPR else registers.SGPR
    if first + source.count > limit:
        first = source.first - source.count
    return _name(first, source.count)


def _offset_changed(chosen: Callable[[Instruction], bool], delta: int, limit: int) -> Maker:
    """Another constant offset of memory or LDS accesses."""

    def make(instructions: list[Instruction]) -> Iterator[tuple[Instruction, str]]:
        for instruction in instructions:
            if not chosen(instruction):
                continue
            old = instruction.modifiers.get("offset", 0)
            assert isinstance(old, int)
            new = old + delta if old + delta <= limit else old - delta
            if not 0 <= new <= limit:
                continue
            if "offset:" in instruction.text:
                yield instruction, instruction.text.replace(f"offset:{old}", f"offset:{new}")
            elif " lds" in instruction.text:
                yield instruction, instruction.text.replace(" lds", f" offset:{new} lds")
            else:
                yield instruction, f"{instruction.text} offset:{new}"

    return make


def _is(*prefixes: str) -> Callable[[Instruction], bool]:
    return lambda instruction: instruction.opcode.startswith(prefixes)


def _swapped_neighbours(instructions: list[Instruction]) -> Iterator[tuple[Instruction, str]]:
    """The scalar register behind the right one as buffer descriptor's or pointer's start."""
    for instruction in instructions:
        if not instruction.opcode.startswith(("buffer_", "s_load")):
            continue
        match = re.search(r"s\[(\d+):(\d+)\]", instruction.text[instruction.text.index(",") :])
        if match is None:
            continue
        low, high = int(match[1]), int(match[2])
        step = high - low + 1
        if high + step >= registers.SGPR_COUNT:
            step = -step
        yield (
            instruction,
            instruction.text.replace(match[0], f"s[{low + step}:{high + step}]", 1),
        )


def _source_from(producer: Callable[[Instruction], bool]) -> Maker:
    """A vector instruction soon after a producer takes a source from its fresh result."""

    def make(instructions: list[Instruction]) -> Iterator[tuple[Instruction, str]]:
        for index, instruction in enumerate(instructions):
            if not producer(instruction):
                continue
            result = instruction.operands[0]
            assert isinstance(result, Register)
            if result.is_accumulator:
                continue
            for follower in instructions[index + 1 : index + 5]:
                if follower.opcode in ("s_waitcnt", "s_nop") or follower.spec.port == "branch":
                    break
                place = _plain_source(follower)
                if place is not None:
                    yield follower, _with_operand(follower.text, place, _name(result.first, 1))
                    break

    return make


def _plain_source(instruction: Instruction) -> int | None:
    """Position of a 32-bit vector source of ordinary arithmetic, or None."""
    if instruction.spec.port not in ("valu", "trans") or instruction.encoding in ("dpp", "sdwa"):
        return None
    roles = zip(instruction.spec.roles, instruction.operands, strict=False)
    for position, (role, operand) in enumerate(roles):
        if role.access != "r" or not isinstance(operand, Register) or not operand.is_vector:
            continue
        if operand.count == 1 and not (operand.negate or operand.absolute):
            return position
    return None


_LDS_LIMIT = 65535
_BUFFER_LIMIT = 4095

_MAKERS: dict[str, Maker] = {
    "wait-removed": _removed("s_waitcnt"),
    "wait-weakened": _weakened_waits,
    "nop-removed": _removed("s_nop"),
    "nop-halved": _shortened_nops(lambda count: count // 2),
    "nop-shortened": _shortened_nops(lambda count: count - 1),
    "barrier-removed": _removed("s_barrier"),
    "matrix-factor-unwritten": _replaced_source(_is("v_mfma"), 1, _highest),
    "matrix-factor-next": _replaced_source(_is("v_mfma"), 2, _next),
    "source-in-flight": _source_from(_is("ds_read_b")),
    "source-of-matrix": _source_from(_is("v_mfma")),
    "lds-address-unwritten": _replaced_source(_is("ds_read"), 1, _highest),
    "lds-data-unwritten": _replaced_source(_is("ds_write"), 1, _highest),
    "store-data-unwritten": _replaced_source(_is("buffer_store"), 0, _highest),
    "store-address-unwritten": _replaced_source(_is("buffer_store"), 1, _highest),
    "descriptor-next": _swapped_neighbours,
    "lds-read-beyond": _offset_changed(_is("ds_read"), 61440, _LDS_LIMIT),
    "lds-write-beyond": _offset_changed(_is("ds_write"), 61440, _LDS_LIMIT),
    "lds-read-misaligned": _offset_changed(_is("ds_read_b64", "ds_read_b128"), 2, _LDS_LIMIT),
    "lds-write-shifted": _offset_changed(_is("ds_write"), 1024, _LDS_LIMIT),
    "load-shifted": _offset_changed(_is("buffer_load"), 4080, _BUFFER_LIMIT),
    "store-shifted": _offset_changed(_is("buffer_store"), 4080, _BUFFER_LIMIT),
}

KINDS: tuple[str, ...] = tuple(_MAKERS)
"""Every kind of mutation."""
