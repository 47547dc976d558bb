"""Inspection of the op's own kernels: the machine code shows what the recipe says it does."""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from asm_overrides.inspection import Cost, cost_of, inspect_file, inspect_text, vector
from asm_overrides.inspection.cost import BLOCKED, SCORES
from asm_overrides.inspection.loops import VALU_PORTS, cycles, matrix_loops
from asm_overrides.inspection.matrix import Purpose, classify
from asm_overrides.passes.lines import Line
from asm_overrides.passes.pipeline import Generated, generate
from asm_overrides.program import Part
from asm_overrides.recipes.attention_fp8 import Parameters, build
from zyfa_triton import inspection, offline
from zyfa_triton.cli import main, options
from zyfa_triton.kernels import pingpong
from zyfa_triton.kernels.registry import FAMILIES

ROW_FIELDS = (
    "kernel", "dtype", "headdim", "p_mode", "mfma_qk", "mfma_pv", "mfma_rowsum", "softmax_valu",
    "softmax_valu_blocked", "other_valu", "lds", "barriers", "vgprs", "spills", "lds_bytes",
)  # fmt: skip
PARAMETERS = [
    Parameters(p_mode="lean"),
    Parameters(p_mode="lean", pack="op_sel", causal=False),
    Parameters(p_mode="lean", row_sum="dense"),
    Parameters(p_mode="exact"),
    Parameters(p_mode="lean", headdim=192),
    Parameters(p_mode="exact", headdim=192),
]
ONCE_A_SCORE = re.compile(r"acc_s\d|pair\d|frag_p")
"""Names of the recipe's values that hold scores, or codes made of them."""


@pytest.fixture(scope="module", params=PARAMETERS, ids=lambda one: one.name)
def generated(request: pytest.FixtureRequest) -> Generated:
    return generate(build(request.param))


def steady_state(generated: Generated) -> tuple[Cost, list[Line], list[Line]]:
    """Cost of the only loop; the recipe's lines on its steady state and beside it."""
    instructions, labels, places = generated.program.instructions()
    (loop,) = matrix_loops(instructions, labels)
    lines = generated.program.lines
    beside = [lines[places[index]] for run in loop.beside for index in run]
    return cost_of(instructions, loop), [lines[places[index]] for index in loop.path], beside


def port_cycles(lines: list[Line], *ports: str) -> int:
    instructions = [line.instruction for line in lines if line.instruction is not None]
    return sum(cycles(each) for each in instructions if each.spec.port in ports)


def role_purpose(line: Line) -> Purpose:
    """What the recipe says a matrix instruction is for."""
    starts = {"S, ": Purpose.QK, "O, ": Purpose.PV, "row sum": Purpose.ROW_SUM}
    (purpose,) = [found for start, found in starts.items() if line.op.role.startswith(start)]
    return purpose


def touches_a_score(line: Line) -> bool:
    """Whether an operation of the recipe names a value that holds scores or codes."""
    names = [each.value.name for each in line.op.arguments if isinstance(each, Part)]
    return any(ONCE_A_SCORE.fullmatch(name) for name in names)


def test_data_flow_finds_the_purposes_that_the_recipe_names(generated: Generated) -> None:
    _, path, _ = steady_state(generated)
    instructions = [line.instruction for line in path if line.instruction is not None]
    assert len(instructions) == len(path)
    matrices = classify(instructions)
    assert not matrices.by_accumulators
    assert {place: role_purpose(path[place]) for place in matrices.purposes} == matrices.purposes
    softmax, _ = vector.walk(instructions, matrices.purposes)
    named = {
        place
        for place, line in enumerate(path)
        if instructions[place].spec.port in VALU_PORTS and touches_a_score(line)
    }
    assert softmax == named


def test_figures_are_those_of_the_recipes_operations(generated: Generated) -> None:
    found, path, _ = steady_state(generated)
    scale = found.scores / SCORES
    assert found.scores == 4 * 2 * 32 * 32  # four blocks of two tiles
    valu = [line for line in path if line.instruction and line.instruction.spec.port in VALU_PORTS]
    softmax = [line for line in valu if touches_a_score(line)]
    other = [line for line in valu if not touches_a_score(line)]
    blocked = [line for line in softmax if line.op.opcode in BLOCKED]
    assert found.softmax_valu * scale == port_cycles(softmax, *VALU_PORTS)
    assert found.softmax_valu_blocked * scale == port_cycles(blocked, *VALU_PORTS)
    assert found.other_valu * scale == port_cycles(other, *VALU_PORTS)
    assert found.lds * scale == port_cycles(path, "lds")
    assert found.barriers * scale == sum(line.op.opcode == "s_barrier" for line in path)
    for purpose, figure in {
        Purpose.QK: found.mfma_qk,
        Purpose.PV: found.mfma_pv,
        Purpose.ROW_SUM: found.mfma_rowsum,
    }.items():
        matrix = [line for line in path if line.instruction and line.instruction.spec.matrix]
        ours = [line for line in matrix if role_purpose(line) is purpose]
        assert figure * scale == port_cycles(ours, "mfma"), purpose
    assert found.mfma_other == 0
    assert sum(found.softmax_by_opcode.values()) == found.softmax_valu


