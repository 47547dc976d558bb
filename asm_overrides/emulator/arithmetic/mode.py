"""What the MODE register means for arithmetic; writing the register is the executor's work."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from .operands import UnsupportedArithmetic

ROUND_F32 = 0x3
ROUND_F64_F16 = 0xC
DENORMALS_F32 = 0x30
DENORMALS_F64_F16 = 0xC0
DX10_CLAMP = 0x100
IEEE = 0x200
FP16_OVERFLOW = 1 << 23


@dataclass(frozen=True)
class Mode:
    """The fields of MODE that arithmetic looks at."""

    flush_inputs_f32: bool
    flush_results_f32: bool
    flush_inputs_f64_f16: bool
    flush_results_f64_f16: bool
    dx10_clamp: bool
    """NaN clamps to zero."""
    ieee: bool
    """Signalling NaN operands of min and max are quieted and returned."""
    fp16_overflow: bool
    """Overflow in fp16 arithmetic and conversions to fp16, fp8 and bf8 gives the largest number."""

    @staticmethod
    @cache
    def from_bits(bits: int) -> Mode:
        """The meaning of a MODE value; raises UnsupportedArithmetic unless it rounds to nearest."""
        if bits & (ROUND_F32 | ROUND_F64_F16):
            raise UnsupportedArithmetic(
                f"MODE {bits:#x} selects rounding mode {bits & 3} for fp32 and {bits >> 2 & 3} for"
                " fp64 and fp16; only 0, round to nearest even, is supported"
            )
        return Mode(
            flush_inputs_f32=not bits & 0x10,
            flush_results_f32=not bits & 0x20,
            flush_inputs_f64_f16=not bits & 0x40,
            flush_results_f64_f16=not bits & 0x80,
            dx10_clamp=bool(bits & DX10_CLAMP),
            ieee=bool(bits & IEEE),
            fp16_overflow=bool(bits & FP16_OVERFLOW),
        )
