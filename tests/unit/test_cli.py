"""The command line: what it prints and writes, and that wrong use is a usage error."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from asm_overrides import check
from asm_overrides.emulator import LoadError, loader
from asm_overrides.inspection import files
from asm_overrides.timing import steady
from zyfa_triton import activations, dispatch
from zyfa_triton.cli import COMMANDS, build_parser, main, options
from zyfa_triton.cli.output import percent, table, write_json

ROOT = Path(__file__).resolve().parents[2]
ROW_FIELDS = (
    "backend",
    "dtype",
    "p_mode",
    "block_scale",
    "headdim",
    "seqlen",
    "kernel",
    "rel_err_same_inputs",
    "rel_err_original_inputs",
    "matches_contract",
    "findings",
    "seconds",
)
GOOD = "v_mov_b32_e32 v0, 0\nv_add_f32_e32 v1, v0, v0\ns_endpgm\n"
NO_WAIT = "global_load_dword v1, v[2:3], off\nv_add_f32_e32 v1, v1, v1\ns_endpgm\n"


def usage_error(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Runs a command that must fail as a usage error; returns its message."""
    try:
        status = main(arguments)
    except SystemExit as exit_:  # argparse's own
        status = exit_.code if isinstance(exit_.code, int) else 1
    printed = capsys.readouterr()
    assert status == 2
    assert printed.err.startswith("usage: zyfa")
    assert "Traceback" not in printed.err
    return printed.err


def test_every_command_has_help_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    for name in COMMANDS:
        with pytest.raises(SystemExit) as exit_:
            build_parser().parse_args([name, "--help"])
        assert exit_.value.code == 0
        assert "--json FILE" in capsys.readouterr().out


def test_module_and_console_script_are_the_same_program() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "zyfa_triton", "--version"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("zyfa-triton ")


