"""Who may import whom. Held by reading the sources, and once more in a fresh process."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# Lower layers first; a module imports from its own layer and from lower ones. A package stands for
# all of its modules unless they are listed themselves.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("zyfa_triton._version", "zyfa_triton.env", "asm_overrides"),
    (
        "zyfa_triton.activations",
        "zyfa_triton.arch",
        "zyfa_triton.joint_scale",
        "zyfa_triton.language",
        "zyfa_triton.numerics",
        "zyfa_triton.numerics_compiled",
        "zyfa_triton.problem",
        "zyfa_triton.reference",
        "zyfa_triton.report",
        "zyfa_triton.timeline",
    ),
    ("zyfa_triton.splice", "zyfa_triton.hip", "zyfa_triton.code_object"),
    ("zyfa_triton.kernels", "zyfa_triton.checks"),
    ("zyfa_triton.tuning", "zyfa_triton.compile"),
    ("zyfa_triton.backends",),
    ("zyfa_triton.dispatch",),
    ("zyfa_triton.quantize",),
    ("zyfa_triton.ops",),
    ("zyfa_triton.interface", "zyfa_triton.mla"),
    ("zyfa_triton",),
    ("zyfa_triton.integrations",),
    ("zyfa_triton.testing", "zyfa_triton.measure", "zyfa_triton.offline", "zyfa_triton.prototype"),
    (
        "zyfa_triton.inspection",
        "zyfa_triton.benchmark",
        "zyfa_triton.launches",
        "zyfa_triton.schedules",
        "zyfa_triton.selftest",
    ),
    ("zyfa_triton.demo", "zyfa_triton.tuning.ahead"),
    ("zyfa_triton.cli", "zyfa_triton.tuning.__main__"),
    ("zyfa_triton.__main__",),
)
FORBIDDEN_BELOW = ("torch", "triton", "zyfa_triton")


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def layer_of(module: str) -> int:
    """Index of the layer whose entry is the longest prefix of the module's name."""
    best, found = -1, -1
    for index, names in enumerate(LAYERS):
        for name in names:
            if (module == name or module.startswith(name + ".")) and len(name) > best:
                best, found = len(name), index
    assert found >= 0, f"{module} belongs to no layer: add it to LAYERS in {Path(__file__).name}"
    return found


def imported_modules(path: Path) -> set[str]:
    """Names that a file imports, at its top or inside functions; not those for types only."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    typing_only = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
        for inner in ast.walk(node)
    }
    names: set[str] = set()
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = path.relative_to(ROOT).parent.parts
                here = package[: len(package) - node.level + 1]
                base = ".".join([*here, *([base] if base else [])])
            for alias in node.names:
                submodule = f"{base}.{alias.name}"
                names.add(submodule if is_module(submodule) else base)
    return names


def is_module(name: str) -> bool:
    path = ROOT.joinpath(*name.split("."))
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


def sources(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


@pytest.mark.parametrize("path", sources("zyfa_triton"), ids=module_name)
def test_nothing_imports_upwards(path: Path) -> None:
    module = module_name(path)
    for name in imported_modules(path):
        if name.split(".")[0] in ("zyfa_triton", "asm_overrides"):
            assert layer_of(name) <= layer_of(module), f"{module} imports {name}, which is above it"


def test_asm_overrides_names_neither_torch_nor_triton_nor_the_package_above() -> None:
    files = sources("asm_overrides")
    assert len(files) > 10
    for path in files:
        roots = {name.split(".")[0] for name in imported_modules(path)}
        assert not roots & set(FORBIDDEN_BELOW), f"{path} imports {roots & set(FORBIDDEN_BELOW)}"


def test_nothing_imports_tests_benchmarks_or_examples() -> None:
    for package in ("zyfa_triton", "asm_overrides"):
        for path in sources(package):
            roots = {name.split(".")[0] for name in imported_modules(path)}
            assert not roots & {"tests", "bench", "examples", "scripts"}, path


BLOCKED = """
import importlib, pkgutil, sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {blocked!r}:
            raise ImportError(name + " is blocked in this process")

sys.meta_path.insert(0, Blocked())
import asm_overrides
for module in pkgutil.walk_packages(asm_overrides.__path__, "asm_overrides."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
print("imported")
"""


def test_asm_overrides_imports_where_torch_and_triton_do_not_exist() -> None:
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED.format(blocked=FORBIDDEN_BELOW)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "imported"


def test_help_of_the_command_line_does_not_load_triton() -> None:
    code = (
        "import sys\n"
        "from zyfa_triton.cli import build_parser\n"
        "build_parser()\n"
        "print('triton' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "False"


def test_the_package_and_its_schedules_load_neither_torch_nor_triton() -> None:
    code = (
        "import sys\n"
        "import zyfa_triton, zyfa_triton.schedules, zyfa_triton.timeline\n"
        "assert set(zyfa_triton.__all__) <= set(dir(zyfa_triton))\n"
        "row = zyfa_triton.schedules.of_recipe(p_mode='lean')\n"
        "assert row.prediction.worst.useful_share > 0\n"
        "print([name for name in ('torch', 'triton') if name in sys.modules])\n"
        "for name in zyfa_triton.__all__:\n"
        "    assert getattr(zyfa_triton, name) is getattr(zyfa_triton, name), name\n"
        "try:\n"
        "    zyfa_triton.flash_attention\n"
        "except AttributeError as error:\n"
        "    print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "[]",
        "module 'zyfa_triton' has no attribute 'flash_attention'",
    ]


def test_operators_are_registered_by_the_first_function_that_is_asked_for() -> None:
    code = (
        "import torch, zyfa_triton\n"
        "before = hasattr(torch.ops.zyfa, 'attention')\n"
        "from zyfa_triton import flash_attn_func\n"
        "print(before, hasattr(torch.ops.zyfa, 'attention'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["False", "True"]
