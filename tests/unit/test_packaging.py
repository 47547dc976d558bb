"""What a built distribution holds, as far as it can be seen without building one (CI builds it)."""

from __future__ import annotations

import importlib
import re
from fnmatch import fnmatch
from pathlib import Path

import pytest

import zyfa_triton
from zyfa_triton import activations

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("zyfa_triton", "asm_overrides")
PYPROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")


@pytest.mark.parametrize("package", PACKAGES)
def test_every_folder_with_code_is_a_package(package: str) -> None:
    for path in (ROOT / package).rglob("*.py"):
        folder = path.parent
        assert (folder / "__init__.py").exists(), f"{folder} has no __init__.py: no wheel holds it"


@pytest.mark.parametrize("package", PACKAGES)
def test_types_are_announced(package: str) -> None:
    assert (ROOT / package / "py.typed").exists()


def test_every_data_file_is_packaged() -> None:
    section = PYPROJECT.split("[tool.setuptools.package-data]")[1].split("\n[")[0]
    for package in PACKAGES:
        (listed,) = re.findall(rf"^{package} = \[(.*)\]$", section, re.MULTILINE)
        patterns = re.findall(r'"([^"]+)"', listed)
        for path in (ROOT / package).rglob("*"):
            if not path.is_file() or path.suffix in (".py", ".pyc"):
                continue
            name = str(path.relative_to(ROOT / package))
            assert any(fnmatch(name, pattern) for pattern in patterns), f"{package}/{name}"


def test_version_stands_in_one_place() -> None:
    assert 'dynamic = ["version"]' in PYPROJECT
    assert "zyfa_triton._version.__version__" in PYPROJECT
    assert re.fullmatch(r"\d+\.\d+\.\d+(\.\w+)?", zyfa_triton.__version__)
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"## {zyfa_triton.__version__}" in changelog


def test_console_script_leads_to_a_function() -> None:
    (target,) = re.findall(r'^zyfa = "([\w.]+:\w+)"', PYPROJECT, re.MULTILINE)
    module, name = target.split(":")
    assert callable(getattr(importlib.import_module(module), name))


def test_sample_lies_in_the_package_and_is_small() -> None:
    assert (ROOT / "zyfa_triton") in activations.SAMPLE.parents
    assert activations.SAMPLE.stat().st_size < 2_000_000


def test_licence_is_apache_2() -> None:
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert "Apache License" in text and "Version 2.0, January 2004" in text
    assert 'license = "Apache-2.0"' in PYPROJECT


def test_environment_is_read_in_one_place() -> None:
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            if path.name == "env.py":
                continue
            assert not re.search(r"os\.(environ|getenv)", path.read_text(encoding="utf-8")), path


def test_modules_and_functions_keep_their_size() -> None:
    """A function's length is that of its body without the docstring."""
    import ast

    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            assert text.count("\n") <= 600, f"{path} has {text.count(chr(10))} lines, at most 600"
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.FunctionDef):
                    is_kernel = "jit" in "".join(map(ast.unparse, node.decorator_list))
                    first = node.body[1 if ast.get_docstring(node) else 0 :][:1] or node.body
                    lines = (node.end_lineno or node.lineno) - first[0].lineno + 1
                    most = 200 if is_kernel else 80
                    assert lines <= most, f"{path}: {node.name} has {lines} lines, at most {most}"


def test_make_lists_its_targets() -> None:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    (phony,) = re.findall(r"^\.PHONY: (.*)$", text, re.MULTILINE)
    help_text = "\n".join(re.findall(r"@echo '(.*)'", text))
    for target in set(phony.split()) - {"help", "format"}:
        assert re.search(rf"\b{target}\b", help_text), f"`make` does not list {target}"