def test_run_writes_rows_with_the_documented_fields(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "rows.json"
    arguments = ["run", "--backend", "reference", "--seqlen", "200", "--json", str(path)]
    status = main([*arguments, "--dtype", "fp8", "bf16", "--p-mode", "lean", "exact"])
    assert status == 0
    rows = json.loads(path.read_text())
    assert [(row["dtype"], row["p_mode"]) for row in rows] == [
        ("fp8", "lean"),
        ("fp8", "exact"),
        ("bf16", "exact"),
    ]
    for row in rows:
        assert tuple(row)[: len(ROW_FIELDS)] == ROW_FIELDS
        assert row["backend"] == "reference"
        assert row["seqlen"] == 200
        assert row["headdim"] == 128
        assert row["findings"] is None
    lean, exact, bf16 = rows
    assert lean["block_scale"] is True and bf16["block_scale"] is False
    assert 0 < exact["rel_err_same_inputs"] < lean["rel_err_same_inputs"] < 0.02
    assert bf16["rel_err_same_inputs"] < 5e-3
    assert bf16["matches_contract"] is None
    assert lean["rel_err_original_inputs"] > lean["rel_err_same_inputs"]
    assert lean["matches_contract"] == {"p_codes_equal": None, "max_output_difference": 0}
    printed = capsys.readouterr().out
    assert "same inputs" in printed and "lean" in printed


def test_run_takes_a_file_and_cuts_it(tmp_path: Path) -> None:
    made = activations.gaussian(seqlen=96, nheads=4, nheads_k=2)
    made.save(tmp_path / "made.npz")
    arguments = ["run", "--activations", str(tmp_path / "made.npz"), "--seqlen", "64"]
    arguments += ["--heads", "2", "--backend", "reference", "--no-causal"]
    assert main([*arguments, "--json", str(tmp_path / "rows.json")]) == 0
    (row,) = json.loads((tmp_path / "rows.json").read_text())
    assert (row["inputs"], row["seqlen"], row["nheads"], row["nheads_k"]) == ("made", 64, 2, 1)
    assert row["causal"] is False


def test_run_makes_inputs_for_the_head_dim_that_is_not_captured(tmp_path: Path) -> None:
    arguments = ["run", "--headdim", "192", "--seqlen", "100", "--backend", "reference"]
    assert main([*arguments, "--json", str(tmp_path / "rows.json")]) == 0
    (row,) = json.loads((tmp_path / "rows.json").read_text())
    assert (row["headdim"], row["inputs"]) == (192, "gaussian192")
    assert row["rel_err_same_inputs"] < 0.05


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "--heads", "5"], "heads: 5 asked for, prose1k_L14 has 1 to 2"),
        (["run", "--seqlen", "2000"], "seqlen: 2000 asked for, prose1k_L14 has 1 to 1024"),
        (["run", "--seqlen", "0"], "0 is below 1"),
        (["run", "--seqlen", "many"], "'many' is not a number"),
        (["run", "--activations", "absent.npz"], "no such file: absent.npz"),
        (["run", "--backend", "tpu"], "invalid choice: 'tpu'"),
        (
            ["run", "--p-mode", "unscaled", "--block-scale", "on", "--backend", "reference"],
            "block_scale: got True",
        ),
        (
            ["run", "--json", "absent/rows.json", "--backend", "reference", "--seqlen", "64"],
            "--json",
        ),
        (["compile"], "the following arguments are required: -o"),
        (["compile", "-o", "x", "--headdim", "64"], "invalid choice: 64"),
        (["compile", "-o", "x", "--nheads-k", "3"], "a positive multiple of the key heads"),
        (["compile", "-o", "x", "--dtype", "bf16", "--block-scale", "on"], "block_scale: got True"),
        (["check"], "the following arguments are required: FILE"),
        (["check", "absent.s"], "cannot read absent.s: No such file or directory"),
        (["demo", "--seqlen", "9999"], "seqlen: 9999 asked for"),
        # configurations that are none
        (["compile", "-o", "x", "--block-m", "48"], "BLOCK_M is 48, not a power of two"),
        (["compile", "-o", "x", "--block-m", "8"], "must lie in 16 to 256"),
        (["compile", "-o", "x", "--num-warps", "3"], "num_warps is 3, not a power of two"),
        (["compile", "-o", "x", "--num-warps", "32"], "num_warps is 32, above 16"),
        (["compile", "-o", "x", "--waves-per-eu", "9"], "waves_per_eu is 9, above 8"),
        (
            ["compile", "-o", "x", "--kernel", "pingpong", "--num-warps", "4"],
            "the ping-pong loop has {'BLOCK_M': 256,",
        ),
        (["compile", "-o", "x", "--kernel", "pingpong", "--block-m", "128"], "not {'BLOCK_M': 128"),
        (["compile", "-o", "x", "--kernel", "hip", "--dtype", "bf16", "--block-m", "64"], "in HIP"),
        (
            ["inspect", "--kernel", "hip"],
            "--kernel: got hip; it takes bfloat16 inputs, not torch.float8_e4m3fn; accepted here: "
            "triton, pingpong\n",
        ),
        (
            ["schedule", "--seqlens", "256", "--kernel", "hip"],
            "--kernel: got hip; accepted with --seqlens: triton, pingpong\n",
        ),
        (
            ["schedule", "--p-mode", "unscaled"],
            "--p-mode: got unscaled; accepted with --kernel pingpong: lean, exact\n",
        ),
        (["schedule", "--seqlens", "256", "--p-mode", "unscaled"], "--p-mode: got unscaled; acc"),
        ([], "the following arguments are required: COMMAND"),
        (["dance"], "invalid choice: 'dance'"),
    ],
)
def test_wrong_arguments_are_usage_errors(
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert message in usage_error(arguments, capsys)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("run --seed 3 --backend reference", "--seed: of made-up inputs"),
        ("run --seed 0 --backend reference", "--seed: of made-up inputs"),
        ("inspect --variants --kernel triton", "--variants: of --kernel pingpong"),
        ("inspect loop.s --p-mode lean", "--p-mode: of the op's kernels"),
        ("inspect loop.s --dtype bf16", "--dtype: of the op's kernels"),
        ("inspect loop.s --headdim 192", "--headdim: of the op's kernels"),
        ("inspect loop.s --no-causal", "--causal: of the op's kernels"),
        ("inspect loop.s --block-scale off", "--block-scale: of the op's kernels"),
        ("schedule --kernel triton --pack op_sel", "--pack: of --kernel pingpong"),
        ("schedule --kernel triton --multiply-add packed", "--multiply-add: of --kernel pingpong"),
        ("schedule --kernel triton hip --row-sum dense", "--row-sum: of --kernel pingpong"),
        ("schedule --kernel hip --p-mode exact", "--p-mode: of fp8"),
        ("schedule --take 3", "--take: of a FILE"),
        ("schedule --pass 3", "--pass: of a FILE"),
        ("schedule --waves 8", "--waves: of a FILE"),
        ("schedule --seqlens 256 --waves 8", "--waves: of a FILE"),
        ("schedule --clock 2", "--clock: of whole launches"),
        ("schedule --nheads 16", "--nheads: of whole launches"),
        ("schedule --nheads-k 4", "--nheads-k: of whole launches"),
        ("schedule --batch 4", "--batch: of whole launches"),
        ("schedule --rescales 0", "--rescales: of whole launches"),
        ("schedule --cycles 100", "--cycles: of the picture"),
        ("schedule --seqlens 256 --p-mode exact --pack op_sel", "--pack: got op_sel"),
        ("schedule loop.s --p-mode exact", "--p-mode: of the op's kernels"),
        ("schedule loop.s --headdim 192", "--headdim: of the op's kernels"),
        ("schedule loop.s --no-causal", "--causal: of the op's kernels"),
        ("schedule loop.s --pack perm", "--pack: of the op's kernels"),
        ("schedule loop.s --kernel triton --pack perm", "--pack: of --kernel pingpong"),
        ("capture script.py --tokens 64", "--tokens: of --text"),
    ],
)
def test_options_that_would_change_nothing_are_refused(
    arguments: str,
    message: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "script.py").touch()
    assert f"error: {message}" in usage_error(arguments.split(), capsys)


