"""What tests and benchmarks share: attention inputs in every memory layout, and the error budget.

It decides when a result is wrong, and only here; nothing, CI included, loosens the constants.

The budget, with ref in float64 on the inputs as rounded, and low the same attention in the inputs'
own precision (the contract model for e4m3): err(out) <= 2 err(low) + 2 eps |ref|, for the largest
error and for the root mean square. NaN and infinities must lie where they lie in ref.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from zyfa_triton import numerics
from zyfa_triton.problem import FP8
from zyfa_triton.reference import attention_ref

LOW_FACTOR = 2.0
EPS_FACTOR = 2.0
# Unit roundoff of the output, and what one P code that rounds the other way can change.
EPS_MAX = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11, torch.float32: 2.0**-20}
EPS_RMS = {torch.bfloat16: 2.0**-9, torch.float16: 2.0**-12, torch.float32: 2.0**-21}
EPS_MAX[FP8], EPS_RMS[FP8] = 2.0**-4, 2.0**-5  # only others' kernels store e4m3 outputs
EPS_CODE_MAX = 2.0**-6
EPS_CODE_RMS = 2.0**-11
EPS_LSE = {FP8: 2.0**-18, torch.bfloat16: 2.0**-18, torch.float16: 2.0**-18}
# Hopper sums e4m3 products with 13 fraction bits below the largest addend, truncated, in 32-deep
# steps: a score is off by about 2^-13 of the magnitudes it sums, however small it is itself.
EPS_SCORE = {FP8: 2.0**-13, torch.bfloat16: 2.0**-20, torch.float16: 2.0**-20}
# The same truncation when P V is accumulated, 32 keys at a time: half of 2^-13 on average, of the
# larger of the accumulator and what is added to it.
EPS_ACCUMULATION = 2.0**-14
ACCUMULATED_KEYS = 32
# Rounding of P is noise: the part of a result along the reference stays within 0.1 % for every P
# mode on the captured layers, and for e4m3 outputs.
GAIN = 0.01
LAYOUTS = ("contiguous", "transposed", "packed", "expanded", "offset")


@dataclass(frozen=True)
class Inputs:
    """q, k, v of (batch, seqlen, nheads, headdim), their descales or None, V's mean or None."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    q_descale: torch.Tensor | None = None
    k_descale: torch.Tensor | None = None
    v_descale: torch.Tensor | None = None
    v_mean: torch.Tensor | None = None

    @property
    def descales(self) -> dict[str, torch.Tensor | None]:
        """The descales under the names of `flash_attn_func`."""
        return {
            "q_descale": self.q_descale,
            "k_descale": self.k_descale,
            "v_descale": self.v_descale,
        }


def make_inputs(
    seqlen_q: int,
    seqlen_k: int,
    *,
    batch: int = 1,
    nheads: int = 4,
    nheads_k: int = 2,
    headdim: int = 128,
    headdim_v: int = 128,
    dtype: torch.dtype = torch.bfloat16,
    device: torch.device | str = "cpu",
    layout: str = "contiguous",
    seed: int = 0,
    deviation: float = 1.0,
    v_mean: bool = False,
) -> Inputs:
    """Normal inputs, logits of about `deviation`; e4m3 comes with descales that differ by head.

    layout: one of LAYOUTS. "packed" slices one QKV buffer where the lengths are equal. v_mean:
    whether a mean was taken off V, which then differs by head and channel; e4m3 only.
    """
    generator = torch.Generator().manual_seed(seed)
    shapes = (
        (batch, seqlen_q, nheads, headdim),
        (batch, seqlen_k, nheads_k, headdim),
        (batch, seqlen_k, nheads_k, headdim_v),
    )
    spread = math.sqrt(deviation)
    values = [torch.randn(shape, generator=generator) * spread for shape in shapes]
    descales: list[torch.Tensor | None] = [None, None, None]
    if dtype == FP8:
        for index in range(3):
            scale = 0.5 + torch.rand(batch, nheads_k, generator=generator)
            heads = values[index].shape[2] // nheads_k
            values[index] = values[index] / scale.repeat_interleave(heads, 1)[:, None, :, None]
            descales[index] = scale.to(device)
    rounded = [value.to(dtype).to(device) for value in values]
    q, k, v = _laid_out(rounded, layout)
    mean = None
    if v_mean:
        if dtype != FP8:
            raise ValueError(f"v_mean: got True with {dtype}; accepted: False, or {FP8}")
        mean = (3.0 * torch.randn(batch, nheads_k, headdim_v, generator=generator)).to(device)
    return Inputs(q, k, v, descales[0], descales[1], descales[2], mean)


