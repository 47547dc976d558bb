"""Decides in which order the passes run and what is reported of their result; holds no pass."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from asm_overrides.passes.allocate import Budget, Pressure, allocate
from asm_overrides.passes.emit import emit
from asm_overrides.passes.hazards import Surroundings, insert_nops
from asm_overrides.passes.latency import Knobs
from asm_overrides.passes.lines import RegisterProgram
from asm_overrides.passes.schedule import StagePlan, plan_stages
from asm_overrides.passes.text import LABEL_PREFIX
from asm_overrides.passes.verify import verify
from asm_overrides.passes.waits import Boundary, insert_waits
from asm_overrides.program import LoopProgram

PASSES = ("schedule", "allocate", "waits", "hazards", "verify", "emit")
"""Names of the passes in the order in which they run."""

Dump = Callable[[str, str], None]
"""Told the name of each pass and the program behind it as text."""


@dataclass(frozen=True)
class Options:
    """How a loop is generated.

    Attributes:
        budget: registers that it may use.
        knobs: tuning of the order; None keeps the recipe's order.
        boundary, surroundings: the code around the loop, for waits and for nops.
        label_prefix: for `{L}` in labels.
    """

    budget: Budget = field(default_factory=Budget)
    knobs: Knobs | None = field(default_factory=Knobs)
    boundary: Boundary = field(default_factory=Boundary)
    surroundings: Surroundings = field(default_factory=Surroundings)
    label_prefix: str = LABEL_PREFIX


@dataclass(frozen=True)
class Report:
    """What was generated, in figures.

    Attributes:
        name: of the program.
        pressure: of the vector and of the scalar registers.
        vgprs, sgprs: highest register number in use + 1.
        lds_bytes: LDS that it needs.
        ports: instructions per port, as they stand in the text.
        waits, barriers: of s_waitcnt and s_barrier.
        nops: s_nop instructions; nop_states: wait states in them, 4 cycles each.
        stages: the expected times of each stage, empty if the recipe's order was kept.
        seconds: of each pass.
    """

    name: str
    pressure: tuple[Pressure, ...]
    vgprs: int
    sgprs: int
    lds_bytes: int
    ports: dict[str, int]
    waits: int
    barriers: int
    nops: int
    nop_states: int
    stages: tuple[StagePlan, ...]
    seconds: dict[str, float]

    def __str__(self) -> str:
        ports = ", ".join(f"{count} {port}" for port, count in sorted(self.ports.items()))
        return (
            f"{self.name}: {self.vgprs} VGPRs, {self.sgprs} SGPRs, {self.lds_bytes} bytes of LDS; "
            f"{ports}; {self.waits} waits, {self.barriers} barriers, "
            f"{self.nops} nops of {self.nop_states} states"
        )


@dataclass(frozen=True)
class Generated:
    """Text of a loop, the program it was written from, and the report."""

    text: str
    program: RegisterProgram
    report: Report


def generate(
    program: LoopProgram, options: Options | None = None, dump: Dump | None = None
) -> Generated:
    """Run all passes.

    Raises:
        ValueError: whatever a pass rejects; the message names the recipe's line.
    """
    options = options or Options()
    timer = _Timer()
    plans: list[StagePlan] = []
    with timer("schedule"):
        if options.knobs is not None:
            plans = plan_stages(program, options.knobs)
            program = program.with_stages(plan.stage for plan in plans)
    _tell(dump, "schedule", lambda: describe(program))
    with timer("allocate"):
        allocation = allocate(program, options.budget)
    _tell(dump, "allocate", lambda: listing(allocation.assigned))
    with timer("waits"):
        waiting = insert_waits(allocation.assigned, options.boundary)
    _tell(dump, "waits", lambda: listing(waiting))
    with timer("hazards"):
        safe = insert_nops(waiting, options.surroundings)
    _tell(dump, "hazards", lambda: listing(safe.program))
    with timer("verify"):
        verify(safe.program, options.budget)
    with timer("emit"):
        text = emit(safe.program, options.label_prefix)
    _tell(dump, "emit", lambda: text)
    report = _report(safe.program, allocation.pressure, tuple(plans), timer.seconds)
    return Generated(text, safe.program, report)


def describe(program: LoopProgram) -> str:
    """A symbolic program as text."""
    lines = [f"; {program.name}"]
    for stage in program.stages:
        lines.append(f"; -- {stage.name} ({stage.kind})")
        lines += [f"    {op}" if not op.label else str(op) for op in stage.ops]
    return "\n".join(lines) + "\n"


def listing(program: RegisterProgram) -> str:
    """A program with registers as text, between passes."""
    lines = []
    for line in program.lines:
        if line.op.label:
            lines.append(f"{line.op.label}:")
        elif line.instruction is None:
            pairs = ", ".join(f"{ring} {count}" for ring, count in line.op.publishes)
            lines.append(f"    {line.op.opcode} {pairs or ', '.join(line.op.lds_reads)}")
        else:
            lines.append(f"    {line.text}")
    return "\n".join(lines) + "\n"


def _tell(dump: Dump | None, name: str, text: Callable[[], str]) -> None:
    if dump is not None:
        dump(name, text())


class _Timer:
    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.seconds[name] = time.perf_counter() - started


def _report(
    program: RegisterProgram,
    pressure: tuple[Pressure, ...],
    stages: tuple[StagePlan, ...],
    seconds: dict[str, float],
) -> Report:
    instructions, _, _ = program.instructions()
    ports = Counter[str](each.spec.port for each in instructions)
    opcodes = Counter(each.opcode for each in instructions)
    used = {each.file: each.used for each in pressure}
    return Report(
        name=program.program.name,
        pressure=pressure,
        vgprs=used["v"],
        sgprs=used["s"],
        lds_bytes=program.program.lds_bytes,
        ports=dict(ports),
        waits=opcodes["s_waitcnt"],
        barriers=opcodes["s_barrier"],
        nops=opcodes["s_nop"],
        nop_states=sum(_nop_states(line.text) for line in program.lines),
        stages=stages,
        seconds=seconds,
    )


def _nop_states(text: str) -> int:
    opcode, _, count = text.partition(" ")
    return int(count) + 1 if opcode == "s_nop" else 0
