"""Changed bits of matrix operands, on programs whose every bit is known."""

from __future__ import annotations

import pytest
import torch

from asm_overrides.emulator.checks import Observer, RegisterObserver
from asm_overrides.inspection.matrix import Purpose
from asm_overrides.inspection.toggles import OPERANDS, OWN, TURNS, ToggleCount, purposes_by_line
from asm_overrides.isa.parse import parse
from tests.asm.program import LOAD_POINTERS, execute, kernel_text
from zyfa_triton import activations
from zyfa_triton.backends.emulated import emulate
from zyfa_triton.kernels.launch import launch_arguments
from zyfa_triton.measure import Inputs
from zyfa_triton.problem import Problem

ONES = 0x3F803F80
"""Two bf16 of 1.0: 14 bits set. Operands A and B are 2 registers, C and D 16, of 64 lanes."""
MFMA = "v_mfma_f32_32x32x8_bf16 v[16:31]"


def counted(body: str, waves: int, workgroups: int = 1) -> ToggleCount:
    count = ToggleCount()
    execute(body, waves=waves, grid=(workgroups,), observer=count)
    return count


def fill(first: int, word: int) -> str:
    return f"v_mov_b32_e32 v{first}, {word:#x}\nv_mov_b32_e32 v{first + 1}, {word:#x}\n"


PROGRAM = (
    fill(8, ONES) + fill(10, 0) + fill(12, 0) + fill(14, ONES)
    + f"{MFMA}, v[8:9], v[10:11], 0\n"      # A 0 -> 1.0; D stays 0
    + f"{MFMA}, v[12:13], v[14:15], 0\n"    # A 1.0 -> 0, B 0 -> 1.0; D stays 0
    + f"{MFMA}, v[8:9], v[14:15], 0\n"      # A 0 -> 1.0; D 0 -> 8.0 = 0x41000000, 2 bits
    + f"{MFMA}, v[8:9], v[14:15], v[16:31]\n"  # C 0 -> 8.0; D 8.0 -> 16.0 = 0x41800000, 1 bit
)  # fmt: skip
FACTOR = 2 * 64
CHANGED = {"a": 3 * 14 * FACTOR, "b": 14 * FACTOR, "c": 2 * 16 * 64, "d": (2 + 1) * 16 * 64}


def test_every_changed_bit_is_counted_once() -> None:
    count = counted(PROGRAM, waves=1)
    assert not isinstance(count, Observer) and isinstance(count, RegisterObserver)
    for order in (OWN, TURNS):
        found = count.total(order)
        assert (found.instructions, found.matrix_cycles) == (4, 4 * 32)
        assert dict(found.changed) == CHANGED
        assert dict(found.bits) == {
            "a": 4 * 32 * FACTOR,
            "b": 4 * 32 * FACTOR,
            "c": 4 * 32 * 16 * 64,
            "d": 4 * 32 * 16 * 64,
        }
        assert found.share("b") == 14 / (4 * 32)
    assert set(count.by_purpose(OWN, {})) == {Purpose.OTHER}
    lines = kernel_text(LOAD_POINTERS + PROGRAM).splitlines()
    first = 1 + next(number for number, line in enumerate(lines) if "v_mfma" in line)
    parts = count.by_purpose(OWN, {first: Purpose.QK})
    assert {name: part.instructions for name, part in parts.items()} == {
        Purpose.QK: 1,
        Purpose.OTHER: 3,
    }
    assert parts[Purpose.QK].changed["a"] == parts[Purpose.QK].changed.total() == 14 * FACTOR


def test_waves_that_do_the_same_by_turns_change_bits_once() -> None:
    count = counted(PROGRAM, waves=8)
    assert dict(count.total(OWN).changed) == {name: 8 * bits for name, bits in CHANGED.items()}
    assert dict(count.total(TURNS).changed) == {name: 4 * bits for name, bits in CHANGED.items()}
    assert count.total(TURNS).instructions == count.total(OWN).instructions == 8 * 4


