"""Matrix instructions against plain loops over the manual's formulas, one element at a time.

The formulas for where an element lies (manual 7.1.4, and the tables of 7.1.5 and 7.5) are written
here once more, as lane and bit numbers, and share nothing with the implementation's reshapes.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from asm_overrides.emulator.arithmetic import (
    Machine,
    Mode,
    UnknownOpcode,
    UnsupportedArithmetic,
    bind_matrix,
)
from asm_overrides.emulator.arithmetic.formats import (
    BF6_VALUES,
    BF8_VALUES,
    FP4_VALUES,
    FP6_VALUES,
    FP8_VALUES,
)
from tests.asm.arithmetic_values import FP16_OVERFLOW, MODE, MODE_BITS, round_to_f32, signed

WAVES = 2
BITS = {"fp8": 8, "bf8": 8, "fp6": 6, "bf6": 6, "fp4": 4, "f16": 16, "bf16": 16, "i8": 8, "f32": 32}
TABLES = {
    "fp8": FP8_VALUES,
    "bf8": BF8_VALUES,
    "fp6": FP6_VALUES,
    "bf6": BF6_VALUES,
    "fp4": FP4_VALUES,
}
SELECT = {"fp8": 0, "bf8": 1, "fp6": 2, "bf6": 3, "fp4": 4}


def item_of(registers: np.ndarray, lane: int, item: int, bits: int) -> int:
    """The item-th element of a lane: its registers are one long number, low register first."""
    number = sum(int(word) << 32 * i for i, word in enumerate(registers[:, lane]))
    return number >> bits * item & (1 << bits) - 1


def place(
    row: int, block: int, k: int, rows: int, blocks: int, depth: int, split: bool
) -> tuple[int, int]:
    """Lane and item of A[block, row, k] (or of B[block, k, column])."""
    groups = 64 // (rows * blocks)
    if split:  # two runs of k, each with the layout of an operand of half the depth
        half = depth // 2
        lane, item = place(row, block, k % half, rows, blocks, half, False)
        return lane, item + (half // groups if k >= half else 0)
    per_lane = depth // groups
    return row + rows * (block + blocks * (k // per_lane)), k % per_lane


def d_place(i: int, j: int, block: int, m: int, n: int) -> tuple[int, int]:
    """Lane and register of D[block, i, j] (manual 7.1.4.2, H = 4)."""
    b_i = -(-64 // (n * m // 4))
    m_i = (64 // b_i) // n
    g = m // (4 * m_i)
    item = (i % 4) + 4 * (i // (4 * m_i) + g * (block // b_i))
    return j + n * ((i // 4) % m_i + m_i * (block % b_i)), item


def value_of(code: int, kind: str) -> Fraction:
    if kind in TABLES:
        return Fraction(float(TABLES[kind][code]))
    if kind == "i8":
        return Fraction(signed(code, 8))
    if kind == "f16":
        return Fraction(float(np.uint16(code).view(np.float16)))
    if kind == "bf16":
        return Fraction(float(np.uint32(code << 16).view(np.float32)))
    return Fraction(float(np.uint32(code).view(np.float32)))


def random_registers(rng: np.random.Generator, kind: str, count: int) -> np.ndarray:
    """Registers of finite numbers whose products add up exactly in float64."""
    if kind == "f16":
        half = rng.integers(-64, 64, (count, WAVES, 64, 2)).astype(np.float16) / 8
        return np.ascontiguousarray(half).view(np.uint32)[..., 0]
    if kind == "bf16":
        high = (rng.integers(-64, 64, (count, WAVES, 64, 2)).astype(np.float32) / 8).view(
            np.uint32
        ) >> 16
        return high[..., 0] | high[..., 1] << 16
    if kind == "f32":
        return (rng.integers(-999, 999, (count, WAVES, 64)).astype(np.float32) / 64).view(np.uint32)
    words = rng.integers(0, 1 << 32, (count, WAVES, 64), np.uint32)
    # No NaN, no infinity, and moderate exponents of the 8-bit formats.
    return words & np.uint32(0xB7B7B7B7) if kind in ("fp8", "bf8") else words


def check(
    opcode: str,
    kinds: tuple[str, str],
    shape: tuple[int, int, int, int],
    *,
    split: tuple[bool, bool] = (False, False),
    scales: bool = False,
    seed: int = 0,
    **modifiers: Any,
) -> None:
    """Every element of D of one instruction, computed one product at a time."""
    m, n, k, blocks = shape
    rng = np.random.default_rng(seed)
    operation = bind_matrix(opcode, modifiers)
    registers = operation.registers
    expected_counts = tuple(
        size * k * blocks * BITS[kind] // 64 // 32 for size, kind in zip((m, n), kinds, strict=True)
    )
    assert (registers.a, registers.b, registers.c) == (*expected_counts, m * n * blocks // 64)
    a = random_registers(rng, kinds[0], registers.a)
    b = random_registers(rng, kinds[1], registers.b)
    integer = kinds[0] == "i8"
    c = rng.integers(-(1 << 20), 1 << 20, (registers.c, WAVES, 64)).astype(np.int32).view(np.uint32)
    if not integer:
        c = (rng.standard_normal((registers.c, WAVES, 64)) * 100).astype(np.float32).view(np.uint32)
    extra = (
        [rng.integers(120, 134, (WAVES, 64, 4)).astype(np.uint8) for _ in range(2)]
        if scales
        else []
    )
    words = [np.ascontiguousarray(e).view(np.uint32)[..., 0] for e in extra]
    with np.errstate(all="ignore"):
        d = operation(MODE, a, b, c, *words)
    assert d.dtype == np.uint32 and d.shape == (registers.c, WAVES, 64)

    bytes_used = [
        modifiers.get("op_sel", (0, 0))[side] + 2 * modifiers.get("op_sel_hi", (0, 0))[side]
        for side in range(2)
    ]
    for wave in range(WAVES):
        rows = matrix(a[:, wave], kinds[0], m, k, blocks, split[0])
        columns = matrix(b[:, wave], kinds[1], n, k, blocks, split[1])
        if scales:
            rows = scaled(rows, extra[0][wave], bytes_used[0], m)
            columns = scaled(columns, extra[1][wave], bytes_used[1], n)
        for block in range(blocks):
            for i in rng.permutation(m)[:5]:
                for j in rng.permutation(n)[:5]:
                    total = sum(
                        x * y for x, y in zip(rows[block][i], columns[block][j], strict=True)
                    )
                    lane, register = d_place(int(i), int(j), block, m, n)
                    word = int(d[register, wave, lane])
                    before = c[register, wave, lane]
                    if integer:
                        assert signed(word) == total + signed(int(before))
                    else:
                        exact = total + Fraction(float(before.view(np.float32)))
                        assert np.uint32(word).view(np.float32) == round_to_f32(exact)


def matrix(
    words: np.ndarray, kind: str, rows: int, depth: int, blocks: int, split: bool
) -> list[list[list[Fraction]]]:
    return [
        [
            [
                value_of(
                    item_of(words, *place(row, block, k, rows, blocks, depth, split), BITS[kind]),
                    kind,
                )
                for k in range(depth)
            ]
            for row in range(rows)
        ]
        for block in range(blocks)
    ]


def scaled(
    values: list[list[list[Fraction]]], scales: np.ndarray, byte: int, rows: int
) -> list[list[list[Fraction]]]:
    """Each element times the scale of its row and of its 32 k: lane rows * (k // 32) + row."""
    return [
        [
            [
                x * Fraction(2) ** (int(scales[rows * (k // 32) + row, byte]) - 127)
                for k, x in enumerate(line)
            ]
            for row, line in enumerate(block)
        ]
        for block in values
    ]


DENSE = [
    ("v_mfma_f32_32x32x16_bf16", "bf16", (32, 32, 16, 1)),
    ("v_mfma_f32_16x16x32_f16", "f16", (16, 16, 32, 1)),
    ("v_mfma_f32_32x32x8_f16", "f16", (32, 32, 8, 1)),
    ("v_mfma_f32_16x16x16_bf16", "bf16", (16, 16, 16, 1)),
    ("v_mfma_f32_32x32x4_2b_bf16", "bf16", (32, 32, 4, 2)),
    ("v_mfma_f32_16x16x4_4b_f16", "f16", (16, 16, 4, 4)),
    ("v_mfma_f32_4x4x4_16b_f16", "f16", (4, 4, 4, 16)),
    ("v_mfma_f32_32x32x2_f32", "f32", (32, 32, 2, 1)),
    ("v_mfma_f32_16x16x1_4b_f32", "f32", (16, 16, 1, 4)),
    ("v_mfma_i32_32x32x16_i8", "i8", (32, 32, 16, 1)),
    ("v_mfma_i32_16x16x64_i8", "i8", (16, 16, 64, 1)),
    ("v_mfma_i32_32x32x32_i8", "i8", (32, 32, 32, 1)),
]


@pytest.mark.parametrize(("opcode", "kind", "shape"), DENSE)
def test_dense(opcode: str, kind: str, shape: tuple[int, int, int, int]) -> None:
    check(opcode, (kind, kind), shape)


def test_mixed_8_bit_types_follow_their_names() -> None:
    check("v_mfma_f32_32x32x16_fp8_bf8", ("fp8", "bf8"), (32, 32, 16, 1))
    check("v_mfma_f32_16x16x32_bf8_fp8", ("bf8", "fp8"), (16, 16, 32, 1))


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("fp8", "fp8"),
        ("bf8", "fp8"),
        ("fp6", "bf6"),
        ("fp4", "fp8"),
        ("fp8", "fp6"),
        ("fp4", "fp4"),
    ],
)
@pytest.mark.parametrize("shape", [(32, 32, 64, 1), (16, 16, 128, 1)], ids=["32x32", "16x16"])
def test_selected_types(a: str, b: str, shape: tuple[int, int, int, int]) -> None:
    """Operands of 8 registers hold two runs of k; those of 6 and 4 one (manual 7.1.5.1)."""
    name = "x".join(str(size) for size in shape[:3])
    split = (BITS[a] == 8, BITS[b] == 8)
    modifiers = {"cbsz": SELECT[a], "blgp": SELECT[b]}
    check(f"v_mfma_f32_{name}_f8f6f4", (a, b), shape, split=split, **modifiers)


@pytest.mark.parametrize("kind", ["fp8", "fp4"])
@pytest.mark.parametrize("shape", [(32, 32, 64, 1), (16, 16, 128, 1)], ids=["32x32", "16x16"])
def test_block_scales(kind: str, shape: tuple[int, int, int, int]) -> None:
    name = "x".join(str(size) for size in shape[:3])
    wide = BITS[kind] == 8
    code = SELECT[kind]
    for op_sel, op_sel_hi in (((0, 0, 0), (0, 0, 0)), ((1, 0, 0), (1, 1, 0))):
        check(
            f"v_mfma_scale_f32_{name}_f8f6f4",
            (kind, kind),
            shape,
            split=(wide, wide),
            scales=True,
            cbsz=code,
            blgp=code,
            op_sel=op_sel,
            op_sel_hi=op_sel_hi,
        )


def fp8_lane(codes: dict[tuple[int, int], int], registers: int) -> np.ndarray:
    """(registers, 1, 64) words with the given bytes: {(lane, byte): code}."""
    octets = np.zeros((1, 64, registers * 4), np.uint8)
    for (lane, byte), code in codes.items():
        octets[0, lane, byte] = code
    return np.ascontiguousarray(octets.view(np.uint32).transpose(2, 0, 1))


def test_a_scale_covers_registers_of_both_lane_halves() -> None:
    """The scale of k 32 to 63 of a row comes from lane 32 + row and covers registers 4 to 7 of
    lanes row and 32 + row; 0xff makes the row NaN; C is not scaled."""
    operation = bind_matrix("v_mfma_scale_f32_32x32x64_f8f6f4")
    one = 0x38
    row = 5
    a = fp8_lane({(row, 16): one, (row + 32, 31): one, (row, 0): one, (row + 32, 15): one}, 8)
    b = np.full((8, 1, 64), one * 0x01010101, np.uint32)
    c = np.full((16, 1, 64), np.float32(0.25).view(np.uint32))
    neutral = np.full((1, 64), 127, np.uint32)
    scale = neutral.copy()
    scale[0, 32 + row] = 130
    d = operation(MODE, a, b, c, scale, neutral).view(np.float32)
    lane, register = d_place(row, 9, 0, 32, 32)
    assert d[register, 0, lane] == 0.25 + 2 + 2 * 8
    other_lane, other = d_place(row + 1, 9, 0, 32, 32)
    assert d[other, 0, other_lane] == 0.25
    scale[0, row] = 255
    d = operation(MODE, a, b, c, scale, neutral).view(np.float32)
    assert np.isnan(d[register, 0, lane]) and d[other, 0, other_lane] == 0.25


SPARSE = [
    ("v_smfmac_f32_16x16x128_fp8_fp8", ("fp8", "fp8"), (16, 16, 128, 1), True, {}),
    ("v_smfmac_f32_32x32x64_fp8_bf8", ("fp8", "bf8"), (32, 32, 64, 1), True, {}),
    ("v_smfmac_i32_16x16x128_i8", ("i8", "i8"), (16, 16, 128, 1), True, {}),
    ("v_smfmac_f32_16x16x64_bf16", ("bf16", "bf16"), (16, 16, 64, 1), True, {"abid": 1}),
    ("v_smfmac_f32_32x32x16_f16", ("f16", "f16"), (32, 32, 16, 1), False, {"abid": 3}),
    ("v_smfmac_f32_32x32x32_fp8_fp8", ("fp8", "fp8"), (32, 32, 32, 1), False, {"abid": 1}),
    (
        "v_smfmac_f32_16x16x64_fp8_fp8",
        ("fp8", "fp8"),
        (16, 16, 64, 1),
        False,
        {"cbsz": 1, "abid": 1},
    ),
]


@pytest.mark.parametrize(("opcode", "kinds", "shape", "split", "modifiers"), SPARSE)
def test_sparse(
    opcode: str,
    kinds: tuple[str, str],
    shape: tuple[int, int, int, int],
    split: bool,
    modifiers: dict[str, int],
) -> None:
    """Stored element s of a lane stands at 4 * (s // 2) + its 2-bit index among the lane's k."""
    m, n, k, _ = shape
    rng = np.random.default_rng(7)
    operation = bind_matrix(opcode, modifiers)
    a = random_registers(rng, kinds[0], operation.registers.a)[:, :1]
    b = random_registers(rng, kinds[1], operation.registers.b)[:, :1]
    c = np.zeros((operation.registers.c, 1, 64), np.uint32)
    # Every nibble names two different k of a group of 4, the smaller one first.
    nibbles = rng.choice([0x4, 0x8, 0xC, 0x9, 0xD, 0xE], (1, 64, 8)).astype(np.uint64)
    index = (nibbles << np.arange(0, 32, 4, dtype=np.uint64)).sum(axis=-1).astype(np.uint32)
    with np.errstate(all="ignore"):
        d = operation(MODE, a, b, c, index)
    per_lane = k // (64 // m)
    stored = per_lane // 2
    chosen_set = modifiers.get("abid", 0) if not modifiers.get("cbsz") and stored < 16 else 0
    columns = matrix(b[:, 0], kinds[1], n, k, 1, split)[0]
    for i in (0, 3, m - 1):
        row = [Fraction(0)] * k
        for group in range(64 // m):
            lane = i + m * group
            for s in range(stored):
                position = int(index[0, lane]) >> 2 * (chosen_set * stored + s) & 3
                at = group * per_lane + 4 * (s // 2) + position
                row[at] = value_of(item_of(a[:, 0], lane, s, BITS[kinds[0]]), kinds[0])
        for j in (0, 1, n - 2):
            lane, register = d_place(i, j, 0, m, n)
            exact = sum(x * y for x, y in zip(row, columns[j], strict=True))
            word = int(d[register, 0, lane])
            got = signed(word) if kinds[0] == "i8" else np.uint32(word).view(np.float32)
            assert got == (exact if kinds[0] == "i8" else round_to_f32(exact))


def test_smfmac_adds_rows_as_a_shipping_kernel_uses_it() -> None:
    """With that kernel's constants D0 + D1 of lane l is the sum over 128 keys of query l % 32.

    P lies as the D of K Q^T left it: lane l holds keys of query l % 32, 32 of them in 8 registers.
    """
    lane = np.arange(64)
    index = np.where(lane & 3 == 1, 0xEEEEEEEE, 0x44444444).astype(np.uint32)[None]
    a = np.zeros((4, 1, 64), np.uint32)
    used = lane & 3 < 2
    for register in range(4):
        mine = used & ((lane & 4 == 0) == (register < 2))
        a[register, 0, mine] = 0x38383838
    rng = np.random.default_rng(11)
    p = rng.integers(0, 0x7F, (8, 1, 64, 4)).astype(np.uint8)
    words = np.ascontiguousarray(p).view(np.uint32)[..., 0]
    # Two instructions of 64 keys each: lanes l and l + 32 hold the keys of one query.
    d = bind_matrix("v_smfmac_f32_16x16x128_fp8_fp8")(
        MODE, a, words, np.zeros((4, 1, 64), np.uint32), index
    ).view(np.float32)
    got = (d[0] + d[1])[0]
    per_lane = FP8_VALUES[p[:, 0]].sum(axis=(0, 2))
    np.testing.assert_array_equal(got, (per_lane + np.roll(per_lane, 32)).astype(np.float32))


def test_overflow_follows_fp16_ovfl() -> None:
    operation = bind_matrix("v_mfma_f32_32x32x16_bf16")
    a = np.full((4, 1, 64), 0x7F007F00, np.uint32)
    b = np.full((4, 1, 64), 0xBF80BF80, np.uint32)  # -1
    zero = np.zeros((1, 1, 1), np.uint32)
    saturating = Mode.from_bits(MODE_BITS | FP16_OVERFLOW)
    with np.errstate(all="ignore"):
        assert (operation(MODE, a, b, zero).view(np.float32) == -np.inf).all()
        assert (operation(saturating, a, b, zero) == 0xFF7FFFFF).all()
    integers = bind_matrix("v_mfma_i32_32x32x16_i8")
    big = np.full((2, 1, 64), 0x7F7F7F7F, np.uint32)
    c = np.full((1, 1, 1), 0x7FFFFFFF, np.uint32)
    total = 16 * 127 * 127
    assert (integers(MODE, big, big, c) == (0x7FFFFFFF + total & 0xFFFFFFFF)).all()
    assert (integers(saturating, big, big, c) == 0x7FFFFFFF).all()


def test_the_sum_with_c_is_rounded_once() -> None:
    """C = 2^24 and products 1 + 2^-18: the exact sum lies just above a tie."""
    operation = bind_matrix("v_mfma_f32_32x32x64_f8f6f4")
    smallest = 0x01  # 2^-9
    a = fp8_lane({(0, 0): 0x38, (0, 1): smallest}, 8)
    b = fp8_lane({(0, 0): 0x38, (0, 1): smallest}, 8)
    c = np.full((16, 1, 64), np.float32(2.0**24).view(np.uint32))
    d = operation(MODE, a, b, c).view(np.float32)
    assert d[0, 0, 0] == 2.0**24 + 2 and d[1, 0, 0] == 2.0**24


def test_the_even_odd_sum_drops_what_falls_below_24_bits() -> None:
    """448 * 448 next to 2^-18: 36 bits apart, in the same half of 8 products or in the other."""
    machine = Machine(matrix_sum="even_odd")
    operation = bind_matrix("v_mfma_f32_32x32x64_f8f6f4", {}, machine)
    exact = bind_matrix("v_mfma_f32_32x32x64_f8f6f4")
    largest, tiny = 0x7E, 0x01
    zero = np.zeros((1, 1, 1), np.uint32)

    def both(where: int) -> tuple[float, float]:
        # The large products cancel: what is left is the tiny one, if it survived.
        a = fp8_lane({(0, 0): largest, (0, 2): largest, (0, where): tiny}, 8)
        b = fp8_lane({(0, 0): largest, (0, 2): largest | 0x80, (0, where): tiny}, 8)
        return tuple(
            float(op(MODE, a, b, zero).view(np.float32)[0, 0, 0]) for op in (operation, exact)
        )

    assert both(4) == (0, 2.0**-18)  # same parity: truncated
    assert both(5) == (2.0**-18, 2.0**-18)  # the odd products have a sum of their own


def test_even_odd_equals_exact_for_numbers_of_few_bits() -> None:
    rng = np.random.default_rng(5)
    a = rng.choice(np.array([0x30, 0x38, 0x40, 0xB8], np.uint8), (8, 2, 64, 4))
    b = rng.choice(np.array([0x30, 0x38, 0x40, 0xB8], np.uint8), (8, 2, 64, 4))
    words = [np.ascontiguousarray(x).view(np.uint32)[..., 0] for x in (a, b)]
    c = np.zeros((16, 2, 64), np.uint32)
    opcode = "v_mfma_f32_32x32x64_f8f6f4"
    ours = bind_matrix(opcode, {}, Machine(matrix_sum="even_odd"))(MODE, *words, c)
    np.testing.assert_array_equal(ours, bind_matrix(opcode)(MODE, *words, c))


def test_broadcasts_of_a_and_permutations_of_b() -> None:
    """cbsz 1, abid 1: the second block of A for both; blgp 1: the first block of B for both."""
    rng = np.random.default_rng(13)
    a = rng.integers(-9, 9, (1, 1, 64)).astype(np.float32)
    b = rng.integers(-9, 9, (1, 1, 64)).astype(np.float32)
    c = np.zeros((32, 1, 64), np.uint32)
    opcode = "v_mfma_f32_32x32x1_2b_f32"
    words = (a.view(np.uint32), b.view(np.uint32), c)
    d = bind_matrix(opcode, {"cbsz": 1, "abid": 1})(MODE, *words).view(np.float32)
    e = bind_matrix(opcode, {"blgp": 1})(MODE, *words).view(np.float32)
    for block, i, j in ((0, 3, 7), (1, 30, 12), (1, 0, 31)):
        lane, register = d_place(i, j, block, 32, 32)
        assert d[register, 0, lane] == a[0, 0, 32 + i] * b[0, 0, 32 * block + j]
        assert e[register, 0, lane] == a[0, 0, 32 * block + i] * b[0, 0, j]


def test_observers_get_the_operands_as_matrices() -> None:
    rng = np.random.default_rng(17)
    a, b = (random_registers(rng, "fp8", 8) for _ in range(2))
    operation = bind_matrix("v_mfma_scale_f32_32x32x64_f8f6f4", {"op_sel": (1, 0, 0)})
    rows, columns = operation.matrices(a, b)
    assert rows.shape == columns.shape == (WAVES, 1, 32, 64) and rows.dtype == np.uint8
    for row, k in ((0, 0), (5, 17), (31, 63), (12, 40)):
        lane, item = place(row, 0, k, 32, 1, 64, True)
        assert rows[1, 0, row, k] == item_of(a[:, 1], lane, item, 8)
        assert columns[0, 0, row, k] == item_of(b[:, 0], lane, item, 8)
    scale = rng.integers(0, 1 << 32, (WAVES, 64), np.uint32)
    scale_rows, _ = operation.scales(scale, scale)
    assert scale_rows.shape == (WAVES, 32, 2)
    assert scale_rows[1, 4, 1] == int(scale[1, 36]) >> 8 & 0xFF


def test_what_is_not_a_matrix_instruction_is_refused() -> None:
    with pytest.raises(UnknownOpcode, match="v_mfma_f64_16x16x4_f64"):
        bind_matrix("v_mfma_f64_16x16x4_f64")
    with pytest.raises(UnsupportedArithmetic, match=r"cbsz:5; 0 to 4"):
        bind_matrix("v_mfma_f32_32x32x64_f8f6f4", {"cbsz": 5})
    with pytest.raises(ValueError, match="index register"):
        bind_matrix("v_smfmac_f32_16x16x128_fp8_fp8").matrices(
            np.zeros((4, 1, 64), np.uint32), np.zeros((8, 1, 64), np.uint32)
        )
