"""Which questions a self-test puts to the machine at hand, and what it allows after the answers.

On a gfx950: probes, whole kernels and cycles, all on the card; what is allowed goes to the tuning
file. Elsewhere the emulator answers the probes, so that they are known to work. It does not know
how a question is asked (`asm_overrides.probes`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from asm_overrides.emulator import DEFAULT_MACHINE, Machine, UnsupportedInstructionError
from asm_overrides.probes import Probe, all_probes, emulated
from asm_overrides.probes.builder import Words
from asm_overrides.probes.cycles import CycleProbe, all_cycle_probes
from zyfa_triton.selftest import card, kernels
from zyfa_triton.selftest.rows import NEEDS_A_CARD, Row

__all__ = ["NEEDS_A_CARD", "Row", "ask_probes", "names", "needed_for", "run", "settings_from"]

Execute = Callable[[Probe], Words]
Progress = Callable[[int, int], None]

_OP_SEL_NEEDS = ("packing/ashr-pk-other-half", "packing/ashr-pk-saturation")


def names() -> tuple[str, ...]:
    """Names of all rows, in order."""
    cycles = (each.probe.name for each in all_cycle_probes())
    probes = (each.name for each in all_probes())
    return (*probes, *(case.name for case in kernels.cases()), *cycles)


def run(
    only: Sequence[str] = (),
    *,
    on_card: bool,
    machine: Machine = DEFAULT_MACHINE,
    allow: Callable[[dict[str, str]], object] | None = None,
    progress: Progress | None = None,
) -> list[Row]:
    """Ask, in the order probes, kernels, cycles.

    Args:
        only: beginnings of the names to ask for; all where there are none.
        on_card: whether the current device answers; else the emulator does.
        machine: what the emulator answers in a card's place.
        allow: called with the settings that the probes allow, before the kernels run with them;
            not without a card, nor where the probes they depend on were not asked.
        progress: called with (rows done, rows in all).
    """
    asked = [name for name in names() if _chosen(name, only)]
    rows: list[Row] = []

    def add(new: Iterable[Row]) -> None:
        for row in new:
            rows.append(row)
            if progress is not None:
                progress(len(rows), len(asked))

    execute: Execute = card.execute if on_card else partial(emulated.execute, machine=machine)
    add(ask_probes([probe for probe in all_probes() if probe.name in asked], execute))
    settings = settings_from(rows)
    if on_card and allow is not None and settings:
        allow(settings)
    for case in kernels.cases():
        if case.name in asked:
            add([kernels.check(case, on_card=on_card)])
    for each in all_cycle_probes():
        if each.probe.name in asked:
            add([_ask_cycles(each, execute)])
    return rows


def _chosen(name: str, only: Sequence[str]) -> bool:
    return not only or any(name.startswith(each) for each in only)


def ask_probes(probes: Iterable[Probe], execute: Execute) -> Iterable[Row]:
    """A row a probe, as they are answered."""
    for probe in probes:
        started = time.perf_counter()
        try:
            outcome = probe.judge(execute(probe))
        except RuntimeError as error:  # the driver's: the others may still be answered
            outcome = f"failed: {error}"
        yield Row(
            kind="probe",
            name=probe.name,
            question=probe.question,
            assumed=probe.assumed,
            outcome=outcome,
            agrees=outcome == probe.assumed,
            seconds=time.perf_counter() - started,
        )


def _ask_cycles(each: CycleProbe, execute: Execute) -> Row:
    started = time.perf_counter()
    agrees: bool | None = None
    try:
        measured = each.measured(execute(each.probe))
    except UnsupportedInstructionError:  # s_memtime: the emulator has no clock
        outcome = NEEDS_A_CARD
    except RuntimeError as error:
        outcome, agrees = f"failed: {error}", False
    else:
        outcome, agrees = f"{measured:.1f} cycles", each.agrees(measured)
    return Row(
        kind="cycles",
        name=each.probe.name,
        question=each.probe.question,
        assumed=each.probe.assumed,
        outcome=outcome,
        agrees=agrees,
        seconds=time.perf_counter() - started,
    )


def needed_for(setting: str) -> tuple[str, ...]:
    """Names of the probes that decide a setting of the hand-scheduled loop."""
    return {"pack": _OP_SEL_NEEDS}[setting]


def settings_from(rows: Sequence[Row]) -> dict[str, str]:
    """Settings of the hand-scheduled loop that the answers allow; {} if they were not asked for."""
    agrees = {row.name: row.agrees for row in rows}
    needed = needed_for("pack")
    if not all(name in agrees for name in needed):
        return {}
    return {"pack": "op_sel" if all(agrees[name] for name in needed) else "perm"}
