"""Probes of fp32 arithmetic: denormals, the NaN of invalid operations, dot products, division."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from asm_overrides.probes.builder import Builder, Floats, Judge, Probe, Words, floats
from asm_overrides.probes.outcomes import among, rows

DENORMALS_KEPT = "s_setreg_imm32_b32 hwreg(HW_REG_MODE, 4, 4), 15"
DENORMALS_FLUSHED = "s_setreg_imm32_b32 hwreg(HW_REG_MODE, 4, 4), 0"
_INVALID = 0xFFC00000
_POSITIVE_NAN = 0x7FC00000


def denormals() -> Probe:
    """Multiply-adds, packed and plain, with denormal operands and results."""
    build = Builder("float32/denormals", "fp32 denormals are kept by multiply-adds, as MODE says")
    build.line(DENORMALS_KEPT)
    small, half, zero = build.load(2.0**-126), build.load(0.5), build.load(0.0)
    bits = build.load(0x12345)  # a denormal whose bits are an integer, as in Lean codes
    pair = [build.load([value, value]) for value in (2.0**-126, 0.5, 0.0)]
    build.result(f"v_fma_f32 {{d}}, {small}, {half}, {zero}")
    build.result(f"v_fma_f32 {{d}}, {bits}, 1.0, {zero}")
    build.result(f"v_mul_f32_e32 {{d}}, {small}, {half}")
    build.result(f"v_add_f32_e32 {{d}}, {bits}, {bits}")
    build.result(f"v_pk_fma_f32 {{d}}, {pair[0]}, {pair[1]}, {pair[2]}", 2)
    kept = [0x400000, 0x12345, 0x400000, 0x2468A, 0x400000, 0x400000]
    answers = {
        "kept": rows(kept),
        "flushed": rows([0] * 6),
        "kept, packed ones flushed": rows([*kept[:4], 0, 0]),
    }
    return build.probe(among(answers), "kept")


def invalid_nan() -> Probe:
    """inf - inf, 0 * inf and their kind."""
    build = Builder("float32/invalid-nan", "an invalid operation makes the NaN 0xFFC00000")
    inf, zero = build.load(np.float32(np.inf)), build.load(0.0)
    minus = build.load(-1.0)
    for instruction in (
        f"v_sub_f32_e32 {{d}}, {inf}, {inf}",
        f"v_mul_f32_e32 {{d}}, {zero}, {inf}",
        f"v_fma_f32 {{d}}, {zero}, {inf}, {zero}",
        f"v_log_f32_e32 {{d}}, {minus}",
        f"v_sqrt_f32_e32 {{d}}, {minus}",
    ):
        build.result(instruction)
    answers = {
        "0xFFC00000": rows([_INVALID] * 5),
        "0x7FC00000": rows([_POSITIVE_NAN] * 5),
        "0x7FC00000, but for log and sqrt": rows([_POSITIVE_NAN] * 3 + [_INVALID] * 2),
    }
    return build.probe(among(answers), "0xFFC00000")


def dot2() -> Probe:
    """Products 1 and 2^-25 with accumulators 0, 1 and -1, in both orders."""
    build = Builder("float32/dot2", "v_dot2 rounds the exact sum once")
    one, small = 0x3F80, 0x3300  # bf16 1 and 2^-25
    ones = build.load(one * 0x10001)
    for pair in (small << 16 | one, one << 16 | small):
        factors = build.load(pair)
        for accumulator in (0.0, 1.0, -1.0):
            build.result(f"v_dot2_f32_bf16 {{d}}, {factors}, {ones}, {build.load(accumulator)}")
    survives, lost = [1.0, 2.0, 2.0**-25], [1.0, 2.0, 0.0]
    answers = {
        "exact sum, one rounding": rows(survives + survives),
        "low product first, then high": rows(survives + lost),
        "high product first, then low": rows(lost + survives),
        "products first, then the accumulator": rows(lost + lost),
    }
    return build.probe(among(answers), "exact sum, one rounding")


def division() -> Probe:
    """The sequence that LLVM emits for a division, on quotients of every size."""
    build = Builder("float32/division", "LLVM's division sequence is correctly rounded")
    numerators = np.array(
        [1, 3, 2.0**127, 2.0**-126, 2.0**-149, 1.9999999, 2.0**-100, 2.0**100], np.float32
    )
    denominators = np.array(
        [3, 2.0**-149, 2.0**126 * 1.3, 2.0**-126, 7, 2.0**127, 1.7 * 2.0**-120, 0.7], np.float32
    )
    above = np.repeat(numerators, 8)
    below = np.tile(denominators, 8)
    n, d = build.load(above), build.load(below)
    ds, ns, r, e, q, f = (build.reserve() for _ in range(6))
    build.line(
        DENORMALS_KEPT,
        f"v_div_scale_f32 {ds}, s[8:9], {d}, {d}, {n}",
        f"v_div_scale_f32 {ns}, vcc, {n}, {d}, {n}",
        f"v_rcp_f32_e32 {r}, {ds}",
        "s_nop 1",
        f"v_fma_f32 {e}, -{ds}, {r}, 1.0",
        f"v_fma_f32 {r}, {e}, {r}, {r}",
        f"v_mul_f32_e32 {q}, {ns}, {r}",
        f"v_fma_f32 {f}, -{ds}, {q}, {ns}",
        f"v_fma_f32 {q}, {f}, {r}, {q}",
        f"v_fma_f32 {f}, -{ds}, {q}, {ns}",
        "s_nop 4",
        f"v_div_fmas_f32 {f}, {f}, {r}, {q}",
        f"v_div_fixup_f32 {f}, {f}, {d}, {n}",
    )
    build.store(f)
    with np.errstate(over="ignore"):
        quotients = above / below  # fp32 division of NumPy rounds correctly
    return build.probe(among({"correctly rounded": quotients}), "correctly rounded")


def _transcendental_inputs() -> dict[str, Floats]:
    """Inputs by opcode whose results are normal numbers."""
    generator = np.random.default_rng(7)
    count = 64 * _ROWS
    wide = np.float32(2.0) ** generator.integers(-100, 100, count)
    mantissa = (1 + generator.random(count)).astype(np.float32)
    return {
        "exp": generator.uniform(-30, 8, count).astype(np.float32),
        "log": (wide * mantissa).astype(np.float32),
        "rcp": (wide * mantissa).astype(np.float32),
        "rsq": (wide * mantissa).astype(np.float32),
        "sqrt": (wide * mantissa).astype(np.float32),
    }


_ROWS = 16
_FUNCTIONS: dict[str, Callable[[NDArray[np.float64]], NDArray[np.float64]]] = {
    "exp": np.exp2,
    "log": np.log2,
    "rcp": lambda x: 1 / x,
    "rsq": lambda x: 1 / np.sqrt(x),
    "sqrt": np.sqrt,
}


def transcendental_accuracy() -> Probe:
    """1,024 inputs of each opcode against float64, rounded."""
    build = Builder(
        "float32/transcendental-accuracy", "v_exp, v_log, v_rcp, v_rsq, v_sqrt: correctly rounded"
    )
    expected = []
    for opcode, inputs in _transcendental_inputs().items():
        exact = _FUNCTIONS[opcode](inputs.astype(np.float64)).astype(np.float32)
        expected.append(exact.reshape(_ROWS, 64))
        for row in inputs.reshape(_ROWS, 64):
            build.result(f"v_{opcode}_f32_e32 {{d}}, {build.load(row)}")
    return build.probe(_judge_accuracy(np.stack(expected)), "correctly rounded")


def _judge_accuracy(expected: Floats) -> Judge:
    """Names the largest distance in units of the last place, and the opcodes that have it."""

    def judge(words: Words) -> str:
        seen = words.reshape(expected.shape).view(np.int32).astype(np.int64)
        distance = np.abs(seen - expected.view(np.int32)).max(axis=(1, 2))
        if not distance.any():
            return "correctly rounded"
        by_opcode = (f"{name} {ulp}" for name, ulp in zip(_FUNCTIONS, distance, strict=True))
        return f"off by up to {distance.max()} ulp ({', '.join(by_opcode)})"

    return judge


def transcendental_denormals() -> Probe:
    """Denormal results of v_exp and v_rcp, denormal inputs of v_rcp, v_log and v_sqrt."""
    build = Builder(
        "float32/transcendental-denormals", "v_exp, v_log, v_rcp, v_sqrt flush denormals"
    )
    build.line(DENORMALS_KEPT)
    small = build.load(2.0**-127)
    build.result(f"v_exp_f32_e32 {{d}}, {build.load(-130.0)}")
    build.result(f"v_rcp_f32_e32 {{d}}, {build.load(2.0**127)}")
    build.result(f"v_rcp_f32_e32 {{d}}, {small}")
    build.result(f"v_log_f32_e32 {{d}}, {small}")
    build.result(f"v_sqrt_f32_e32 {{d}}, {build.load(2.0**-128)}")
    answers = {
        "flushed": rows(floats([0, 0, np.inf, -np.inf, 0])),
        "kept": rows(floats([2.0**-130, 2.0**-127, 2.0**127, -127, 2.0**-64])),
        "results flushed, inputs kept": rows(floats([0, 0, 2.0**127, -127, 2.0**-64])),
    }
    return build.probe(among(answers), "flushed")


PROBES = (
    denormals,
    invalid_nan,
    transcendental_accuracy,
    transcendental_denormals,
    dot2,
    division,
)
