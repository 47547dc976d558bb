"""Decides the offset bits of ds_swizzle_b32's symbolic patterns; does not move any lane."""

from __future__ import annotations

QUAD = 0x8000


def pattern_bits(text: str) -> int:
    """Offset of `swizzle(NAME, arguments)`, e.g. swizzle(SWAP,16); ValueError for others."""
    inner = text.strip().removeprefix("swizzle(").removesuffix(")")
    name, *arguments = (part.strip() for part in inner.split(","))
    if name == "BITMASK_PERM" and len(arguments) == 1:
        return _bitmask(arguments[0].strip('"'))
    numbers = [int(argument, 0) for argument in arguments]
    if name == "QUAD_PERM" and len(numbers) == 4:
        return QUAD | sum(lane << 2 * index for index, lane in enumerate(numbers))
    if name == "BROADCAST" and len(numbers) == 2:
        return 32 - numbers[0] | numbers[1] << 5
    if name == "SWAP" and len(numbers) == 1:
        return 31 | numbers[0] << 10
    if name == "REVERSE" and len(numbers) == 1:
        return 31 | numbers[0] - 1 << 10
    raise ValueError(f"swizzle pattern {text!r} is not known")


def _bitmask(letters: str) -> int:
    """Five letters, highest bit first: 0, 1, p (preserve), i (invert)."""
    if len(letters) != 5 or set(letters) - set("01pi"):
        raise ValueError(f"swizzle mask {letters!r} is not five of 0, 1, p, i")
    bits = 0
    for position, letter in enumerate(reversed(letters)):
        bits |= (letter in "pi") << position
        bits |= (letter == "1") << position + 5
        bits |= (letter == "i") << position + 10
    return bits