def test_mask_and_rescale_are_what_the_steady_state_skips(generated: Generated) -> None:
    found, path, beside = steady_state(generated)
    assert {line.stage for line in beside} == {"mask", "rescale"}
    assert not {line.stage for line in path} & {"mask", "rescale"}
    asides = {aside.what: aside for aside in found.aside}
    assert set(asides) == {"mask", "rescale"}
    for what, aside in asides.items():
        lines = [line for line in beside if line.stage == what]
        assert aside.places == 4
        assert 4 * aside.valu == port_cycles(lines, *VALU_PORTS)
        assert aside.mfma == 0


@pytest.fixture(scope="module")
def rows() -> dict[tuple[str, str], inspection.Row]:
    """A row for every kernel and p_mode of the problem that the ping-pong loop serves."""
    found = {}
    for kernel, p_mode in itertools.product(("triton", "pingpong"), ("lean", "exact")):
        asked = offline.problem(p_mode=p_mode)
        found[kernel, p_mode] = inspection.of_kernel(kernel, asked)
    return found


def test_command_line_knows_every_kernel_of_the_op() -> None:
    on_gfx950 = tuple(n for n, it in FAMILIES.items() if it.target in (None, "gfx950"))
    assert on_gfx950 == options.KERNELS
    assert offline.kernels_that_serve(offline.problem()) == ("triton", "pingpong")
    bf16 = offline.problem(dtype=torch.bfloat16)
    assert offline.kernels_that_serve(bf16) == ("triton", "hip")
    assert offline.kernels_that_serve(offline.problem(headdim=192)) == ("triton", "pingpong")


def test_spliced_kernel_costs_what_its_loop_costs(
    rows: dict[tuple[str, str], inspection.Row],
) -> None:
    for p_mode in ("lean", "exact"):
        row = rows["pingpong", p_mode]
        alone, _, _ = steady_state(generate(build(Parameters(p_mode=p_mode))))
        spliced = row.detail.cost
        where = ("label", "first_line", "last_line", "aside")
        assert replace(spliced, **{name: getattr(alone, name) for name in where}) == alone
        assert [aside.what for aside in spliced.aside] == ["mask", "rescale"]
        assert row.p_mode == spliced.p_mode == p_mode
        assert (row.spills, row.headdim, row.dtype) == (0, 128, "fp8")
        assert row.vgprs == pingpong.PingPongLoop(name="x", p_mode=p_mode, is_causal=True).vgprs
        assert row.vgprs <= 256
        assert row.mfma_qk + row.mfma_pv + row.mfma_rowsum <= 1100


def test_other_settings_of_the_loop_are_shown_where_they_change_it() -> None:
    lean, exact = (
        {row.settings: row for row in inspection.of_other_settings(offline.problem(p_mode=p_mode))}
        for p_mode in ("lean", "exact")
    )
    assert len(lean) == 7 and len(exact) == 3  # exact has nothing to pack
    for settings, row in lean.items():
        chosen: Any = dict(setting.split("=") for setting in settings.split())
        alone, _, _ = steady_state(generate(build(Parameters(p_mode="lean", **chosen))))
        assert row.softmax_valu == alone.softmax_valu, settings
        assert row.mfma_rowsum == alone.mfma_rowsum, settings
        assert (row.kernel, row.spills, row.lds_bytes) == ("pingpong", 0, 65536)
    assert lean["row_sum=dense"].mfma_rowsum == 128
    fewest = lean["pack=op_sel multiply_add=packed"]
    assert (fewest.softmax_valu, fewest.softmax_valu_blocked) == (384, 128)
    with pytest.raises(ValueError, match="takes e4m3 inputs"):
        inspection.of_other_settings(offline.problem(dtype=torch.bfloat16))


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "full"])
def test_every_setting_fits_with_head_dim_192(causal: bool) -> None:
    for p_mode, others in (("lean", 7), ("exact", 3)):
        asked = offline.problem(headdim=192, p_mode=p_mode, causal=causal)
        rows = inspection.of_other_settings(asked)
        assert len(rows) == others
        assert all((row.spills, row.vgprs, row.headdim) == (0, 256, 192) for row in rows)


