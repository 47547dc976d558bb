"""Decides what the FP8 algorithm computes, rounding by rounding: the contract of every back end.

One plain model in torch on the CPU. P's codes of a kernel must equal the codes of this model bit
for bit wherever the machine sums a 64-wide product exactly and rounds once (what the gfx950
emulator assumes, docs/hardware-assumptions.md); elsewhere outputs agree within accumulation-order
rounding. It does not choose modes, check arguments or quantise.

Per query, with M the running maximum of the raw scores S, per block of `tile_n` = 64 keys:

    c     = softmax_scale * log2(e) * q_descale * k_descale   float32, in this order; a = 8 c
    S     = sum over 64-wide slices of the head dim           exact slices, a rounding after each
    b     = max S;  M' = max(M, b)                            masked scores are -inf
    alpha = exp2((M - M') c)                                  O and L are multiplied by it
    E     = clamp(ceil((b - M') c), -120, 60)                 0 without block_scale
    Lean:     f = down(fma(-a, M', 126.5 - 8 E));  g = floor(f 2^10) 2^-10
              code = max(0, floor(fma(S, a, g + 128)) - 128)  on a grid of 2^-16; at most 126
              without block_scale the larger of this line and 4 + 0.19 u, u the unrounded code
    exact:    f = down(fma(-c, M', 8 - E));  P = e4m3(exp2(fma(S, c, f)))
    unscaled: P = e4m3(exp2(fma(S, c, fma(-c, M', 0)))), and L sums P before it is rounded
    O = O alpha + 2^E (P V);  L = L alpha + 2^E (P 1)         exact sums, then one rounding

The Hopper kernel (`HOPPER`) visits blocks of 128 keys from the last one to the first, so that a row
whose largest score is an early key, as an attention sink is, has small codes only after that key
has been seen; its Lean line is the first one alone, rounded by a conversion to float16, whose
subnormals are the codes times 2^-24:

    Lean:     f = down(fma(-a, M', 126));  code = max(0, round to even(fma(S, a, f)))
    exact:    as above, with E = 0

A row whose largest score by far lies in the block visited first loses what is 15 octaves below it.

Above, down(x) = fma(|x|, -2^-22, x) keeps later roundings from lifting a code above 126. At the end
out = O v_descale / L and lse = ln(2) M c + ln(L / 448) (Lean), ln(L / 256) (exact), ln(L)
(unscaled). Where V's mean was taken off, v_mean is added with the last product: out = fma(O,
v_descale / L, v_mean). A row that sees no key gives 0 and -inf.
"""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass

import torch

P_MODES = ("lean", "exact", "unscaled")
TILE_N = 64  # keys a block: one power of two of P, one 64-deep matrix instruction
SLICE = 64  # head-dim slice that is summed exactly before a rounding
CODE_OFFSET = 128.0
TOP_CODE = 126.0
EXPONENT_RANGE = (-120.0, 60.0)
EXACT_OCTAVES = 8.0
SMALL_CODE_SLOPE, SMALL_CODE_START = 0.19, 4.0
LSE_BIAS_BOUND = (
    0.084  # nats: largest |lse - exact| of the Lean path, from the code map's ratio over one octave
)
_CHUNK_SCORES = 1 << 22  # scores held at once


@dataclass(frozen=True)
class ContractResult:
    """What the model computed.

    out: float32 (batch, seqlen_q, nheads, headdim_v). lse: float32 (batch, nheads, seqlen_q),
    natural log.
    codes: uint8 (batch, nheads, seqlen_q, seqlen_k), P's e4m3 codes, or None. exponents: float32
    (batch, nheads, seqlen_q, ceil(seqlen_k / tile_n)), each block's power of two, or None. Blocks
    that a query chunk does not visit hold code 0 and exponent 0.
    """

    out: torch.Tensor
    lse: torch.Tensor
    codes: torch.Tensor | None = None
    exponents: torch.Tensor | None = None


