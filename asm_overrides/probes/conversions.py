"""Probes of conversions to 8 bits: rounding, overflow, saturation, scales."""

from __future__ import annotations

import numpy as np

from asm_overrides.probes.builder import Builder, Probe
from asm_overrides.probes.outcomes import among, rows

FP16_OVFL_ON = "s_setreg_imm32_b32 hwreg(HW_REG_MODE, 23, 1), 1"
FP16_OVFL_OFF = "s_setreg_imm32_b32 hwreg(HW_REG_MODE, 23, 1), 0"
_CODE_448, _CODE_NAN = 0x7E, 0x7F


def cvt_pk_u8() -> Probe:
    """0.5, 1.5, 2.5, 254.5, 255.5 and what is out of range, one a lane."""
    inputs = np.array([0.5, 1.5, 2.5, 254.5, 255.5, 300.0, -1.0, np.nan], np.float32)
    build = Builder("conversions/cvt-pk-u8", "v_cvt_pk_u8_f32 rounds to nearest even, then clamps")
    source = build.load(np.resize(inputs, 64))
    build.result(f"v_cvt_pk_u8_f32 {{d}}, {source}, 1, {build.load(0x44332211)}")
    keep = 0x44330011

    def codes(*bytes_: int) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
        return np.resize(np.array([keep | byte << 8 for byte in bytes_], np.uint32), 64)

    answers = {
        "nearest even, clamped": codes(0, 2, 2, 254, 255, 255, 0, 0),
        "truncated, clamped": codes(0, 1, 2, 254, 255, 255, 0, 0),
        "half up, clamped": codes(1, 2, 3, 255, 255, 255, 0, 0),
    }
    return build.probe(among(answers), "nearest even, clamped")


def fp8_overflow() -> Probe:
    """449 and 464 become 448 if the rounded value counts; 465 rounds to 480, which is too large."""
    build = Builder("conversions/fp8-overflow", "fp8 overflow is judged after rounding")
    build.line(FP16_OVFL_OFF)
    for value in (449.0, 464.0, 465.0):
        build.result(f"v_cvt_pk_fp8_f32 {{d}}, {build.load(value)}, {build.load(-value)}", fill=0)
    large, nan = _CODE_448 | 0x80 << 8 | _CODE_448 << 8, _CODE_NAN | 0x80 << 8 | _CODE_NAN << 8
    answers = {
        "after rounding": rows([large, large, nan]),
        "before rounding": rows([nan, nan, nan]),
        "saturates": rows([large, large, large]),
    }
    return build.probe(among(answers), "after rounding")


def fp8_saturation() -> Probe:
    """500 with MODE.FP16_OVFL off and on."""
    build = Builder("conversions/fp8-saturation", "above 448: NaN, or 448 with MODE.FP16_OVFL")
    source = build.load(500.0)
    build.line(FP16_OVFL_OFF)
    build.result(f"v_cvt_pk_fp8_f32 {{d}}, {source}, {source}", fill=0)
    build.line(FP16_OVFL_ON)
    build.result(f"v_cvt_pk_fp8_f32 {{d}}, {source}, {source}", fill=0)
    nan, large = _CODE_NAN * 0x101, _CODE_448 * 0x101
    answers = {
        "NaN, 448 with the bit": rows([nan, large]),
        "NaN either way": rows([nan, nan]),
        "448 either way": rows([large, large]),
    }
    return build.probe(among(answers), "NaN, 448 with the bit")


def fp8_rounding() -> Probe:
    """Ties between neighbours, normal and denormal; the low half of the destination is kept."""
    ties = (1.0625, 1.1875, 2.0**-10, 3 * 2.0**-10, 17 * 2.0**-10)
    nearest = (0x38, 0x3A, 0x00, 0x02, 0x08)
    build = Builder("conversions/fp8-rounding", "v_cvt_pk_fp8_f32: nearest even, keeps a half")
    for value in ties:
        source = build.load(value)
        build.result(f"v_cvt_pk_fp8_f32 {{d}}, {source}, {source} op_sel:[0,0,1]", fill=0x1234)
    away = (0x39, 0x3A, 0x01, 0x02, 0x09)
    keep = {"nearest even, kept": (nearest, 0x1234), "nearest even, zeroed": (nearest, 0),
            "ties away, kept": (away, 0x1234)}  # fmt: skip
    answers = {
        name: rows([code * 0x01010000 | low for code in codes])
        for name, (codes, low) in keep.items()
    }
    return build.probe(among(answers), "nearest even, kept")


def scalef32() -> Probe:
    """3.0 to fp8 with scale 2, and fp8 3.0 from it."""
    build = Builder("conversions/scalef32", "to fp8 divides by the scale, from fp8 multiplies")
    source, scale = build.load(3.0), build.load(2.0)
    build.result(f"v_cvt_scalef32_pk_fp8_f32 {{d}}, {source}, {source}, {scale}", fill=0)
    build.result(f"v_cvt_scalef32_f32_fp8 {{d}}, {build.load(0x44)}, {scale}")
    divided, multiplied = 0x3C * 0x101, 0x4C * 0x101  # 1.5 and 6.0
    answers = {
        "divides, multiplies": rows([divided], 6.0),
        "multiplies, divides": rows([multiplied], 1.5),
        "multiplies, multiplies": rows([multiplied], 6.0),
    }
    return build.probe(among(answers), "divides, multiplies")


PROBES = (cvt_pk_u8, fp8_overflow, fp8_saturation, fp8_rounding, scalef32)
