"""Decides how it is said that a loop could not be replaced; does not decide when."""

from __future__ import annotations


class SpliceError(Exception):
    """A recipe does not fit the kernel. The message says why, to the kernel's author.

    Raised to the caller only in strict mode (ZYFA_STRICT=1); otherwise it becomes one
    `SpliceWarning` and Triton's own loop is kept.
    """


class SpliceWarning(UserWarning):
    """Triton's own loop was kept; the message names the kernel, the recipe and the reason."""


def require(holds: object, reason: str) -> None:
    """Raise `SpliceError` with the reason unless the condition holds."""
    if not holds:
        raise SpliceError(reason)
