"""How scores become probabilities in registers: masks, the row reference, codes, the A operand.

The arithmetic is that of `zyfa_triton.numerics`; the instructions are those of `ptx`. It starts no
matrix instruction and touches no memory.
"""

from __future__ import annotations

import triton.experimental.gluon.language as gl
from triton.experimental import gluon

from asm_overrides.recipes.lean import CODE_UNIT
from zyfa_triton import numerics
from zyfa_triton.kernels.hopper import ptx

NO_KEY = gl.constexpr(-1e30)  # a row's maximum before its first key: finite, below every score
_ACCUMULATORS = 64  # registers of a lane for 64 rows and 128 columns


def _text(made: tuple[str, str]) -> tuple[gl.constexpr, gl.constexpr]:
    return gl.constexpr(made[0]), gl.constexpr(made[1])


_HALVES, _HALVES_OPERANDS = _text(ptx.lean_halves())
_LEAN, _LEAN_OPERANDS = _text(ptx.lean_codes())
_EXACT, _EXACT_OPERANDS = _text(ptx.exact_codes())
_PAIR, _PAIR_OPERANDS = _text(ptx.bfloat16_pair())
_EXP_32, _EXP_32_OPERANDS = _text(ptx.exponentials(32))
_EXP_64, _EXP_64_OPERANDS = _text(ptx.exponentials(64))
_MASK_32, _MASK_32_OPERANDS = _text(ptx.masked(32))
_MASK_64, _MASK_64_OPERANDS = _text(ptx.masked(64))
_RESCALE, _RESCALE_OPERANDS = _text(ptx.rescaled(_ACCUMULATORS, waits=False))
_SETTLE, _ = _text(ptx.rescaled(_ACCUMULATORS, waits=True))
_LEAN_ROWS, _ROW_OPERANDS = _text(ptx.row_maximum(top=numerics.TOP_CODE * CODE_UNIT))
_EXACT_ROWS, _ = _text(ptx.row_maximum(top=numerics.EXACT_OCTAVES))
_PLAIN_ROWS, _ = _text(ptx.row_maximum(top=0.0))
MULTIPLIER_UNIT = gl.constexpr(8 * CODE_UNIT)  # octaves to the codes that PTX converts


@gluon.jit
def move_reference(
    block_max, m_i, multiplier, scale_log2, IS_FP8: gl.constexpr, P_MODE: gl.constexpr
):  # fmt: skip
    """Row maximum and offset after a block, and the factor for what was accumulated."""
    TEXT: gl.constexpr = (
        _PLAIN_ROWS if not IS_FP8 else (_LEAN_ROWS if P_MODE == "lean" else _EXACT_ROWS)
    )
    multipliers = gl.zeros_like(m_i) + multiplier
    scales = gl.zeros_like(m_i) + scale_log2
    return gl.inline_asm_elementwise(
        TEXT, _ROW_OPERANDS, [m_i, block_max, multipliers, scales],
        dtype=(gl.float32, gl.float32, gl.float32), is_pure=True, pack=2,
    )  # fmt: skip


@gluon.jit
def masked(scores, first_last, last_key, BLOCK_N: gl.constexpr):
    """Scores (64, BLOCK_N) with -inf beyond each row's last visible key, counted in the block.

    first_last: that of the row that sees least, the same number for all threads.
    """
    last = gl.expand_dims(last_key, 1)
    first = gl.zeros_like(last) + first_last
    if BLOCK_N == 128:
        return gl.inline_asm_elementwise(
            _MASK_64,
            _MASK_64_OPERANDS,
            [scores, last, first],
            dtype=gl.float32,
            is_pure=True,
            pack=64,
        )
    else:
        return gl.inline_asm_elementwise(
            _MASK_32,
            _MASK_32_OPERANDS,
            [scores, last, first],
            dtype=gl.float32,
            is_pure=True,
            pack=32,
        )


