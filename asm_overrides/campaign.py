"""Decides what became of each planted mistake: found, or visible in the result, or neither.

It runs the static checks first, then trials that execute the changed lines, cheapest first, and
stops at the first that notices. Which mistakes there are is said by mutate.py and dependent.py.
"""

from __future__ import annotations

import multiprocessing
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from asm_overrides.check import check_kernel
from asm_overrides.dependent import SWAPPED, swaps
from asm_overrides.emulator import FindingLog, Kernel, Result, load_text
from asm_overrides.emulator.launch import ChecksFactory
from asm_overrides.mutate import Mutation, mutations

GUARD_KINDS = (
    *("wait-removed", "wait-weakened", "nop-removed", "nop-shortened", "barrier-removed"),
)
"""Mistakes in what the passes and the recipe insert for order's sake; see mutate.KINDS."""

STATIC, DYNAMIC, RESULT, WORK, SURVIVED = "static", "dynamic", "result", "work", "survived"
VERDICTS = {
    STATIC: "found without running: wait states, waits",
    DYNAMIC: "found by the emulator's checks in a run",
    RESULT: "changes the result, or does not finish",
    WORK: "takes another way to the same result: more instructions, or fewer",
    SURVIVED: "not noticed",
}


class Trial(Protocol):
    """Something that a kernel can be run on, always with the same inputs."""

    @property
    def name(self) -> str: ...

    def run(
        self,
        kernel: Kernel,
        *,
        seed: int | None = None,
        checks: bool | ChecksFactory = True,
        limit: int | None = None,
    ) -> tuple[Result, bytes]:
        """The emulator's result, and everything stored. See emulator.run for the arguments."""
        ...


@dataclass(frozen=True)
class Verdict:
    """What became of a mistake.

    Attributes:
        verdict: one of VERDICTS. why: the finding, or the trial that noticed.
    """

    mutation: Mutation
    verdict: str
    why: str


@dataclass(frozen=True)
class _Baseline:
    trial: Trial
    stored: bytes
    lines: frozenset[int]
    wave_instructions: int


