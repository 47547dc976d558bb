"""Which tensors a case is run on: Gaussian or captured ones, quantised once, in rotated copies.

It does not run anything on them.

Captured activations are fitted to a shape like this. Query heads keep the key head they belong to:
key head j of the shape is the file's key head j modulo the file's count, and the queries of its
group are that key head's query heads in the file, repeated or cut to the group size. A length
beyond the file's repeats its tokens from the start; every batch entry holds the same values. The
name of the inputs says which of this happened.

FP8 paths all get the same codes: one scale for the whole of q, of k and of v, because that is what
every peer takes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Any

import torch

from zyfa_triton import quantize_fp8
from zyfa_triton.activations import Activations
from zyfa_triton.benchmark.shapes import Case, Shape

GAUSSIAN = "gaussian"
MAX_SETS = 64


@dataclass(frozen=True)
class Tensors:
    """One copy of the inputs, (batch, seqlen, heads, headdim) each, contiguous.

    q, k, v: bfloat16. q8, k8, v8: their e4m3 codes, with descales of float32 (batch, nheads_k) that
    all hold one value; None where no FP8 path takes part.
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    q8: torch.Tensor | None = None
    k8: torch.Tensor | None = None
    v8: torch.Tensor | None = None
    q_descale: torch.Tensor | None = None
    k_descale: torch.Tensor | None = None
    v_descale: torch.Tensor | None = None

    def codes(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """q8, k8, v8 where FP8 was asked for."""
        assert self.q8 is not None and self.k8 is not None and self.v8 is not None
        return self.q8, self.k8, self.v8

    def descales(self) -> dict[str, Any]:
        """Under the names of `flash_attn_func`."""
        return {
            "q_descale": self.q_descale,
            "k_descale": self.k_descale,
            "v_descale": self.v_descale,
        }

    def seen(self, dtype: str) -> dict[str, Any]:
        """q, k, v and descales as a path of this dtype sees them: what its error is against."""
        if dtype == "bf16":
            return {"q": self.q, "k": self.k, "v": self.v}
        q, k, v = self.codes()
        return {"q": q, "k": k, "v": v, **self.descales()}

    def copy(self) -> Tensors:
        """The same values elsewhere in memory."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        copies: dict[str, Any] = {
            name: None if value is None else value.clone() for name, value in values.items()
        }
        return Tensors(**copies)


@dataclass(frozen=True)
class Problem:
    """A case with its tensors: what a path is set up for.

    inputs: name of the inputs. sets: copies of the same values, together twice as large as the L2,
    so that no call finds its inputs in a cache; empty where there is no card to run on.
    """

    case: Case
    inputs: str
    softmax_scale: float
    device: torch.device
    sets: tuple[Tensors, ...] = ()

    @property
    def shape(self) -> Shape:
        return self.case.shape


def make(
    case: Case,
    captured: Activations | None,
    *,
    device: torch.device,
    l2_bytes: int,
    seed: int = 0,
) -> Problem:
    """The tensors of a case on a device.

    captured: None is Gaussian with deviation 1 (logits of deviation 1 at the default scale).
    Raises ValueError where the captured inputs have another head dim.
    """
    shape = case.shape
    if captured is None:
        q, k, v = _gaussian(shape, device, seed)
    else:
        q, k, v = _fitted(captured, shape, device)
    first = Tensors(q, k, v)
    if "fp8" in case.dtypes:
        q8, q_descale = quantize_fp8(q, "tensor", nheads_k=shape.nheads_k)[:2]
        k8, k_descale = quantize_fp8(k, "tensor")[:2]
        v8, v_descale = quantize_fp8(v, "tensor")[:2]
        first = Tensors(
            q, k, v, q8, k8, v8, *(one.contiguous() for one in (q_descale, k_descale, v_descale))
        )
    copies = (first.copy() for _ in range(set_count(case, l2_bytes) - 1))
    return replace(described(case, captured, device), sets=(first, *copies))


def described(case: Case, captured: Activations | None, device: torch.device) -> Problem:
    """The problem without its tensors."""
    if captured is None:
        return Problem(case, GAUSSIAN, 1.0 / math.sqrt(case.shape.headdim), device)
    return Problem(case, _name(captured, case.shape), captured.softmax_scale, device)


def set_count(case: Case, l2_bytes: int) -> int:
    """How many copies rotate: the smallest inputs that a path reads, times this, are 2 L2.

    At least two, at most MAX_SETS (inputs so small that more copies are needed are about 2 MiB).
    """
    shape = case.shape
    item = 1 if "fp8" in case.dtypes and not case.quantise else 2
    q_elements = shape.nheads * shape.headdim
    kv_elements = shape.nheads_k * (shape.headdim + shape.headdim_v)
    size = shape.batch * shape.seqlen * (q_elements + kv_elements) * item
    return min(MAX_SETS, max(2, math.ceil(2 * l2_bytes / size)))


def _gaussian(
    shape: Shape, device: torch.device, seed: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator(device=device).manual_seed(seed)

    def normal(heads: int, size: int) -> torch.Tensor:
        whole = (shape.batch, shape.seqlen, heads, size)
        return torch.randn(whole, generator=generator, device=device, dtype=torch.bfloat16)

    return (
        normal(shape.nheads, shape.headdim),
        normal(shape.nheads_k, shape.headdim),
        normal(shape.nheads_k, shape.headdim_v),
    )


def _fitted(
    captured: Activations, shape: Shape, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    headdims = captured.q.shape[3], captured.v.shape[3]
    if headdims != (shape.headdim, shape.headdim_v):
        raise ValueError(
            f"{captured.name} has head dims {headdims[0]}/{headdims[1]}, "
            f"the shape {shape.headdim}/{shape.headdim_v}"
        )
    group = captured.nheads // captured.nheads_k
    keys = [head % captured.nheads_k for head in range(shape.nheads_k)]
    queries = [key * group + i % group for key in keys for i in range(shape.group_size)]
    tokens = torch.arange(shape.seqlen) % captured.seqlen

    def fit(tensor: torch.Tensor, heads: list[int]) -> torch.Tensor:
        one = tensor[:, tokens][:, :, heads].to(device)
        return one.expand(shape.batch, -1, -1, -1).contiguous()

    return fit(captured.q, queries), fit(captured.k, keys), fit(captured.v, keys)


def _name(captured: Activations, shape: Shape) -> str:
    if shape.seqlen <= captured.seqlen:
        return captured.name
    return f"{captured.name} repeated to {shape.seqlen} tokens"
