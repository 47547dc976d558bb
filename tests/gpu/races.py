"""Runs compute-sanitizer's racecheck over the Hopper kernels: make gpu-sanitize.

racecheck (2025.3) does not follow a barrier and an arrival at an mbarrier behind it: where all
threads of a partition read or write, meet at a barrier, and one of them arrives for all, it reports
what the others did as a race with what is done after the wait. PTX's memory model orders the two
(causality order is transitive), and Gluon's `mbarrier.arrive` is made so. `race_control` holds the
smallest such kernel; this fails on the day that racecheck no longer reports it, because then its
reports of ours would have to be believed. It also reports, now and then, the bytes by which
Triton's `warp_specialize` tells waiting warps what to run, in kernels that do nothing else: those
carry the line of the kernel that calls it, which touches no shared memory itself.

Reports of these two kinds are counted and let pass; any other is a failure. What hands memory over
by mbarriers is held by other means: the rings by executing the loop and a model of two workgroups
(tests/asm, tests/unit), all of it by a thousand repeats with equal bits.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

Site = tuple[str, str]  # file, function
Pair = frozenset[Site]

ROOT = Path(__file__).resolve().parents[2]
SOURCES = (ROOT / "zyfa_triton/kernels/hopper", Path(__file__).parent)
KINDS = ("e4m3", "e4m3-exact", "bf16")
TESTS = [
    f"tests/gpu/{file}.py::test_lengths[(257, 257)-{kind}-{headdim}-causal]"
    for file in ("test_hopper", "test_hopper_ptx")
    for kind in KINDS
    for headdim in (128, 192)
]
KNOWN: dict[Pair, str] = {
    frozenset({("forward.py", "hopper_attention_forward")}): "Triton's start of partitions",
    frozenset({("producer.py", "_tell"), ("producer.py", "_told")}): "announced tiles",
}
CONTROL: Pair = frozenset({("race_control.py", "writes"), ("race_control.py", "reads")})
_SUMMARY = "RACECHECK SUMMARY"
_ACCESS = re.compile(
    r"=+\s+(?P<first>\w+: Race reported between )?(?:and )?(?:Read|Write) access at "
    r"\S+(?: in (?P<file>\S+):(?P<line>\d+))?"
)


def races(report: str, sources: Sequence[Path] = SOURCES) -> Counter[Pair]:
    """How often a report names each pair of functions that access shared memory."""
    found: Counter[Pair] = Counter()
    first: Site = ("", "")
    for line in report.splitlines():
        access = _ACCESS.search(line)
        if access is None:
            continue
        site = _site(access["file"], int(access["line"] or 0), sources)
        if access["first"]:
            first = site
        else:
            found[frozenset({first, site})] += 1
    return found


def _site(file: str | None, line: int, sources: Sequence[Path]) -> Site:
    """The outermost function at a line; an unknown one is named by what there is."""
    for source in sources:
        if file and (source / file).is_file():
            for node in ast.parse((source / file).read_text(encoding="utf-8")).body:
                if isinstance(node, ast.FunctionDef) and line in _lines(node):
                    return file, node.name
    return file or "?", f"line {line}"


def _lines(node: ast.FunctionDef) -> range:
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    return range(first, (node.end_lineno or node.lineno) + 1)


def unknown(found: Counter[Pair]) -> list[str]:
    """Reports that are not of the known kinds, as text."""
    return [f"{_named(pair)}: {count}" for pair, count in found.items() if pair not in KNOWN]


def _named(pair: Pair) -> str:
    return " and ".join(sorted(f"{file} {function}" for file, function in pair))


def racecheck(command: Sequence[str]) -> Counter[Pair]:
    """What the tool reports of a Python command, which must succeed."""
    tool = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    options = ["--tool", "racecheck", "--print-limit", "100000"]
    environment = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    done = subprocess.run(
        [tool, *options, sys.executable, *command],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode or _SUMMARY not in done.stdout:
        raise SystemExit(f"{' '.join(command)}: {done.stdout[-3000:]}{done.stderr[-3000:]}")
    return races(done.stdout)


def complaints() -> Iterator[str]:
    if CONTROL not in racecheck(["-m", "tests.gpu.race_control"]):
        yield "the control is not reported: reports of announced tiles must be believed then"
    found = racecheck(["-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *TESTS])
    for pair, count in found.items():
        if pair in KNOWN:
            print(f"let pass, {KNOWN[pair]}: {count} reports")
    yield from unknown(found)


def main() -> None:
    found = list(complaints())
    print("\n".join(found) or f"no other race in {len(TESTS)} tests")
    raise SystemExit(bool(found))


if __name__ == "__main__":
    main()
