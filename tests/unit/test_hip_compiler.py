"""Which compiler is taken for the HIP sources, what is kept, and what is said where none serves."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from zyfa_triton.cli import main
from zyfa_triton.hip import HipCompilerError, assembly, compiler, found_compiler
from zyfa_triton.hip.sources import source

CALLS = "calls.txt"


def made(name: str, version: str = "1") -> str:
    """What the compiler of this name makes of any source."""
    return f".amdhsa_kernel by_{name}_{version}\n"


def make_compiler(
    folder: Path, name: str, *, version: str = "1", fails: bool = False, makes: str | None = None
) -> Path:
    """A program that notes its calls and "compiles" any source into `makes`."""
    text = made(name, version) if makes is None else makes
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(
        "#!/bin/sh\n"
        f'if [ "$1" = --version ]; then echo {name} {version}; exit 0; fi\n'
        f'case "$*" in *-fsyntax-only*) exit {int(fails)};; esac\n'
        f'echo {name} >> "{folder / CALLS}"\n'
        + ("echo 'unknown target gfx950' >&2; exit 1\n" if fails else "")
        + 'echo "$@" > .last\n'
        'while [ "$1" != -o ]; do shift; done\n'
        f'printf %s "{text}" > "$2"\n'
    )
    path.chmod(0o755)
    return path


def calls(folder: Path) -> list[str]:
    path = folder / CALLS
    return path.read_text().split() if path.exists() else []


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty PATH (but for a shell's tools), no ROCm, an empty cache; the folder of PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("ROCM_PATH", str(tmp_path / "rocm"))
    monkeypatch.setenv("ZYFA_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("ZYFA_HIP_COMPILER", raising=False)
    compiler._assembly.cache_clear()
    compiler._knows_target.cache_clear()
    return folder


def test_run_says_why_there_is_no_kernel(tools: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["run", "--kernel", "hip", "--dtype", "bf16", "--backend", "emulated"]
    assert main([*command, "--seqlen", "64", "--heads", "1"]) == 2
    assert 'kernel="hip" needs a compiler for gfx950' in capsys.readouterr().err


@pytest.fixture
def kernel(tmp_path: Path) -> Path:
    path = tmp_path / "kernel.hip"
    path.write_text("one")
    return path


def test_no_compiler_is_one_error_that_says_what_to_install(tools: Path, kernel: Path) -> None:
    assert found_compiler() is None
    with pytest.raises(HipCompilerError, match=r'kernel="hip" needs .*clang-22.*none was found'):
        assembly(kernel, {})


def test_rocms_compiler_comes_before_clang(tools: Path, kernel: Path, tmp_path: Path) -> None:
    make_compiler(tools, "clang")
    assert assembly(kernel, {}) == made("clang")
    make_compiler(tools, "clang-22")
    make_compiler(tools, "clang-23")
    make_compiler(tools, "hipcc")
    rocm = make_compiler(tmp_path / "rocm" / "bin", "amdclang++")
    names = [Path(path).name for path in compiler.candidates()]
    assert names == ["amdclang++", "hipcc", "clang-23", "clang-22", "clang"]
    assert found_compiler() == str(rocm)
    compiler._assembly.cache_clear()
    assert assembly(kernel, {}) == made("amdclang++")


def test_a_compiler_that_fails_gives_way_to_the_next(tools: Path, kernel: Path) -> None:
    make_compiler(tools, "hipcc", fails=True)
    make_compiler(tools, "clang")
    assert found_compiler() == str(tools / "clang")
    assert assembly(kernel, {}) == made("clang")
    assert calls(tools) == ["hipcc", "clang"]


def test_when_all_fail_each_is_named_with_its_complaint(tools: Path, kernel: Path) -> None:
    make_compiler(tools, "hipcc", fails=True)
    make_compiler(tools, "clang", fails=True)
    assert found_compiler() is None
    with pytest.raises(HipCompilerError) as caught:
        assembly(kernel, {})
    for name in ("hipcc", "clang"):
        assert f"{tools / name}: unknown target gfx950" in str(caught.value)
    assert list((Path(os.environ["ZYFA_CACHE_DIR"]) / "hip").iterdir()) == []


def test_a_program_that_makes_no_kernel_gives_way_and_nothing_of_it_is_kept(
    tools: Path, kernel: Path
) -> None:
    """`true`, named as a compiler, has a version, ends with 0 and writes nothing."""
    make_compiler(tools, "clang", makes="")
    with pytest.raises(HipCompilerError, match="clang: made no gfx950 kernel, and no complaint"):
        assembly(kernel, {})
    assert list((Path(os.environ["ZYFA_CACHE_DIR"]) / "hip").iterdir()) == []
    make_compiler(tools, "clang")
    assert assembly(kernel, {}) == made("clang")


def test_a_cache_that_cannot_be_written_is_named(
    tools: Path, kernel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_compiler(tools, "clang")
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ZYFA_CACHE_DIR", str(tmp_path / "file"))
    with pytest.raises(HipCompilerError, match=r"ZYFA_CACHE_DIR: cannot write to .*hip: .*accept"):
        assembly(kernel, {})
    assert calls(tools) == []


def test_a_named_compiler_is_the_only_one(
    tools: Path, kernel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_compiler(tools, "clang")
    mine = make_compiler(tmp_path / "mine", "my-clang", fails=True)
    monkeypatch.setenv("ZYFA_HIP_COMPILER", str(mine))
    with pytest.raises(HipCompilerError, match="my-clang: unknown target"):
        assembly(kernel, {})
    monkeypatch.setenv("ZYFA_HIP_COMPILER", str(tmp_path / "nothing"))
    assert found_compiler() is None
    with pytest.raises(HipCompilerError, match=r"ZYFA_HIP_COMPILER: got .*nothing.*accepted"):
        assembly(kernel, {})


def test_what_was_made_is_kept_until_anything_changes(
    tools: Path, kernel: Path, tmp_path: Path
) -> None:
    make_compiler(tools, "clang")

    def make(**defines: int) -> str:
        compiler._assembly.cache_clear()  # as another process would
        return assembly(kernel, defines)

    make(A=1)
    make(A=1)
    assert calls(tools) == ["clang"]
    assert "-DA=1" in Path(".last").read_text().split()
    for flag in compiler.FLAGS:
        assert flag in Path(".last").read_text().split()
    make(A=2)
    kernel.write_text("two")
    make(A=1)
    make_compiler(tools, "clang", version="2")
    assert make(A=1) == made("clang", "2")
    assert calls(tools) == ["clang"] * 4
    kept = list((tmp_path / "cache" / "hip").iterdir())
    assert len(kept) == 4 and all(path.suffix == ".s" for path in kept)  # nothing half made


def test_the_source_is_found_in_a_checkout_and_names_where_it_was_looked_for() -> None:
    assert source("attention_forward.hip").parent.name in ("hip", "source")
    with pytest.raises(FileNotFoundError, match=r"nothing.hip is neither in .*source nor in .*hip"):
        source("nothing.hip")
