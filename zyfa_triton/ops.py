"""How the op looks to torch: operators with fake-tensor versions and no silent gradients.

They do not check arguments (`interface`) and do not decide what runs (`dispatch`). Calling an
operator on inputs that require grad and going backward raises, because none has an autograd
formula.
"""

from __future__ import annotations

from typing import Any

import torch

from zyfa_triton import dispatch
from zyfa_triton import quantize as quantizer
from zyfa_triton.problem import Rope


@torch.library.custom_op("zyfa::attention", mutates_args=())
def _attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    q_descale: torch.Tensor | None,
    k_descale: torch.Tensor | None,
    v_descale: torch.Tensor | None,
    softmax_scale: float,
    causal: bool,
    p_mode: str,
    block_scale: str,
    kernel: str,
    backend: str,
    out_dtype: torch.dtype,
    return_lse: bool,
    q_rope: torch.Tensor | None = None,
    k_rope: torch.Tensor | None = None,
    v_mean: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    out, lse = _empty(q, v, out_dtype, return_lse)
    dispatch.run(
        q,
        k,
        v,
        out,
        lse if return_lse else None,
        softmax_scale=softmax_scale,
        causal=causal,
        q_descale=q_descale,
        k_descale=k_descale,
        v_descale=v_descale,
        p_mode=p_mode,
        block_scale=_BLOCK_SCALES[block_scale],
        kernel=kernel,
        backend=backend,
        v_mean=v_mean,
        rope=_rope(q_rope, k_rope),
    )
    return out, lse


