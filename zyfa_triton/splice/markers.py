"""Decides how a mark is found in Triton's IR text and taken out; `marker` sets one."""

from __future__ import annotations

import re
from dataclasses import dataclass

from zyfa_triton.splice.errors import require

COMMENT = "; @splice "
SEPARATOR = "__"  # between a recipe's name and the digest; names hold no double underscore
_MARK = re.compile(
    r"^[ \t]*(?P<result>%[\w$.-]+) = tt\.elementwise_inline_asm \"; @splice (?P<loop>\w+)\" "
    r"\{.*?\} (?P<operands>[^:]*) : (?P<types>.*) -> i32.*\n",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Mark:
    """One marked bound. operands, types: the bound itself first."""

    loop: str
    result: str
    operands: tuple[str, ...]
    types: tuple[str, ...]

    @property
    def name(self) -> str:
        """The recipe's name."""
        return self.loop.partition(SEPARATOR)[0]


def has_mark(text: str) -> bool:
    """Whether a module's text holds a mark at all, readable or not."""
    return COMMENT in text


def read_mark(text: str) -> Mark:
    """The one mark of a module.

    Raises:
        SpliceError: there is more than one, or one that is not of `marked_bound`'s form.
    """
    found = list(_MARK.finditer(text))
    require(len(found) == 1 == text.count(COMMENT), f"{text.count(COMMENT)} marks in one kernel")
    match = found[0]
    return Mark(
        loop=match["loop"],
        result=match["result"],
        operands=tuple(name.strip() for name in match["operands"].split(",")),
        types=tuple(split_types(match["types"])),
    )


def without_marks(text: str) -> str:
    """The module without marks: what it would be, had the kernel been compiled with LOOP == ""."""
    while match := _MARK.search(text):
        bound = match["operands"].split(",")[0].strip()
        text = text[: match.start()] + text[match.end() :]
        text = replace_value(text, match["result"], bound)
    require(not has_mark(text), "a mark that is not of marked_bound's form")
    return text


def replace_value(text: str, old: str, new: str) -> str:
    """Rename an SSA value such as %end or %acc_o#2."""
    return re.sub(re.escape(old) + r"(?![\w$.#-])", lambda _: new, text)


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
