"""Which tier a test belongs to, and when a run that passed is still not good enough.

A test's tier is the folder it lies in: tests/unit, tests/asm, tests/gpu. `--require-tiers unit,asm`
turns a run red that executed too few tests of a tier, or that skipped any outside the GPU tier:
a suite that skips everything is not a suite that passed. It decides nothing about tolerances.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest
import torch

TIERS = ("unit", "asm", "gpu")

# Fewest tests that a full run of the tier passes. Raise it when tests are added; never lower it
# to make a run green.
MINIMUM_PASSED = {"unit": 1476, "asm": 2477, "gpu": 890}

_ROOT = Path(__file__).parent


def _tier_of(path: Path) -> str:
    try:
        folder = path.relative_to(_ROOT).parts[0]
    except ValueError:
        return "other"
    return folder if folder in TIERS else "other"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--require-tiers",
        default="",
        metavar="TIER,TIER",
        help="fail unless each of these tiers passed its minimum number of tests",
    )
    parser.addoption("--slow", action="store_true", help="also run the tests marked slow")


def pytest_configure(config: pytest.Config) -> None:
    unknown = [name for name in _required(config) if name not in TIERS]
    if unknown:
        raise pytest.UsageError(
            f"--require-tiers: no tier is called {', '.join(unknown)}; there are {', '.join(TIERS)}"
        )
    config.pluginmanager.register(TierCount(config), "zyfa-tier-count")
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if workers > 1:  # else each takes all cores, and they wait for one another
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // workers))


@pytest.fixture(autouse=True)
def _numbers_of_its_own() -> None:
    """What a test draws without a generator does not depend on what ran before it."""
    torch.manual_seed(0)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    slow: list[pytest.Item] = []
    kept: list[pytest.Item] = []
    for item in items:
        tier = _tier_of(item.path)
        if tier in TIERS:
            item.add_marker(tier)
        asked_for = config.getoption("--slow") or "slow" in (config.option.markexpr or "")
        (slow if item.get_closest_marker("slow") and not asked_for else kept).append(item)
    if slow:
        config.hook.pytest_deselected(items=slow)
        items[:] = kept


def _required(config: pytest.Config) -> list[str]:
    return [name.strip() for name in config.getoption("--require-tiers").split(",") if name.strip()]


class TierCount:
    """Counts outcomes by tier, prints them, and fails a run in which a tier did not really run."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.outcomes: dict[str, Counter[str]] = {tier: Counter() for tier in TIERS}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        tier = _tier_of(self.config.rootpath / report.nodeid.split("::", 1)[0])
        if tier not in TIERS:
            return
        if report.when == "call" or (report.when == "setup" and not report.passed):
            self.outcomes[tier][report.outcome] += 1

    def _complaints(self) -> list[str]:
        complaints = []
        for tier in _required(self.config):
            count = self.outcomes[tier]
            if count["passed"] < MINIMUM_PASSED[tier]:
                complaints.append(
                    f"{tier}: {count['passed']} passed, at least {MINIMUM_PASSED[tier]} must"
                )
            if tier != "gpu" and count["skipped"]:
                complaints.append(f"{tier}: {count['skipped']} skipped, only GPU tests may skip")
        return complaints

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if hasattr(self.config, "workerinput"):  # one of several processes: the first one counts
            return
        if exitstatus == pytest.ExitCode.OK and self._complaints():
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section("tiers", sep="-")
        for tier in TIERS:
            count = self.outcomes[tier]
            terminalreporter.write_line(
                f"{tier:5} {count['passed']:5} passed {count['skipped']:5} skipped "
                f"{count['failed']:5} failed"
            )
        for complaint in self._complaints():
            terminalreporter.write_line(f"TOO LITTLE RAN: {complaint}", red=True)