@dataclass(frozen=True)
class ContractOptions:
    """One variant of the algorithm.

    rescale_threshold: octaves by which a block may exceed the reference before the reference moves
    (0: always).
    reverse: visit key blocks from last to first. row_sum: "rounded" sums P's codes, "unrounded" P
    before rounding. code_map: how Lean codes are rounded: "floor", with a second line for small
    codes where there is no block scale, or "float16", see the module.
    """

    p_mode: str = "lean"
    block_scale: bool = True
    tile_n: int = TILE_N
    rescale_threshold: float = 0.0
    reverse: bool = False
    row_sum: str = "rounded"
    code_map: str = "floor"

    def __post_init__(self) -> None:
        if self.p_mode not in P_MODES:
            raise ValueError(
                f"p_mode: got {self.p_mode!r}, accepted are {', '.join(map(repr, P_MODES))}"
            )
        if self.p_mode == "unscaled" and self.block_scale:
            raise ValueError(
                "block_scale: got True with p_mode='unscaled', which has none; accepted is False"
            )
        if self.code_map not in ("floor", "float16"):
            raise ValueError(f"code_map: got {self.code_map!r}, accepted are 'floor', 'float16'")
        if self.code_map == "float16" and self.block_scale:
            raise ValueError("code_map: got 'float16' with block_scale=True; accepted is 'floor'")
        if self.row_sum not in ("rounded", "unrounded"):
            raise ValueError(f"row_sum: got {self.row_sum!r}, accepted are 'rounded', 'unrounded'")
        if self.p_mode == "lean" and self.row_sum == "unrounded":
            raise ValueError(
                "row_sum: got 'unrounded' with p_mode='lean', whose P exists only rounded"
            )


HOPPER = {
    p_mode: ContractOptions(p_mode, block_scale=False, tile_n=128, reverse=True, code_map="float16")
    for p_mode in ("lean", "exact")
}
"""The contract of the Hopper kernel, by p_mode."""


def fma32(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """float32 a * b + c with one rounding (results outside the float32 subnormal range)."""
    product = a.double() * b.double()  # exact: 24 + 24 bits
    addend = c.double()
    total = product + addend
    tie = (total.view(torch.int64) & 0x1FFFFFFF) == 0x10000000
    if bool(tie.any()):
        # the float64 sum sits halfway between two floats: its own rounding error decides
        virtual = total - product
        error = (product - (total - virtual)) + (addend - virtual)
        away = (error > 0) == (total > 0)
        step = torch.where(away, 1, -1) * (tie & (error != 0))
        total = (total.view(torch.int64) + step).view(torch.float64)
    return total.float()


def exp2_32(x: torch.Tensor) -> torch.Tensor:
    """float32 2^x, rounded once from float64; results below 2^-126 are 0, as the machine flushes
    them."""
    y = torch.exp2(x.double()).float()
    return torch.where(y < 2.0**-126, torch.zeros_like(y), y)


def _down(x: torch.Tensor) -> torch.Tensor:
    return fma32(x.abs(), torch.full_like(x, -(2.0**-22)), x)


def block_exponents(
    block_max: torch.Tensor, reference: torch.Tensor, scale_log2: torch.Tensor
) -> torch.Tensor:
    """E of each row's block, float32 integers."""
    return ((block_max - reference) * scale_log2).ceil().clamp(*EXPONENT_RANGE)


def lean_codes(
    scores: torch.Tensor,
    scale_log2: torch.Tensor,
    reference: torch.Tensor,
    exponent: torch.Tensor,
    block_scale: bool,
) -> torch.Tensor:
    """Lean codes, uint8, of raw scores (..., keys); row quantities end in a dimension of 1."""
    a = 8.0 * scale_log2
    offset = _down(fma32(-a.expand_as(reference), reference, (TOP_CODE + 0.5) - 8.0 * exponent))
    offset = (offset * 1024.0).floor() * 2.0**-10 + CODE_OFFSET
    x = fma32(scores, a, offset)
    if not block_scale:
        shift = CODE_OFFSET + 0.5
        start = torch.tensor(
            SMALL_CODE_START + shift - SMALL_CODE_SLOPE * shift, dtype=torch.float32
        )
        slope = torch.tensor(SMALL_CODE_SLOPE, dtype=torch.float32)
        x = torch.maximum(x, fma32(x, slope, start))
    return (x.clamp(min=CODE_OFFSET).floor() - CODE_OFFSET).to(torch.uint8)


def lean_codes_float16(
    scores: torch.Tensor, scale_log2: torch.Tensor, reference: torch.Tensor
) -> torch.Tensor:
    """Lean codes, uint8, as a conversion to float16 rounds them; see the module."""
    a = 8.0 * scale_log2
    top = torch.full_like(reference, TOP_CODE)
    offset = _down(fma32(-a.expand_as(reference), reference, top))
    u = fma32(scores, a.expand_as(reference), offset)
    return u.clamp(min=0.0).round().to(torch.uint8)  # torch rounds ties to even


def exact_probabilities(
    scores: torch.Tensor,
    scale_log2: torch.Tensor,
    reference: torch.Tensor,
    exponent: torch.Tensor,
    octaves: float,
) -> torch.Tensor:
    """True exponential times 2^octaves, float32, before it is rounded to e4m3."""
    offset = fma32(-scale_log2.expand_as(reference), reference, octaves - exponent)
    if octaves:
        offset = _down(offset)
    return exp2_32(fma32(scores, scale_log2, offset))


def e4m3_codes(p: torch.Tensor) -> torch.Tensor:
    """float32 to e4m3 codes (uint8), round to nearest even, saturating at 448."""
    return p.clamp(max=448.0).to(torch.float8_e4m3fn).view(torch.uint8)


def e4m3_values(codes: torch.Tensor) -> torch.Tensor:
    """e4m3 codes (uint8) as float64."""
    table = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).double()
    return table[codes.long()]


