"""That arithmetic and the instruction table agree, and that every assumption has an effect."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from asm_overrides.emulator.arithmetic import (
    SALU,
    VALU,
    Machine,
    UnknownOpcode,
    bind_matrix,
    bind_valu,
    constant,
    registers,
)
from asm_overrides.isa.table import OpSpec, lookup, opcodes
from tests.asm.arithmetic_values import MODE, call, f16, f32, u32

# Opcodes of the executor: they move single lanes, touch MODE, or do nothing.
EXECUTOR = {
    "v_nop",
    "v_clrexcp",
    "v_readlane_b32",
    "v_readfirstlane_b32",
    "v_writelane_b32",
    "s_getreg_b32",
    "s_setreg_b32",
    "s_setreg_imm32_b32",
}
# Known to the assembler, without arithmetic: stochastic rounding, unfused fp16, fp64 division and
# fp64 matrices, graphics.  Running one is an error that names it.
WITHOUT_ARITHMETIC = {
    "v_cvt_sr_bf16_f32",
    "v_cvt_sr_bf8_f32",
    "v_cvt_sr_f16_f32",
    "v_cvt_sr_fp8_f32",
    "v_div_fixup_f64",
    "v_div_fmas_f64",
    "v_div_scale_f64",
    "v_fma_legacy_f16",
    "v_mac_f16",
    "v_mad_f16",
    "v_mad_legacy_f16",
    "v_madak_f16",
    "v_madmk_f16",
    "v_mfma_f64_16x16x4_f64",
    "v_mfma_f64_4x4x4_4b_f64",
    "v_screen_partition_4se_b32",
    "v_trig_preop_f64",
}
# Operands that the text does not show: VCC, EXEC, or a second use of a swapped register.
IMPLICIT = {"v_div_fmas_f32", "v_swap_b32", "v_permlane16_swap_b32", "v_permlane32_swap_b32"}


def on(*ports: str) -> list[str]:
    return [name for name in opcodes() if lookup(name).port in ports and not lookup(name).rare]


def widths(spec: OpSpec) -> list[int]:
    """Registers of each operand that the table declares; 0 for a lane mask."""
    return [0 if role.kind == "m" else role.widths[0] for role in spec.roles]


def test_vector_opcodes_of_the_table() -> None:
    for opcode in on("valu", "trans"):
        if opcode in EXECUTOR | WITHOUT_ARITHMETIC:
            with pytest.raises(UnknownOpcode, match=opcode):
                bind_valu(opcode)
        elif opcode not in IMPLICIT:
            kinds = VALU[opcode].results + VALU[opcode].sources
            assert [registers(kind) for kind in kinds] == widths(lookup(opcode)), opcode


def test_scalar_opcodes_of_the_table() -> None:
    for opcode in on("salu"):
        if opcode in EXECUTOR:
            assert opcode not in SALU
            continue
        results, sources = SALU[opcode].results, SALU[opcode].sources
        if "exec" in opcode:  # EXEC is read and written without being an operand
            results, sources = results[:1], sources[:1]
        assert [registers(kind) for kind in results + sources] == widths(lookup(opcode)), opcode


def test_matrix_opcodes_of_the_table() -> None:
    for opcode in on("mfma"):
        if opcode in WITHOUT_ARITHMETIC:
            with pytest.raises(UnknownOpcode, match=opcode):
                bind_matrix(opcode)
            continue
        spec, operation = lookup(opcode), bind_matrix(opcode)
        d, a, b = (role.widths for role in spec.roles[:3])
        assert operation.registers.c == d[0], opcode
        assert operation.registers.a in a and operation.registers.b in b, opcode
        assert spec.matrix is not None
        shape = (spec.matrix.m, spec.matrix.n, spec.matrix.k, spec.matrix.blocks)
        assert (operation.m, operation.n, operation.k, operation.blocks) == shape, opcode


def test_no_arithmetic_without_an_opcode() -> None:
    known = set(opcodes())
    assert not [name for name in (*VALU, *SALU) if name not in known]


def test_results_have_the_promised_shape() -> None:
    """Words for registers, booleans for masks, broadcasting to (waves, 64); sources untouched."""
    for opcode in VALU:
        check_shapes(opcode)


def check_shapes(opcode: str) -> None:
    operation = bind_valu(opcode)
    rng = np.random.default_rng(0)
    sources = []
    for kind in operation.sources:
        if kind == "mask":
            sources.append(rng.random((3, 64)) < 0.5)
            continue
        count = registers(kind)
        shape = (3, 64) if count == 1 else (count, 3, 64)
        sources.append(rng.integers(0, 1 << 32, shape, np.uint32))
    before = [source.copy() for source in sources]
    count = registers(operation.results[0])
    old = rng.integers(0, 1 << 32, (3, 64) if count <= 1 else (count, 3, 64), np.uint32)
    with np.errstate(all="ignore"):
        results = operation(MODE, *sources, old=old)
    results = results if isinstance(results, tuple) else (results,)
    assert len(results) == len(operation.results), opcode
    for kind, result in zip(operation.results, results, strict=True):
        assert result.dtype == (np.bool_ if kind == "mask" else np.uint32), opcode
        full = (3, 64) if registers(kind) <= 1 else (registers(kind), 3, 64)
        assert np.broadcast_shapes(result.shape, full) == full, opcode
    for source, copy in zip(sources, before, strict=True):
        np.testing.assert_array_equal(source, copy)


# One instruction for each assumption that has a switch, the other setting, and its sources.
_TIES = (f32([449.0]), f32([1.0]))
SWITCHES: dict[str, tuple[object, str, tuple[np.ndarray, ...]]] = {
    "transcendental_flushes_denormals": (False, "v_exp_f32", (f32([-130.0]),)),
    "transcendental_error_ulp": (-1, "v_rcp_f32", (f32([3.0]),)),
    "cvt_pk_u8_rounding": ("truncate", "v_cvt_pk_u8_f32", (f32([1.5]), u32([0]), u32([0]))),
    "fp8_overflow_after_rounding": (False, "v_cvt_pk_fp8_f32", _TIES),
    "ashr_pk_keeps_other_half": (False, "v_ashr_pk_i8_i32", (u32([9]), u32([9]), u32([1]))),
    "short_results_keep_high_half": (True, "v_bitop3_b16", (u32([1]), u32([1]), u32([1]))),
    "dot2_sum": (
        "sequential",
        "v_dot2_f32_f16",
        (f16(1, 1), f16(2.0**-12, -1), f32([2.0**12])),
    ),
}


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(Machine)])
def test_every_assumption_with_a_switch_changes_results(field: str) -> None:
    if field == "matrix_sum":
        words = np.random.default_rng(0).integers(0, 1 << 32, (8, 1, 64), np.uint32) & 0x77777777
        c = np.zeros((1, 1, 1), np.uint32)
        exact, other = (
            bind_matrix("v_mfma_f32_32x32x64_f8f6f4", {}, machine)(MODE, words, words, c)
            for machine in (Machine(), Machine(matrix_sum="even_odd"))
        )
    else:
        value, opcode, sources = SWITCHES[field]
        old = u32([0xDDCCBBAA])
        exact, other = (
            call(opcode, *sources, old=old, machine=machine)
            for machine in (Machine(), dataclasses.replace(Machine(), **{field: value}))
        )
    assert (exact != other).any()


def test_constants_take_the_operand_width() -> None:
    assert constant("f32", 1.0).tolist() == [[0x3F800000]]
    assert constant("f16", 1.0).tolist() == [[0x3C00]]
    assert constant("pf16", -2.0).tolist() == [[0xC000]]
    assert constant("b32", -1).tolist() == [[0xFFFFFFFF]]
    assert constant("f64", 1.0).tolist() == [[[0]], [[0x3FF00000]]]
    assert constant("f64", 0x40080000).tolist() == [[[0]], [[0x40080000]]]
    assert constant("i64", -5).tolist() == [[[0xFFFFFFFB]], [[0xFFFFFFFF]]]
    assert constant("pf32", 0.5).tolist() == [[[0x3F000000]], [[0]]]
    inverse_two_pi = 0.15915494309189532
    assert constant("f16", inverse_two_pi).tolist() == [[0x3118]]
    assert constant("f32", inverse_two_pi).tolist() == [[0x3E22F983]]
