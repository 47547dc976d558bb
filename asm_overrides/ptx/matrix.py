"""Matrix products of a warpgroup (wgmma), and descriptors of their tiles in shared memory.

A's 64 rows come from registers or from shared memory with K contiguous, B from shared memory with K
contiguous or, for bfloat16, with its columns contiguous; the result is float32 in registers.
Register i of a result is row g + 8 * (i >> 1 & 1), column 8 * (i >> 2) + 2 t + (i & 1)
of a warp's 16 rows, where g = lane / 4 and t = lane % 4. The four registers of A for 32 bytes of K
hold rows g, g + 8, g, g + 8, bytes 4 t on, twice, then 16 + 4 t on, twice. PTX ISA 8.0 and later,
"Asynchronous warpgroup level matrix instructions".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from asm_overrides.ptx.text import Text, vector

ROWS = 64
DEPTH = 32  # bytes of K in one instruction
A_REGISTERS = 4
UNIT = 16  # bytes: what descriptors count in
_GROUP = 8  # rows of B that are swizzled together
_SWIZZLES = {128: 1, 64: 2, 32: 3}  # width in bytes -> code
_BYTES = {"e4m3": 1, "bf16": 2}  # of an element


def descriptor_bits(width: int, leading: int = UNIT) -> int:
    """A descriptor without address, for rows of `width` bytes that are swizzled over that width.

    leading: bytes from one piece of `width` to the next where B's columns are contiguous and there
    are more than fit; nothing else reads it.
    """
    if width not in _SWIZZLES:
        raise ValueError(f"width: got {width}; accepted are {', '.join(map(str, _SWIZZLES))}")
    stride = _GROUP * width // UNIT  # from one group of rows to the next
    return _SWIZZLES[width] << 62 | stride << 32 | leading // UNIT << 16


def describe(t: Text, target: str, address: str, width: int, scratch: str) -> None:
    """target (b64): the descriptor of a tile that begins at a shared address (b32)."""
    t.op("shr.u32", scratch, address, "4")
    t.op("cvt.u64.u32", target, scratch)
    t.op("or.b64", target, target, f"0x{descriptor_bits(width):016x}")


def product(
    t: Text,
    result: Sequence[str],
    a: Sequence[str] | str,
    b: str,
    *,
    accumulate: str,
    element: Literal["e4m3", "bf16"] = "e4m3",
    is_transposed: bool = False,
) -> None:
    """result (+)= A B over 32 bytes of K: result has 64 rows and 2 * len(result) columns.

    a: four registers, or a descriptor. b: a descriptor; is_transposed: of a tile whose columns are
    contiguous (bf16). accumulate: a predicate; where it is false, result is overwritten.
    """
    columns, depth = 2 * len(result), DEPTH // _BYTES[element]
    transposed = ["1" if is_transposed else "0"] if element == "bf16" else []
    if isinstance(a, str) and transposed:
        transposed = ["0", *transposed]
    t.op(
        f"wgmma.mma_async.sync.aligned.m{ROWS}n{columns}k{depth}.f32.{element}.{element}",
        vector(result),
        a if isinstance(a, str) else vector(a),
        b,
        accumulate,
        "1",
        "1",
        *transposed,
    )


def begin(t: Text) -> None:
    """Registers written before are seen by the products that follow."""
    t.op("wgmma.fence.sync.aligned")


def commit(t: Text) -> None:
    """The products since the last commit are one group."""
    t.op("wgmma.commit_group.sync.aligned")


def wait(t: Text, groups: int) -> None:
    """Until no more than `groups` groups are under way."""
    t.op("wgmma.wait_group.sync.aligned", str(groups))
