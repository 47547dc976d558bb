"""Which environment variables exist and how they are parsed. Nothing else reads os.environ.

It does not act on them. docs/env.md is generated from `VARIABLES`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path


@dataclass(frozen=True)
class Variable:
    """One environment variable. changes_codegen: whether its value changes compiled kernels."""

    name: str
    type: str
    default: str
    effect: str
    changes_codegen: bool = False


VARIABLES: tuple[Variable, ...] = (
    Variable(
        "ZYFA_TUNE",
        "off | on",
        "off",
        "on: the first call of a kind that has no stored configuration measures the candidates "
        "and stores the fastest. off: such a call takes the default configuration; only "
        "warmup(tune=True) measures.",
    ),
    Variable(
        "ZYFA_TUNING_FILE",
        "path",
        "tuning.json in ZYFA_CACHE_DIR",
        "JSON file of tuned configurations. Its entries precede those that ship with the package; "
        "tuning writes to it.",
    ),
    Variable(
        "ZYFA_CACHE_DIR",
        "path",
        "zyfa_triton in XDG_CACHE_HOME",
        "Folder for what is kept between processes.",
    ),
    Variable(
        "ZYFA_LLVM",
        "path",
        "PATH",
        "Folder that holds the tools of LLVM 22: llvm-objdump, with which `zyfa check`, `inspect` "
        "and `schedule` read code objects, and those with which the tests compare.",
    ),
    Variable(
        "ZYFA_HIP_COMPILER",
        "path",
        "found",
        "The compiler that makes gfx950 code of the HIP sources: an amdclang++, hipcc or clang. By "
        "default ROCm's, else clang on PATH. What it makes is kept in ZYFA_CACHE_DIR.",
        changes_codegen=True,
    ),
    Variable(
        "ZYFA_STRICT",
        "0 | 1",
        "0",
        "1: a kernel whose loop cannot be replaced as asked is an error. 0: one warning that names "
        "the reason, and Triton's own loop.",
        changes_codegen=True,
    ),
    Variable("ROCM_PATH", "path", "/opt/rocm", "ROCm's own: where its compilers are looked for."),
    Variable(
        "PATH", "paths", "", "The system's own: where compilers and llvm-objdump are looked for."
    ),
    Variable("XDG_CACHE_HOME", "path", "~/.cache", "Parent of the default ZYFA_CACHE_DIR."),
    Variable("HOME", "path", "", "The system's own: what ~ in a path stands for."),
    Variable(
        "TRITON_INTERPRET",
        "0 | 1",
        "0",
        "Triton's own: 1 makes every kernel of the process interpreted. The interpreter back end "
        "then runs in this process, so that a debugger can step through a kernel, and the device "
        "back end is not available. Read once, when Triton is imported.",
        changes_codegen=True,
    ),
    Variable(
        "PYTHONPATH",
        "paths",
        "",
        "Python's own: extended for the process that interprets kernels, so that it finds the "
        "same package.",
    ),
)


_DECLARED = frozenset(variable.name for variable in VARIABLES)


def read(name: str) -> str | None:
    """The variable's text, None where it is unset or empty. Raises KeyError for others' names."""
    if name not in _DECLARED:
        raise KeyError(f"{name} is not declared in zyfa_triton.env.VARIABLES")
    return os.environ.get(name) or None


def tune() -> bool:
    """Whether a call without a stored configuration measures the candidates (ZYFA_TUNE)."""
    value = read("ZYFA_TUNE") or "off"
    if value not in ("on", "off"):
        raise ValueError(f"ZYFA_TUNE: got {value!r}; accepted are 'on' and 'off'")
    return value == "on"


def strict() -> bool:
    """Whether a loop that cannot be replaced is an error (ZYFA_STRICT)."""
    value = read("ZYFA_STRICT") or "0"
    if value not in ("0", "1"):
        raise ValueError(f"ZYFA_STRICT: got {value!r}; accepted are '0' and '1'")
    return value == "1"


def check() -> None:
    """Raises ValueError for a value that is refused, also where nothing depends on it: a call that
    takes it and one that does not are not told apart by who makes them."""
    tune()
    strict()


def complaints() -> list[str]:
    """What is wrong with values that are one of several words, an error each."""
    found = []
    for parse in (tune, strict):
        try:
            parse()
        except ValueError as error:
            found.append(str(error))
    return found


def objdump() -> str | None:
    """The llvm-objdump in ZYFA_LLVM, which may not be there; None where that is unset: PATH's."""
    folder = read("ZYFA_LLVM")
    return None if folder is None else str(Path(folder).expanduser() / "llvm-objdump")


def cache_dir() -> Path:
    """Folder for what is kept between processes; not created here."""
    chosen = read("ZYFA_CACHE_DIR")
    if chosen:
        return Path(chosen).expanduser()
    parent = read("XDG_CACHE_HOME")
    return (Path(parent) if parent else Path.home() / ".cache") / "zyfa_triton"


def tuning_file() -> Path:
    """The user's file of tuned configurations, which may not exist yet."""
    names = ("ZYFA_TUNING_FILE", "ZYFA_CACHE_DIR", "XDG_CACHE_HOME", "HOME")
    return _tuning_file(*map(read, names))


@cache
def _tuning_file(chosen: str | None, *others: str | None) -> Path:
    """Kept by what decides it: every call asks, and making paths takes tens of microseconds."""
    return Path(chosen).expanduser() if chosen else cache_dir() / "tuning.json"


def is_interpreting() -> bool:
    """Whether Triton interprets every kernel of this process."""
    return (read("TRITON_INTERPRET") or "0").lower() in ("1", "true", "yes", "on", "y")


def child_environment(changes: Mapping[str, str]) -> dict[str, str]:
    """This process's environment with changes, for a process that it starts."""
    return {**os.environ, **changes}


def as_markdown() -> str:
    """The text of docs/env.md."""
    lines = [
        "# Environment variables",
        "",
        "Generated from `zyfa_triton/env.py`; `make asm-check` regenerates it.",
        "",
        "| name | type | default | effect | changes generated code |",
        "|---|---|---|---|---|",
    ]
    for variable in VARIABLES:
        changes = "yes" if variable.changes_codegen else "no"
        kind = variable.type.replace("|", "\\|")
        lines.append(
            f"| `{variable.name}` | {kind} | {variable.default or 'empty'} "
            f"| {variable.effect} | {changes} |"
        )
    return "\n".join(lines) + "\n"
