"""Where a call runs to be looked at: Triton's interpreter, on CPU tensors, in any process.

Triton interprets only where TRITON_INTERPRET=1 was set before it was imported. In such a process
the kernel runs here and a debugger can step through it; in any other, one child process is started
on the first call and kept. It computes nothing itself (`interpreted`).
"""

from __future__ import annotations

import atexit
import contextlib
import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO, Any

import torch

from zyfa_triton import env
from zyfa_triton.backends import BackendUnavailableError, Unavailable
from zyfa_triton.backends.device import triton_complaint
from zyfa_triton.backends.interpreted import FUNCTIONS
from zyfa_triton.problem import Problem, Rope

CONFIG = {"BLOCK_M": 64, "BLOCK_N": 64}
_WORKER = "zyfa_triton.backends.interpreter_worker"


class InterpreterError(RuntimeError):
    """A kernel failed in the interpreter; holds the traceback."""


def unavailable() -> Unavailable | None:
    """Why Triton's interpreter cannot be used: only because Triton itself cannot."""
    return triton_complaint()


def describe() -> str:
    """What it runs on."""
    import triton

    where = "this process" if env.is_interpreting() else "a child process"
    return f"the interpreter of Triton {triton.__version__}, in {where}"


def run(
    problem: Problem,
    kernel: str,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor | None,
    *,
    softmax_scale: float,
    q_descale: torch.Tensor | None,
    k_descale: torch.Tensor | None,
    v_descale: torch.Tensor | None,
    v_mean: torch.Tensor | None = None,
    config: dict[str, Any] | None = None,
    rope: Rope | None = None,
) -> None:
    """Interprets attention_forward; slow: about a second for 256 queries and keys of a head."""
    if problem.block_scale and not _has_scaled_dot():
        import triton

        raise BackendUnavailableError(
            "interpreter",
            Unavailable(
                f"the interpreter of Triton {triton.__version__} has no tl.dot_scaled",
                "Pass block_scale=False, or install Triton 3.8 or 3.9",
            ),
        )
    call(
        "attention",
        problem,
        config or CONFIG,
        q,
        k,
        v,
        out,
        lse,
        softmax_scale,
        q_descale,
        k_descale,
        v_descale,
        v_mean,
        *(rope or (None, None)),
    )


def call(function: str, *arguments: Any) -> None:
    """Calls a function of `interpreted.FUNCTIONS`; tensors among the arguments may be written
    to."""
    if env.is_interpreting():
        FUNCTIONS[function][0](*arguments)
        return
    _worker.call(function, arguments)


def pack(value: Any) -> Any:
    """A tensor as (dtype, shape, strides, the bytes it spans); anything else as it is."""
    if not isinstance(value, torch.Tensor):
        return value
    reach = sum(s * (n - 1) for n, s in zip(value.shape, value.stride(), strict=True))
    span = 0 if value.numel() == 0 else reach + 1
    flat = value.detach().as_strided((span,), (1,)).contiguous().view(torch.uint8)
    return _Packed(value.dtype, tuple(value.shape), value.stride(), bytes(flat.numpy()))


def unpack(value: Any) -> Any:
    """The tensor that `pack` packed, in memory of its own; anything else as it is."""
    if not isinstance(value, _Packed):
        return value
    flat = torch.frombuffer(bytearray(value.data or b"\0" * 8), dtype=value.dtype)
    return flat.as_strided(value.shape, value.strides)


class _Packed:
    def __init__(
        self, dtype: torch.dtype, shape: tuple[int, ...], strides: tuple[int, ...], data: bytes
    ) -> None:
        self.dtype = dtype
        self.shape = shape
        self.strides = strides
        self.data = data


def send(stream: IO[bytes], message: Any) -> None:
    """Writes one message: its length in 8 bytes, then its pickle."""
    data = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    stream.write(len(data).to_bytes(8, "little"))
    stream.write(data)
    stream.flush()


def receive(stream: IO[bytes]) -> Any:
    """Reads one message. Raises EOFError where the other side is gone."""
    header = stream.read(8)
    if len(header) < 8:
        raise EOFError
    return pickle.loads(stream.read(int.from_bytes(header, "little")))


class _Worker:
    """The child process: started when first needed, ends with this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0

    def call(self, function: str, arguments: tuple[Any, ...]) -> None:
        with self._lock:
            process = self._started()
            assert process.stdin is not None and process.stdout is not None
            try:
                send(process.stdin, (function, [pack(argument) for argument in arguments]))
                error, results = receive(process.stdout)
            except (EOFError, OSError) as lost:
                status = process.wait()
                self._forget()
                raise InterpreterError(
                    f"the interpreting process ended with status {status} in {function}"
                ) from lost
            except BaseException:  # an interrupt: a late answer must not meet the next call
                process.kill()
                process.wait()
                self._forget()
                raise
        if error is not None:
            raise InterpreterError(f"{function} failed in Triton's interpreter:\n{error}")
        written = FUNCTIONS[function][1]
        for index, result in zip(written, results, strict=True):
            if result is not None:
                arguments[index].copy_(unpack(result))

    def _started(self) -> subprocess.Popen[bytes]:
        if (
            self._process is None
            or self._owner != os.getpid()  # a fork: the pipes belong to the parent
            or self._process.poll() is not None
        ):
            self._forget()
            root = str(Path(__file__).resolve().parents[2])
            paths = [root, *filter(None, [env.read("PYTHONPATH")])]
            self._process = subprocess.Popen(
                [sys.executable, "-m", _WORKER],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=env.child_environment(
                    {"TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(paths)}
                ),
            )
            self._owner = os.getpid()
        return self._process

    def _forget(self) -> None:
        """Closes this side of the pipes; a child that lives stops when its input is closed."""
        process, self._process = self._process, None
        for pipe in (process.stdin, process.stdout) if process is not None else ():
            if pipe is not None:
                with contextlib.suppress(OSError):  # unsent data for a child that is gone
                    pipe.close()

    def close(self) -> None:
        """Ends the child."""
        process = self._process
        self._forget()
        if process is not None and self._owner == os.getpid():
            try:
                process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                process.kill()


def _has_scaled_dot() -> bool:
    from triton.runtime.interpreter import InterpreterBuilder

    return hasattr(InterpreterBuilder, "create_dot_scaled")


_worker = _Worker()
atexit.register(_worker.close)
