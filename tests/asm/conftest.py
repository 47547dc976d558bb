"""Decides what state of Triton a test of the splice starts from; it tests nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def fresh_splice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An empty Triton cache, no stage hook, no warning given yet; all of it put back afterwards."""
    from triton import knobs

    from zyfa_triton.splice import hook

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    monkeypatch.delenv("ZYFA_STRICT", raising=False)
    monkeypatch.setattr(hook, "_warned", set())
    monkeypatch.setattr(hook, "_recipes", {})
    before = knobs.runtime.add_stages_inspection_hook
    knobs.runtime.add_stages_inspection_hook = None
    yield
    knobs.runtime.add_stages_inspection_hook = before