def _laid_out(tensors: list[torch.Tensor], layout: str) -> list[torch.Tensor]:
    if layout == "contiguous":
        return tensors
    if layout == "transposed":  # (batch, nheads, seqlen, headdim) in memory
        return [t.transpose(1, 2).contiguous().transpose(1, 2) for t in tensors]
    if layout == "offset":  # inside a larger buffer whose other elements are NaN
        return [_inside_nan(t) for t in tensors]
    if layout == "expanded":  # every head of a tensor is one head's memory; so is every batch entry
        return [t[:1, :, :1].expand(t.shape) for t in tensors]
    if layout == "packed":
        if tensors[0].shape[1] != tensors[1].shape[1]:
            raise ValueError("layout 'packed' needs seqlen_q == seqlen_k")
        widths = [t.shape[2] * t.shape[3] for t in tensors]
        buffer = torch.cat([_bytes(t).flatten(2) for t in tensors], 2).contiguous()
        item = tensors[0].element_size()
        parts, first = [], 0
        for t, width in zip(tensors, widths, strict=True):
            part = buffer[:, :, first : first + width * item].view(t.dtype)
            parts.append(part.view(*t.shape))
            first += width * item
        return parts
    raise ValueError(f"layout: got {layout!r}; accepted: {', '.join(LAYOUTS)}")


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.uint8)


def _inside_nan(tensor: torch.Tensor) -> torch.Tensor:
    batch, seqlen, nheads, headdim = tensor.shape
    padded = (batch + 1, seqlen + 3, nheads + 1, headdim + 32)
    buffer = torch.full(padded, float("nan"), device=tensor.device).to(tensor.dtype)
    view = buffer[1:, 2 : 2 + seqlen, 1:, 16 : 16 + headdim]
    view.copy_(tensor)
    return view


