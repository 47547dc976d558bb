"""What the card's matrix pipe gives a library in this run: the rate that attention is compared to.

It is timed like a path, by `timing`, on Gaussian data: data decide the power and so the clock.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from zyfa_triton.problem import FP8

SIZE = 8192


def flop(size: int = SIZE) -> int:
    """FLOP of one size^3 product."""
    return 2 * size**3


def product(dtype: str, device: torch.device, size: int = SIZE) -> Callable[[], Any] | str:
    """A call of torch's matrix product, or why there is none.

    "fp8": e4m3 with one scale a tensor and fast accumulation, bfloat16 out, second matrix column
    major. "bf16": bfloat16. Both through cuBLASLt or hipBLASLt.
    """
    generator = torch.Generator(device=device).manual_seed(0)
    a, b = (
        torch.randn(size, size, generator=generator, device=device, dtype=torch.bfloat16)
        for _ in range(2)
    )
    if dtype == "bf16":
        return lambda: a @ b
    a8, b8 = a.to(FP8), b.to(FP8)
    one = torch.ones((), device=device)

    def multiply() -> torch.Tensor:
        return torch._scaled_mm(
            a8, b8.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=True
        )

    try:
        multiply()
    except (RuntimeError, NotImplementedError) as error:
        return f"no e4m3 product: {str(error).splitlines()[0]}"
    return multiply