def test_waves_that_differ_change_bits_at_every_turn() -> None:
    body = (  # A is 1.0 in waves 0 to 3 and 0 in waves 4 to 7
        f"v_mov_b32_e32 v8, {ONES:#x}\nv_cmp_gt_u32_e32 vcc, 0x100, v0\n"
        "v_cndmask_b32_e32 v8, 0, v8, vcc\nv_mov_b32_e32 v9, v8\n"
        + fill(10, 0)
        + 3 * f"{MFMA}, v[8:9], v[10:11], 0\n"
    )
    for waves, seen in ((8, (1, 6)), (4, (1, 1))):
        count = counted(body, waves)
        assert count.total(OWN).changed["a"] == 4 * seen[0] * 14 * FACTOR
        assert count.total(TURNS).changed["a"] == 4 * seen[1] * 14 * FACTOR


def test_a_pipe_starts_anew_in_each_workgroup() -> None:
    one, two = counted(PROGRAM, 1), counted(PROGRAM, 1, workgroups=2)
    for order in (OWN, TURNS):
        twice = {name: 2 * bits for name, bits in one.total(order).changed.items()}
        assert dict(two.total(order).changed) == twice


def test_operands_of_fewer_registers_leave_the_others() -> None:
    wide = "v_mfma_f32_32x32x16_bf16 v[16:31], v[8:11], v[12:15], 0\n"
    body = fill(8, ONES) + fill(10, ONES) + fill(12, 0) + fill(14, 0)
    between = f"{MFMA}, v[12:13], v[14:15], 0\n"
    count = counted(body + wide + between + wide, waves=1)
    # 4 registers to 1.0, 2 of them to 0, the same 2 back
    assert count.total(OWN).changed["a"] == (4 + 2 + 2) * 14 * 64


def test_purposes_are_those_of_the_steady_ways() -> None:
    loop = """
    top:
      v_mfma_f32_32x32x64_f8f6f4 v[0:15], v[64:71], v[80:87], 0
      v_cvt_pk_fp8_f32 v30, v0, v2
      v_mfma_f32_32x32x64_f8f6f4 v[112:127], v[96:103], v[30:37], v[112:127]
      ds_read_b128 v[96:99], v51
      s_cbranch_scc1 top
      v_mfma_f32_32x32x64_f8f6f4 v[112:127], v[96:103], v[30:37], v[112:127]
    """
    program = parse(loop)
    found = purposes_by_line(program.instructions, program.labels)
    assert found == {3: Purpose.QK, 5: Purpose.PV}


def test_every_matrix_instruction_of_a_kernel_is_seen() -> None:
    inputs = Inputs.of(activations.load(activations.SAMPLE).cut(seqlen=256, heads=1), "fp8")
    q, k, v = inputs.q, inputs.k, inputs.v
    out = torch.empty(1, 256, 1, 128, dtype=torch.bfloat16)
    problem = Problem.of(
        q, k, v, causal=False, p_mode="unscaled", block_scale=False, out_dtype=out.dtype,
        return_lse=False,
    )  # fmt: skip
    arguments = launch_arguments(problem, q, k, v, out, None, **inputs.scales())
    count = ToggleCount()
    compiled = emulate(problem, arguments, checks=False, observer=count).compiled
    program = parse(compiled.amdgcn)
    found = count.by_purpose(OWN, purposes_by_line(program.instructions, program.labels))
    # 8 waves of 32 queries: 8 tiles of 32 keys x 2 of 64 dimensions; 4 of 64 keys x 4 of 32
    numbers = {name: (each.instructions, each.matrix_cycles) for name, each in found.items()}
    assert numbers == {Purpose.QK: (128, 128 * 64), Purpose.PV: (128, 128 * 64)}
    assert all(0 < each.share(name) < 0.5 for each in found.values() for name in OPERANDS)
    with pytest.raises(ValueError, match="observer: got one beside capture=True"):
        emulate(problem, arguments, capture=True, observer=count)
