"""The public functions for q and k in two parts, as multi-head latent attention (MLA) has them.

A head of q and k is 128 columns without and 64 with rotary position embedding, here called nope and
rope. Scores are sums over both; the rope part of k is usually one head that all heads share. The
kernels read the parts from where they are, so that k is never put together. What a kernel computes
is what it computes of the concatenated q and k through `flash_attn_func`, bit for bit.

Arguments are checked here, nothing else is done to them.
"""

from __future__ import annotations

from typing import Literal

import torch

from zyfa_triton import checks, dispatch, ops
from zyfa_triton.interface import Descale, PMode
from zyfa_triton.problem import ROPE_WIDTHS

_HEADDIM = sum(ROPE_WIDTHS)
_SIXTEEN_BIT = (torch.bfloat16, torch.float16)
_QUANTISABLE = (*_SIXTEEN_BIT, torch.float32)


def flash_attn_mla_func(
    q_nope: torch.Tensor,
    q_rope: torch.Tensor,
    k_nope: torch.Tensor,
    k_rope: torch.Tensor,
    v: torch.Tensor,
    softmax_scale: float | None = None,
    causal: bool = False,
    *,
    q_descale: Descale = None,
    k_descale: Descale = None,
    v_descale: Descale = None,
    v_mean: torch.Tensor | None = None,
    p_mode: PMode = "lean",
    block_scale: bool | Literal["auto"] = "auto",
    kernel: str = "auto",
    backend: str = "auto",
    return_lse: bool = False,
    out: torch.Tensor | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """softmax(softmax_scale * (Q_nope K_nope^T + Q_rope K_rope^T)) V, forward only.

    Args:
        q_nope: (batch, seqlen_q, nheads, 128), bfloat16, float16 or float8_e4m3fn. q_rope: (batch,
            seqlen_q, nheads, 64). Last strides 1, others free, as for all of them.
        k_nope: (batch, seqlen_k, nheads_k, 128). k_rope: (batch, seqlen_k, 1, 64), one head for
            all, or (batch, seqlen_k, nheads_k, 64). v: (batch, seqlen_k, nheads_k, 128).
        softmax_scale: None is 1/sqrt(192).
        q_descale, k_descale: e4m3 inputs only; their product is what the product of a code of q and
            one of k stands for, in both parts alike. See `quantize_mla_fp8`.
        Others: as in `flash_attn_func`. kernel: all but "hip", which does
            not take parts.
    Returns:
        As `flash_attn_func` of q = cat(q_nope, q_rope) and k = cat(k_nope, k_rope), by the same
        kernel bit for bit: out (batch, seqlen_q, nheads, 128), and with return_lse lse (batch,
        nheads, seqlen_q).
    Raises:
        As `flash_attn_func`.
    """
    parts = {"q_nope": q_nope, "q_rope": q_rope, "k_nope": k_nope, "k_rope": k_rope}
    checks.check_parts(q_nope, q_rope, k_nope, k_rope, v)
    checks.check_options(
        causal=causal, p_mode=p_mode, block_scale=block_scale, return_lse=return_lse
    )
    dispatch.check_names(kernel, backend)
    scale = checks.scale_or_default(softmax_scale, _HEADDIM)
    given = {"q_descale": q_descale, "k_descale": k_descale, "v_descale": v_descale}
    descales = {
        name: checks.expanded_descale(name, descale, q_nope, k_nope.shape[2])
        for name, descale in given.items()
    }
    checks.check_v_mean(v_mean, q_nope, k_nope.shape[2], v.shape[3])
    dtypes = checks.out_dtypes(q_nope.dtype)
    if out is not None:
        checks.check_out(out, q_nope, v, dtypes, {**parts, "v": v, **descales, "v_mean": v_mean})
    return ops.attention(
        q_nope,
        k_nope,
        v,
        **descales,
        softmax_scale=scale,
        causal=causal,
        p_mode=p_mode,
        block_scale=block_scale,
        kernel=kernel,
        backend=backend,
        out_dtype=dtypes[0],
        return_lse=return_lse,
        out=out,
        v_mean=v_mean,
        rope=(q_rope, k_rope),
    )


def flash_attn_mla_fp8_func(
    q_nope: torch.Tensor,
    q_rope: torch.Tensor,
    k_nope: torch.Tensor,
    k_rope: torch.Tensor,
    v: torch.Tensor,
    softmax_scale: float | None = None,
    causal: bool = False,
    *,
    subtract_k_mean: bool = True,
    subtract_v_mean: bool = True,
    p_mode: PMode = "lean",
    block_scale: bool | Literal["auto"] = "auto",
    kernel: str = "auto",
    backend: str = "auto",
    return_lse: bool = False,
    out: torch.Tensor | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """`flash_attn_mla_func` of bfloat16 or float16 inputs, computed in FP8: quantises first.

    Args:
        q_nope, q_rope, k_nope, k_rope, v: as in `flash_attn_mla_func`, bfloat16 or float16.
        subtract_k_mean: as in `flash_attn_fp8_func`, for both parts of k. subtract_v_mean: as
            there.
        Others: as in `flash_attn_func`.
    Returns:
        As `flash_attn_func`, in q_nope's dtype. A (batch entry, key head) whose inputs hold a NaN
        or an infinity has NaN in all its outputs; a shared k_rope belongs to every head. Memory
        used beside the outputs: the e4m3 copies, of k_rope one for each of its own heads.
    """
    parts = {"q_nope": q_nope, "q_rope": q_rope, "k_nope": k_nope, "k_rope": k_rope}
    checks.check_parts(q_nope, q_rope, k_nope, k_rope, v, _SIXTEEN_BIT)
    checks.check_options(
        causal=causal, p_mode=p_mode, block_scale=block_scale, return_lse=return_lse
    )
    dispatch.check_names(kernel, backend)
    checks.check_flags(subtract_k_mean=subtract_k_mean, subtract_v_mean=subtract_v_mean)
    scale = checks.scale_or_default(softmax_scale, _HEADDIM)
    if out is not None:
        checks.check_out(out, q_nope, v, (q_nope.dtype,), {**parts, "v": v})
    codes, descales, means = ops.quantize_parts(q_nope, q_rope, k_nope, k_rope, subtract_k_mean)
    v_codes, v_descale, v_mean = ops.quantize(v, v.shape[2], False, subtract_v_mean)
    q_descale, _, k_descale, _ = descales
    result = ops.attention(
        codes[0],
        codes[2],
        v_codes,
        q_descale,
        k_descale,
        v_descale + 0.0 * (q_descale * k_descale),  # NaN where q or k had none but NaN scales
        softmax_scale=scale,
        causal=causal,
        p_mode=p_mode,
        block_scale=block_scale,
        kernel=kernel,
        backend=backend,
        out_dtype=q_nope.dtype,
        return_lse=return_lse,
        out=out,
        v_mean=v_mean if subtract_v_mean else None,
        rope=(codes[1], codes[3]),
    )
    if subtract_k_mean and isinstance(result, tuple):
        ops.add_mean_to_lse(result[1], q_nope, means[0], scale)
        ops.add_mean_to_lse(result[1], q_rope, means[1], scale)
    return result


def quantize_mla_fp8(
    q_nope: torch.Tensor, q_rope: torch.Tensor, k_nope: torch.Tensor, k_rope: torch.Tensor
) -> tuple[
    tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor, torch.Tensor
]:
    """Rounds both parts of q and k to e4m3 with the scales that `flash_attn_mla_func` takes.

    k_nope has a scale for each batch entry and key head, a shared k_rope one for each batch entry,
    and the scales of q_nope and q_rope differ by as much: q_descale * k_descale is what the product
    of two codes stands for in both parts (zyfa_triton/joint_scale.py has the rule). A q that is to
    meet a k quantised earlier has to be quantised together with it.

    Args:
        q_nope, q_rope, k_nope, k_rope: as in `flash_attn_mla_func`, bfloat16, float16 or float32.
    Returns:
        codes: float8_e4m3fn (q_nope, q_rope, k_nope, k_rope), contiguous.
        q_descale, k_descale: float32 (batch, nheads_k): q_nope is about its codes * q_descale,
            k_nope its codes * k_descale. q_descale is NaN, with NaN codes of q, for a (batch entry,
            key head) of which one part holds a NaN or an infinity. Where a part has no elements,
            nothing meets anything: all codes are 0 and all scales 1.
    """
    checks.check_parts(q_nope, q_rope, k_nope, k_rope, None, _QUANTISABLE)
    codes, descales, _ = ops.quantize_parts(q_nope, q_rope, k_nope, k_rope, False)
    first, second, third, fourth = codes
    return (first, second, third, fourth), descales[0], descales[2]
