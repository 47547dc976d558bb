"""The child process that interprets kernels: reads calls from its input, writes results.

It decides nothing; `interpreter` starts it with TRITON_INTERPRET=1. What a kernel prints goes to
the standard error, since the standard output carries the results.
"""

from __future__ import annotations

import os
import sys
import traceback

import torch

from zyfa_triton.backends.interpreted import FUNCTIONS
from zyfa_triton.backends.interpreter import pack, receive, send, unpack


def main() -> None:
    """Serves calls until the input ends."""
    results = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    calls = sys.stdin.buffer
    while True:
        try:
            function, packed = receive(calls)
        except EOFError:
            return
        arguments = [unpack(argument) for argument in packed]
        run, written = FUNCTIONS[function]
        try:
            run(*arguments)
        except Exception:
            send(results, (traceback.format_exc(), None))
            continue
        outputs = (arguments[index] for index in written)
        send(results, (None, [pack(_contiguous(output)) for output in outputs]))


def _contiguous(output: torch.Tensor | None) -> torch.Tensor | None:
    return None if output is None else output.contiguous()


if __name__ == "__main__":
    main()
