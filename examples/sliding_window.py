"""A variant of the attention kernel: FP8, Lean P, a sliding window and a soft cap on the logits.

Query i sees the WINDOW keys up to its own. A logit x becomes SOFTCAP * tanh(x / SOFTCAP). One tile
of queries a program; every key tile is masked, for shortness. It decides nothing about launching on
a GPU: run as a script, it compiles for gfx950, executes the machine code on this CPU, and compares.

    python examples/sliding_window.py
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from zyfa_triton import activations, quantize_fp8
from zyfa_triton.language import (
    as_e4m3,
    block_exponent,
    causal_mask,
    exponent_to_e8m0,
    finite_reference,
    key_mask,
    lean_codes,
    lean_row_offset,
    masked_scores,
    rescale_factor,
    row_sum_scaled,
)

LOG2_E: tl.constexpr = tl.constexpr(1.4426950408889634)
WINDOW = 100
SOFTCAP = 5.0


@triton.jit
def soft_capped(logits, SOFTCAP: tl.constexpr):
    """SOFTCAP * tanh(logits / SOFTCAP), by one exponential; no overflow, tanh being +-1 there."""
    e = tl.exp2(tl.minimum(logits * (2.0 * LOG2_E / SOFTCAP), 100.0))
    return SOFTCAP - 2.0 * SOFTCAP / (e + 1.0)


@triton.jit
def window_attention(
    q_ptr,
    k_ptr,
    v_ptr,
    o_ptr,
    qk_scale,
    v_scale,
    seqlen,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """One head, tensors (seqlen, HEAD_DIM) without gaps. qk_scale: softmax scale and descales."""
    row_0 = tl.program_id(0) * BLOCK_M
    offs_m = row_0 + tl.arange(0, BLOCK_M)
    offs_d = tl.arange(0, HEAD_DIM)
    q_mask = offs_m[:, None] < seqlen
    q = tl.load(q_ptr + offs_m[:, None] * HEAD_DIM + offs_d[None, :], mask=q_mask, other=0.0)

    m_i = tl.full([BLOCK_M], float("-inf"), tl.float32)
    l_i = tl.zeros([BLOCK_M], tl.float32)
    acc_o = tl.zeros([BLOCK_M, HEAD_DIM], tl.float32)
    first = tl.maximum(row_0 - WINDOW + 1, 0) // BLOCK_N * BLOCK_N
    for start_n in range(first, tl.minimum(row_0 + BLOCK_M, seqlen), BLOCK_N):
        offs_n = start_n + tl.arange(0, BLOCK_N)
        inside = key_mask(offs_n, seqlen)
        k = tl.load(k_ptr + offs_n[None, :] * HEAD_DIM + offs_d[:, None], mask=inside, other=0.0)
        logits = soft_capped(tl.dot(q, k) * qk_scale, SOFTCAP)
        in_window = offs_n[None, :] > (offs_m - WINDOW)[:, None]
        mask = inside & in_window & causal_mask(offs_m, offs_n, seqlen, seqlen)
        scores = masked_scores(logits, mask)

        # from here on as in the plain kernel; a score is a logit, so an octave is log2(e) of it
        block_max = tl.max(scores, 1)
        m_new = tl.maximum(m_i, block_max)
        reference = finite_reference(m_new)
        alpha = rescale_factor(m_i, reference, LOG2_E)
        exponent = block_exponent(block_max, reference, LOG2_E)
        p = as_e4m3(lean_codes(scores, LOG2_E, lean_row_offset(reference, exponent, LOG2_E)))
        scale = exponent_to_e8m0(exponent, BLOCK_M, BLOCK_N)
        v_mask = offs_n[:, None] < seqlen
        v = tl.load(v_ptr + offs_n[:, None] * HEAD_DIM + offs_d[None, :], mask=v_mask, other=0.0)
        acc_o = tl.dot_scaled(p, scale, "e4m3", v, None, "e4m3", acc=acc_o * alpha[:, None])
        l_i = l_i * alpha + row_sum_scaled(p, scale, BLOCK_N)
        m_i = m_new

    out = acc_o * (v_scale / l_i)[:, None]
    tl.store(o_ptr + offs_m[:, None] * HEAD_DIM + offs_d[None, :], out, mask=q_mask)


def reference(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, qk_scale: float, v_scale: float
) -> torch.Tensor:
    """The same in float64: (seqlen, headdim) from e4m3 tensors of that shape."""
    logits = q.double() @ k.double().T * qk_scale
    logits = SOFTCAP * torch.tanh(logits / SOFTCAP)
    position = torch.arange(q.shape[0])
    distance = position[:, None] - position[None, :]
    logits.masked_fill_((distance < 0) | (distance >= WINDOW), -math.inf)
    return torch.softmax(logits, -1) @ v.double() * v_scale


def sample(seqlen: int) -> tuple[list[torch.Tensor], float, float]:
    """q, k, v (seqlen, 128) of one real head as e4m3, the factor of the logits and that of v."""
    inputs = activations.load(activations.SAMPLE).cut(seqlen=seqlen, heads=1)
    pairs = [quantize_fp8(x)[:2] for x in (inputs.q, inputs.k, inputs.v)]
    codes = [codes[0, :, 0].contiguous() for codes, _ in pairs]
    q_scale, k_scale, v_scale = (descale.item() for _, descale in pairs)
    return codes, inputs.softmax_scale * q_scale * k_scale, v_scale


def launch_arguments(
    seqlen: int,
) -> tuple[dict[str, object], dict[str, object], torch.Tensor]:
    """Run-time arguments, constants, and what the output should be."""
    (q, k, v), qk_scale, v_scale = sample(seqlen)
    out = torch.full((seqlen, 128), math.nan)
    arguments: dict[str, object] = {"q_ptr": q, "k_ptr": k, "v_ptr": v, "o_ptr": out}
    arguments |= {"qk_scale": qk_scale, "v_scale": v_scale, "seqlen": seqlen}
    constants: dict[str, object] = {"WINDOW": WINDOW, "SOFTCAP": SOFTCAP, "HEAD_DIM": 128}
    constants |= {"BLOCK_M": 128, "BLOCK_N": 64}
    return arguments, constants, reference(q, k, v, qk_scale, v_scale)


def main() -> None:
    from zyfa_triton.measure import relative_error
    from zyfa_triton.prototype import try_on_gfx950

    seqlen = 500
    arguments, constants, truth = launch_arguments(seqlen)
    trial = try_on_gfx950(
        window_attention,
        (triton.cdiv(seqlen, 128),),
        arguments,
        constants,
        outputs=("o_ptr",),
        num_warps=4,
        num_stages=1,
        matrix_instr_nonkdim=32,
        waves_per_eu=2,
    )
    out = arguments["o_ptr"]
    assert isinstance(out, torch.Tensor)
    loop = trial.report.loops[0]
    print(f"relative error against fp64: {relative_error(out, truth):.2e}")
    print(f"VGPRs {trial.report.vgprs}, spilled {trial.report.vgpr_spills}")
    print(f"one loop iteration: MFMA {loop.mfma_cycles} cycles, VALU {loop.valu_cycles} cycles")
    print(f"findings: {len(trial.findings)}")
    for finding in trial.findings:
        print(f"  {finding}")


if __name__ == "__main__":
    main()
