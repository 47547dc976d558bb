"""Decides how P is coded in FP8: the `@triton.jit` building blocks of an attention kernel.

It does not load, store or launch anything. `zyfa_triton.kernels.attention` is written with these
blocks and so can be a kernel of your own. The arithmetic is that of `zyfa_triton.numerics`,
operation for operation; compile kernels that must match it code for code with
`enable_fp_fusion=False`, so that a product and a sum become one rounding only where `tl.fma` says
so.

Units: a *score* s is an entry of Q K^T, raw. `scale_log2` turns a score into octaves (log2 units):
softmax_scale * log2(e) * q_descale * k_descale. A *code* is an e4m3 byte read as an integer; codes
grow by 8 an octave. All row quantities are float32 of shape (BLOCK_M,), scores (BLOCK_M, BLOCK_N).
"""

import triton
import triton.language as tl

TOP_CODE = tl.constexpr(126.0)  # 448, the largest finite e4m3 value; 127 is NaN
CODES_PER_OCTAVE = tl.constexpr(8.0)
# Floats in [128, 256) step by 2^-16 and hold floor(x) - 128 in byte 2.
CODE_OFFSET = tl.constexpr(128.0)
# The true exponential is scaled by 2^8 = 256 before it is rounded.
EXACT_OCTAVES = tl.constexpr(8.0)
EXPONENT_MIN = tl.constexpr(-120.0)
EXPONENT_MAX = tl.constexpr(60.0)
E8M0_BIAS = tl.constexpr(127.0)
# -2^-22: more than the roundings of a row offset can add up to.
SLACK = tl.constexpr(-2.384185791015625e-07)
# Second line of the portable map, see lean_codes_portable.
SMALL_CODE_SLOPE = tl.constexpr(0.19)
SMALL_CODE_START = tl.constexpr(4.0)
E4M3_ONE = tl.constexpr(0x38)


@triton.jit
def finite_reference(row_max):
    """The running row maximum as a number that can be subtracted: 0 where no key has been seen
    (-inf)."""
    return tl.where(row_max == float("-inf"), 0.0, row_max)


@triton.jit
def rescale_factor(old_max, reference, scale_log2):
    """Factor for the accumulator and the row sum when the row reference moves from `old_max`; 0 for
    a first block."""
    return tl.exp2((old_max - reference) * scale_log2)


@triton.jit
def block_exponent(block_max, reference, scale_log2):
    """Power of two of one 64-key block of P: octaves from the row reference to the block's own
    maximum, rounded up.

    Returns a float32 integer in [-120, 60]; not positive while the reference is at least the
    block's maximum.
    """
    octaves = tl.ceil((block_max - reference) * scale_log2)
    return tl.minimum(tl.maximum(octaves, EXPONENT_MIN), EXPONENT_MAX)


