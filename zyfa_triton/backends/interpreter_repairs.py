"""What Triton's interpreter gets wrong, put right while our kernels run in it.

It decides nothing about kernels. Each repair names the versions that need it; in others it changes
nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from zyfa_triton.numerics import fma32


@contextmanager
def repaired_interpreter() -> Iterator[None]:
    """Conversions, fma and scalars as on a device, until the block ends."""
    from triton.runtime import interpreter

    with ExitStack() as repairs:
        for name, repair in (
            ("_convert_float", _nearest(interpreter._convert_float)),
            ("_patch_lang_tensor", _with_index(interpreter._patch_lang_tensor)),
        ):
            repairs.enter_context(patch.object(interpreter, name, repair))
        semantic = interpreter.interpreter_semantic
        repairs.enter_context(patch.object(semantic, "to_tensor", _unwrapping(semantic.to_tensor)))
        if not hasattr(interpreter._interpreter, "fma_fp32"):
            builder = interpreter.InterpreterBuilder
            repairs.enter_context(patch.object(builder, "create_fma", _fused(builder.create_fma)))
        yield


def _nearest(convert: Any) -> Any:
    """float32 to e4m3 and bfloat16: to nearest even, e4m3 saturating.

    Triton 3.6 to 3.9 round halves up, lose the carry into the exponent and round subnormals down on
    the way to e4m3, and cut off on the way to bfloat16.
    """
    import triton.language as tl

    def nearest(values: Any, source: Any, target: Any, rounding: Any) -> Any:
        if source != tl.float32 or target not in (tl.float8e4nv, tl.bfloat16):
            return convert(values, source, target, rounding)
        tensor = torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32))
        if target == tl.bfloat16:
            return tensor.to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
        return tensor.clamp(-448.0, 448.0).to(torch.float8_e4m3fn).view(torch.uint8).numpy()

    return nearest


def _with_index(patch_tensor: Any) -> Any:
    """Scalars as Python integers: what Triton 3.6 does for it, NumPy 2.4 refuses."""

    def patch_with_index(tensor: Any, scope: Any) -> None:
        patch_tensor(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.squeeze()))

    return patch_with_index


def _unwrapping(to_tensor: Any) -> Any:
    """A constexpr minus a tensor is a tensor; Triton 3.7 and 3.8 leave it a constexpr."""
    import triton.language as tl

    def unwrapping(value: Any, check_type: bool = True) -> Any:
        if isinstance(value, tl.constexpr) and isinstance(value.value, tl.tensor):
            value = value.value
        return to_tensor(value, check_type)

    return unwrapping


def _fused(create_fma: Any) -> Any:
    """One rounding for float32; before Triton 3.9 there are two."""
    from triton.runtime.interpreter import TensorHandle

    def fused(self: Any, x: Any, y: Any, z: Any) -> Any:
        arrays = np.broadcast_arrays(x.data, y.data, z.data)
        if any(array.dtype != np.float32 for array in arrays):
            return create_fma(self, x, y, z)
        a, b, c = (torch.from_numpy(np.ascontiguousarray(array)) for array in arrays)
        return TensorHandle(fma32(a, b, c).numpy(), z.dtype.scalar)

    return fused
