"""The public functions: arguments are checked here (by `checks`), nothing else is done to them.

What runs is decided in `dispatch`; the torch operators that torch.compile sees are in `ops`.
"""

from __future__ import annotations

from typing import Any, Literal

import torch

from zyfa_triton import checks, dispatch, env, ops

PMode = Literal["lean", "exact", "unscaled"]
Descale = float | torch.Tensor | None
_SIXTEEN_BIT = (torch.bfloat16, torch.float16)
_QUANTISABLE = (torch.bfloat16, torch.float16, torch.float32)
_GRANULARITIES = ("head", "tensor")


def flash_attn_func(
    q: torch.Tensor,
    k: torch.Tensor,
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
    """softmax(softmax_scale * Q K^T) V, forward only.

    Args:
        q: (batch, seqlen_q, nheads, headdim), bfloat16, float16 or float8_e4m3fn. Last stride 1,
            others free.
        k, v: (batch, seqlen_k, nheads_k, headdim) and (..., headdim_v), dtype and device of q.
            Query head h reads key head h // (nheads // nheads_k). headdim/headdim_v: 128/128 or
            192/128.
        softmax_scale: positive, finite times log2(e) in float32; None is 1/sqrt(headdim).
        causal: query i sees keys j <= i + seqlen_k - seqlen_q (aligned at the bottom right).
        q_descale, k_descale, v_descale: e4m3 inputs only; what a code has to be multiplied with. A
            float, a float32 tensor of one element, or (batch, nheads_k). None is 1. They must be
            positive; a tensor's values are not looked at.
        v_mean: e4m3 inputs only; float32 (batch, nheads_k, headdim_v) with a last stride of 1, what
            was taken off v before it was quantised: v is about v's codes * v_descale + v_mean. As
            the weights of a row sum to 1 it is added to the output, in float32 and before that is
            rounded. `quantize_fp8(v, subtract_mean=True)` returns it. None is 0.
        p_mode: how probabilities of e4m3 inputs are rounded to e4m3. "lean": a multiply-add instead
            of an exponential. "exact": the true exponential, scaled as the target allows.
            "unscaled": the true exponential, unscaled, row sums before rounding; there to compare
            with. 16-bit inputs take the true exponential in every mode.
        block_scale: whether each 64 keys of P carry a power of two. "auto": where the target does
            it for free.
        kernel: what runs: "auto" (what tuning found), "triton" (the loops as Triton compiles
            them), "pingpong" (the hand-scheduled loop in their place: gfx950, e4m3),
            "hip" (HIP C++, compiled when first used: gfx950, bf16), "gluon" (Triton's lower level:
            sm90, e4m3 "lean" and "exact", bf16), "ptx" (the same with a generated loop).
        backend: where: "auto", "device", "interpreter" (Triton's), "emulated" (gfx950 machine code
            on the CPU), "reference" (the contract model). A choice other than "auto" never falls
            back.
        out: filled and returned. 16-bit inputs: their dtype. e4m3 inputs: bfloat16, float16 or
            float32. It must not share memory with an input, which torch.compile does not check.
    Returns:
        out (batch, seqlen_q, nheads, headdim_v), in q's dtype, bfloat16 for e4m3 inputs, or out's
        dtype; with return_lse also lse, float32 (batch, nheads, seqlen_q): natural log of the row's
        sum of exponentials. A row that sees no key has out 0 and lse -inf. With "lean" lse is off
        by up to 0.084: never use it in a backward pass.
    Raises:
        TypeError, ValueError: an argument that is not accepted, by name.
        NotImplementedError: an input requires grad and grad mode is on.
        BackendUnavailableError: the chosen back end cannot run here; says why and what to do.
    """
    checks.check_inputs(q, k, v)
    checks.check_options(
        causal=causal, p_mode=p_mode, block_scale=block_scale, return_lse=return_lse
    )
    dispatch.check_names(kernel, backend)
    scale = checks.scale_or_default(softmax_scale, q.shape[3])
    nheads_k = k.shape[2]
    descales = [
        checks.expanded_descale(name, descale, q, nheads_k)
        for name, descale in (
            ("q_descale", q_descale),
            ("k_descale", k_descale),
            ("v_descale", v_descale),
        )
    ]
    checks.check_v_mean(v_mean, q, nheads_k, v.shape[3])
    dtypes = checks.out_dtypes(q.dtype)
    if out is not None:
        inputs: dict[str, torch.Tensor | None] = {"q": q, "k": k, "v": v, "v_mean": v_mean}
        inputs |= dict(zip(("q_descale", "k_descale", "v_descale"), descales, strict=True))
        checks.check_out(out, q, v, dtypes, inputs)
    return ops.attention(
        q,
        k,
        v,
        *descales,
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
    )


def flash_attn_fp8_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    softmax_scale: float | None = None,
    causal: bool = False,
    *,
    granularity: Literal["head", "tensor"] = "head",
    subtract_k_mean: bool = True,
    subtract_v_mean: bool = True,
    p_mode: PMode = "lean",
    block_scale: bool | Literal["auto"] = "auto",
    kernel: str = "auto",
    backend: str = "auto",
    return_lse: bool = False,
    out: torch.Tensor | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Attention of bfloat16 or float16 inputs, computed in FP8: quantises, then `flash_attn_func`.

    Args:
        q, k, v: as in `flash_attn_func`, bfloat16 or float16.
        granularity: one scale for each batch entry and key head ("head") or for the whole tensor
            ("tensor").
        subtract_k_mean: removes K's per-channel mean over the sequence before quantising. The
            softmax does not change, and lse is corrected; a key bias then costs no precision. It is
            one more pass over K. docs/accuracy.md has errors with and without. Means of 2^100 and
            more are left in, see `quantize_fp8`.
        subtract_v_mean: removes V's per-channel mean over the sequence before quantising and adds
            it to the output (`v_mean` of `flash_attn_func`). Sums of P V are smaller then, which
            matters where the target truncates them (Hopper), and so are V's codes where channels
            have a bias. It is one more pass over V. Means of 2^100 and more are left in.
        Others: as in `flash_attn_func`.
    Returns:
        As `flash_attn_func`, in q's dtype. A (batch entry, key head) whose q, k or v holds a NaN or
        an infinity has NaN in all its outputs, with and without the mean, also in rows that do not
        see that key; with granularity "tensor" all do. Memory used beside the outputs: the e4m3
        copies.
    """
    checks.check_inputs(q, k, v, _SIXTEEN_BIT)
    checks.check_options(
        causal=causal, p_mode=p_mode, block_scale=block_scale, return_lse=return_lse
    )
    dispatch.check_names(kernel, backend)
    scale = checks.scale_or_default(softmax_scale, q.shape[3])
    _check_granularity(granularity)
    checks.check_flags(subtract_k_mean=subtract_k_mean, subtract_v_mean=subtract_v_mean)
    if out is not None:
        checks.check_out(out, q, v, (q.dtype,), {"q": q, "k": k, "v": v})
    return ops.attention_fp8(
        q,
        k,
        v,
        softmax_scale=scale,
        causal=causal,
        per_tensor=granularity == "tensor",
        subtract_k_mean=subtract_k_mean,
        subtract_v_mean=subtract_v_mean,
        p_mode=p_mode,
        block_scale=block_scale,
        kernel=kernel,
        backend=backend,
        return_lse=return_lse,
        out=out,
    )


def quantize_fp8(
    x: torch.Tensor,
    granularity: Literal["head", "tensor"] = "head",
    *,
    nheads_k: int | None = None,
    subtract_mean: bool = False,
) -> tuple[torch.Tensor, torch.Tensor] | tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rounds x to e4m3 with the scales that `flash_attn_func` takes: x is about codes * descale.

    Args:
        x: (batch, seqlen, nheads, headdim), bfloat16, float16 or float32, last stride 1. headdim up
            to 256.
        granularity: "head": one scale for each batch entry and group of nheads // nheads_k heads.
            "tensor": one scale.
        nheads_k: key heads; None is nheads. Give it for q with fewer key heads than query heads.
        subtract_mean: subtracts the mean over the sequence of each batch entry, head and channel
            first.
    Returns:
        codes: float8_e4m3fn, x's shape, contiguous. The largest magnitude that a scale covers
            becomes 448.
        descale: float32 (batch, nheads_k), an expanded view for "tensor". 1 where all is zero; NaN,
            with NaN codes, where x holds a NaN or an infinity.
        mean: float32 (batch, nheads, headdim), only with subtract_mean: x is about codes * descale
            + mean. 0, and nothing subtracted, in channels whose mean is NaN or not below 2^100 in
            magnitude: finite x has finite codes in any case. That of v is `flash_attn_func`'s
            v_mean.
    """
    checks.check_tensor("x", x, _QUANTISABLE)
    _check_granularity(granularity)
    checks.check_flags(subtract_mean=subtract_mean)
    if not 1 <= x.shape[3] <= 256:
        checks.refuse(ValueError, "x", f"headdim {x.shape[3]}", "1 to 256")
    if nheads_k is not None and (isinstance(nheads_k, bool) or not isinstance(nheads_k, int)):
        checks.refuse(TypeError, "nheads_k", repr(nheads_k), "an int, or None")
    groups = x.shape[2] if nheads_k is None else nheads_k
    if groups < 1 or x.shape[2] % groups != 0:
        checks.refuse(
            ValueError, "nheads_k", repr(nheads_k), f"a divisor of the {x.shape[2]} heads of x"
        )
    codes, descale, mean = ops.quantize(x, groups, granularity == "tensor", subtract_mean)
    return (codes, descale, mean) if subtract_mean else (codes, descale)


def warmup(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    softmax_scale: float | None = None,
    causal: bool = False,
    *,
    quantize: bool = False,
    tune: bool = False,
    rope: tuple[torch.Tensor, torch.Tensor] | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Compiles, and on request tunes, what a later call with such arguments runs.

    A CUDA graph cannot be captured around a kernel that is not compiled yet; call this first, once
    for each length bucket (powers of two) that will occur. Nothing is tuned unless it is asked for:
    measuring takes a minute, and a call that takes a minute once, or never does under load, is a
    surprise. Configurations measured before are stored and shipped, and are used in any case.

    Args:
        q, k, v, softmax_scale, causal, options: as in `flash_attn_func`, or `flash_attn_fp8_func`
            with `quantize`. The values in q, k and v do not matter.
        tune: measure all candidate configurations now, of the kernel asked for or of all that serve
            the call, and store the fastest in ZYFA_TUNING_FILE. Device only.
        rope: (q_rope, k_rope) for calls of `flash_attn_mla_func`, or `flash_attn_mla_fp8_func` with
            `quantize`; q, k are then q_nope, k_nope.
    Returns:
        The configuration that such calls use from now on; empty for back ends that have none.
    """
    from zyfa_triton import mla, tuning

    checks.check_flags(quantize=quantize, tune=tune)
    if not isinstance(q, torch.Tensor):
        checks.refuse(TypeError, "q", type(q).__name__, "a torch.Tensor")
    if rope is not None and (not isinstance(rope, (tuple, list)) or len(rope) != 2):
        got = f"{len(rope)} values" if isinstance(rope, (tuple, list)) else type(rope).__name__
        checks.refuse(TypeError, "rope", got, "None, or (q_rope, k_rope)")
    backend = dispatch.choose_backend(options.get("backend", "auto"), q.device)
    if tune and backend != "device":
        checks.refuse(
            ValueError, "tune", f'True with backend "{backend}"', "True for CUDA or ROCm tensors"
        )
    # what was measured need not be what later calls run: a kernel may quantise on its own
    for force in (True, False) if tune else (False, False) if env.tune() else (False,):
        with torch.no_grad(), tuning.observed(force=force) as seen:
            if rope is not None:
                of_parts = mla.flash_attn_mla_fp8_func if quantize else mla.flash_attn_mla_func
                of_parts(q, rope[0], k, rope[1], v, softmax_scale, causal, **options)
            else:
                function = flash_attn_fp8_func if quantize else flash_attn_func
                function(q, k, v, softmax_scale, causal, **options)
    return dict(seen[-1]) if seen else {}


def _check_granularity(granularity: object) -> None:
    if granularity not in _GRANULARITIES:
        checks.refuse(ValueError, "granularity", repr(granularity), '"head", "tensor"')
