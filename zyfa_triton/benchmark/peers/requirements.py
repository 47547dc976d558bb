"""Reasons that several paths share: no card, another vendor's card, a package that is missing."""

from __future__ import annotations

import importlib
from types import ModuleType

import torch

from zyfa_triton.benchmark.inputs import Problem


def first_line(error: BaseException) -> str:
    """An error as a reason: its type and the first line that says something."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def no_card(problem: Problem, vendor: str = "") -> str:
    """Why there is no card of this vendor ("nvidia", "amd", "" for any); "" where there is."""
    if problem.device.type != "cuda":
        return f"needs a GPU; torch {torch.__version__} finds none here"
    found = "amd" if torch.version.hip else "nvidia"
    if vendor and vendor != found:
        return f"is for {vendor.upper()} GPUs"
    return ""


def imported(*names: str) -> ModuleType | str:
    """The first of these modules that imports, or why none does."""
    reasons = []
    for name in names:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            reasons.append(f"{error.name or name} is not installed")
        except Exception as error:  # a library that is there and broken says why in many ways
            reasons.append(f"{name} does not import: {first_line(error)}")
    return "; ".join(dict.fromkeys(reasons))