def expected(
    inputs: Inputs,
    *,
    softmax_scale: float | None = None,
    causal: bool = False,
    p_mode: str = "lean",
    block_scale: bool = False,
) -> tuple[tuple[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]:
    """(out, lse) in float64, and (out, lse) of the model in the inputs' precision; same device."""
    q, k, v = inputs.q, inputs.k, inputs.v
    scale = softmax_scale or 1.0 / math.sqrt(q.shape[3])
    mean = inputs.v_mean
    ref = attention_ref(q, k, v, softmax_scale=scale, causal=causal, v_mean=mean, **inputs.descales)
    if q.dtype != FP8:
        return ref, attention_low(q, k, v, softmax_scale=scale, causal=causal)
    q_descale, k_descale, v_descale = (
        None if descale is None else descale.cpu() for descale in inputs.descales.values()
    )
    contract = numerics.attention(
        q.cpu(),
        k.cpu(),
        v.cpu(),
        softmax_scale=scale,
        causal=causal,
        options=numerics.ContractOptions(p_mode, block_scale),
        q_descale=q_descale,
        k_descale=k_descale,
        v_descale=v_descale,
        v_mean=None if mean is None else mean.cpu(),
    )
    return ref, (contract.out.to(q.device), contract.lse.to(q.device))


def attention_low(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, softmax_scale: float, causal: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention with every intermediate result in the inputs' 16-bit dtype, lse in float32."""
    group = q.shape[2] // k.shape[2]
    queries = (q * softmax_scale).transpose(1, 2)
    keys = k.repeat_interleave(group, 2).permute(0, 2, 3, 1)
    values = v.repeat_interleave(group, 2).transpose(1, 2)
    scores = (queries @ keys).float()
    if causal:
        rows = torch.arange(q.shape[1], device=q.device)[:, None] + k.shape[1] - q.shape[1]
        scores.masked_fill_(torch.arange(k.shape[1], device=q.device) > rows, -math.inf)
    lse = torch.logsumexp(scores, -1)
    p = torch.exp(scores - lse[..., None]).nan_to_num(nan=0.0).to(q.dtype)
    return (p @ values).transpose(1, 2), lse


def check_output(
    out: torch.Tensor,
    ref: torch.Tensor,
    low: torch.Tensor,
    *,
    is_fp8: bool,
    name: str = "out",
    out_dtype: torch.dtype | None = None,
    accumulation: torch.Tensor | None = None,
) -> None:
    """Raises AssertionError with the figures where `out` exceeds the budget.

    out_dtype: the type that the kernel stored, where `out` holds its values in another.
    accumulation: what the target loses in accumulating P V, by element; see EPS_ACCUMULATION.
    """
    eps_max, eps_rms = EPS_MAX[out_dtype or out.dtype], EPS_RMS[out_dtype or out.dtype]
    if is_fp8:
        eps_max, eps_rms = eps_max + EPS_CODE_MAX, eps_rms + EPS_CODE_RMS
    _check(name, out, ref, low, eps_max, eps_rms, 0.0 if accumulation is None else accumulation)


def check_gain(
    out: torch.Tensor, ref: torch.Tensor, accumulation: torch.Tensor | None = None
) -> None:
    """Raises AssertionError where `out` is `ref` times a factor further than GAIN from 1.

    The factor is that of the best fit over all elements, from which noise averages out. Truncation,
    `accumulation` as in `check_output`, does not: it makes results smaller, and may.
    """
    power = float(ref.square().sum())
    if power == 0.0:
        return
    gain = float((out.double() * ref).sum()) / power
    least = 1.0 - GAIN
    if accumulation is not None:
        least -= EPS_FACTOR * float((accumulation * ref.abs()).sum()) / power
    assert least <= gain <= 1.0 + GAIN, (
        f"out: {gain:.4f} times the reference; allowed: {least:.4f} to {1.0 + GAIN:.4f}"
    )


def check_lse(
    lse: torch.Tensor,
    ref: torch.Tensor,
    low: torch.Tensor,
    inputs: Inputs,
    softmax_scale: float | None = None,
) -> None:
    """The budget for lse; -inf must lie where it lies in ref.

    Besides eps |ref| it allows for the accumulation of scores, in proportion to the largest sum of
    magnitudes that a score of these inputs has.
    """
    dtype = inputs.q.dtype
    allowance = EPS_SCORE[dtype] * largest_score_magnitude(inputs, softmax_scale)
    _check("lse", lse, ref, low, EPS_LSE[dtype], EPS_LSE[dtype], allowance)


def largest_score_magnitude(inputs: Inputs, softmax_scale: float | None = None) -> float:
    """Largest softmax_scale * sum over d of |q_d k_d| over all queries and keys, with descales."""
    q, k = inputs.q.double().abs(), inputs.k.double().abs()
    if q.numel() == 0 or k.numel() == 0:
        return 0.0
    scale = softmax_scale or 1.0 / math.sqrt(q.shape[3])
    keys = k.repeat_interleave(q.shape[2] // k.shape[2], 2)
    sums = torch.einsum("bqhd,bkhd->bhqk", q, keys).amax((2, 3))
    for descale in (inputs.q_descale, inputs.k_descale):
        if descale is not None:
            sums = sums * descale.double().repeat_interleave(q.shape[2] // k.shape[2], 1)
    return float(sums.max()) * scale


def _check(
    name: str,
    got: torch.Tensor,
    ref: torch.Tensor,
    low: torch.Tensor,
    eps_max: float,
    eps_rms: float,
    allowance: float | torch.Tensor = 0.0,
) -> None:
    assert got.shape == ref.shape, f"{name}: shape {tuple(got.shape)}, not {tuple(ref.shape)}"
    got, low = got.double(), low.double()
    for kind, is_kind in (("NaN", torch.isnan), ("inf", torch.isinf)):
        wrong = is_kind(got) != is_kind(ref)
        assert not bool(wrong.any()), (
            f"{name}: {int(wrong.sum())} of {wrong.numel()} elements differ in being {kind}, "
            f"first at {wrong.nonzero()[0].tolist()}"
        )
    finite = torch.isfinite(ref)
    if not bool(finite.any()):
        return
    got, ref, low = got[finite], ref[finite], low[finite]
    if isinstance(allowance, torch.Tensor):
        allowance = allowance[finite]
    for norm, size, eps in (("max", _largest, eps_max), ("rms", _rms, eps_rms)):
        lost = size(allowance) if isinstance(allowance, torch.Tensor) else allowance
        error, allowed = (
            size(got - ref),
            LOW_FACTOR * size(low - ref) + EPS_FACTOR * (eps * size(ref) + lost),
        )
        assert error <= allowed, (
            f"{name}: {norm} error {error:.3e} > {allowed:.3e} allowed "
            f"(low {size(low - ref):.3e}, ref {size(ref):.3e}, eps {eps:.1e}, "
            f"accumulation {lost:.1e})"
        )


def _largest(x: torch.Tensor) -> float:
    return float(x.abs().max())


def _rms(x: torch.Tensor) -> float:
    return float(x.square().mean().sqrt())
