"""Decides how marks are found in Triton's IR text and taken out; `marker` sets them.

Names of values are unique only within a function, and within a partition of a warp-specialised
one: every search and every change is confined to the scope of the mark.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from zyfa_triton.splice.errors import require

MARK = "@splice "
LOCATION = "@splice-at "
TENSOR = "@splice-tensor "
CLUSTER = "@splice-cluster "
SEPARATOR = "__"  # between a recipe's name and the digest; names hold no double underscore
_MARK = re.compile(
    r"^[ \t]*(?P<result>%[\w$.-]+) = tt\.elementwise_inline_asm \"(?:;|//) @splice (?P<loop>\w+)\" "
    r"\{.*?\} (?P<operands>[^:]*) : (?P<types>.*) -> i32"
)
_LOCATION = re.compile(
    r"^[ \t]*%[\w$.-]+ = tt\.elementwise_inline_asm "
    r"\"(?:;|//) @splice-at (?P<loop>\w+) (?P<name>\w+)\""
)
_TENSOR = re.compile(
    r"^[ \t]*%[\w$.-]+ = tt\.elementwise_inline_asm "
    r"\"(?:;|//) @splice-tensor (?P<loop>\w+) (?P<name>\w+)\" "
    r"\{.*?\} (?P<value>%[\w$.#-]+) : (?P<type>tensor<.*>) -> tensor<"
)
_KEPT = re.compile(
    r"^[ \t]*ttg\.local_dealloc (?P<value>%[\w$.-]+) : (?P<type>!ttg\.memdesc<.*?>)(?: loc|$)"
)
_SCOPE = re.compile(r"^( *)(?:tt\.func .*|partition\d+\(.*)\{(?: loc\(.*\))?$")


@dataclass(frozen=True)
class Mark:
    """One marked bound. operands, types: the bound itself first. line: number of its line in the
    module. scope: see `scopes`."""

    loop: str
    result: str
    operands: tuple[str, ...]
    types: tuple[str, ...]
    line: int
    scope: int

    @property
    def name(self) -> str:
        """The recipe's name."""
        return self.loop.partition(SEPARATOR)[0]


@dataclass(frozen=True)
class Named:
    """Shared memory that `marker.located` names, or a tensor that `marker.handed` does: the value
    and its type. lines: those that say so."""

    loop: str
    name: str
    value: str
    type: str
    lines: tuple[int, ...]
    scope: int


def scopes(lines: Sequence[str]) -> list[int]:
    """Number of the scope that each line of a module lies in; 0 is outside of all functions."""
    found, open_scopes, count = [], [(0, "")], 0
    for line in lines:
        match = _SCOPE.match(line)
        if match is not None:
            count += 1
            open_scopes.append((count, match[1] + "}"))
        found.append(open_scopes[-1][0])
        if match is None and len(open_scopes) > 1 and line.startswith(open_scopes[-1][1]):
            open_scopes.pop()
    return found


def has_mark(text: str) -> bool:
    """Whether a module's text holds a mark at all, readable or not."""
    return any(kind in text for kind in (MARK, LOCATION, TENSOR))


def read_marks(text: str) -> list[Mark]:
    """The marks of a module, in order.

    Raises:
        SpliceError: there is one that is not of `marked_bound`'s form.
    """
    lines = text.split("\n")
    scope_of = scopes(lines)
    found = []
    for number, line in enumerate(lines):
        match = _MARK.match(line)
        if match is not None:
            operands = tuple(name.strip() for name in match["operands"].split(","))
            types = tuple(split_types(match["types"]))
            found.append(
                Mark(match["loop"], match["result"], operands, types, number, scope_of[number])
            )
    require(len(found) == text.count(MARK), "a mark that is not of marked_bound's form")
    return found


def read_mark(text: str) -> Mark:
    """The one mark of a module.

    Raises:
        SpliceError: there is not exactly one.
    """
    found = read_marks(text)
    require(len(found) == 1, f"{len(found)} marks in one kernel")
    return found[0]


def read_locations(text: str) -> list[Named]:
    """What `marker.located` says in a module, in order.

    Raises:
        SpliceError: something that is not of its form.
    """
    lines = text.split("\n")
    scope_of = scopes(lines)
    found = []
    for number, line in enumerate(lines):
        match = _LOCATION.match(line)
        if match is None:
            continue
        # what names the memory follows; IR without effects may have come between
        kept = ((after, _KEPT.match(lines[after])) for after in range(number + 1, len(lines)))
        after, memory = next(((at, one) for at, one in kept if one), (0, None))
        require(memory is not None, f"located {match['name']}: no shared memory follows the mark")
        assert memory is not None
        found.append(
            Named(match["loop"], match["name"], memory["value"], memory["type"],
                     (number, after), scope_of[number])
        )  # fmt: skip
    require(len(found) == text.count(LOCATION), "a mark that is not of located's form")
    return found


def read_tensors(text: str) -> list[Named]:
    """What `marker.handed` says in a module, in order.

    Raises:
        SpliceError: something that is not of its form.
    """
    lines = text.split("\n")
    scope_of = scopes(lines)
    found = []
    for number, line in enumerate(lines):
        match = _TENSOR.match(line)
        if match is not None:
            found.append(
                Named(match["loop"], match["name"], match["value"], match["type"], (number,),
                      scope_of[number])
            )  # fmt: skip
    require(len(found) == text.count(TENSOR), "a mark that is not of handed's form")
    return found


def without_marks(text: str) -> str:
    """The module without marks: what it would be, had the kernel been compiled with LOOP == ""."""
    marks, named = read_marks(text), [*read_locations(text), *read_tensors(text)]
    lines = text.split("\n")
    scope_of = scopes(lines)
    for mark in reversed(marks):  # a bound may be another mark's result
        replace_value(lines, scope_of, mark.scope, mark.result, mark.operands[0])
    dropped = {mark.line for mark in marks}
    dropped |= {line for one in named for line in one.lines}
    kept = (line for number, line in enumerate(lines) if number not in dropped)
    return "\n".join(kept)


def replace_value(
    lines: list[str], scope_of: Sequence[int], scope: int, old: str, new: str
) -> None:
    """Rename an SSA value such as %end or %acc_o#2 in the lines of a scope."""
    pattern = re.compile(re.escape(old) + r"(?![\w$.#-])")
    for number, line in enumerate(lines):
        if scope_of[number] == scope and old in line:
            lines[number] = pattern.sub(lambda _: new, line)


def split_types(text: str) -> list[str]:
    """Split at commas outside brackets of any kind."""
    pieces, depth, start = [], 0, 0
    for position, character in enumerate(text):
        if character in "<({[":
            depth += 1
        elif character in ">)}]":
            depth -= 1
        elif character == "," and depth == 0:
            pieces.append(text[start:position].strip())
            start = position + 1
    return [*pieces, text[start:].strip()]
