"""Decides whose schedules are predicted and how a row of them reads; the model is asm_overrides'.

The ping-pong loop is generated, not compiled, and files are only read: both need neither Triton nor
torch, so that a changed recipe is seen at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from asm_overrides.passes.pipeline import Options, generate
from asm_overrides.recipes.attention_fp8 import Parameters, build
from asm_overrides.timing import DEFAULT, Constants, Prediction, predict, steady_file, steady_text
from zyfa_triton import env


@dataclass(frozen=True)
class Scheduled:
    """A kernel's predicted schedule.

    Attributes:
        kernel: "triton", "pingpong", "hip" or the name of a kernel in a file. settings: of the
            ping-pong loop, where they are not the default ones. file: that file, else "".
        prediction: port bound and replays. notes: comments of the assembler text, by line.
    """

    kernel: str
    settings: str
    file: str
    prediction: Prediction
    notes: Mapping[int, str] = field(default_factory=dict, repr=False)
    known: Mapping[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """The row; what is known of the op's own kernels replaces what the code tells."""
        row = {"kernel": self.kernel, "settings": self.settings, "file": self.file}
        return row | self.prediction.as_json() | dict(self.known)


def of_recipe(constants: Constants = DEFAULT, **parameters: Any) -> Scheduled:
    """Schedule of the ping-pong loop; raises ValueError for parameters that it does not take."""
    asked = Parameters(**parameters)
    text = generate(build(asked), Options(label_prefix=".L")).text
    default = Parameters(causal=asked.causal, p_mode=asked.p_mode, headdim=asked.headdim)
    settings = [
        f"{name}={getattr(asked, name)}"
        for name in ("pack", "multiply_add", "row_sum")
        if getattr(asked, name) != getattr(default, name)
    ]
    return Scheduled(
        "pingpong",
        " ".join(settings),
        "",
        predict(steady_text(text), constants),
        _notes(text),
        {"p_mode": asked.p_mode},
    )


def of_triton(p_mode: str, *, dtype: str = "fp8", headdim: int = 128, causal: bool = True,
              constants: Constants = DEFAULT) -> Scheduled:  # fmt: skip
    """Schedule of Triton's own loop, compiled for gfx950.

    Raises:
        ValueError: the op refuses such a problem. RuntimeError: it does not compile here.
    """
    return _of_compiled("triton", dtype, headdim, p_mode, causal, constants)


def of_hip(headdim: int, *, causal: bool = True, constants: Constants = DEFAULT) -> Scheduled:
    """Schedule of the BF16 kernel in HIP C++; RuntimeError where no compiler makes it."""
    return _of_compiled("hip", "bf16", headdim, "exact", causal, constants)


def _of_compiled(
    kernel: str, dtype: str, headdim: int, p_mode: str, causal: bool, constants: Constants
) -> Scheduled:
    from zyfa_triton import offline
    from zyfa_triton.measure import DTYPES

    asked = offline.problem(dtype=DTYPES[dtype], headdim=headdim, p_mode=p_mode, causal=causal)
    compiled, _ = offline.compile_problem(asked, kernel=kernel)
    prediction = predict(steady_text(compiled.amdgcn), constants)
    known = {"dtype": dtype, "headdim": headdim, "p_mode": asked.p_mode}
    return Scheduled(kernel, "", "", prediction, _notes(compiled.amdgcn), known)


def of_file(
    path: Path,
    *,
    waves: int | None = None,
    decisions: Mapping[int, bool] | None = None,
    constants: Constants = DEFAULT,
) -> Scheduled:
    """Schedule of the kernel in a file; raises as `asm_overrides.timing.steady_file`."""
    steady = steady_file(path, waves=waves, decisions=decisions, objdump=env.objdump())
    data = path.read_bytes()
    notes = {} if data.startswith(b"\x7fELF") else _notes(data.decode())
    return Scheduled(steady.name or path.stem, "", str(path), predict(steady, constants), notes)


def _notes(text: str) -> dict[int, str]:
    """Comment of each line that has one."""
    found = {}
    for number, line in enumerate(text.splitlines(), 1):
        _, mark, comment = line.partition(";")
        if mark and comment.strip():
            found[number] = comment.strip()
    return found
