"""Decides the value of constant assembler expressions; does not know instructions."""

from __future__ import annotations

import re
from collections.abc import Mapping

_TOKEN = re.compile(
    r"\s*(0[xX][0-9a-fA-F]+|0[bB][01]+|\d+|[A-Za-z_.$][\w.$]*(?:@\w+)*|<<|>>|[-+*/%&|^~()])"
)
_BINARY = {"|": 1, "^": 2, "&": 3, "<<": 4, ">>": 4, "+": 5, "-": 5, "*": 6, "/": 6, "%": 6}


def evaluate(text: str, symbols: Mapping[str, int]) -> int | None:
    """Integer value of an expression, or None if it names an unknown symbol or is none.

    `max(a, b, ...)`, which LLVM writes into `.set` lines, is not a constant of code: None.
    """
    tokens: list[str] = []
    position = 0
    text = text.strip()
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            return None
        tokens.append(match[1])
        position = match.end()
    try:
        value, rest = _expression(tokens, symbols, 0)
    except (KeyError, IndexError, ValueError, ZeroDivisionError):
        return None
    return value if not rest else None


def _expression(tokens: list[str], symbols: Mapping[str, int], level: int) -> tuple[int, list[str]]:
    """Precedence climbing over `tokens`; returns value and what is left."""
    left, tokens = _atom(tokens, symbols)
    while tokens and _BINARY.get(tokens[0], -1) > level:
        operator, tokens = tokens[0], tokens[1:]
        right, tokens = _expression(tokens, symbols, _BINARY[operator])
        left = _apply(operator, left, right)
    return left, tokens


def _atom(tokens: list[str], symbols: Mapping[str, int]) -> tuple[int, list[str]]:
    head, tail = tokens[0], tokens[1:]
    if head in ("-", "~", "+"):
        value, tail = _atom(tail, symbols)
        return {"-": -value, "~": ~value, "+": value}[head], tail
    if head == "(":
        value, tail = _expression(tail, symbols, 0)
        if tail[0] != ")":
            raise ValueError("unbalanced parenthesis")
        return value, tail[1:]
    if head[0].isdigit():
        return int(head, 0) if head[:1] != "0" or len(head) == 1 or head[1] in "xXbB" else int(
            head, 8
        ), tail
    name, *qualifiers = head.split("@")
    value = symbols[name]
    if "hi" in qualifiers:
        value >>= 32
    elif "lo" in qualifiers:
        value &= 0xFFFFFFFF
    return value, tail


def _apply(operator: str, left: int, right: int) -> int:
    if operator in "+-*":
        return {"+": left + right, "-": left - right, "*": left * right}[operator]
    if operator in ("/", "%"):
        quotient = abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)
        return quotient if operator == "/" else left - quotient * right
    if operator in ("<<", ">>"):
        return left << right if operator == "<<" else left >> right
    return {"&": left & right, "|": left | right, "^": left ^ right}[operator]
