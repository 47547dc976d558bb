"""How one kernel is enqueued. It decides nothing about arguments.

While a CUDA graph is captured nothing is compiled or loaded: a kernel that would have to be is an
error that says to call `warmup`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any

import torch

from zyfa_triton.kernels.hip import Launchable as HipLaunchable
from zyfa_triton.splice import fallback_reason

_forbidden: ContextVar[Any] = ContextVar("zyfa_not_to_be_compiled", default=None)  # a kernel
_install = threading.Lock()


class NotWarmedUpError(RuntimeError):
    """A CUDA graph is being captured, and a kernel that it needs is not compiled and loaded yet."""


def enqueue(kernel: Any, grid: Any, arguments: Mapping[str, Any]) -> None:
    """Enqueues a kernel on the current device and stream.

    Args:
        kernel: of `triton.jit` or `gluon.jit`, or a `HipLaunchable`. grid: up to three numbers.
        arguments: the kernel's, by name, and options of its compilation.
    Raises:
        NotWarmedUpError: under graph capture, the kernel would have to be compiled.
    """
    capturing = torch.cuda.is_current_stream_capturing()
    if isinstance(kernel, HipLaunchable):
        if capturing and not kernel.is_loaded():
            raise NotWarmedUpError(_not_warmed_up(kernel.__name__))
        kernel[grid](**arguments)
        return
    with no_compilation(kernel) if capturing else nullcontext():
        compiled = kernel[grid](**arguments)
    # At each launch Triton compares every constant of a module that the kernel was compiled with
    # with what it is now, which takes as long as all else that it does. Ours do not change.
    if getattr(kernel, "used_global_vals", None):
        kernel.used_global_vals = {}
    if arguments.get("LOOP"):  # a fallback that Triton found in its cache warns too
        fallback_reason(compiled, arguments["LOOP"])


@contextmanager
def no_compilation(kernel: Any) -> Iterator[None]:
    """Turns a compilation or load of `kernel` by this thread into an error, before it starts."""
    from triton import knobs

    with _install:  # once, and kept: other threads may be inside, too
        if not isinstance(knobs.runtime.jit_cache_hook, _CacheHook):
            knobs.runtime.jit_cache_hook = _CacheHook(knobs.runtime.jit_cache_hook)
    token = _forbidden.set(kernel)
    try:
        yield
    finally:
        _forbidden.reset(token)


class _CacheHook:
    """What Triton calls before it compiles or loads a kernel."""

    def __init__(self, previous: Callable[..., Any] | None) -> None:
        self.previous = previous

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        job = getattr(kwargs.get("fn"), "jit_function", None)
        if job is not None and job is _forbidden.get():
            raise NotWarmedUpError(_not_warmed_up(job.__name__))
        return self.previous(*args, **kwargs) if self.previous else None


def _not_warmed_up(name: str) -> str:
    return (
        f"a CUDA graph is being captured and {name} is not compiled for these arguments yet. "
        "Call zyfa_triton.warmup with the same arguments before the capture (for a graph of other "
        "lengths: once for each power of two)"
    )
