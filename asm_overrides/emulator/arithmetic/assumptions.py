"""What the emulator assumes where gfx950's arithmetic is not documented; it computes nothing.

Each field is a question about the machine.  Its comment says what is assumed, why, and which
experiment on a card settles it.

Readings of the manual that have no switch, because another reading gives wrong quotients or
contradicts a shipping compiler:

- v_div_fmas_f32 multiplies by 2**64 or 2**-64, by the size of the quotient (the manual: 2**32).
- v_div_scale_f32 scales a denominator whose reciprocal and quotient are denormal by 2**-64 (the
  manual: 2**64), and 1/S1 and S2/S1 are judged as fp32 denormals.
- v_div_fixup_f32 overflows where the quotient's exponent is 255 (the manual: the denominator's).
- v_cvt_scalef32_* to a small format divide by the scale, from one they multiply.
- FP16_OVFL turns an overflowing fp32 or int32 matrix result into the largest number.
- 16-bit, bf8 and widely scaled matrix products are added in float64, whose 53 bits are more than
  any adder of the machine; fp8, fp6 and fp4 sums are exact while scales are no more than 10 apart.

Settled by: a division of each kind of operands (all of IEEE division is a test here), and one
instruction each with the values named.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

INVALID_NAN = 0xFFC00000
"""The NaN of an invalid operation (inf - inf, 0 * inf, log2(-1)) and of a matrix operation.

The manual gives this pattern for v_log, v_rsq, v_sqrt and v_div_fixup; assumed for the others.  A
NaN operand comes through quieted, the first source first.  Settled by: reading these back.
"""

MatrixSum = Literal["exact", "even_odd"]
DotSum = Literal["exact", "sequential"]
ByteRounding = Literal["nearest_even", "truncate"]


@dataclass(frozen=True)
class Machine:
    """The answers in force, one field each; `DEFAULT_MACHINE` holds the defaults."""

    matrix_sum: MatrixSum = "exact"
    """How an MFMA adds its products.

    "exact": the products of one instruction are added without rounding, then C, then one rounding
    to the accumulator's type (fp16 and bf16 products are added in float64).  "even_odd": the model
    published for the previous generation's fp8: of each 16 k, the 8 even and the 8 odd products
    are each aligned to the largest of the 8, truncated to 24 fraction bits and added; the two sums
    and C are added and rounded once; the next 16 k follow with that as C.
    Settled by: one MFMA with products 1, 2^-24, -1 in different k positions, read back.
    """

    transcendental_flushes_denormals: bool = True
    """v_exp, v_log, v_rcp, v_rsq and v_sqrt of fp32 take denormal inputs as zero and flush results.

    LLVM scales operands round these opcodes for that reason, whatever MODE says.
    Settled by: v_exp_f32 of -130 and v_rcp_f32 of 2^-130 with denormals enabled.
    """

    transcendental_error_ulp: int = 0
    """fp32 transcendental results are moved by this many units in the last place.

    0: correctly rounded, from float64.  The machine documents about 1 ulp; a conclusion that
    survives -1, 0 and +1 does not depend on it.
    Settled by: all 2^32 inputs of each opcode compared with the correctly rounded result.
    """

    cvt_pk_u8_rounding: ByteRounding = "nearest_even"
    """v_cvt_pk_u8_f32 rounds to nearest even before it clamps to 0..255 (two emulators disagree).

    Settled by: v_cvt_pk_u8_f32 of 0.5, 1.5, 2.5, 254.5 and 255.5.
    """

    fp8_overflow_after_rounding: bool = True
    """Conversions to fp8 and bf8 overflow if the rounded value exceeds the largest number.

    448 < x <= 464 then gives 448.  False: anything above 448 overflows (to NaN, or to 448 with
    FP16_OVFL).  Settled by: v_cvt_pk_fp8_f32 of 449, 464 and 465.
    """

    ashr_pk_keeps_other_half: bool = True
    """v_ashr_pk_u8_i32 and v_ashr_pk_i8_i32 preserve the half that op_sel[3] does not select.

    False writes zeros there.  Settled by: one instruction with a filled destination.
    """

    short_results_keep_high_half: bool = False
    """16-bit results of opcodes for which neither manual nor LLVM says what the high half becomes.

    v_bitop3_b16, v_min3, v_max3 and v_med3 of 16-bit types, v_add_i16, v_sub_i16, v_cvt_u16_f16 and
    v_cvt_i16_f16, without op_sel.  False writes zeros, as most 16-bit opcodes do; True preserves.
    LLVM relies on neither.  Settled by: one instruction each with a filled destination.
    """

    dot2_sum: DotSum = "exact"
    """How v_dot2_f32_* and v_dot2c_f32_* add two products and the accumulator.

    "exact": one rounding of the exact sum.  "sequential": the first product is added to the
    accumulator with one rounding, then the second.  Denormals are flushed either way (manual).
    Settled by: products 1 and 2^-24 with accumulators 0, 1 and -1.
    """


DEFAULT_MACHINE = Machine()
