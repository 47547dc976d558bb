"""On what a benchmark ran: card, driver, libraries, the code itself, the date.

It measures nothing.
"""

from __future__ import annotations

import datetime
import hashlib
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from zyfa_triton._version import __version__

_PACKAGE = Path(__file__).resolve().parents[1]
_DISTRIBUTIONS = ("triton", "nvidia-cudnn-frontend", "flash_attn_3", "amd-aiter", "numpy")


def environment() -> dict[str, Any]:
    """Names and versions; None for what is not there."""
    commit, dirty = _git()
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        **_card(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "cudnn": _cudnn(),
        **{name: _version(name) for name in _DISTRIBUTIONS},
        "zyfa-triton": __version__,
        "commit": commit,
        "dirty": dirty,
        "source": source_digest(_PACKAGE),
    }


def source_digest(folder: Path) -> str:
    """sha256 of all Python files and stored configurations of a folder, 12 digits.

    It says which code ran also where there is no git checkout.
    """
    sha = hashlib.sha256()
    for path in sorted([*folder.rglob("*.py"), *folder.rglob("*.json")]):
        sha.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes())
    return sha.hexdigest()[:12]


def _card() -> dict[str, Any]:
    if not torch.cuda.is_available():
        return {"device": None, "driver": None}
    return {"device": torch.cuda.get_device_name(), "driver": _driver()}


def _cudnn() -> int | None:
    """Version of the cuDNN that torch loads, as 92100 for 9.21.0."""
    if not torch.cuda.is_available() or torch.version.hip:
        return None
    version: Any = torch.backends.cudnn
    return int(version.version())


def _driver() -> str | None:
    try:
        import pynvml

        pynvml.nvmlInit()
        return str(pynvml.nvmlSystemGetDriverVersion())
    except Exception:  # without NVML ask its program
        command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        return _output(command)


def _git() -> tuple[str | None, bool | None]:
    """Commit and whether files differ from it, of the checkout that this file lies in."""
    top = _output(["git", "-C", str(_PACKAGE), "rev-parse", "--show-toplevel"])
    if top is None or Path(top).resolve() != _PACKAGE.parent:
        return None, None
    status = _output(["git", "-C", top, "status", "--porcelain"])
    return _output(["git", "-C", top, "rev-parse", "HEAD"]), None if status is None else bool(
        status
    )


def _output(command: list[str]) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
