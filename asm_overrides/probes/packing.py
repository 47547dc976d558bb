"""Probes of what becomes of the rest of a register, and of shifts that saturate."""

from __future__ import annotations

import numpy as np

from asm_overrides.probes.builder import Builder, Probe
from asm_overrides.probes.outcomes import among, rows


def ashr_pk_other_half() -> Probe:
    """Both halves in turn, into a filled destination."""
    build = Builder(
        "packing/ashr-pk-other-half", "v_ashr_pk_u8_i32 and _i8_ preserve the other half"
    )
    low, high, shift = build.load(0x120), build.load(0x340), build.load(4)
    for kind in ("u8", "i8"):
        for op_sel in ("", " op_sel:[0,0,0,1]"):
            build.result(
                f"v_ashr_pk_{kind}_i32 {{d}}, {low}, {high}, {shift}{op_sel}", fill=0xAABBCCDD
            )
    kept = [0xAABB3412, 0x3412CCDD]
    answers = {
        "kept": rows(kept + kept),
        "zeroed": rows([0x3412, 0x34120000] * 2),
    }
    return build.probe(among(answers), "kept")


def ashr_pk_saturation() -> Probe:
    """Values round the ends of a byte, positive and negative, shifted by 3."""
    values = np.array([0, 7, 8, 15, 2040, 2047, 2048, 0x7FFFFFFF, -1, -8, -9, -(2**31)], np.int64)
    build = Builder(
        "packing/ashr-pk-saturation", "v_ashr_pk_u8_i32 shifts signed, saturates to 0..255"
    )
    source = build.load(np.resize(values, 64))
    build.result(f"v_ashr_pk_u8_i32 {{d}}, {source}, {source}, {build.load(3)}", fill=0)
    shifted = np.resize(values, 64) >> 3
    answers = {
        "signed, saturated": np.clip(shifted, 0, 255) * 0x101,
        "cut off": (shifted & 255) * 0x101,
        "unsigned, saturated": np.clip((np.resize(values, 64) & 0xFFFFFFFF) >> 3, 0, 255) * 0x101,
    }
    return build.probe(among(answers), "signed, saturated")


def short_results() -> Probe:
    """16-bit opcodes into a filled destination."""
    build = Builder("packing/short-results", "16-bit results write zeros above")
    a, b, one = build.load(5), build.load(7), build.load(0x3C00)
    for instruction in (
        f"v_add_i16 {{d}}, {a}, {b}",
        f"v_sub_i16 {{d}}, {b}, {a}",
        f"v_min3_i16 {{d}}, {a}, {b}, {a}",
        f"v_max3_u16 {{d}}, {a}, {b}, {a}",
        f"v_cvt_u16_f16_e32 {{d}}, {one}",
        f"v_bitop3_b16 {{d}}, {a}, {b}, {a} bitop3:0x80",
    ):
        build.result(instruction, fill=0xAABBCCDD)
    results = np.array([12, 2, 5, 7, 1, 5])
    answers = {"zeros": rows(results), "kept": rows(results | 0xAABB0000)}
    return build.probe(among(answers), "zeros")


PROBES = (ashr_pk_other_half, ashr_pk_saturation, short_results)
