"""Decides which compiler makes gfx950 assembly of a HIP source, and keeps the result on disk.

It makes text, not a code object: the emulator reads it as it is, and Triton's assembler makes of it
what a card runs (`zyfa_triton.code_object`), so both execute the same instructions and no linker is
needed. No header or library of ROCm is used.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from zyfa_triton import env

TARGET = "gfx950"
FLAGS = (
    "-x", "hip", "--cuda-device-only", f"--offload-arch={TARGET}", "-nogpuinc", "-nogpulib",
    "-std=c++20", "-O3",
    "-ffp-contract=off",  # a product and a sum are one rounding only where the source says so
    "-fno-slp-vectorize",  # packed float32 cannot run beside a matrix instruction
)  # fmt: skip
_NAMES = ("amdclang++", "hipcc", *(f"clang-{version}" for version in range(30, 20, -1)), "clang")
_DESCRIPTOR = ".amdhsa_kernel"  # every kernel's assembly has one
_LINES_OF_ERROR = 4
_SECONDS = 600


class HipCompilerError(RuntimeError):
    """No gfx950 code of a HIP source could be made or kept; says what was tried."""


def candidates() -> list[str]:
    """Paths of compilers in the order in which they are tried.

    ZYFA_HIP_COMPILER alone if set; else ROCm's (ROCM_PATH, PATH, /opt/rocm), then clang on PATH.
    """
    named = env.read("ZYFA_HIP_COMPILER")
    if named is not None:
        path = shutil.which(str(Path(named).expanduser()))
        if path is None:
            raise HipCompilerError(
                f"ZYFA_HIP_COMPILER: got {named!r}; accepted: the path of an amdclang++, hipcc or "
                f"clang that knows {TARGET}"
            )
        return [path]
    rocm = [Path(env.read("ROCM_PATH") or "/opt/rocm") / "bin"]
    found = []
    for name in _NAMES:
        places = [str(folder / name) for folder in rocm] if name in _NAMES[:2] else []
        found += [path for path in map(shutil.which, [*places, name]) if path is not None]
    return list(dict.fromkeys(found))


def found_compiler() -> str | None:
    """The first compiler that knows gfx950; None where there is none, or a wrong one is named."""
    try:
        return next(filter(_knows_target, candidates()), None)
    except HipCompilerError:
        return None


@cache
def _knows_target(compiler: str) -> bool:
    """Whether a compiler accepts gfx950 and the flags: an older clang on PATH does not."""
    try:
        _run([compiler, *FLAGS, "-fsyntax-only", os.devnull])
    except _FailedError:
        return False
    return True


def assembly(source: Path, defines: Mapping[str, int]) -> str:
    """gfx950 assembly of a source, from the cache or compiled now.

    The cache is the folder hip in ZYFA_CACHE_DIR; an entry's name holds a digest of the source, the
    compiler's version and the flags. Raises HipCompilerError if no compiler makes it, or the folder
    cannot be written.
    """
    settings = (env.read("ZYFA_HIP_COMPILER"), env.read("ROCM_PATH"), env.read("PATH"))
    folder = env.cache_dir() / "hip"
    return _assembly(source, source.read_bytes(), tuple(sorted(defines.items())), folder, settings)


@cache
def _assembly(
    source: Path,
    text: bytes,
    defines: tuple[tuple[str, int], ...],
    folder: Path,
    settings: tuple[str | None, ...],
) -> str:
    flags = [*FLAGS, *(f"-D{name}={value}" for name, value in defines)]
    refused = []
    for compiler in candidates():
        try:
            version = _run([compiler, "--version"])
            digest = hashlib.sha256("\0".join([version, *flags]).encode() + b"\0" + text)
            kept = folder / f"{source.stem}_{digest.hexdigest()[:24]}.s"
            if not kept.is_file():
                _compile(compiler, flags, source, kept)
            return kept.read_text()
        except _FailedError as error:
            refused.append(f"{compiler}: {error}")
    needed = (
        f"a compiler for {TARGET}: ROCm's (amdclang++, hipcc) or clang 21 or later "
        "(Debian, Ubuntu: clang-22). Install one, or name it in ZYFA_HIP_COMPILER"
    )
    if not refused:
        raise HipCompilerError(f'kernel="hip" needs {needed}; none was found')
    raise HipCompilerError(f'kernel="hip" needs {needed}. Tried:\n' + "\n".join(refused))


class _FailedError(Exception):
    """A compiler that cannot be used; holds its first complaint."""


def _compile(compiler: str, flags: list[str], source: Path, kept: Path) -> None:
    """Compiles into a file of its own, which then takes the place of `kept` at once."""
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=kept.parent, prefix=kept.stem, suffix=".tmp")
    except OSError as error:
        raise HipCompilerError(
            f"ZYFA_CACHE_DIR: cannot write to {kept.parent}: {error.strerror}; accepted: a folder "
            "that can be written, where compiled kernels are kept"
        ) from None
    os.close(handle)
    try:
        _run([compiler, *flags, "-S", "-o", name, str(source)])
        if _DESCRIPTOR not in Path(name).read_text(errors="replace"):
            raise _FailedError(f"made no {TARGET} kernel, and no complaint")
        os.replace(name, kept)
    finally:
        Path(name).unlink(missing_ok=True)


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _FailedError(str(error)) from None
    if done.returncode:
        complaint = (done.stderr or done.stdout).strip().splitlines()[:_LINES_OF_ERROR]
        raise _FailedError("\n".join(complaint) or f"exit status {done.returncode}")
    return done.stdout
