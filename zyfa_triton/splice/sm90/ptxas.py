"""Decides what of ptxas's report about a kernel makes its loop unfit.

The report is that of Triton's own call: its options decide about registers.
"""

from __future__ import annotations

import contextlib
import io
import re
import sys
import threading
from collections.abc import Iterator
from typing import Any

from zyfa_triton.splice.errors import SpliceError, require
from zyfa_triton.splice.sm90.recipe import PtxRecipe

# C7510 to C7514: wgmma is serialised; C7508: setmaxnreg is ignored
_SERIALISED = re.compile(r"^.*\(C75\d\d\).*$", re.MULTILINE)
_capturing = threading.Lock()


class _OwnThread(io.TextIOBase):
    """Keeps what its own thread prints; the others' goes where it went before."""

    def __init__(self, others: Any) -> None:
        self.others = others
        self.owner = threading.get_ident()
        self.kept: list[str] = []

    def write(self, text: str) -> int:
        if threading.get_ident() == self.owner:
            self.kept.append(text)
        else:
            self.others.write(text)
        return len(text)

    def flush(self) -> None:
        self.others.flush()


@contextlib.contextmanager
def captured_report() -> Iterator[list[str]]:
    """What ptxas says while Triton's stage runs; Triton prints it if asked, and on errors."""
    from triton import knobs

    was_asked = bool(knobs.nvidia.dump_ptxas_log)
    with _capturing, knobs.nvidia.scope():
        knobs.nvidia.dump_ptxas_log = True
        output = _OwnThread(sys.stdout)
        with contextlib.redirect_stdout(output):
            yield output.kept
    if was_asked:
        print("".join(output.kept), end="")


def check_report(report: str, recipe: PtxRecipe, kernel: str) -> None:
    """Raise `SpliceError` if the kernel with the loop spills, serialises wgmma or is too large."""
    _, found, rest = report.partition(f"Compiling entry function '{kernel}'")
    require(found, "ptxas reports nothing about the kernel")
    own = rest.partition("Compiling entry function")[0]
    serialised = [line.strip() for line in _SERIALISED.findall(report)]
    require(not serialised, "ptxas: " + "; ".join(serialised))
    spilled = [int(number) for number in re.findall(r"(\d+) bytes spill", own)]
    used = re.search(r"Used (\d+) registers", own)
    require(len(spilled) >= 2 and used, "ptxas reports no spills and registers")
    assert used is not None
    require(
        max(spilled) <= recipe.maximum_spill_bytes,
        f"the kernel spills registers: {spilled[0]} bytes stored, {spilled[1]} loaded, "
        f"{recipe.maximum_spill_bytes} are allowed",
    )
    if recipe.maximum_registers is not None:
        require(
            int(used[1]) <= recipe.maximum_registers,
            f"the kernel takes {used[1]} registers, {recipe.name} allows "
            f"{recipe.maximum_registers}",
        )


def reason_of(error: Exception) -> str:
    """The first line in which ptxas says what it objects to."""
    lines = [line.strip() for line in str(error).splitlines()]
    return next((line for line in lines if "error" in line and "ptxas" in line and ":" in line
                 and not line.startswith("`")), lines[0] if lines else "no reason")  # fmt: skip


def failed(error: Exception) -> SpliceError:
    """ptxas refused the text."""
    return SpliceError(f"the spliced kernel does not compile: {reason_of(error)}")
