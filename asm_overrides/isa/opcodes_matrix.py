"""Decides the table entries of matrix opcodes from their shapes; see table.py for the notation."""

from __future__ import annotations

from itertools import product

from asm_overrides.isa.registers import MODE
from asm_overrides.isa.table import MatrixShape, OpSpec, enter, parse_roles

_BITS = {"f32": 32, "f64": 64, "f16": 16, "bf16": 16, "i8": 8, "fp8": 8, "bf8": 8, "f8f6f4": 8}


def _widths(shape: MatrixShape) -> tuple[str, str, str]:
    """Dwords of A, B and D a lane."""
    lanes_a = shape.m * shape.k * shape.blocks * _BITS[shape.a_type] // 64
    lanes_b = shape.n * shape.k * shape.blocks * _BITS[shape.b_type] // 64
    if shape.sparse:
        lanes_a //= 2
    d_bits = 64 if shape.d_type == "f64" else 32
    d_width = str(shape.m * shape.n * shape.blocks * d_bits // 64 // 32)
    if shape.a_type == "f8f6f4":
        return "4/6/8", "4/6/8", d_width
    return str(lanes_a // 32), str(lanes_b // 32), d_width


def _enter(opcode: str, shape: MatrixShape, passes: int) -> None:
    a_width, b_width, d_width = _widths(shape)
    if shape.sparse:
        notation = f"bv{d_width} rv{a_width} rv{b_width} rv1"
    else:
        notation = f"wv{d_width} rv{a_width} rv{b_width} rx{d_width}"
        if shape.scaled:
            notation += " rx1 rx1"
    enter(
        OpSpec(
            opcode,
            parse_roles(notation),
            "mfma",
            cycles=4 * passes,
            passes=passes,
            wait_class={"f64": "dgemm", "f32": "sgemm"}.get(shape.a_type, "xdl"),
            reads=frozenset((MODE,)),
            source_type=shape.d_type,
            matrix=shape,
        )
    )


def _dense(d_type: str, shapes: dict[str, int], types: list[tuple[str, str]]) -> None:
    """Enter v_mfma_<d>_<shape>_<types>; `shapes` gives passes by shape spelling."""
    for (spelling, passes), (a_type, b_type) in product(shapes.items(), types):
        m, n, k, blocks = _parse_shape(spelling)
        suffix = (
            a_type if a_type == b_type and a_type not in ("fp8", "bf8") else f"{a_type}_{b_type}"
        )
        shape = MatrixShape(m, n, k, blocks, a_type, b_type, d_type)
        _enter(f"v_mfma_{d_type}_{spelling}_{suffix}", shape, passes)


def _sparse(d_type: str, shapes: dict[str, int], types: list[tuple[str, str]]) -> None:
    for (spelling, passes), (a_type, b_type) in product(shapes.items(), types):
        m, n, k, blocks = _parse_shape(spelling)
        suffix = (
            a_type if a_type == b_type and a_type not in ("fp8", "bf8") else f"{a_type}_{b_type}"
        )
        shape = MatrixShape(m, n, k, blocks, a_type, b_type, d_type, sparse=True)
        _enter(f"v_smfmac_{d_type}_{spelling}_{suffix}", shape, passes)


def _parse_shape(spelling: str) -> tuple[int, int, int, int]:
    """(m, n, k, blocks) of "32x32x4_2b"."""
    dims, _, blocks = spelling.partition("_")
    m, n, k = (int(part) for part in dims.split("x"))
    return m, n, k, int(blocks[:-1]) if blocks else 1


_FP8 = [(a, b) for a in ("fp8", "bf8") for b in ("fp8", "bf8")]
_HALF = [("f16", "f16"), ("bf16", "bf16")]

_dense(
    "f32",
    {"32x32x1_2b": 16, "16x16x1_4b": 8, "4x4x1_16b": 2, "32x32x2": 16, "16x16x4": 8},
    [("f32", "f32")],
)
_dense(
    "f32",
    {"32x32x4_2b": 16, "16x16x4_4b": 8, "4x4x4_16b": 2, "32x32x8": 8, "16x16x16": 4}
    | {"32x32x16": 8, "16x16x32": 4},
    _HALF,
)
_dense("f32", {"16x16x32": 4, "32x32x16": 8}, _FP8)
_dense(
    "i32",
    {"32x32x4_2b": 16, "16x16x4_4b": 8, "4x4x4_16b": 2, "32x32x16": 8, "16x16x32": 4}
    | {"32x32x32": 8, "16x16x64": 4},
    [("i8", "i8")],
)
_dense("f64", {"16x16x4": 16, "4x4x4_4b": 4}, [("f64", "f64")])

_sparse("f32", {"16x16x32": 4, "32x32x16": 8, "16x16x64": 4, "32x32x32": 8}, _HALF)
_sparse("f32", {"16x16x64": 4, "32x32x32": 8, "16x16x128": 4, "32x32x64": 8}, _FP8)
_sparse("i32", {"16x16x64": 4, "32x32x32": 8, "16x16x128": 4, "32x32x64": 8}, [("i8", "i8")])

# Formats are chosen by cbsz and blgp; the passes are those of fp8 (fp4 and fp6 take half).
for _spelling, _passes in (("16x16x128", 8), ("32x32x64", 16)):
    _m, _n, _k, _ = _parse_shape(_spelling)
    _shape = MatrixShape(_m, _n, _k, 1, "f8f6f4", "f8f6f4", "f32")
    _enter(f"v_mfma_f32_{_spelling}_f8f6f4", _shape, _passes)
    _shape = MatrixShape(_m, _n, _k, 1, "f8f6f4", "f8f6f4", "f32", scaled=True)
    _enter(f"v_mfma_scale_f32_{_spelling}_f8f6f4", _shape, _passes)