@_attention.register_fake
def _(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    q_descale: torch.Tensor | None,
    k_descale: torch.Tensor | None,
    v_descale: torch.Tensor | None,
    softmax_scale: float,
    causal: bool,
    p_mode: str,
    block_scale: str,
    kernel: str,
    backend: str,
    out_dtype: torch.dtype,
    return_lse: bool,
    q_rope: torch.Tensor | None = None,
    k_rope: torch.Tensor | None = None,
    v_mean: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    return _empty(q, v, out_dtype, return_lse)


@torch.library.custom_op("zyfa::attention_out", mutates_args=("out",))
def _attention_out(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    q_descale: torch.Tensor | None,
    k_descale: torch.Tensor | None,
    v_descale: torch.Tensor | None,
    softmax_scale: float,
    causal: bool,
    p_mode: str,
    block_scale: str,
    kernel: str,
    backend: str,
    return_lse: bool,
    out: torch.Tensor,
    q_rope: torch.Tensor | None = None,
    k_rope: torch.Tensor | None = None,
    v_mean: torch.Tensor | None = None,
) -> torch.Tensor:
    lse = _empty_lse(q, return_lse)
    dispatch.run(
        q,
        k,
        v,
        out,
        lse if return_lse else None,
        softmax_scale=softmax_scale,
        causal=causal,
        q_descale=q_descale,
        k_descale=k_descale,
        v_descale=v_descale,
        p_mode=p_mode,
        block_scale=_BLOCK_SCALES[block_scale],
        kernel=kernel,
        backend=backend,
        v_mean=v_mean,
        rope=_rope(q_rope, k_rope),
    )
    return lse


@_attention_out.register_fake
def _(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    q_descale: torch.Tensor | None,
    k_descale: torch.Tensor | None,
    v_descale: torch.Tensor | None,
    softmax_scale: float,
    causal: bool,
    p_mode: str,
    block_scale: str,
    kernel: str,
    backend: str,
    return_lse: bool,
    out: torch.Tensor,
    q_rope: torch.Tensor | None = None,
    k_rope: torch.Tensor | None = None,
    v_mean: torch.Tensor | None = None,
) -> torch.Tensor:
    return _empty_lse(q, return_lse)


@torch.library.custom_op("zyfa::quantize_fp8", mutates_args=())
def _quantize(
    x: torch.Tensor, nheads_k: int, per_tensor: bool, subtract_mean: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return quantizer.quantize(
        x, nheads_k=nheads_k, per_tensor=per_tensor, subtract_mean=subtract_mean
    )


@_quantize.register_fake
def _(
    x: torch.Tensor, nheads_k: int, per_tensor: bool, subtract_mean: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return quantizer.empty_outputs(
        x, nheads_k=nheads_k, per_tensor=per_tensor, subtract_mean=subtract_mean
    )


@torch.library.custom_op("zyfa::quantize_parts_fp8", mutates_args=())
def _quantize_parts(
    q_nope: torch.Tensor,
    q_rope: torch.Tensor,
    k_nope: torch.Tensor,
    k_rope: torch.Tensor,
    subtract_k_mean: bool,
) -> list[torch.Tensor]:
    codes, descales, means = quantizer.quantize_parts(
        q_nope, q_rope, k_nope, k_rope, subtract_k_mean=subtract_k_mean
    )
    return [*codes, *descales, *means]


@_quantize_parts.register_fake
def _(
    q_nope: torch.Tensor,
    q_rope: torch.Tensor,
    k_nope: torch.Tensor,
    k_rope: torch.Tensor,
    subtract_k_mean: bool,
) -> list[torch.Tensor]:
    codes, descales, means = quantizer.empty_part_outputs(
        q_nope, q_rope, k_nope, k_rope, subtract_k_mean=subtract_k_mean
    )
    return [*codes, *descales, *means]


@torch.library.custom_op("zyfa::add_mean_to_lse", mutates_args=("lse",))
def _add_mean_to_lse(
    lse: torch.Tensor, q: torch.Tensor, mean: torch.Tensor, softmax_scale: float
) -> None:
    quantizer.add_mean_to_lse(lse, q, mean, softmax_scale)


@_add_mean_to_lse.register_fake
def _(lse: torch.Tensor, q: torch.Tensor, mean: torch.Tensor, softmax_scale: float) -> None:
    return None


@torch.library.custom_op("zyfa::attention_fp8", mutates_args=())
def _attention_fp8(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    softmax_scale: float,
    causal: bool,
    per_tensor: bool,
    subtract_k_mean: bool,
    subtract_v_mean: bool,
    p_mode: str,
    block_scale: str,
    kernel: str,
    backend: str,
    return_lse: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    out, lse = _empty(q, v, q.dtype, return_lse)
    _run_fp8(
        q,
        k,
        v,
        out,
        lse if return_lse else None,
        softmax_scale=softmax_scale,
        causal=causal,
        per_tensor=per_tensor,
        subtract_k_mean=subtract_k_mean,
        subtract_v_mean=subtract_v_mean,
        p_mode=p_mode,
        block_scale=_BLOCK_SCALES[block_scale],
        kernel=kernel,
        backend=backend,
    )
    return out, lse


@_attention_fp8.register_fake
def _(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    softmax_scale: float,
    causal: bool,
    per_tensor: bool,
    subtract_k_mean: bool,
    subtract_v_mean: bool,
    p_mode: str,
    block_scale: str,
    kernel: str,
    backend: str,
    return_lse: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    return _empty(q, v, q.dtype, return_lse)


@torch.library.custom_op("zyfa::attention_fp8_out", mutates_args=("out",))
def _attention_fp8_out(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    softmax_scale: float,
    causal: bool,
    per_tensor: bool,
    subtract_k_mean: bool,
    subtract_v_mean: bool,
    p_mode: str,
    block_scale: str,
    kernel: str,
    backend: str,
    return_lse: bool,
    out: torch.Tensor,
) -> torch.Tensor:
    lse = _empty_lse(q, return_lse)
    _run_fp8(
        q,
        k,
        v,
        out,
        lse if return_lse else None,
        softmax_scale=softmax_scale,
        causal=causal,
        per_tensor=per_tensor,
        subtract_k_mean=subtract_k_mean,
        subtract_v_mean=subtract_v_mean,
        p_mode=p_mode,
        block_scale=_BLOCK_SCALES[block_scale],
        kernel=kernel,
        backend=backend,
    )
    return lse


@_attention_fp8_out.register_fake
def _(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    softmax_scale: float,
    causal: bool,
    per_tensor: bool,
    subtract_k_mean: bool,
    subtract_v_mean: bool,
    p_mode: str,
    block_scale: str,
    kernel: str,
    backend: str,
    return_lse: bool,
    out: torch.Tensor,
) -> torch.Tensor:
    return _empty_lse(q, return_lse)


def _run_fp8(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor | None,
    *,
    per_tensor: bool,
    subtract_k_mean: bool,
    subtract_v_mean: bool,
    softmax_scale: float,
    **options: Any,
) -> None:
    """Quantises and computes: in the kernel's own way where it has one, else in turn."""
    done, mean = dispatch.run_quantising(
        q,
        k,
        v,
        out,
        lse,
        per_tensor=per_tensor,
        subtract_k_mean=subtract_k_mean,
        subtract_v_mean=subtract_v_mean,
        softmax_scale=softmax_scale,
        **options,
    )
    if not done:
        mean = _run_in_turn(
            q,
            k,
            v,
            out,
            lse,
            per_tensor=per_tensor,
            subtract_k_mean=subtract_k_mean,
            subtract_v_mean=subtract_v_mean,
            softmax_scale=softmax_scale,
            **options,
        )
    if mean is not None and lse is not None:
        quantizer.add_mean_to_lse(lse, q, mean, softmax_scale)


def _run_in_turn(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor | None,
    *,
    per_tensor: bool,
    subtract_k_mean: bool,
    subtract_v_mean: bool,
    **options: Any,
) -> torch.Tensor | None:
    """Quantises q, k and v, then computes. Returns the mean of K, with subtract_k_mean."""
    nheads_k = k.shape[2]

    def quantised(x: torch.Tensor, subtract_mean: bool) -> tuple[torch.Tensor, ...]:
        codes, descale, mean = quantizer.quantize(
            x, nheads_k=nheads_k, per_tensor=per_tensor, subtract_mean=subtract_mean
        )
        return codes, descale.expand(q.shape[0], nheads_k), mean

    q_codes, q_descale, _ = quantised(q, False)
    k_codes, k_descale, mean = quantised(k, subtract_k_mean)
    v_codes, v_descale, v_mean = quantised(v, subtract_v_mean)
    # NaN where q or k had none but NaN scales, and unchanged otherwise
    v_descale = v_descale + 0.0 * (q_descale * k_descale)
    dispatch.run(
        q_codes,
        k_codes,
        v_codes,
        out,
        lse,
        q_descale=q_descale,
        k_descale=k_descale,
        v_descale=v_descale,
        v_mean=v_mean if subtract_v_mean else None,
        **options,
    )
    return mean if subtract_k_mean else None


_BLOCK_SCALES: dict[str, bool | str] = {"auto": "auto", "on": True, "off": False}


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    q_descale: torch.Tensor | None,
    k_descale: torch.Tensor | None,
    v_descale: torch.Tensor | None,
    *,
    softmax_scale: float,
    causal: bool,
    p_mode: str,
    block_scale: bool | str,
    kernel: str,
    backend: str,
    out_dtype: torch.dtype,
    return_lse: bool,
    out: torch.Tensor | None,
    v_mean: torch.Tensor | None = None,
    rope: Rope | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Calls the operator that fits: one that returns a new output, or one that fills `out`."""
    scaling = _scaling(block_scale)
    if out is None:
        result, lse = _attention(
            q,
            k,
            v,
            q_descale,
            k_descale,
            v_descale,
            softmax_scale,
            causal,
            p_mode,
            scaling,
            kernel,
            backend,
            out_dtype,
            return_lse,
            *(rope or (None, None)),
            v_mean,
        )
    else:
        result = out
        lse = _attention_out(
            q,
            k,
            v,
            q_descale,
            k_descale,
            v_descale,
            softmax_scale,
            causal,
            p_mode,
            scaling,
            kernel,
            backend,
            return_lse,
            out,
            *(rope or (None, None)),
            v_mean,
        )
    return (result, lse) if return_lse else result


def attention_fp8(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    softmax_scale: float,
    causal: bool,
    per_tensor: bool,
    subtract_k_mean: bool,
    subtract_v_mean: bool,
    p_mode: str,
    block_scale: bool | str,
    kernel: str,
    backend: str,
    return_lse: bool,
    out: torch.Tensor | None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Calls the operator that fits: one that returns a new output, or one that fills `out`."""
    arguments = (
        q,
        k,
        v,
        softmax_scale,
        causal,
        per_tensor,
        subtract_k_mean,
        subtract_v_mean,
        p_mode,
        _scaling(block_scale),
        kernel,
        backend,
        return_lse,
    )
    if out is None:
        result, lse = _attention_fp8(*arguments)
    else:
        result, lse = out, _attention_fp8_out(*arguments, out)
    return (result, lse) if return_lse else result


def _scaling(block_scale: bool | str) -> str:
    """block_scale as an operator takes it: a key of `_BLOCK_SCALES`."""
    return block_scale if isinstance(block_scale, str) else ("on" if block_scale else "off")


def quantize(
    x: torch.Tensor, nheads_k: int, per_tensor: bool, subtract_mean: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Codes, descale (batch, nheads_k), mean ((batch, nheads, headdim), or no elements)."""
    codes, descale, mean = _quantize(x, nheads_k, per_tensor, subtract_mean)
    if per_tensor:
        descale = descale.expand(x.shape[0], nheads_k)
    return codes, descale, mean


def quantize_parts(
    q_nope: torch.Tensor,
    q_rope: torch.Tensor,
    k_nope: torch.Tensor,
    k_rope: torch.Tensor,
    subtract_k_mean: bool,
) -> tuple[list[torch.Tensor], list[torch.Tensor], list[torch.Tensor]]:
    """Codes and descales of the four parts in order, means of k_nope and k_rope (or empty)."""
    found = _quantize_parts(q_nope, q_rope, k_nope, k_rope, subtract_k_mean)
    return found[:4], found[4:8], found[8:]


def add_mean_to_lse(
    lse: torch.Tensor, q: torch.Tensor, mean: torch.Tensor, softmax_scale: float
) -> None:
    """Adds softmax_scale * q . mean to lse, in place: undoes the removal of K's mean."""
    _add_mean_to_lse(lse, q, mean, softmax_scale)


def _rope(q_rope: torch.Tensor | None, k_rope: torch.Tensor | None) -> Rope | None:
    return None if q_rope is None or k_rope is None else (q_rope, k_rope)


def _empty(
    q: torch.Tensor, v: torch.Tensor, out_dtype: torch.dtype, return_lse: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    shape = (q.shape[0], q.shape[1], q.shape[2], v.shape[3])
    return q.new_empty(shape, dtype=out_dtype), _empty_lse(q, return_lse)


def _empty_lse(q: torch.Tensor, return_lse: bool) -> torch.Tensor:
    """(batch, nheads, seqlen_q), or no elements: an operator always returns a tensor."""
    shape = (q.shape[0], q.shape[2], q.shape[1]) if return_lse else (0,)
    return q.new_empty(shape, dtype=torch.float32)
