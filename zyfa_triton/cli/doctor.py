"""`zyfa doctor`: which back ends work here, and for each that does not, why and what to do.

It launches nothing and changes nothing.
"""

from __future__ import annotations

import argparse
import dataclasses
import platform
import shutil
from importlib import metadata

from zyfa_triton import env
from zyfa_triton._version import __version__
from zyfa_triton.cli.output import table, write_json

SUMMARY = "which back ends work here, and what to do about those that do not"
DESCRIPTION = """Lists the back ends: the places where a kernel can run.
The exit status is 0 when at least one back end works and no environment variable is wrong."""

_NO_COMPILER = "none (install ROCm or clang-22, or name one in ZYFA_HIP_COMPILER)"
_NO_OBJDUMP = "none (install llvm-22, or name the folder that has it in ZYFA_LLVM)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """No arguments of its own."""


def run(args: argparse.Namespace) -> int:
    from asm_overrides.emulator.loader import find_objdump
    from zyfa_triton.dispatch import capabilities
    from zyfa_triton.hip import found_compiler

    found = capabilities()
    versions = {"zyfa-triton": __version__, "python": platform.python_version()}
    versions |= {name: _version(name) for name in ("torch", "triton", "numpy")}

    print("  ".join(f"{name} {version}" for name, version in versions.items()))
    print()
    rows = [
        [one.backend, "yes" if one.available else "no", one.detail or one.reason] for one in found
    ]
    print(table(("back end", "works", "what it runs on, or why not"), rows))
    compiler = found_compiler()
    print(f'\ncompiler for kernel="hip": {compiler or _NO_COMPILER}')
    objdump = env.objdump() or find_objdump()
    print(f"llvm-objdump for code objects: {shutil.which(objdump or '') or _NO_OBJDUMP}")
    remedies = [one for one in found if not one.available]
    if remedies:
        print("\nTo make the others work:")
        for one in remedies:
            print(f"  {one.backend}: {one.remedy}")

    wrong = env.complaints()
    if wrong:
        print("\nEnvironment variables that are refused:")
        print("\n".join(f"  {one}" for one in wrong))

    write_json(
        args.json,
        {
            "versions": versions,
            "hip_compiler": compiler,
            "objdump": shutil.which(objdump or ""),
            "environment": wrong,
            "backends": [dataclasses.asdict(one) for one in found],
        },
    )
    return 0 if any(one.available for one in found) and not wrong else 1


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "not installed"
