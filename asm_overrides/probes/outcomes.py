"""Decides how the output of a probe is compared with the answers that one thinks of."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike

from asm_overrides.probes.builder import Judge, Words, as_words


def among(answers: Mapping[str, ArrayLike], columns: int | slice = slice(None)) -> Judge:
    """Names the answer that the output equals, bit for bit.

    Args:
        answers: output patterns (stores, threads), or what broadcasts to them, by outcome; the
            first one is the assumed one.
        columns: which threads are looked at.
    Returns:
        A judge that describes the first difference from the assumed answer where none fits.
    """
    patterns = {name: as_words(values) for name, values in answers.items()}

    def judge(words: Words) -> str:
        seen = words[:, columns] if isinstance(columns, slice) else words[:, columns : columns + 1]
        for name, pattern in patterns.items():
            if np.array_equal(seen, np.broadcast_to(pattern, seen.shape)):
                return name
        return _difference(seen, np.broadcast_to(next(iter(patterns.values())), seen.shape))

    return judge


def rows(*values: ArrayLike) -> Words:
    """One 32-bit value a store, the same in every thread: (stores, 1)."""
    return np.concatenate([as_words(value).reshape(-1) for value in values])[:, None]


def _difference(seen: Words, assumed: Words) -> str:
    places = np.argwhere(seen != assumed)
    store, thread = (int(number) for number in places[0])
    return (
        f"none of these: result {store} in lane {thread} is {seen[store, thread]:#010x}, not "
        f"{assumed[store, thread]:#010x} ({len(places)} of {seen.size} differ)"
    )