@gluon.jit
def as_operand(codes, BLOCK_N: gl.constexpr, P_LAYOUT: gl.constexpr):
    """Codes as the PTX left them -> e4m3 A operand. Names registers anew, moves nothing.

    Rows are 16-row groups of (row + 8, row), columns 16-column groups of (column + 8, t, e): the
    two bits that the PTX exchanged are exchanged here too.
    """
    x = gl.reshape(codes, [4, 2, 8, BLOCK_N // 16, 2, 4, 2])
    x = gl.reshape(gl.permute(x, [0, 4, 2, 3, 5, 1, 6]), [64, BLOCK_N])
    x = x.to(gl.float8e4nv, bitcast=True)
    return gl.convert_layout(x, P_LAYOUT, assert_trivial=True)


@gluon.jit
def _exponentials(scores, multipliers, offsets, BLOCK_N: gl.constexpr):
    if BLOCK_N == 128:
        return gl.inline_asm_elementwise(
            _EXP_64, _EXP_64_OPERANDS, [scores, multipliers, offsets], dtype=gl.float32,
            is_pure=True, pack=64,
        )  # fmt: skip
    else:
        return gl.inline_asm_elementwise(
            _EXP_32, _EXP_32_OPERANDS, [scores, multipliers, offsets], dtype=gl.float32,
            is_pure=True, pack=32,
        )  # fmt: skip


@gluon.jit
def probabilities(
    scores, offset, multiplier, IS_FP8: gl.constexpr, P_MODE: gl.constexpr, BLOCK_N: gl.constexpr
):  # fmt: skip
    """P in a form that `operand` takes, and its row sums before rounding (zeros for e4m3 P)."""
    offsets = gl.expand_dims(offset, 1)
    multipliers = gl.zeros_like(offsets) + multiplier
    if IS_FP8 and P_MODE == "lean":
        halves = gl.inline_asm_elementwise(
            _HALVES, _HALVES_OPERANDS, [scores, multipliers, offsets], dtype=gl.float16,
            is_pure=True, pack=2,
        )  # fmt: skip
        return halves, gl.zeros_like(offset)
    elif IS_FP8:
        return _exponentials(scores, multipliers, offsets, BLOCK_N), gl.zeros_like(offset)
    else:
        p = _exponentials(scores, multipliers, offsets, BLOCK_N)
        pairs = gl.inline_asm_elementwise(
            _PAIR, _PAIR_OPERANDS, [p], dtype=gl.bfloat16, is_pure=True, pack=2
        )
        return pairs, gl.sum(p, 1)


@gluon.jit
def operand(
    p, IS_FP8: gl.constexpr, P_MODE: gl.constexpr, BLOCK_N: gl.constexpr, P_LAYOUT: gl.constexpr
):  # fmt: skip
    """P as the A operand."""
    if IS_FP8 and P_MODE == "lean":
        codes = gl.inline_asm_elementwise(
            _LEAN, _LEAN_OPERANDS, [p], dtype=gl.uint8, is_pure=True, pack=8
        )
        return as_operand(codes, BLOCK_N, P_LAYOUT)
    elif IS_FP8:
        codes = gl.inline_asm_elementwise(
            _EXACT, _EXACT_OPERANDS, [p], dtype=gl.uint8, is_pure=True, pack=8
        )
        return as_operand(codes, BLOCK_N, P_LAYOUT)
    else:
        return gl.convert_layout(p, P_LAYOUT, assert_trivial=True)


@gluon.jit
def still_read(p):
    """Says that P's registers were in use up to here: the matrix unit reads them until the wait,
    which the compiler does not know, and would write the next block's P into them."""
    IN_REGISTER: gl.constexpr = 4 if p.dtype.primitive_bitwidth == 8 else 2
    gl.inline_asm_elementwise(
        "// $1", "=r,r", [p], dtype=p.dtype, is_pure=False, pack=IN_REGISTER
    )  # fmt: skip


@gluon.jit
def rescaled(acc_o, alpha, WAITS: gl.constexpr):
    """acc_o times a factor a row, skipped by warps whose factors are 1. WAITS: for all matrix
    instructions before it is touched."""
    TEXT: gl.constexpr = _SETTLE if WAITS else _RESCALE
    return gl.inline_asm_elementwise(
        TEXT, _RESCALE_OPERANDS, [acc_o, gl.expand_dims(alpha, 1)], dtype=gl.float32,
        is_pure=not WAITS, pack=64,
    )  # fmt: skip
