"""Environment variables: all declared, parsed in one place, and read nowhere else."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import zyfa_triton
from zyfa_triton import env, flash_attn_fp8_func, flash_attn_func
from zyfa_triton.testing import make_inputs

ROOT = Path(zyfa_triton.__file__).parent


def test_nothing_else_reads_the_environment() -> None:
    for path in sorted(ROOT.rglob("*.py")):
        if path == ROOT / "env.py":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute):
                assert node.attr not in ("environ", "getenv"), f"{path}:{node.lineno}"


def test_undeclared_variables_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZYFA_SECRET", "1")
    with pytest.raises(KeyError, match="ZYFA_SECRET is not declared"):
        env.read("ZYFA_SECRET")


def test_env_itself_reads_declared_variables_only() -> None:
    """os.environ is met where names are checked, and where a child inherits all of it."""
    functions = ast.parse((ROOT / "env.py").read_text(encoding="utf-8")).body
    readers = {
        function.name
        for function in functions
        if isinstance(function, ast.FunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv")
    }
    assert readers == {"read", "child_environment"}


@pytest.mark.parametrize(("name", "value"), [("ZYFA_TUNE", "foo"), ("ZYFA_STRICT", "2")])
def test_a_wrong_value_is_an_error_in_every_call(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = make_inputs(3, 3)
    monkeypatch.setenv(name, value)
    assert [text.split(";")[0] for text in env.complaints()] == [f"{name}: got {value!r}"]
    for function in (flash_attn_func, flash_attn_fp8_func):
        with pytest.raises(ValueError, match=f"^{name}: got '{value}'; accepted are "):
            function(x.q, x.k, x.v)


def test_tune_is_on_or_off(monkeypatch: pytest.MonkeyPatch) -> None:
    for value, meant in ((None, False), ("", False), ("off", False), ("on", True)):
        if value is None:
            monkeypatch.delenv("ZYFA_TUNE", raising=False)
        else:
            monkeypatch.setenv("ZYFA_TUNE", value)
        assert env.tune() is meant
    monkeypatch.setenv("ZYFA_TUNE", "1")
    with pytest.raises(ValueError, match="ZYFA_TUNE: got '1'; accepted are 'on' and 'off'"):
        env.tune()


def test_the_tuning_file_follows_the_nearest_variable(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("ZYFA_TUNING_FILE", "ZYFA_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert env.tuning_file() == tmp_path / ".cache" / "zyfa_triton" / "tuning.json"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert env.tuning_file() == tmp_path / "xdg" / "zyfa_triton" / "tuning.json"
    monkeypatch.setenv("ZYFA_CACHE_DIR", "~/zyfa")
    assert env.tuning_file() == tmp_path / "zyfa" / "tuning.json"
    monkeypatch.setenv("ZYFA_TUNING_FILE", str(tmp_path / "mine.json"))
    assert env.tuning_file() == tmp_path / "mine.json"


def test_every_variable_is_in_the_generated_page() -> None:
    page = env.as_markdown()
    for variable in env.VARIABLES:
        assert f"| `{variable.name}` |" in page
        assert variable.effect
    assert all(line.count(" | ") >= 4 for line in page.splitlines() if line.startswith("| `"))
