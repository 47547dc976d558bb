"""Probes of the matrix unit: order of accumulation, layouts, block scales, EXEC, denormals, NaN."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from asm_overrides.probes.builder import LANES, Builder, Floats, Probe, Words, floats, part
from asm_overrides.probes.float32 import DENORMALS_FLUSHED
from asm_overrides.probes.outcomes import among

_LANE = np.arange(LANES)
_DENSE = "v_mfma_f32_32x32x64_f8f6f4 {{d}}, {a}, {b}, {c}"
_SCALED = "v_mfma_scale_f32_32x32x64_f8f6f4 {{d}}, {a}, {b}, {c}, {sa}, {sb}{select}"
_ONE = 0x38
_BEFORE = "s_nop 4"  # a vector instruction's result may be an operand 2 wait states later


def operand(codes: NDArray[np.uint8]) -> Words:
    """Registers (8, 64) of an operand (32 rows, 64 k) of bytes, in gfx950's layout."""
    first = 16 * (_LANE // 32)
    row, byte = _LANE[:, None] % 32, np.arange(16)
    pieces = [codes[row, first[:, None] + start + byte] for start in (0, 32)]
    words: Words = np.ascontiguousarray(np.concatenate(pieces, axis=1)).view(np.uint32).T
    return words


def result_registers(matrix: Floats) -> Floats:
    """Registers (16, 64) that hold a result (32 rows, 32 columns)."""
    index = np.arange(16)[:, None]
    row = index % 4 + 4 * (_LANE // 32) + 8 * (index // 4)
    return floats(matrix[row, _LANE % 32])


_CODES = {0.0: 0, 2.0**-9: 1, 1.0: _ONE, 2.0**8: 0x78, -(2.0**8): 0xF8}


def accumulation() -> Probe:
    """2^16, -2^16 and 2^-18 at positions that tell orders of summation apart."""
    build = Builder(
        "matrix/accumulation", "an MFMA sums its products exactly, then C; one rounding"
    )
    big, small = 2.0**8, 2.0**-9
    # Of 16 k, 4 to 11 carry the factor 2^-9 on B's side, the others 2^8.
    row_b = np.where((np.arange(64) % 16 >= 4) & (np.arange(64) % 16 < 12), 0x01, 0x78)
    cases: list[dict[int, float]] = [
        {0: big, 2: -big, 4: small},  # one group of even k
        {0: big, 4: small, 16: -big},  # the second 16 k take the large one away
        {0: big, 2: -big, 5: small},  # the small one alone among odd k
        {0: big, 1: -big, 4: small},  # the large ones in different groups
        {0: -big, 4: small},  # C takes the large one away
        {0: big, 4: small, 12: -big},  # within 16 k, the small one between
    ]
    a, c = np.zeros((32, 64), np.uint8), np.zeros((32, 32), np.float32)
    for row in range(32):
        for k, value in cases[row % len(cases)].items():
            a[row, k] = _CODES[value]
        c[row] = 2.0**16 if row % len(cases) == 4 else 0.0
    survives = {
        "exact sum": (1, 1, 1, 1, 1, 1),
        "8 even and 8 odd products, cut to 24 bits": (0, 0, 1, 0, 0, 0),
        "16 products exactly, rounded after each 16": (1, 0, 1, 1, 1, 1),
        "one product after the other, rounded each time": (1, 0, 1, 1, 1, 0),
    }
    answers = {
        name: result_registers(
            np.resize(floats(kept) * np.float32(2.0**-18), 32)[:, None].repeat(32, 1)
        )
        for name, kept in survives.items()
    }
    registers = [
        build.load(operand(a)),
        build.load(operand(np.tile(row_b.astype(np.uint8), (32, 1)))),
        build.load(result_registers(c)),
    ]
    build.line(_BEFORE)
    build.result(_DENSE.format(a=registers[0], b=registers[1], c=registers[2]), 16)
    return build.probe(among(answers), "exact sum")


def accumulation_bf16() -> Probe:
    """The same of bf16, whose exponents need no help from B."""
    build = Builder("matrix/accumulation-bf16", "the same for the 16 products of a bf16 MFMA")
    big, minus, small = 0x4780, 0xC780, 0x3680  # 2^16, -2^16, 2^-18
    cases: list[dict[int, int]] = [
        {0: big, 1: minus, 2: small},
        {0: big, 2: small, 3: minus},
        {0: big, 4: small, 8: minus},
        {0: big, 2: small, 4: minus},
        {0: big, 1: small, 2: minus},
    ]
    a = np.zeros((32, 16), np.uint16)
    for row in range(32):
        for k, code in cases[row % len(cases)].items():
            a[row, k] = code
    survives = {
        "exact sum": (1, 1, 1, 1, 1),
        "8 products exactly, rounded after each 8": (1, 1, 0, 1, 1),
        "4 products exactly, rounded after each 4": (1, 1, 0, 0, 1),
        "2 products exactly, rounded after each 2": (1, 1, 0, 0, 0),
        "one product after the other, rounded each time": (1, 0, 0, 0, 0),
        "8 even and 8 odd products, cut to 24 bits": (0, 0, 0, 0, 1),
    }
    answers = {
        name: result_registers(np.resize(floats(kept) * 2.0**-18, 32)[:, None].repeat(32, 1))
        for name, kept in survives.items()
    }
    held = 8 * (_LANE // 32)[:, None] + np.arange(8)
    words = np.ascontiguousarray(a[_LANE[:, None] % 32, held]).view(np.uint32).T
    factors, ones = build.load(words), build.load([0x3F80_3F80] * 4)
    build.line(_BEFORE)
    build.result(f"v_mfma_f32_32x32x16_bf16 {{d}}, {factors}, {ones}, 0", 16)
    return build.probe(among(answers), "exact sum")


def layout() -> Probe:
    """Random small integers; a wrong row, column or pairing of k gives another product."""
    build = Builder("matrix/layout", "layouts of A, B and D of 32x32x64 fp8")
    generator = np.random.default_rng(3)
    values = np.array([0, 1, 2, 3, 4, -1, -2], np.float32)
    codes = np.array([0, 0x38, 0x40, 0x44, 0x48, 0xB8, 0xC0], np.uint8)
    a, b = generator.integers(0, 7, (32, 64)), generator.integers(0, 7, (32, 64))
    product = (values[a] @ values[b].T).astype(np.float32)
    registers = build.load(operand(codes[a])), build.load(operand(codes[b]))
    build.line(_BEFORE)
    build.result(_DENSE.format(a=registers[0], b=registers[1], c=0), 16)
    answers = {
        "as documented": result_registers(product),
        "rows and columns exchanged": result_registers(product.T),
        "other rows": product[np.arange(16)[:, None] + 16 * (_LANE // 32), _LANE % 32],
    }
    return build.probe(among(answers), "as documented")


def denormals() -> Probe:
    """Denormal C of fp8, denormal factors and result of bf16, with MODE set to flush."""
    build = Builder("matrix/denormals", "denormal inputs, C, results are kept, whatever MODE says")
    zero, tiny = build.load(np.zeros(8, np.uint32)), build.load([2.0**-140] * 16)
    small = np.uint32(0x0020_0020)  # bf16 2^-128
    factors = build.load([small] * 4), build.load([0x4300_4300] * 4)  # 2^7
    build.line(DENORMALS_FLUSHED, _BEFORE)
    build.result(_DENSE.format(a=zero, b=zero, c=tiny), 16)
    build.result(f"v_mfma_f32_32x32x16_bf16 {{d}}, {factors[0]}, {factors[1]}, 0", 16)

    def both(c: float, product: float) -> Floats:
        return np.repeat(floats([c, product]), 16)[:, None]

    answers = {
        "kept": both(2.0**-140, 16 * 2.0**-121),
        "flushed": both(0, 0),
        "C flushed, factors kept": both(0, 16 * 2.0**-121),
        "C kept, factors flushed": both(2.0**-140, 0),
    }
    return build.probe(among(answers), "kept")


def _ones(build: Builder) -> str:
    return build.load([_ONE * 0x01010101] * 8)


def _scaled(
    build: Builder, a: str, b: str, scales: tuple[str, str], select: str = "", c: str = "0"
) -> None:
    text = _SCALED.format(a=a, b=b, c=c, sa=scales[0], sb=scales[1], select=select)
    build.result(text, 16)


def scale_bytes() -> Probe:
    """Scales 1, 2, 4, 8 in the four bytes, each chosen once; B's byte 0 is 1."""
    build = Builder("matrix/scale-bytes", "a scale is byte op_sel + 2 op_sel_hi of its register")
    one, scale, neutral = _ones(build), build.load(0x8281807F), build.load(0x7F7F7F7F)
    build.line(_BEFORE)
    for low, high in ((0, 0), (1, 0), (0, 1), (1, 1)):
        select = f" op_sel:[{low},0,0] op_sel_hi:[{high},0,0]"
        _scaled(build, one, one, (scale, neutral), select)

    def factors(*values: float) -> Floats:
        return 64 * np.repeat(floats(values), 16)[:, None]

    answers = {
        "op_sel + 2 op_sel_hi": factors(1, 2, 4, 8),
        "2 op_sel + op_sel_hi": factors(1, 4, 2, 8),
        "always byte 0": factors(1, 1, 1, 1),
    }
    return build.probe(among(answers), "op_sel + 2 op_sel_hi")


def scale_lanes() -> Probe:
    """Scale 2 from lanes 32 up. A is 1, times 16 in registers 4 to 7, times 2 in lanes 32 up."""
    build = Builder("matrix/scale-lanes", "lanes 32b up scale registers 4b to 4b+3 of all lanes")
    codes = np.array([[_ONE, 0x58], [0x40, 0x60]], np.uint32)  # 1, 16; 2, 32
    registers = np.repeat(codes, 4, axis=1)[_LANE // 32].T * np.uint32(0x01010101)
    a, one = build.load(registers), _ones(build)
    scale, neutral = build.load(np.where(_LANE < 32, 0x7F, 0x80)), build.load(0x7F)
    build.line(_BEFORE)
    _scaled(build, a, one, (scale, neutral))

    def constant(value: float) -> Floats:
        return floats([[value]])

    sums = 16 * np.array([[1, 16], [2, 32]])
    answers = {
        "registers 4b..4b+3": constant(float(sums[:, 0].sum() + 2 * sums[:, 1].sum())),
        "the lanes' own registers": constant(float(sums[0].sum() + 2 * sums[1].sum())),
        "lanes 0 to 31 for all": constant(float(sums.sum())),
    }
    return build.probe(among(answers), "registers 4b..4b+3")


def scale_range() -> Probe:
    """Scales 2^-120 and 2^100, C beside them, and scale 0xFF."""
    build = Builder("matrix/scale-range", "a scale adds to the exponent, spares C; 0xFF is NaN")
    one, c = _ones(build), build.load([3.0] * 16)
    down, up, nan = (build.load(code) for code in (0x7F - 120, 0x7F + 100, 0xFF))
    neutral = build.load(0x7F)
    build.line(_BEFORE)
    _scaled(build, one, one, (down, neutral))
    _scaled(build, one, one, (down, up))
    _scaled(build, one, one, (neutral, up), c=c)
    _scaled(build, one, one, (neutral, down), c=c)
    _scaled(build, one, one, (neutral, nan))

    def values(c_scaled: bool, nan: float) -> Words:
        with_c = (67 * 2.0**100, 67 * 2.0**-120) if c_scaled else (2.0**106, 3.0)
        results = floats([2.0**-114, 2.0**-14, *with_c, nan])
        return np.repeat(results, 16)[:, None].view(np.uint32)

    def with_nan(pattern: int, c_scaled: bool = False) -> Words:
        words = values(c_scaled, 0.0)
        words[-16:] = pattern
        return words

    answers = {
        "exponent, C not scaled, NaN": with_nan(0xFFC00000),
        "exponent, C not scaled, NaN 0x7FC00000": with_nan(0x7FC00000),
        "exponent, C scaled too, NaN": with_nan(0xFFC00000, c_scaled=True),
        "0xFF is 2^128": values(False, np.inf),
    }
    return build.probe(among(answers), "exponent, C not scaled, NaN")


def exec_mask() -> Probe:
    """An MFMA while only lane 0 is on."""
    build = Builder("matrix/exec", "EXEC does not mask an MFMA")
    one, registers = _ones(build), build.load(np.zeros(16, np.float32))
    build.line(
        "s_mov_b64 s[8:9], exec",
        "s_mov_b64 exec, 1",
        "s_nop 4",
        _DENSE.format(a=one, b=one, c=0).format(d=registers),
        "s_nop 15",
        "s_nop 7",
        "s_mov_b64 exec, s[8:9]",
    )
    build.store(registers)
    answers = {
        "not masked": floats([[64]]),
        "masked": np.broadcast_to(np.where(_LANE == 0, 64, 0).astype(np.float32), (16, LANES)),
    }
    return build.probe(among(answers), "not masked")


def late_read() -> Probe:
    """The result is read 19 wait states after the MFMA; the register held 1 before."""
    build = Builder("matrix/read-after-19", "an fp8 32x32x64 result is there 19 wait states later")
    one, accumulator = _ones(build), build.load(np.ones(16, np.float32))
    copy = build.reserve()
    build.line(
        _BEFORE,
        _DENSE.format(a=one, b=one, c=0).format(d=accumulator),
        "s_nop 15",
        "s_nop 2",
        f"v_mov_b32_e32 {copy}, {part(accumulator, 15)}",
    )
    build.store(copy)
    answers: Mapping[str, Floats] = {
        "the result": floats([[64]]),
        "the old value": floats([[1]]),
    }
    return build.probe(among(answers), "the result", deliberate=frozenset({"hazard"}))


def sparse_row_sum() -> Probe:
    """v_smfmac_f32_16x16x128 with ones, as the ping-pong loop sums rows."""
    build = Builder("matrix/sparse-row-sum", "v_smfmac_f32_16x16x128 with ones sums rows")
    generator = np.random.default_rng(5)
    values = np.array([0, 1, 2, 3, 4], np.float32)
    codes = np.array([0, 0x38, 0x40, 0x44, 0x48], np.uint8)
    choice = generator.integers(0, 5, (LANES, 32))
    p = build.load(np.ascontiguousarray(codes[choice]).view(np.uint32).T)
    ones = np.zeros((4, LANES), np.uint32)
    for register in range(4):
        has = (_LANE % 4 < 2) & ((_LANE & 4 == 0) == (register < 2))
        ones[register] = np.where(has, _ONE * 0x01010101, 0)
    index = build.load(np.where(_LANE % 4 == 1, 0xEEEEEEEE, 0x44444444))
    a, d = build.load(ones), build.load(np.zeros(4, np.float32))
    build.line(
        _BEFORE,
        f"v_smfmac_f32_16x16x128_fp8_fp8 {d}, {a}, {p}, {index}",
        "s_nop 15",
        f"v_add_f32_e32 {part(d, 0)}, {part(d, 0)}, {part(d, 1)}",
    )
    build.store(part(d, 0))
    sums = values[choice].sum(axis=1)
    answers = {
        "the row's sum in every lane": (sums + np.roll(sums, 32))[None],
        "each lane's own sum": sums[None],
    }
    return build.probe(among(answers), "the row's sum in every lane")


PROBES = (
    accumulation,
    accumulation_bf16,
    layout,
    denormals,
    scale_bytes,
    scale_lanes,
    scale_range,
    exec_mask,
    late_read,
    sparse_row_sum,
)
