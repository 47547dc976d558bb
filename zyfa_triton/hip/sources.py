"""Decides where the HIP sources lie: beside this file in an installed wheel, else in a checkout."""

from __future__ import annotations

from pathlib import Path

_INSTALLED = Path(__file__).parent / "source"
_CHECKOUT = Path(__file__).parents[2] / "hip"


def source(name: str) -> Path:
    """A source file; FileNotFoundError names the folders where it was looked for."""
    for folder in (_INSTALLED, _CHECKOUT):
        if (folder / name).is_file():
            return folder / name
    raise FileNotFoundError(f"{name} is neither in {_INSTALLED} nor in {_CHECKOUT}")
