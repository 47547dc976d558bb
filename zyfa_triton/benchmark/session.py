"""What happens in a benchmark, in order: inputs, set-up, gate, timing, gate again, rows.

It prints nothing and chooses neither cases nor paths.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from zyfa_triton import tuning
from zyfa_triton.activations import Activations
from zyfa_triton.benchmark import card as cards
from zyfa_triton.benchmark import inputs, matmul
from zyfa_triton.benchmark.card import Card
from zyfa_triton.benchmark.gate import Gate, Output, Verdict
from zyfa_triton.benchmark.inputs import Problem
from zyfa_triton.benchmark.peers import Call, Path
from zyfa_triton.benchmark.peers.requirements import first_line
from zyfa_triton.benchmark.rows import Measured, Row
from zyfa_triton.benchmark.sampling import Sampler, State, state
from zyfa_triton.benchmark.shapes import Case
from zyfa_triton.benchmark.timing import Candidate, Pacing, Times, interleaved


@dataclass(frozen=True)
class Rate:
    """What a matrix product reached in this run: TFLOP/s, and the card meanwhile."""

    dtype: str
    tflops: float | None
    state: State = field(default_factory=State)
    reason: str = ""


@dataclass
class _Contestant:
    """A path on its way through a case. It ends with a reason, or with a candidate.

    call: kept until the case is over. It owns what a captured graph reads without owning it: plans,
        workspaces, masks, scales.
    """

    path: Path
    reason: str = ""
    is_wrong: bool = False
    call: Call | None = None
    verdict: Verdict | None = None
    config: dict[str, Any] | None = None
    candidate: Candidate | None = None
    results: Sequence[Output] = ()
    is_graph: bool = True


@dataclass
class Session:
    """One benchmark run on one card, or, with card None, the reasons why nothing runs.

    notice: told what comes next, for people who wait.
    """

    paths: Sequence[Path]
    pacing: Pacing
    card: Card | None
    notice: Callable[[str], None] = lambda text: None
    sampler: Sampler | None = None
    rates: tuple[Rate, ...] = ()

    def run(
        self,
        cases: Sequence[Case],
        captured: Sequence[Activations | None],
        on_case: Callable[[list[Row], int, int], None] | None = None,
    ) -> list[Row]:
        """Rows of every case with every kind of inputs (None is Gaussian).

        on_case: called after each with all rows so far, cases done and cases in all.
        """
        rows: list[Row] = []
        todo = [(case, source) for case in cases for source in captured]
        if self.card is None:
            for case, source in todo:
                rows += self._reasons(case, source)
            return rows
        with self.card.sampler() as self.sampler:
            self.rates = self._rates({dtype for case in cases for dtype in case.dtypes})
            for done, (case, source) in enumerate(todo, 1):
                rows += self._case(self.card, case, source)
                if on_case is not None:
                    on_case(rows, done, len(todo))
        return rows

    def _taking_part(self, case: Case) -> list[Path]:
        return [path for path in self.paths if path.dtype in case.dtypes]

    def _reasons(self, case: Case, source: Activations | None) -> list[Row]:
        problem = inputs.described(case, source, torch.device("cpu"))
        rows = []
        for path in self._taking_part(case):
            why = path.setup(problem)
            reason = why if isinstance(why, str) else "there is no GPU to time it on"
            rows.append(_row(problem, _Contestant(path, reason), reason))
        return rows

    def _rates(self, dtypes: set[str]) -> tuple[Rate, ...]:
        assert self.card is not None
        rates = []
        for dtype in sorted(dtypes):
            call = matmul.product(dtype, self.card.device)
            if isinstance(call, str):
                rates.append(Rate(dtype, None, reason=call))
                continue
            times = self._timed([Candidate(dtype, call, 1)])[dtype]
            tflops = matmul.flop() / times.median / 1e12
            rates.append(Rate(dtype, tflops, self._state(times)))
        return tuple(rates)

    def _case(self, card: Card, case: Case, source: Activations | None) -> list[Row]:
        contestants = [_Contestant(path) for path in self._taking_part(case)]
        try:
            problem = inputs.make(case, source, device=card.device, l2_bytes=card.l2_bytes)
        except ValueError as error:
            problem = inputs.described(case, source, card.device)
            return [_row(problem, one, str(error)) for one in contestants]
        gates = {dtype: Gate(problem, dtype) for dtype in case.dtypes}
        for one in contestants:
            self._prepare(card, problem, one, gates[one.path.dtype])
        timed = [one.candidate for one in contestants if one.candidate is not None]
        self.notice(f"{case.label}, {problem.inputs}: timing {len(timed)} of {len(contestants)}")
        times = self._timed(timed) if timed else {}
        rows = []
        for one in contestants:
            if one.candidate is not None:  # the very results of the timed calls
                again = gates[one.path.dtype].judge(one.results[-1])
                if again.complaint:
                    one.reason, one.is_wrong = _wrong(again, " while timed"), True
            if one.reason:
                rows.append(_row(problem, one, one.reason))
            else:
                assert one.candidate is not None
                figures = self._figures(
                    problem, one, times[one.candidate.name], gates[one.path.dtype]
                )
                rows.append(_row(problem, one, figures))
        return rows

    def _prepare(self, card: Card, problem: Problem, one: _Contestant, gate: Gate) -> None:
        """Sets a path up, judges its result, and records its calls if that is right."""
        self.notice(f"{problem.case.label}, {problem.inputs}: {one.path.name} ({one.path.dtype})")
        try:
            call = one.path.setup(problem)
            if isinstance(call, str):
                one.reason = call
                return
            one.call = call
            shape = problem.shape
            card.poison(4 * shape.batch * shape.seqlen * shape.nheads * shape.headdim_v)
            with tuning.observed() as seen:
                output = call(problem.sets[0])
            one.config = dict(seen[-1]) if seen else {}
            one.verdict = gate.judge(output)
            del output
        except (ValueError, NotImplementedError) as error:  # our op's way to say no
            one.reason = f"refuses: {first_line(error)}"
            return
        except Exception as error:  # whatever another's library raises is its reason
            one.reason = f"fails: {first_line(error)}"
            return
        if one.verdict.complaint:
            one.reason, one.is_wrong = _wrong(one.verdict), True
            return
        calls = [partial(call, tensors) for tensors in problem.sets]
        try:
            replay, one.results = card.capture(calls)
        except Exception:  # not everything can be captured; it is timed all the same, and says so
            one.is_graph = False
            replay, one.results = cards.called(calls)
        one.candidate = Candidate(f"{one.path.name} {one.path.dtype}", replay, len(calls))

    def _timed(self, candidates: Sequence[Candidate]) -> dict[str, Times]:
        assert self.card is not None
        return interleaved(candidates, self.pacing, self.card.stopwatch, clock=self.card.clock)

    def _state(self, times: Times) -> State:
        return State() if self.sampler is None else state(self.sampler.readings, times.windows)

    def _figures(self, problem: Problem, one: _Contestant, times: Times, gate: Gate) -> Measured:
        assert one.candidate is not None and one.verdict is not None
        tflops = problem.shape.tflops(times.median)
        rate = next((rate.tflops for rate in self.rates if rate.dtype == one.path.dtype), None)
        low, high = times.quantiles
        now = self._state(times)
        return Measured(
            ms_median=1e3 * times.median,
            ms_p20=1e3 * low,
            ms_p80=1e3 * high,
            tflops=tflops,
            share_of_matmul=None if rate is None else tflops / rate,
            matmul_tflops=rate,
            rel_err_same_inputs=one.verdict.rel_err,
            rel_err_model=gate.model_error,
            clock_mhz=now.clock_mhz,
            power_w=now.power_w,
            samples=len(times.samples),
            calls_a_sample=one.candidate.calls,
            drift=times.drift,
            graph=one.is_graph,
            config=one.config or {},
        )


def _wrong(verdict: Verdict, when: str = "") -> str:
    return f"wrong{when}: {verdict.complaint}; relative error {verdict.rel_err:.2e}"


def _row(problem: Problem, one: _Contestant, result: Measured | str) -> Row:
    path = one.path
    return Row(
        path.name, path.dtype, path.p_mode, problem.case, problem.inputs, result, one.is_wrong
    )
