"""Runs compute-sanitizer's racecheck over the Hopper kernels: make gpu-sanitize.

Any report is a failure. A control with a race in it must be reported and one without must not, so
that silence says something (`race_control`); what else the tool needs is in `race_start`.

What it does not see: tiles that the copy engine writes or matrix instructions read; stmatrix. The
rings of tiles are held by other means: by executing the loop and a model of two workgroups
(tests/asm, tests/unit), all of it by a thousand repeats with equal bits. It does not end on
workgroups that share tiles (CLUSTER 2; stopped after 110 s), which memcheck and synccheck do.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

Site = tuple[str, str]  # file, function
Pair = frozenset[Site]

ROOT = Path(__file__).resolve().parents[2]
SOURCES = (ROOT / "zyfa_triton/kernels/hopper", Path(__file__).parent)
KERNELS, HEADDIMS = ("gluon", "ptx"), ("128", "192")
KINDS = ("e4m3", "e4m3-exact", "bf16")
CALLS = [
    *((*case, "0") for case in product(KERNELS, KINDS, HEADDIMS)),
    *((kernel, "e4m3", "128", "2") for kernel in KERNELS),  # workgroups take several tiles
    *(("gluon", "quantising", headdim, "0") for headdim in HEADDIMS),
]
PATIENCE = 150  # s
_SUMMARY = re.compile(r"RACECHECK SUMMARY: (\d+) hazards? displayed")
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


def racecheck(module: str, arguments: Sequence[str]) -> Counter[Pair]:
    """What the tool reports of a program, which must succeed."""
    tool = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    options = ["--tool", "racecheck", "--print-limit", "100000"]
    command = " ".join([module, *arguments])
    with tempfile.TemporaryDirectory() as cache:  # its kernels are not those that others are to run
        environment = {
            **os.environ,
            "PYTORCH_NO_CUDA_MEMORY_CACHING": "1",
            "TRITON_CACHE_DIR": cache,
            "ZYFA_STRICT": "1",
        }
        checked = subprocess.Popen(
            [tool, *options, sys.executable, "-m", module, *arguments], cwd=ROOT, env=environment,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        try:
            output, errors = checked.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            os.killpg(checked.pid, signal.SIGKILL)  # the tool's child, too: it holds the device
            raise SystemExit(f"{command}: did not end within {PATIENCE} s") from None
    summary = _SUMMARY.search(output)
    found = races(output)
    if checked.returncode or summary is None or bool(int(summary[1])) != bool(found):
        raise SystemExit(f"{command}: {output[-3000:]}{errors[-3000:]}")
    print(f"{command}: {found.total()} reports", flush=True)
    return found


def complaints() -> Iterator[str]:
    """What is wrong, after all calls; most of their time goes into compiling."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        unordered = pool.submit(racecheck, "tests.gpu.race_control", ["unordered"])
        ordered = pool.submit(racecheck, "tests.gpu.race_control", ["ordered"])
        calls = {call: pool.submit(racecheck, "tests.gpu.race_calls", call) for call in CALLS}
    if not unordered.result():
        yield "a race that is there is not reported"
    for call, reports in {("a control without a race",): ordered, **calls}.items():
        for pair, count in reports.result().items():
            yield f"{' '.join(call)}: {_named(pair)}: {count}"


def _named(pair: Pair) -> str:
    return " and ".join(sorted(f"{file} {function}" for file, function in pair))


def main() -> None:
    found = list(complaints())
    print("\n".join(found) or f"no race in {len(CALLS)} calls")
    raise SystemExit(bool(found))


if __name__ == "__main__":
    main()
