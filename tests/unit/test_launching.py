"""Enqueuing a kernel while a CUDA graph is captured: what would be compiled is refused, in the
capturing thread only."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from triton import knobs

from zyfa_triton.backends import launching
from zyfa_triton.kernels.attention import attention_forward as kernel


class Job:
    def __init__(self, jit_function: object) -> None:
        self.jit_function = jit_function


def test_capture_turns_a_compilation_of_this_thread_into_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = []

    def previous(**options: Any) -> bool:
        calls.append(options["fn"].jit_function)
        return False

    monkeypatch.setattr(knobs.runtime, "jit_cache_hook", previous)
    with launching.no_compilation(kernel):
        hook = knobs.runtime.jit_cache_hook
        with pytest.raises(launching.NotWarmedUpError, match=r"attention_forward is not compiled"):
            hook(fn=Job(kernel))
        assert hook(fn=Job("other")) is False
        thread = threading.Thread(target=lambda: hook(fn=Job(kernel)))
        thread.start()
        thread.join()
    assert knobs.runtime.jit_cache_hook(fn=Job(kernel)) is False  # no longer
    assert calls == ["other", kernel, kernel]


def test_threads_that_capture_at_once_leave_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one to begin is the first one to end."""
    monkeypatch.setattr(knobs.runtime, "jit_cache_hook", None)
    first_is_in, second_is_in = threading.Event(), threading.Event()

    def second() -> None:
        first_is_in.wait(10)
        with launching.no_compilation(kernel):
            second_is_in.set()
            first_has_left.wait(10)

    first_has_left = threading.Event()
    thread = threading.Thread(target=second)
    thread.start()
    with launching.no_compilation(kernel):
        first_is_in.set()
        assert second_is_in.wait(10)
    first_has_left.set()
    thread.join()
    hook = knobs.runtime.jit_cache_hook
    assert not hook(fn=Job(kernel))
