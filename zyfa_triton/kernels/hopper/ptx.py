"""Which PTX the softmax of the Hopper kernel is made of: text for `gl.inline_asm_elementwise`.

It decides instructions, not numbers: those are in `zyfa_triton.numerics`. Each text works on the
registers of one lane, in the order in which a 64-row wgmma accumulator holds them. Register i of a
block of N columns is row g + 8 * (i >> 1 & 1) and column 8 * (i >> 2) + 2 t + (i & 1), where g =
lane / 4 and t = lane % 4.

Lean codes. Both coefficients of the line are taken times 2^-24: a float of value code * 2^-24
converts to the float16 subnormal whose bits are the code, so that one conversion of two scores
rounds, clamps below at 0 and packs; a byte permutation then takes the low bytes.

A branch is taken by whole warps, after a vote: work that most blocks do not need is skipped.
"""

from __future__ import annotations

from asm_overrides.ptx import hexadecimal
from asm_overrides.recipes.lean import LOWERED_BY

MINUS_INFINITY = "0fFF800000"


def constraints(outputs: list[str], inputs: list[str]) -> str:
    """LLVM's constraint string."""
    return ",".join([*outputs, *inputs])


def lean_halves() -> tuple[str, str]:
    """2 scores, multipliers and offsets -> two float16 whose bits are the codes."""
    lines = [".reg .f32 x<2>;"]
    lines += [f"fma.rn.f32 x{i}, ${1 + i}, ${3 + i}, ${5 + i};" for i in range(2)]
    lines.append("cvt.rn.relu.f16x2.f32 $0, x1, x0;")
    return _block(lines), constraints(["=r"], ["f"] * 6)


def lean_codes() -> tuple[str, str]:
    """8 of `lean_halves` -> row g's four codes, row g + 8's four codes.

    The four are the columns c, c + 1, c + 8, c + 9: see `softmax.as_operand`.
    """
    lines = ["prmt.b32 $0, $2, $4, 0x6420; prmt.b32 $1, $3, $5, 0x6420;"]
    return _block(lines), constraints(["=&r", "=r"], ["r"] * 4)


def exact_codes() -> tuple[str, str]:
    """8 probabilities, float32 -> as `lean_codes`, rounded to e4m3."""
    lines = [".reg .b16 h<4>;"]
    for i in range(4):
        lines.append(f"cvt.rn.satfinite.e4m3x2.f32 h{i}, ${3 + 2 * i}, ${2 + 2 * i};")
    lines.append("mov.b32 $0, {h0, h2}; mov.b32 $1, {h1, h3};")
    return _block(lines), constraints(["=&r", "=r"], ["f"] * 8)


def bfloat16_pair() -> tuple[str, str]:
    """2 float32 -> bfloat16, in one register."""
    return "cvt.rn.bf16x2.f32 $0, $2, $1;", constraints(["=r"], ["f"] * 2)


def exponentials(count: int) -> tuple[str, str]:
    """`count` scores, in place; then as many multipliers and offsets: 2^(score * m + offset)."""
    lines = []
    for i in range(count):
        lines.append(f"fma.rn.f32 ${i}, ${i}, ${2 * count + i}, ${3 * count + i};")
        lines.append(f"ex2.approx.ftz.f32 ${i}, ${i};")
    tied = [str(i) for i in range(count)]
    return _block(lines), constraints(["=&f"] * count, [*tied, *["f"] * 2 * count])


def masked(count: int) -> tuple[str, str]:
    """-inf for the columns of a block beyond each row's last visible one.

    Operands: `count` scores, in place; then, as often each, the row's last visible column and the
    first row's, which says whether the block needs a mask at all.
    """
    last = 2 * count - 1  # the last column of the block
    rows = [2 * count, 2 * count + 2]  # operands of row g and of row g + 8
    lines = [".reg .pred p; .reg .s32 t, last0, last1;"]
    lines.append(f"setp.ge.s32 p, ${3 * count}, {last}; @p bra.uni DONE;")
    lines.append("mov.u32 t, %laneid; and.b32 t, t, 3; shl.b32 t, t, 1;")
    lines.append(f"sub.s32 last0, ${rows[0]}, t; sub.s32 last1, ${rows[1]}, t;")
    for i in range(count):
        column, row = 8 * (i >> 2) + (i & 1), i >> 1 & 1
        lines.append(f"setp.ge.s32 p, last{row}, {column};")
        lines.append(f"selp.f32 ${i}, ${i}, {MINUS_INFINITY}, p;")
    lines.append("DONE:")
    tied = [str(i) for i in range(count)]
    return _block(lines), constraints(["=f"] * count, [*tied, *["r"] * 2 * count])


def rescaled(count: int, *, waits: bool) -> tuple[str, str]:
    """`count` accumulators times their row's factor, in place; skipped where all factors are 1.

    waits: for all matrix instructions first. Something must keep ptxas from moving the wait up,
    above the softmax that is to run beside the matrix instructions. A branch would, but the warps
    of a warpgroup, whose factors differ, must meet in one and the same wait. So warps that multiply
    trigger a performance monitor's event before it: nothing listens, and it is never moved.
    """
    rows = [2 * count, 2 * count + 2]
    one = hexadecimal(1.0)
    lines = [".reg .pred p;"]
    lines.append(f"setp.neu.f32 p, ${rows[0]}, {one}; setp.neu.or.f32 p, ${rows[1]}, {one}, p;")
    lines.append("vote.sync.any.pred p, p, 0xffffffff;")
    if waits:
        lines.append("@p pmevent 1; wgmma.wait_group.sync.aligned 0;")
    lines.append("@!p bra.uni DONE;")
    lines += [f"mul.rn.f32 ${i}, ${i}, ${2 * count + i};" for i in range(count)]
    lines.append("DONE:")
    tied = [str(i) for i in range(count)]
    return _block(lines), constraints(["=f"] * count, [*tied, *["f"] * count])


def row_maximum(*, top: float) -> tuple[str, str]:
    """The reference of two rows after a block: their running maximum.

    Operands, two each: the maximum in place; the offset of scores and the factor for what was
    accumulated (results only); then the block's maximum, the multiplier and scale_log2. top: what
    a score equal to the reference becomes.
    """
    lines = [".reg .f32 m, t;"]
    for r in range(2):
        maximum, offset, factor = (f"${2 * k + r}" for k in range(3))
        block, multiplier, scale = (f"${8 + 2 * k + r}" for k in range(3))
        lines.append(f"max.f32 m, {maximum}, {block}; neg.f32 t, {multiplier};")
        lines.append(f"fma.rn.f32 {offset}, t, m, {hexadecimal(top)};")
        if top:  # lowered a little: no later rounding may lift a code above the top one
            lines.append(f"abs.f32 t, {offset};")
            lines.append(f"fma.rn.f32 {offset}, t, {hexadecimal(-LOWERED_BY)}, {offset};")
        lines.append(f"sub.rn.f32 t, {maximum}, m; mul.rn.f32 t, t, {scale};")
        lines.append(f"ex2.approx.ftz.f32 {factor}, t; mov.f32 {maximum}, m;")
    return _block(lines), constraints(["=&f"] * 6, ["0", "1", *["f"] * 6])


def _block(lines: list[str]) -> str:
    return "{ " + "\n".join(lines) + " }"
