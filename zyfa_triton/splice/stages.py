"""Decides how Triton's compile stages are called: modules from text, errors as reasons."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from zyfa_triton.splice.errors import SpliceError

Stage = Callable[[Any, dict[str, Any]], Any]


@contextmanager
def triton_errors(where: str = "") -> Iterator[None]:
    """What Triton's passes, MLIR's verifier or an assembler object to is a reason as well."""
    from triton.runtime.errors import PTXASError

    try:
        yield
    except (RuntimeError, PTXASError) as error:
        reason = where or str(error).strip().partition("\n")[0]
        raise SpliceError(f"the spliced kernel does not compile: {reason}") from error


def parse_module(text: str, context: Any) -> Any:
    """A Triton module from IR text."""
    from triton._C.libtriton import ir

    handle, path = tempfile.mkstemp(suffix=".mlir")
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
        module = ir.parse_mlir_module(path, context)
    finally:
        os.unlink(path)
    module.context = context
    return module