@dataclass
class Campaign:
    """Mistakes in one loop.

    Attributes:
        loop: its text. frame: puts a loop into a kernel.
        trials: together they execute every line.
        seeds: interleavings tried, besides lockstep, before a mistake counts as unnoticed.
    """

    loop: str
    frame: Callable[[str], str]
    trials: Sequence[Trial]
    seeds: Sequence[int] = (1, 2, 3)
    _baselines: list[_Baseline] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Run the loop as it is.

        Raises:
            ValueError: the checks find something in it, or no trial executes some line.
        """
        mark = "; the loop"
        self._offset = self.frame(mark).split("\n").index(mark)
        kernel = load_text(self.frame(self.loop))
        found = check_kernel(kernel, strict=True)
        for trial in self.trials:
            result, stored = trial.run(kernel)
            found += result.findings
            seen = _Executed()
            trial.run(kernel, checks=seen.made_for)
            lines = frozenset(kernel.instructions[i].line - self._offset for i in seen.indices)
            self._baselines.append(_Baseline(trial, stored, lines, result.wave_instructions))
        if found:
            raise ValueError(f"without a mistake: {found[0]}")
        self._baselines.sort(key=lambda each: each.wave_instructions)

    def unexecuted(self) -> list[int]:
        """Lines of the loop that hold an instruction and that no trial executes."""
        executed = frozenset[int]().union(*(each.lines for each in self._baselines))
        code = load_text(self.frame(self.loop)).instructions
        inside = range(1, self.loop.count("\n") + 2)
        lines = (each.line - self._offset for each in code)
        return [line for line in lines if line in inside and line not in executed]

    def mistakes(self) -> list[Mutation]:
        """Everything that is planted, in order of kinds."""
        return [*mutations(self.loop, GUARD_KINDS), *swaps(self.loop)]

    def judge(self, mutation: Mutation) -> Verdict:
        """What becomes of one mistake."""
        kernel = load_text(self.frame(mutation.apply(self.loop)))
        findings = check_kernel(kernel, strict=True)
        if findings:
            return Verdict(mutation, STATIC, str(findings[0]))
        concerned = [each for each in self._baselines if each.lines.intersection(mutation.lines)]
        seeds = self.seeds
        if mutation.kind == SWAPPED:
            # most show in the result at once; what does not hardly depends on the interleaving
            seeds = seeds[:1]
            for each in concerned:
                verdict = _run(mutation, kernel, each, None, False)
                if verdict and verdict.verdict != WORK:
                    return verdict
        other_way = None
        for seed in (None, *seeds):
            for each in concerned:
                verdict = _run(mutation, kernel, each, seed, True)
                if verdict and verdict.verdict != WORK:
                    return verdict
                other_way = other_way or verdict
        return other_way or Verdict(mutation, SURVIVED, f"{len(concerned)} trials")

    def sample(self, size: int, seed: int) -> list[Mutation]:
        """Some of the mistakes, of every kind alike, as far as the trials execute their lines."""
        dice = random.Random(seed)
        idle = frozenset(self.unexecuted())
        by_kind: dict[str, list[Mutation]] = {}
        for each in self.mistakes():
            if idle.isdisjoint(each.lines):
                by_kind.setdefault(each.kind, []).append(each)
        share = -(-size // len(by_kind))
        return [
            mutation
            for found in by_kind.values()
            for mutation in dice.sample(found, min(share, len(found)))
        ]

    def run(self, chosen: Iterable[Mutation], processes: int = 1) -> Iterator[Verdict]:
        """Verdicts in the order in which they are reached."""
        if processes == 1:
            yield from map(self.judge, chosen)
            return
        context = multiprocessing.get_context("fork")
        with context.Pool(processes, _adopt, (self,)) as pool:
            yield from pool.imap_unordered(_judge_adopted, chosen)


def count(verdicts: Iterable[Verdict]) -> dict[str, dict[str, int]]:
    """Kind -> verdict -> how many; every verdict that occurs nowhere counts 0."""
    table: dict[str, Counter[str]] = {}
    for each in verdicts:
        table.setdefault(each.mutation.kind, Counter())[each.verdict] += 1
    return {kind: {name: row[name] for name in VERDICTS} for kind, row in table.items()}


_LIMIT = 2
"""A mistake has made a program endless if it executes more than so many times as much as before."""


def _run(
    mutation: Mutation, kernel: Kernel, base: _Baseline, seed: int | None, checks: bool
) -> Verdict | None:
    limit = _LIMIT * base.wave_instructions + 1000
    result, stored = base.trial.run(kernel, seed=seed, checks=checks, limit=limit)
    where = base.trial.name if seed is None else f"{base.trial.name}, seed {seed}"
    if not result.finished:
        return Verdict(mutation, RESULT, f"does not finish ({where})")
    if result.findings:
        return Verdict(mutation, DYNAMIC, f"{result.findings[0]} ({where})")
    if stored != base.stored:
        return Verdict(mutation, RESULT, where)
    more = result.wave_instructions - base.wave_instructions
    if mutation.kind == SWAPPED and more:
        return Verdict(mutation, WORK, f"{more:+} wave-instructions ({where})")
    return None


class _Executed:
    """Stands in for the checks and only notes which instructions are executed."""

    def __init__(self) -> None:
        self.indices: set[int] = set()

    def made_for(self, kernel: Kernel, log: FindingLog) -> _Executed:
        """Itself, as the factory that emulator.run asks for."""
        return self

    def on_instruction(self, group: Any, instruction: Any, index: int) -> None:
        self.indices.add(index)

    def _ignore(self, *_: Any) -> None:
        pass

    on_start = on_lds = on_memory = on_barrier = on_end = _ignore


_adopted: Campaign | None = None


def _adopt(campaign: Campaign) -> None:
    global _adopted
    _adopted = campaign


def _judge_adopted(mutation: Mutation) -> Verdict:
    assert _adopted is not None
    return _adopted.judge(mutation)
