"""Decides whether anybody's file is judged: text with or without descriptors, listings, objects."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from asm_overrides.check import check_file, check_text
from asm_overrides.emulator import load_text, loader
from asm_overrides.emulator.loader import LoadError
from tests.asm.attention_runs import attention_run
from tests.asm.llvm import assemble, disassemble, tool
from tests.asm.program import LOAD_POINTERS, kernel_text
from zyfa_triton.cli import main

LOAD = "global_load_dword v1, v62, s[6:7]"
USE = "v_mov_b32_e32 v2, v1"
GOOD = "\n".join([LOAD_POINTERS, LOAD, "s_waitcnt vmcnt(0)", USE])
BAD = "\n".join([LOAD_POINTERS, LOAD, USE, "s_waitcnt vmcnt(0)"])


def kinds(text: str, **options: bool) -> list[str]:
    return [finding.kind for finding in check_text(text, **options)]


def linked(text: str, folder: Path) -> Path:
    """Code object of a kernel's text."""
    target = '.amdgcn_target "amdgcn-amd-amdhsa--gfx950"\n'
    relocatable = assemble(target + text, folder)
    output = folder / "program.hsaco"
    subprocess.run([tool("ld.lld"), "-shared", str(relocatable), "-o", str(output)], check=True)
    return output


def test_assembly_with_descriptor(tmp_path: Path) -> None:
    path = tmp_path / "kernel.s"
    path.write_text(kernel_text(GOOD))
    assert check_file(path) == []
    path.write_text(kernel_text(BAD))
    (finding,) = check_file(path)
    assert finding.kind == "use-before-wait"
    assert finding.instruction == "v_mov_b32_e32 v2, v1"
    assert path.read_text().split("\n")[finding.line - 1].strip() == finding.instruction


def test_assembly_without_descriptor() -> None:
    assert kinds(GOOD + "\ns_endpgm") == []
    assert kinds(BAD + "\ns_endpgm") == ["use-before-wait"]


def test_command_reads_code_objects_with_the_named_objdump(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = linked(kernel_text(BAD), tmp_path)
    folder = Path(tool("llvm-objdump")).resolve().parent
    monkeypatch.setattr(loader, "find_objdump", lambda: None)  # none on PATH
    monkeypatch.delenv("ZYFA_LLVM", raising=False)
    assert main(["check", str(path)]) == 2
    assert "in the folder that ZYFA_LLVM names; none found" in capsys.readouterr().err
    monkeypatch.setenv("ZYFA_LLVM", str(folder))
    assert main(["check", str(path)]) == 1
    assert "1 findings" in capsys.readouterr().out


def test_listing_of_a_disassembler(tmp_path: Path) -> None:
    for body, expected in ((GOOD, []), (BAD, ["use-before-wait"])):
        assert kinds(disassemble(assemble(kernel_text(body), tmp_path))) == expected


def test_code_object(tmp_path: Path) -> None:
    assert check_file(linked(kernel_text(GOOD), tmp_path)) == []
    (finding,) = check_file(linked(kernel_text(BAD), tmp_path))
    assert finding.kind == "use-before-wait"


def test_code_object_of_triton(tmp_path: Path) -> None:
    path = tmp_path / "attention.hsaco"
    path.write_bytes(attention_run().compiled.hsaco)
    assert check_file(path) == []


def test_every_kernel_of_a_text_is_judged() -> None:
    both = kernel_text(BAD) + kernel_text(GOOD).replace("\tk\n", "\tk2\n").replace(
        "k:", "k2:"
    ).replace("kernel k\n", "kernel k2\n").replace("k,@", "k2,@")
    assert load_text(both, "k2").name == "k2"
    assert kinds(both) == ["use-before-wait"]


def test_unknown_opcodes_are_named_and_the_rest_is_judged() -> None:
    findings = check_text(f"v_frobnicate_b32 v0, v1\nv_mov_b32 v0, v1, v2\n{BAD}\ns_endpgm")
    assert [finding.kind for finding in findings] == [
        "unknown-opcode", "malformed", "use-before-wait",
    ]  # fmt: skip
    assert findings[0].line == 1
    assert "v_frobnicate_b32" in findings[0].message


@pytest.mark.parametrize(
    ("instruction", "names"),
    [
        ("v_mov_b32_e32 v64, 0", "v64: the descriptor allocates 64 VGPRs"),
        ("v_accvgpr_write_b32 a64, 0", "a64: the descriptor allocates 64 accumulation registers"),
        ("s_mov_b32 s96, 0", "s96: the descriptor allocates 96 SGPRs"),
    ],
)
def test_registers_beyond_the_descriptor(instruction: str, names: str) -> None:
    (finding,) = check_text(kernel_text(instruction))
    assert (finding.kind, finding.message) == ("register-not-allocated", names)


def test_scratch_without_memory() -> None:
    body = "v_mov_b32_e32 v1, 0\nscratch_store_dword off, v1, off"
    assert kinds(kernel_text(body)) == ["no-scratch"]
    assert kinds(kernel_text(body, scratch=16)) == []


def test_hazards_and_strictness() -> None:
    mfma = "v_mfma_f32_32x32x64_f8f6f4 v[0:15], v[40:47], v[48:55], v[0:15]"
    read = "v_mov_b32_e32 v63, v0"
    assert kinds(f"{mfma}\n{read}\ns_endpgm") == ["hazard"]
    spaced = "\n".join([mfma, "s_nop 15", "s_nop 2", read, "s_endpgm"])
    assert kinds(spaced) == []
    assert kinds(spaced, strict=True) == ["hazard"]


def test_clauses_do_not_matter_without_replay() -> None:
    loads = "s_load_dwordx2 s[0:1], s[2:3], 0x0\ns_load_dwordx2 s[2:3], s[4:5], 0x0\n"
    text = loads + "s_waitcnt lgkmcnt(0)\ns_endpgm"
    assert kinds(text) == ["hazard"]
    assert kinds('.amdgcn_target "amdgcn-amd-amdhsa--gfx950:xnack-"\n' + text) == []


def test_a_program_that_does_not_end() -> None:
    assert kinds("s_nop 0\nv_mov_b32_e32 v0, 0") == ["runs-off-the-end"]
    assert kinds(".Lloop:\ns_nop 0\ns_branch .Lloop") == []


def test_files_that_are_no_code(tmp_path: Path) -> None:
    path = tmp_path / "picture.bin"
    path.write_bytes(bytes(range(128, 256)))
    with pytest.raises(LoadError, match=r"picture\.bin is neither text nor an ELF"):
        check_file(path)
    path.write_text("; nothing\n")
    with pytest.raises(LoadError, match="no instruction"):
        check_file(path)
    with pytest.raises(FileNotFoundError):
        check_file(tmp_path / "missing.s")