@triton.jit
def exponent_to_e8m0(exponent, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """E8M0 scale bytes (BLOCK_M, BLOCK_N // 32) for `tl.dot_scaled` from one exponent a row."""
    byte = (exponent + E8M0_BIAS).to(tl.uint8)
    return tl.broadcast_to(byte[:, None], [BLOCK_M, BLOCK_N // 32])


@triton.jit
def not_above(x):
    """x lowered by 2^-22 of its size, so that later roundings cannot lift it above what x stood
    for."""
    return tl.fma(tl.abs(x), SLACK, x)


@triton.jit
def lean_row_offset(reference, exponent, scale_log2):
    """What to add to score * 8 * scale_log2 so that byte 2 of the float32 sum is the Lean code.

    A score equal to the block's maximum lands at code 126 or below whatever its size, because the
    offset is rounded
    down: no code 127 (NaN) can arise. The offset lies on a grid of 2^-10 codes.
    """
    top = (TOP_CODE + 0.5) - CODES_PER_OCTAVE * exponent
    offset = not_above(tl.fma(reference, -CODES_PER_OCTAVE * scale_log2, top))
    return tl.floor(offset * 1024.0) * 0.0009765625 + CODE_OFFSET


@triton.jit
def _byte_2(x):
    return (x.to(tl.int32, bitcast=True) >> 16).to(tl.uint8)


@triton.jit
def lean_codes(scores, scale_log2, row_offset):
    """Lean P: e4m3 codes (uint8) by one multiply-add a score; no exponential. -inf gives code 0.

    Source of the map: code(2^t) is 8 t + 56 up to the curvature within an octave (e4m3 has 3
    fraction bits).
    """
    x = tl.fma(scores, CODES_PER_OCTAVE * scale_log2, row_offset[:, None])
    return _byte_2(tl.maximum(x, CODE_OFFSET))


@triton.jit
def lean_codes_portable(scores, scale_log2, row_offset):
    """Lean P without a block scale: codes below 8 (subnormals) follow a second, flatter line, 4 +
    0.19 u.

    Without a block scale small probabilities reach the subnormal codes, where the affine map ends
    too early; the second line takes the error of a row with a strong sink from 9.8e-2 to 1.6e-2 of
    its norm (docs/how-it-works.md).
    """
    x = tl.fma(scores, CODES_PER_OCTAVE * scale_log2, row_offset[:, None])
    shift: tl.constexpr = CODE_OFFSET + 0.5  # x = u + shift, u the code before rounding
    small = tl.fma(x, SMALL_CODE_SLOPE, SMALL_CODE_START + shift - SMALL_CODE_SLOPE * shift)
    return _byte_2(tl.maximum(tl.maximum(x, small), CODE_OFFSET))


@triton.jit
def exact_probabilities(scores, scale_log2, reference, exponent, OCTAVES: tl.constexpr):
    """True exponential 2^(score * scale_log2 - reference * scale_log2 - exponent + OCTAVES),
    float32."""
    offset = tl.fma(reference, -scale_log2, OCTAVES - exponent)
    if OCTAVES != 0.0:
        offset = not_above(offset)  # scaled up, a rounding could lift P above the e4m3 range
    return tl.exp2(tl.fma(scores, scale_log2, offset[:, None]))


@triton.jit
def as_e4m3(codes):
    """uint8 codes seen as e4m3 numbers, bit for bit."""
    return codes.to(tl.float8e4nv, bitcast=True)


@triton.jit
def row_sum_scaled(p, scale_bytes, BLOCK_N: tl.constexpr):
    """Row sums (BLOCK_M,) of block-scaled e4m3 P by one scaled matrix instruction on ones.

    Sums the *rounded* P, so that a constant bias of the codes cancels when the output is divided by
    it. Exact: 64 e4m3 numbers add up in float32 without rounding.
    """
    ones = as_e4m3(tl.full([BLOCK_N, 32], E4M3_ONE, tl.uint8))
    return tl.max(tl.dot_scaled(p, scale_bytes, "e4m3", ones, None, "e4m3"), 1)


@triton.jit
def rounded_to_e4m3(x):
    """Non-negative x up to 448 rounded to an e4m3 number (to nearest, ties to even), as float32.

    Convert the result for the matrix instruction and sum the result itself. Do not sum what was
    converted: where a conversion from float32 feeds a wgmma and is read a second time, Triton 3.6
    with ptxas 12.8 computes half of the second reads from a stale register on sm_90a
    (tests/gpu/test_attention.py::test_modes).
    """
    bits = x.to(tl.int32, bitcast=True)
    # 3 of 23 fraction bits stay: add half of what is cut, less one where that would break a tie up
    normal = (bits + 0x7FFFF + ((bits >> 20) & 1)) & -0x100000
    subnormal = (x + 24576.0) - 24576.0  # floats from 2^14 on step by 2^-9, as e4m3 does below 2^-6
    return tl.where(x < 0.015625, subnormal, normal.to(tl.float32, bitcast=True))


@triton.jit
def row_sum(p):
    """Row sums (BLOCK_M,) of P, float32 or e4m3, without a scaled matrix instruction."""
    return tl.sum(p.to(tl.float32), 1)


@triton.jit
def key_mask(offs_n, seqlen_k):
    """(1, BLOCK_N): which keys of the tile exist."""
    return offs_n[None, :] < seqlen_k


@triton.jit
def causal_mask(offs_m, offs_n, seqlen_q, seqlen_k):
    """(BLOCK_M, BLOCK_N): which keys each query sees, aligned at the bottom right: j <= i +
    seqlen_k - seqlen_q."""
    return offs_n[None, :] <= (offs_m + (seqlen_k - seqlen_q))[:, None]


@triton.jit
def masked_scores(scores, mask):
    """Scores with -inf where the mask is false; every block above gives such a key probability
    0."""
    return tl.where(mask, scores, float("-inf"))