def test_tritons_own_loop_is_told_apart_too(rows: dict[tuple[str, str], inspection.Row]) -> None:
    for p_mode in ("lean", "exact"):
        row = rows["triton", p_mode]
        (masked,) = row.detail.others
        assert (row.mfma_qk, row.mfma_pv, row.mfma_rowsum) == (512, 512, 128)
        assert masked.valu > row.softmax_valu + row.other_valu
        assert (row.detail.cost.p_mode, row.detail.cost.headdim) == (p_mode, 128)
        assert row.detail.cost.aside == ()
        exponentials = row.detail.cost.softmax_by_opcode.get("v_exp_f32", 0)
        assert exponentials == (512 if p_mode == "exact" else 0)


def test_comments_and_names_of_registers_do_not_count(tmp_path: Path) -> None:
    compiled, _ = offline.compile_problem(offline.problem(), kernel="pingpong")
    path = tmp_path / "kernel.hsaco"
    path.write_bytes(compiled.hsaco)
    (text,) = inspect_text(compiled.amdgcn)
    (binary,) = inspect_file(path)
    where = ("label", "first_line", "last_line", "aside")
    same = replace(binary.cost, **{name: getattr(text.cost, name) for name in where})
    assert same == text.cost
    assert [replace(each, first_line=0) for each in binary.cost.aside] == [
        replace(each, first_line=0) for each in text.cost.aside
    ]
    assert (binary.name, binary.vgprs, binary.spills) == (text.name, text.vgprs, text.spills)


def test_command_prints_and_writes_the_documented_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "rows.json"
    assert main(["inspect", "--p-mode", "lean", "--variants", "--json", str(path)]) == 0
    found = json.loads(path.read_text())
    assert [row["kernel"] for row in found[:2]] == ["triton", "pingpong"]
    assert {row["kernel"] for row in found[2:]} == {"pingpong"}
    for row in found:
        assert set(ROW_FIELDS) <= set(row)
        assert all(row[name] is not None for name in ROW_FIELDS)
    printed = capsys.readouterr().out
    assert "row sum" in printed and "skipped in the steady state: mask" in printed


def test_command_refuses_a_kernel_that_does_not_serve_the_problem(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["inspect", "--kernel", "pingpong", "--dtype", "bf16"]) == 2
    assert "it takes e4m3 inputs" in capsys.readouterr().err


def test_head_dim_192_has_half_as_much_again_of_qk(
    rows: dict[tuple[str, str], inspection.Row],
) -> None:
    for p_mode in ("lean", "exact"):
        wide = inspection.of_kernel("pingpong", offline.problem(headdim=192, p_mode=p_mode))
        narrow = rows["pingpong", p_mode]
        assert (wide.mfma_qk, wide.mfma_pv) == (1.5 * narrow.mfma_qk, narrow.mfma_pv)
        assert (wide.softmax_valu, wide.barriers) == (narrow.softmax_valu, narrow.barriers)
        assert (wide.spills, wide.headdim, wide.lds_bytes) == (0, 192, 80 * 1024)


def test_compile_takes_the_kernel(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", "--kernel", "pingpong", "-o", str(tmp_path)]) == 0
    (listing,) = tmp_path.glob("*_pingpong.amdgcn")
    assert inspect_file(listing)[0].cost.mfma_rowsum == 32
    result = json.loads(listing.with_suffix(".json").read_text())
    assert result["splice"].startswith("pingpong_fp8_lean_causal")
    assert "pingpong" in capsys.readouterr().out


def test_the_kernel_in_hip_is_inspected_and_scheduled(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Counted for 128 keys, from the same assembly that runs."""
    found = inspection.of_kernel("hip", offline.problem(dtype=torch.bfloat16, headdim=192))
    assert (found.kernel, found.dtype, found.headdim, found.p_mode) == ("hip", "bf16", 192, "exact")
    assert (found.mfma_qk, found.mfma_pv, found.mfma_other) == (1536, 1024, 0)
    assert (found.spills, found.softmax_valu_blocked, found.lds_bytes) == (0, 0, 160 * 1024)
    file = tmp_path / "rows.json"
    arguments = ["schedule", "--kernel", "hip", "--headdim", "128", "192"]
    assert main([*arguments, "--json", str(file)]) == 0
    rows = json.loads(file.read_text())
    assert [(row["kernel"], row["dtype"], row["headdim"]) for row in rows] == [
        ("hip", "bf16", 128), ("hip", "bf16", 192),
    ]  # fmt: skip
    assert "hip" in capsys.readouterr().out
