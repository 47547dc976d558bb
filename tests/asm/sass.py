"""Reads Hopper machine code as cuobjdump prints it: loops, and registers of matrix instructions.

A wgmma reads its A registers and its accumulators until the wait that covers its group; neither
LLVM nor ptxas is told so by Triton, and a register that is written in between changes the result
now and then.
"""

from __future__ import annotations

import re

Code = list[tuple[int, str]]
_PREDICATE = re.compile(r"^@!?U?P\d+\s+")
_REGISTER = re.compile(r"\bR(\d+)\b")
_MATRIX = re.compile(r"\S*GMMA\.64x(\d+)x\S*\s+R(\d+), (?:R(\d+)|gdesc)")
_FIRST = re.compile(r"\S+\s+(?:P\d+, |PT, )?R(\d+)\b")
_A_REGISTERS = 4
_NO_RESULT = ("ST", "RED", "SYNCS", "BAR", "R2UR")


def opcode(instruction: str) -> str:
    """With its modifiers, without a predicate."""
    return _PREDICATE.sub("", instruction).split()[0]


def loops(code: Code) -> list[Code]:
    """Innermost loops that hold matrix instructions."""
    spans = []
    for address, instruction in code:
        jump = re.search(r"\bBRA\S*\s.*?0x([0-9a-f]+)", instruction)
        if jump and int(jump.group(1), 16) < address:
            spans.append((int(jump.group(1), 16), address))
    bodies = []
    for first, last in spans:
        inner = [s for s in spans if s != (first, last) and first <= s[0] and s[1] <= last]
        body = [line for line in code if first <= line[0] <= last]
        if not inner and any("GMMA" in instruction for _, instruction in body):
            bodies.append(body)
    return bodies


def touched_too_early(code: Code) -> list[str]:
    """Instructions that write an operand, or touch an accumulator, of a wgmma under way.

    In the order of the addresses: no matrix instruction may be under way across a jump back.
    """
    groups: list[tuple[set[int], set[int]]] = []  # (A registers, accumulators), oldest first
    current: tuple[set[int], set[int]] = (set(), set())
    found = []
    for address, instruction in code:
        text, name = _PREDICATE.sub("", instruction), opcode(instruction)
        matrix = _MATRIX.match(text)
        if matrix:
            columns, accumulator, operand = matrix.groups()
            current[1].update(range(int(accumulator), int(accumulator) + int(columns) // 2))
            if operand:
                current[0].update(range(int(operand), int(operand) + _A_REGISTERS))
            if "gsb0" in text:
                groups, current = [*groups, current], (set(), set())
            continue
        if name.startswith("WARPGROUP.DEPBAR"):
            left = int(text.split(",")[-1], 16)
            groups = groups[len(groups) - left :] if left else []
            continue
        width = next((n for mark, n in ((".128", 4), (".M88.4", 4), (".64", 2)) if mark in name), 1)
        first = None if name.startswith(_NO_RESULT) else _FIRST.match(text)
        written = set(range(int(first[1]), int(first[1]) + width)) if first else set()
        read = {int(number) for number in _REGISTER.findall(text)}
        for operands, accumulators in [*groups, current]:
            if written & (operands | accumulators) or read & accumulators:
                found.append(f"{address:#x} {instruction}")
                break
    return found


def passed_by(body: Code) -> list[str]:
    """Instructions of a whole warpgroup that a branch within the loop goes round.

    Warps may take a branch differently; what stands in one arm of it then has other warps of the
    warpgroup wait elsewhere, or nowhere (PTX ISA, wgmma: .aligned; compute-sanitizer's synccheck).
    """
    last = body[-1][0]
    found = []
    for address, instruction in body:
        jump = re.search(r"\bBRA\S*\s.*?0x([0-9a-f]+)", instruction)
        target = int(jump.group(1), 16) if jump else 0
        if not address < target <= last:
            continue
        found += [
            f"{at:#x} {text}"
            for at, text in body
            if address < at < target and re.search(r"WARPGROUP\.|GMMA", text)
        ]
    return found


def beside_products(body: Code, name: str) -> float:
    """Share of a loop's instructions of a name that stand between the wait for scores and that for
    all matrix instructions: those run beside a product."""
    waits = [i for i, (_, it) in enumerate(body) if opcode(it).startswith("WARPGROUP.DEPBAR")]
    ends = [i for i in waits if body[i][1].rstrip().endswith("0x0")]
    first, last = waits[0], ends[0]
    places = [i for i, (_, it) in enumerate(body) if opcode(it).startswith(name)]
    return sum(first < i < last for i in places) / len(places)
