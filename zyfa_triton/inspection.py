"""Decides which kernels are inspected and what a row about one says.

Cycles come from `asm_overrides.inspection`, that is from the machine code; nothing here knows what
a kernel was meant to do. It compiles without data (`offline`) and prints nothing. Files need
neither Triton nor torch.
"""

from __future__ import annotations

import dataclasses
import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asm_overrides.inspection import KernelCost, inspect_file, inspect_text
from zyfa_triton import env

if TYPE_CHECKING:
    from zyfa_triton.kernels.pingpong import PingPongLoop
    from zyfa_triton.problem import Problem


@dataclass(frozen=True)
class Row:
    """One kernel's main loop: cycles of one wave for 32 queries x 128 keys, and resources.

    Attributes:
        kernel: "triton", "pingpong", "hip", or the name of a kernel in a file. file: that file,
            else "". settings: of the ping-pong loop, where they are not the default ones, such as
            "pack=op_sel".
        dtype, headdim: of q and k. p_mode: "lean" or "exact"; of a kernel in a file as far as its
            code tells: "exact" if it takes exponentials of scores.
        mfma_qk, mfma_pv, mfma_rowsum, mfma_other: matrix cycles by purpose.
        softmax_valu: vector cycles of what is done once a score. softmax_valu_blocked: the part
            that cannot run beside a matrix instruction. other_valu: all other vector cycles.
        lds: cycles of LDS instructions. barriers: how many.
        vgprs: vector registers of a lane, accumulation registers included. spills: how many of them
            were spilled, None if unknown.
        lds_bytes: of a workgroup, None where only the launcher knows.
        detail: the cost that the figures are taken from, and those of the kernel's other loops.
    """

    kernel: str
    settings: str
    file: str
    dtype: str
    headdim: int
    p_mode: str
    mfma_qk: float
    mfma_pv: float
    mfma_rowsum: float
    mfma_other: float
    softmax_valu: float
    softmax_valu_blocked: float
    other_valu: float
    lds: float
    barriers: float
    vgprs: int
    spills: int | None
    lds_bytes: int | None
    detail: KernelCost = dataclasses.field(repr=False)

    @classmethod
    def of(cls, found: KernelCost, **known: Any) -> Row:
        """A row about a kernel; `known` replaces what is read from its code."""
        cost = found.cost
        names = {field.name for field in dataclasses.fields(cls)} & set(vars(cost))
        values: dict[str, Any] = {name: getattr(cost, name) for name in names}
        values |= {"kernel": found.name, "settings": "", "file": "", "dtype": cost.element_type}
        values |= {name: getattr(found, name) for name in ("vgprs", "spills", "lds_bytes")}
        return cls(**{**values, **known}, detail=found)

    def as_json(self) -> dict[str, Any]:
        """The row with what its figures were counted from."""
        row = {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.name != "detail"
        }
        return row | {
            "steady_state": dataclasses.asdict(self.detail.cost),
            "other_loops": [dataclasses.asdict(cost) for cost in self.detail.others],
        }


def of_kernel(kernel: str, asked: Problem) -> Row:
    """The row of one of the op's own kernels, compiled for a problem.

    Raises:
        ValueError: that kernel does not serve the problem.
        RuntimeError: it does not compile here, or the loop asked for gave way to Triton's.
    """
    from zyfa_triton import offline

    compiled, _ = offline.compile_problem(asked, kernel=kernel)
    (found,) = inspect_text(compiled.amdgcn, dynamic_lds=compiled.shared)
    return Row.of(found, kernel=kernel, headdim=asked.headdim, p_mode=asked.p_mode)


def of_other_settings(asked: Problem) -> list[Row]:
    """Rows of the ping-pong loop in every combination of its settings but the default one.

    The loop alone is generated and looked at: nothing is compiled. Raises ValueError where the
    loop does not serve the problem.
    """
    from zyfa_triton.kernels import pingpong

    misfit = pingpong.misfit_of_kind(
        is_fp8=asked.is_fp8,
        headdim=asked.headdim,
        p_mode=asked.p_mode,
        block_scale=asked.block_scale,
    )
    if misfit:
        raise ValueError(f"the ping-pong loop does not serve this problem: {misfit}")

    def loop(**settings: Any) -> pingpong.PingPongLoop:
        return pingpong.PingPongLoop(
            name="inspected",
            p_mode=asked.p_mode,
            is_causal=asked.causal,
            headdim=asked.headdim,
            **settings,
        )

    names, values = zip(*pingpong.settings().items(), strict=True)
    default = tuple(each[0] for each in values)
    seen: list[list[str]] = []
    rows = []
    for chosen in itertools.product(*values):  # the default comes first
        settings = dict(zip(names, chosen, strict=True))
        variant = loop(**settings)
        code = _code(variant)
        if code in seen:  # some settings concern one p_mode only
            continue
        seen.append(code)
        if chosen == default:
            continue
        (found,) = inspect_text(variant.generated("").text, dynamic_lds=variant.lds_bytes)
        others = [
            f"{name}={value}"
            for name, value, usual in zip(names, chosen, default, strict=True)
            if value != usual
        ]
        rows.append(
            Row.of(
                found,
                kernel="pingpong",
                settings=" ".join(others),
                p_mode=asked.p_mode,
                vgprs=variant.vgprs,
                spills=0,  # the generator refuses rather than spill
            )
        )
    return rows


def _code(loop: PingPongLoop) -> list[str]:
    return [line.text for line in loop.generated("").program.lines]


def of_file(path: Path) -> list[Row]:
    """Rows of the kernels in a file; raises as `asm_overrides.inspection.inspect_file`."""
    return [
        Row.of(found, kernel=found.name or path.stem, file=str(path))
        for found in inspect_file(path, objdump=env.objdump())
    ]
