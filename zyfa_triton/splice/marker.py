"""Decides how a kernel marks the loop that may be replaced; does not replace anything.

A kernel takes `LOOP: tl.constexpr = ""` and passes the upper bound of its (last) loop through
`marked_bound`, together with the scalars that a replacement needs. With LOOP == "" the call must
not be reached, so that nothing changes. With another value the bound comes out as it went in:
the assembly gains a comment, and the source stays specification and fallback.
"""

from typing import Any

import triton
import triton.language as tl

MARK = tl.constexpr("; @splice ")


@triton.constexpr_function
def _constraints(count: Any) -> str:
    """The bound comes out in the register it went in; everything is scalar."""
    return ",".join(["=s", "0"] + ["s"] * count)


@triton.jit
def marked_bound(LOOP: tl.constexpr, bound, operands):
    """`bound` unchanged, int32.

    LOOP: what `zyfa_triton.splice.use` returned. operands: tuple of scalars (int32, int64, float32
    or pointers) in the order of the recipe's inputs after the bound.
    """
    return tl.inline_asm_elementwise(
        MARK + LOOP, _constraints(len(operands)), (bound,) + operands,  # noqa: RUF005
        dtype=tl.int32, is_pure=True, pack=1,
    )  # fmt: skip