def _scores(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """Raw scores, float32 (..., queries, keys), from float64 copies of e4m3 q and k."""
    total = torch.zeros(*q.shape[:-1], k.shape[-2], dtype=torch.float64)
    for first in range(0, q.shape[-1], SLICE):
        part = q[..., first : first + SLICE] @ k[..., first : first + SLICE].transpose(-1, -2)
        total = (total + part).float().double()
    return total.float()


class _Rows:
    """Row state of one chunk of queries: maximum m, sum l, accumulator o, and what is kept for the
    caller."""

    def __init__(self, shape: tuple[int, ...], headdim_v: int, options: ContractOptions) -> None:
        self.m = torch.full((*shape, 1), -math.inf)
        self.l = torch.zeros(*shape, 1)
        self.o = torch.zeros(*shape, headdim_v)
        self.options = options

    def visit(
        self, scores: torch.Tensor, v: torch.Tensor, scale_log2: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """One block: scores float32 (..., queries, keys), v float64 (..., keys, headdim_v). Returns
        codes, exponent."""
        options = self.options
        block_max = scores.amax(-1, keepdim=True)
        m_new = torch.maximum(self.m, block_max)
        if options.rescale_threshold:
            stays = (self.m > -math.inf) & (
                (m_new - self.m) * scale_log2 <= options.rescale_threshold
            )
            m_new = torch.where(stays, self.m, m_new)
        reference = torch.where(m_new == -math.inf, torch.zeros_like(m_new), m_new)
        alpha = exp2_32((self.m - reference) * scale_log2)
        exponent = torch.zeros_like(reference)
        if options.block_scale:
            exponent = block_exponents(block_max, reference, scale_log2)
        codes, unrounded = self._codes(scores, scale_log2, reference, exponent)
        p = e4m3_values(codes)
        power = torch.exp2(exponent.double())
        summed = unrounded.double() if unrounded is not None else p
        self.o = ((self.o * alpha).double() + power * (p @ v)).float()
        self.l = ((self.l * alpha).double() + power * summed.sum(-1, keepdim=True)).float()
        self.m = m_new
        return codes, exponent

    def _codes(
        self,
        scores: torch.Tensor,
        scale_log2: torch.Tensor,
        reference: torch.Tensor,
        exponent: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        options = self.options
        if options.p_mode == "lean" and options.code_map == "float16":
            return lean_codes_float16(scores, scale_log2, reference), None
        if options.p_mode == "lean":
            return lean_codes(scores, scale_log2, reference, exponent, options.block_scale), None
        octaves = EXACT_OCTAVES if options.p_mode == "exact" else 0.0
        p = exact_probabilities(scores, scale_log2, reference, exponent, octaves)
        keeps = options.p_mode == "unscaled" or options.row_sum == "unrounded"
        return e4m3_codes(p), p if keeps else None

    def finish(
        self, scale_log2: torch.Tensor, v_descale: torch.Tensor, v_mean: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Output (..., queries, headdim_v) and lse (..., queries). v_mean: (headdim_v,), or
        None."""
        seen = self.l != 0
        total = torch.where(seen, self.l, torch.ones_like(self.l))
        factor = (1.0 / total) * v_descale
        out = self.o * factor if v_mean is None else fma32(self.o, factor, v_mean)
        out = torch.where(seen, out, torch.zeros_like(out))
        octaves_of_one = {"lean": math.log2(448.0), "exact": EXACT_OCTAVES, "unscaled": 0.0}[
            self.options.p_mode
        ]
        top = torch.where(seen, self.m, torch.zeros_like(self.m))
        lse = ((top * scale_log2).double() + total.double().log2() - octaves_of_one) * math.log(2.0)
        return out, torch.where(seen, lse.float(), torch.full_like(self.l, -math.inf)).squeeze(-1)


def _descale(value: float | torch.Tensor | None, batch: int, nheads_k: int) -> torch.Tensor:
    if value is None:
        value = 1.0
    tensor = torch.as_tensor(value, dtype=torch.float32).cpu()
    return tensor.reshape(1, 1).expand(batch, nheads_k) if tensor.numel() == 1 else tensor


def code_scale_log2(softmax_scale: float) -> float:
    """softmax_scale * log2(e) as float32: the scale of a raw score in octaves, before descales."""
    return ctypes.c_float(softmax_scale * math.log2(math.e)).value


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    softmax_scale: float,
    causal: bool = False,
    options: ContractOptions | None = None,
    q_descale: float | torch.Tensor | None = None,
    k_descale: float | torch.Tensor | None = None,
    v_descale: float | torch.Tensor | None = None,
    v_mean: torch.Tensor | None = None,
    return_codes: bool = False,
) -> ContractResult:
    """FP8 attention by the contract, on the CPU, in blocks.

    Args:
        q: float8_e4m3fn (batch, seqlen_q, nheads, headdim), any strides. k, v: (batch, seqlen_k,
            nheads_k, headdim or headdim_v); nheads is a multiple of nheads_k.
        softmax_scale: positive, finite. causal: query i sees keys j <= i + seqlen_k - seqlen_q.
        q_descale, k_descale, v_descale: a number, or float32 (batch, nheads_k).
        v_mean: float32 (batch, nheads_k, headdim_v), what was taken off V before it was quantised;
            None is 0.
        return_codes: keep P's codes and exponents (seqlen_q * seqlen_k bytes a head).
    """
    options = options or ContractOptions()
    batch, seqlen_q, nheads, _ = q.shape
    seqlen_k, nheads_k, headdim_v = k.shape[1], k.shape[2], v.shape[3]
    group = nheads // nheads_k
    scale = torch.tensor(code_scale_log2(softmax_scale)) * _descale(q_descale, batch, nheads_k)
    scale = scale * _descale(k_descale, batch, nheads_k)
    out = torch.zeros(batch, seqlen_q, nheads, headdim_v)
    lse = torch.full((batch, nheads, seqlen_q), -math.inf)
    n_blocks = -(-seqlen_k // options.tile_n)
    codes = (
        torch.zeros(batch, nheads, seqlen_q, seqlen_k, dtype=torch.uint8) if return_codes else None
    )
    exponents = torch.zeros(batch, nheads, seqlen_q, n_blocks) if return_codes else None
    rows = max(1, min(seqlen_q, _CHUNK_SCORES // max(1, seqlen_k * group)))
    rows = max(1, rows // 64 * 64) if rows >= 64 else rows
    for b in range(batch):
        for h in range(nheads_k):
            heads = slice(h * group, (h + 1) * group)
            qh = q[b, :, heads].transpose(0, 1).double()  # (group, seqlen_q, headdim)
            kh, vh = k[b, :, h].double(), v[b, :, h].double()
            v_scale = _descale(v_descale, batch, nheads_k)[b, h]
            for first in range(0, seqlen_q, rows):
                last = min(seqlen_q, first + rows)
                state = _Rows((group, last - first), headdim_v, options)
                keep = None if codes is None or exponents is None else (
                    codes[b, heads, first:last],
                    exponents[b, heads, first:last],
                )  # fmt: skip
                _visit_blocks(
                    state,
                    qh[:, first:last],
                    kh,
                    vh,
                    scale[b, h],
                    causal,
                    first + seqlen_k - seqlen_q,
                    keep,
                )
                mean = None if v_mean is None else v_mean[b, h].cpu()
                o, row_lse = state.finish(scale[b, h], v_scale, mean)
                out[b, first:last, heads] = o.transpose(0, 1)
                lse[b, heads, first:last] = row_lse
    return ContractResult(out, lse, codes, exponents)


def _visit_blocks(
    state: _Rows,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scale_log2: torch.Tensor,
    causal: bool,
    diagonal: int,
    keep: tuple[torch.Tensor, torch.Tensor] | None,
) -> None:
    """All key blocks that a chunk of queries sees; `diagonal` is the last key that its first query
    sees."""
    tile = state.options.tile_n
    visible = min(k.shape[0], diagonal + q.shape[-2]) if causal else k.shape[0]
    if visible <= 0:
        return
    scores = _scores(q, k[:visible])
    if causal:
        last_key = torch.arange(q.shape[-2]) + diagonal
        scores.masked_fill_(torch.arange(visible)[None, :] > last_key[:, None], -math.inf)
    blocks = range(0, visible, tile)
    for start in reversed(blocks) if state.options.reverse else blocks:
        block = slice(start, min(visible, start + tile))
        codes, exponent = state.visit(scores[..., block], v[block], scale_log2)
        if keep is not None:
            keep[0][..., block] = codes
            keep[1][..., start // tile] = exponent.squeeze(-1)
