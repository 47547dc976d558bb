"""The executor of PTX: what its instructions compute, which texts it refuses."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from tests.asm.ptx.fragments import Descriptor, from_result, left, to_result
from tests.asm.ptx.operations import OPERATIONS, e4m3
from tests.asm.ptx.program import Finding, Program
from tests.asm.ptx.rings import swizzled
from tests.asm.ptx.threads import Threads


def floats(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def words(*values: int) -> np.ndarray:
    return np.array(values, np.uint32)


def compute(name: str, *inputs: Any) -> np.ndarray:
    with np.errstate(all="ignore"):
        return OPERATIONS[name].compute(*inputs)


def nearest(exact: Fraction) -> np.float32:
    """float32, nearest even, by trying the neighbours."""
    near = np.float32(float(exact))
    candidates = [near, *(np.nextafter(near, np.float32(end)) for end in (-np.inf, np.inf))]
    return min(
        candidates,
        key=lambda one: (abs(Fraction(float(one)) - exact), int(one.view(np.uint32)) & 1),
    )


def test_fma_rounds_once_down_to_subnormals() -> None:
    generator = np.random.default_rng(1)
    a, b = (generator.standard_normal(400).astype(np.float32) for _ in range(2))
    c = (-a.astype(np.float64) * b).astype(np.float32) * generator.choice([1, 0.5, 2], 400)
    a = np.append(a, floats(1 + 2.0**-23, 2.0**-75, 3 * 2.0**-75))
    b = np.append(b, floats(1 + 2.0**-23, 2.0**-75, 2.0**-75))
    c = np.append(c.astype(np.float32), floats(2.0**-60, 2.0**-149, -(2.0**-149)))
    got = compute("fma.rn.f32", a, b, c)
    for x, y, z, result in zip(a, b, c, got, strict=True):
        exact = Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
        assert result == nearest(exact), (x, y, z)


def test_maxima_of_nan_and_zeros() -> None:
    nan = np.float32("nan")
    assert np.array_equal(
        compute("max.f32", floats(nan, 1, nan), floats(2, nan, nan)), floats(2, 1, nan), True
    )
    for name, sign in (("max.f32", False), ("min.f32", True)):
        for pair in ((0.0, -0.0), (-0.0, 0.0)):
            got = compute(name, floats(pair[0]), floats(pair[1]))
            assert bool(np.signbit(got)[0]) is sign
    assert compute("setp.neu.f32", floats(nan), floats(nan))[0]
    assert not compute("setp.lt.or.f32", floats(nan), floats(1), np.array([False]))[0]


def test_codes_are_float16_subnormals() -> None:
    """Every code, halves between codes to the even one; below 0, infinite and NaN."""
    codes = np.arange(1024)
    low = (codes * 2.0**-24).astype(np.float32)
    high = ((codes + 0.5) * 2.0**-24).astype(np.float32)
    packed = compute("cvt.rn.relu.f16x2.f32", high, low)
    assert np.array_equal(packed & 0xFFFF, codes)
    assert np.array_equal(packed >> 16, codes + codes % 2)
    odd = compute(
        "cvt.rn.relu.f16x2.f32", floats(-1, np.inf, np.nan, 65520), floats(-0.0, -np.inf, 1e-9, 1)
    )
    assert np.array_equal(odd >> 16, [0, 0x7C00, 0x7FFF, 0x7C00])
    assert np.array_equal(odd & 0xFFFF, [0, 0, 0, 0x3C00])


def test_e4m3_pairs() -> None:
    values = torch.cat([torch.linspace(-500, 500, 999), torch.logspace(-4, 0, 200, 2.0)])
    wanted = values.clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8).numpy()
    packed = compute("cvt.rn.satfinite.e4m3x2.f32", values.numpy(), -values.numpy())
    assert np.array_equal(packed >> 8, wanted) and np.array_equal(packed & 0xFF, wanted ^ 0x80)
    assert compute("cvt.rn.satfinite.e4m3x2.f32", floats(np.nan), floats(np.inf))[0] == 0x7F7E
    back = compute("cvt.rn.f16x2.e4m3x2", packed).view(np.float16).reshape(-1, 2)
    assert np.array_equal(back[:, 1], e4m3(wanted))


@pytest.mark.parametrize(
    ("name", "inputs", "wanted"),
    [
        ("prmt.b32", (0x33221100, 0x77665544, 0x6420), 0x66442200),
        ("prmt.b32", (0x33221100, 0x77665544, 0x7632), 0x77663322),
        ("prmt.b32", (0x0000FFF8, 0, 0x1010), 0xFFF8FFF8),
        ("max.u16x2", (0x7FFF0001, 0x00020002), 0x7FFF0002),
        ("min.u16x2", (0x80000001, 0x00080008), 0x00080001),
        ("max.s16x2", (0xFFFF0005, 0), 0x00000005),
        ("add.s16x2", (0x00010001, 0xFFFFFFFE), 0x0000FFFF),
        ("max.s32", (0xFFFFFFFF, 0), 0),
        ("min.s32", (0xFFFFFFFF, 24), 0xFFFFFFFF),
        ("shl.b32", (1, 32), 0),
        ("shr.u32", (0x80000000, 31), 1),
        ("sub.u32", (0, 1), 0xFFFFFFFF),
        ("mad.lo.u32", (0xFFFFFFFF, 2, 3), 1),
        ("bfe.u32", (0xABCD, 4, 8), 0xBC),
    ],
)
def test_integers(name: str, inputs: tuple[int, ...], wanted: int) -> None:
    kept = [words(each) for each in inputs]
    assert compute(name, *kept).view(np.uint32)[0] == wanted


def test_exponential_flushes() -> None:
    x = floats(3, -126, -127, -200, 1e-40, -np.inf, 200)
    assert np.array_equal(
        compute("ex2.approx.ftz.f32", x), floats(8, 2.0**-126, 0, 0, 1, 0, np.inf)
    )


def test_wide_products_and_sums() -> None:
    wide = compute("mad.wide.u32", words(0xFFFFFFFF), words(16), np.array([5], np.uint64))
    assert int(wide[0]) == 0xFFFFFFFF * 16 + 5
    signed = np.array([-3], np.int32)
    wide = compute("mad.wide.s32", signed, np.array([7], np.int32), np.array([1], np.int64))
    assert int(wide[0]) == -20


@pytest.mark.parametrize(("width", "code"), [(128, 1), (64, 2)])
def test_descriptors_find_what_was_swizzled(width: int, code: int) -> None:
    tile = np.random.default_rng(2).integers(0, 256, (128, width), np.uint8)
    memory = np.concatenate([np.zeros(1024, np.uint8), swizzled(tile)])
    for first in range(0, width, 32):
        bits = code << 62 | (8 * width // 16) << 32 | 1 << 16 | (1024 + first) // 16
        found = memory[Descriptor.decode(bits).addresses(128)]
        assert np.array_equal(found, tile[:, first : first + 32])
    with pytest.raises(ValueError, match="outside its fields"):
        Descriptor.decode(1 << 62 | 1 << 50)
    with pytest.raises(ValueError, match="not swizzled"):
        Descriptor.decode(1)


def test_fragments() -> None:
    matrix = np.arange(64 * 16).reshape(64, 16)
    registers = to_result(matrix)
    assert registers.shape == (8, 4, 32)
    assert registers[2, 1, 5] == matrix[16 + 1 + 8, 2]  # lane 5: row g + 8, column 2 t
    assert np.array_equal(from_result(registers), matrix)
    a = np.full((4, 1, 32), 0x38383838, np.uint32)
    a[1, 0, 6] = 0x40  # row 1 + 8, columns 4 * 2 on
    values = e4m3(left(a))
    assert values[9, 8] == 2 and values[9, 9] == 0 and values.sum() == 16 * 32 - 4 + 2


def run(text: str, **registers: np.ndarray) -> Threads:
    threads = Threads(text, 64, registers)
    threads.run()
    return threads


def test_warps_may_part_and_lanes_exchange() -> None:
    text = """
    .reg .b32 x, y; .reg .pred p, q;
    setp.ge.s32 p, %tid.x, 32;
    mov.b32 y, 1;
    @p bra second;
    mov.b32 y, 2;
    second:
    shfl.sync.bfly.b32 x, %laneid, 2, 0x1f, 0xffffffff;
    setp.eq.u32 q, %laneid, 5;
    vote.sync.any.pred q, q, 0xffffffff;
    @q add.s32 y, y, 4;
    """
    threads = run(text)
    assert np.array_equal(threads.register("y"), [6] * 32 + [5] * 32)
    assert np.array_equal(threads.register("x")[:4], [2, 3, 0, 1])


@pytest.mark.parametrize(
    ("text", "finding"),
    [
        ("mov.b32 x, y;", "y is read before it is written"),
        ("mov.b32 z, 1;", "z is not declared"),
        ("cvt.u64.u32 x, 1;", "x is uint32, used as b64"),
        ("setp.eq.u32 p, %laneid, 0; @p bra end;", "lanes part"),
        ("setp.eq.u32 p, %laneid, 0; @p mov.b32 x, 1;", "x is read before it is written"),
        ("again: \n bra again;", "does not end"),
        ("mbarrier.arrive.shared::cta.b64 _, [%laneid];", "lanes differ"),
        ("mbarrier.arrive.shared::cta.b64 _, [16];", "no barrier at 0x10"),
    ],
)
def test_texts_that_are_refused(text: str, finding: str) -> None:
    with pytest.raises(Finding, match=finding):
        run(f".reg .b32 x, y; .reg .pred p;\n{text}\nend:")


def test_lines_and_declarations_are_read() -> None:
    program = Program.read("{\n.reg .f32 a<2>, b; // two\n@!p add.f32 b, a0, a1;\n}")
    assert set(program.kinds) == {"a0", "a1", "b"}
    (only,) = program.statements
    assert (only.line, only.guard, only.name) == (3, "!p", "add.f32")
    assert str(only) == "line 3: @!p add.f32 b, a0, a1"
