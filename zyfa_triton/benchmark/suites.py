"""Which shapes a table of the documents consists of: named suites, one command each.

It decides neither inputs nor paths; `zyfa bench --suite NAME` combines them.
"""

from __future__ import annotations

from dataclasses import dataclass

from zyfa_triton.benchmark.shapes import Case, Shape

K = 1024
BOTH = ("fp8", "bf16")


@dataclass(frozen=True)
class Suite:
    """Cases under a name, and what they are for."""

    name: str
    about: str
    cases: tuple[Case, ...]


def _equal(seqlen: int, nheads: int, **options: int | bool) -> Shape:
    """A shape whose query heads have a key head each."""
    return Shape(seqlen, nheads, nheads, **options)  # type: ignore[arg-type]  # by name


_PROMPTS = tuple(Shape(n * K, 64, 8, batch=8) for n in (1, 2, 4))
_SWEEP = (
    *(_equal(n * K, 16) for n in (1, 2, 4, 8, 16, 32, 64, 128)),
    *(_equal(8 * K, heads) for heads in (8, 32, 64, 128)),
    Shape(8 * K, 64, 8),
    Shape(4 * K, 64, 8, batch=8),
    _equal(4 * K, 16, batch=8),
    _equal(8 * K, 16, causal=False),
    _equal(16 * K, 16, causal=False),
    _equal(8 * K, 16, headdim=192),
)

SUITES: dict[str, Suite] = {
    suite.name: suite
    for suite in (
        Suite("quick", "one small shape in both precisions", (Case(_equal(4 * K, 8), BOTH),)),
        Suite(
            "headline",
            "FP8, head dim 128, long sequences",
            tuple(Case(_equal(n * K, heads)) for n, heads in ((16, 16), (16, 32), (32, 16))),
        ),
        Suite(
            "long",
            "FP8, head dim 128, 32K to 128K tokens",
            tuple(Case(_equal(n * K, 16)) for n in (32, 64, 128)),
        ),
        Suite(
            "prompts",
            "eight prompts, 8 query heads a key head, FP8 with and without quantising, and BF16",
            (
                *(Case(shape, BOTH, quantise=True) for shape in _PROMPTS),
                *(Case(shape) for shape in _PROMPTS),
            ),
        ),
        Suite(
            "mla",
            "head dims 192/128",
            (
                Case(_equal(16 * K, 16, headdim=192), BOTH),
                Case(_equal(4 * K, 128, headdim=192), BOTH),
            ),
        ),
        Suite(
            "bf16",
            "BF16, head dim 128",
            tuple(
                Case(_equal(n * K, heads), ("bf16",)) for n, heads in ((4, 32), (16, 32), (32, 16))
            ),
        ),
        Suite(
            "sweep",
            "1K to 128K tokens, 8 to 128 heads, batch 1 and 8, with and without a causal mask",
            tuple(Case(shape, BOTH) for shape in _SWEEP),
        ),
    )
}
