"""Decides where tests find LLVM's assembler and disassembler; it judges no results."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

TARGET = ["-triple=amdgcn-amd-amdhsa", "-mcpu=gfx950"]


def tool(name: str) -> str:
    """Path of a tool of LLVM 22: versioned on PATH, or in the folder that ZYFA_LLVM names."""
    folder = os.environ.get("ZYFA_LLVM")
    found = shutil.which(f"{name}-22") or shutil.which(name, path=folder or None)
    assert found, f"tests need {name} of LLVM 22 on PATH (Debian and Ubuntu: package llvm-22)"
    return found


def assemble(text: str, folder: Path) -> Path:
    """Object file of an assembly text."""
    output = folder / "program.o"
    done = subprocess.run(
        [tool("llvm-mc"), *TARGET, "-filetype=obj", "-o", str(output)],
        input=text,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return output


def disassemble(path: Path) -> str:
    """Listing of an object file's code."""
    done = subprocess.run(
        [tool("llvm-objdump"), "-d", "--mcpu=gfx950", str(path)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