@pytest.mark.parametrize("command", ["check", "inspect", "schedule"])
def test_code_objects_are_read_with_the_named_folder_s_objdump(
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def load(data: bytes, name: str, objdump: str | None) -> None:
        raise LoadError(f"{name} by {objdump}")

    image = SimpleNamespace(symbols={"kernel.kd": 0}, note={})
    for module in (check, files, steady):
        monkeypatch.setattr(module, "load_code_object", load)
        monkeypatch.setattr(module.elf, "parse", lambda data: image)
    (tmp_path / "kernel.hsaco").write_bytes(b"\x7fELF")
    monkeypatch.setenv("ZYFA_LLVM", str(tmp_path / "bin"))
    message = usage_error([command, str(tmp_path / "kernel.hsaco")], capsys)
    assert f"kernel by {tmp_path / 'bin' / 'llvm-objdump'}" in message
    monkeypatch.delenv("ZYFA_LLVM")
    assert "kernel by None" in usage_error([command, str(tmp_path / "kernel.hsaco")], capsys)
    with pytest.raises(SystemExit):
        main([command, "--help"])
    assert "llvm-objdump (LLVM 20 or later), in ZYFA_LLVM's folder" in capsys.readouterr().out


def test_an_objdump_that_is_not_there_is_named(tmp_path: Path) -> None:
    missing = str(tmp_path / "llvm-objdump")
    with pytest.raises(LoadError, match=f"{missing} is no program"):
        loader._disassemble(b"", missing)
    with pytest.raises(LoadError, match="in the folder that ZYFA_LLVM names; none found"):
        loader._disassemble(b"", None)


def test_check_passes_good_code_and_names_the_line_of_bad_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "good.s").write_text(GOOD)
    (tmp_path / "bad.s").write_text(NO_WAIT)
    assert main(["check", str(tmp_path / "good.s")]) == 0
    assert "nothing found" in capsys.readouterr().out
    path = tmp_path / "found.json"
    assert main(["check", str(tmp_path / "bad.s"), "--json", str(path)]) == 1
    assert "v_add_f32_e32 v1, v1, v1" in capsys.readouterr().out
    (result,) = json.loads(path.read_text())
    assert any(finding["line"] == 2 for finding in result["findings"])


def test_check_refuses_what_is_no_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "noise.bin").write_bytes(bytes(range(128, 256)))
    message = usage_error(["check", str(tmp_path / "noise.bin")], capsys)
    assert "neither text nor an ELF code object" in message


def test_doctor_lists_every_back_end_and_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "doctor.json"
    assert main(["doctor", "--json", str(path)]) == 0
    result = json.loads(path.read_text())
    found = {one["backend"]: one for one in result["backends"]}
    assert set(found) == {"device", "interpreter", "emulated", "reference"}
    assert found["reference"]["available"] is True
    printed = capsys.readouterr().out
    for one in found.values():
        assert one["backend"] in printed
        if not one["available"]:
            assert one["reason"] and one["remedy"]
            assert one["remedy"] in printed


@pytest.mark.parametrize(("name", "value"), [("ZYFA_TUNE", "foo"), ("ZYFA_STRICT", "2")])
def test_doctor_names_variables_that_are_refused(
    name: str,
    value: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv(name, value)
    assert main(["doctor", "--json", str(tmp_path / "doctor.json")]) == 1
    assert f"  {name}: got '{value}'; accepted are " in capsys.readouterr().out
    (wrong,) = json.loads((tmp_path / "doctor.json").read_text())["environment"]
    assert wrong.startswith(f"{name}: got '{value}'")
    arguments = ["run", "--backend", "reference", "--seqlen", "64"]
    assert f"{name}: got '{value}'" in usage_error(arguments, capsys)


def test_reader_that_goes_away_is_no_error() -> None:
    done = subprocess.run(
        f"{sys.executable} -m zyfa_triton run --help | head -1",
        shell=True,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("usage: zyfa run")
    assert done.stderr == ""


def test_table_aligns_numbers_right_and_words_left() -> None:
    text = table(("name", "n"), [("a", 5), ("long one", 12345)])
    assert text.splitlines() == [
        "name          n",
        "--------  -----",
        "a             5",
        "long one  12345",
    ]


def test_json_is_strict(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"x": float("inf"), "y": (1, Path("z"))})
    assert json.loads((tmp_path / "a.json").read_text()) == {"x": None, "y": [1, "z"]}


def test_errors_are_shown_in_the_unit_of_the_tables() -> None:
    assert percent(0.00596) == "0.596"
    assert percent(None) == "-"


def test_every_kernel_of_the_op_can_be_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    known = {*options.KERNELS, *options.HOPPER_KERNELS}
    assert known == set(dispatch.KERNELS)
    for kernel in options.HOPPER_KERNELS:
        message = usage_error(["run", "--kernel", kernel, "--backend", "reference"], capsys)
        assert f'kernel: got "{kernel}"' in message and 'accepted with it: "device"' in message
