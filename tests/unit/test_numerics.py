"""The numerics contract against the invariants that every back end must pass."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch

from zyfa_triton.numerics import (
    LSE_BIAS_BOUND,
    ContractOptions,
    ContractResult,
    attention,
    block_exponents,
    e4m3_values,
    fma32,
    lean_codes,
)
from zyfa_triton.reference import attention_ref

FP8 = torch.float8_e4m3fn
LEAN = ContractOptions("lean", True)
OPTIONS = {
    "lean-block": LEAN,
    "lean-constant": ContractOptions("lean", False),
    "exact-block": ContractOptions("exact", True),
    "exact-constant": ContractOptions("exact", False),
    "unscaled": ContractOptions("unscaled", False),
}
ROUNDED = {name: o for name, o in OPTIONS.items() if name != "unscaled"}


def gaussian(
    seqlen_q: int = 64, seqlen_k: int = 1024, sd: float = 2.0, headdim: int = 128, seed: int = 0
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """e4m3 q, k, v (1, seqlen, 1, headdim); unit descales."""
    generator = torch.Generator().manual_seed(seed)

    def normal(rows: int, scale: float) -> torch.Tensor:
        return torch.randn(1, rows, 1, headdim, generator=generator).mul(scale).to(FP8)

    return normal(seqlen_q, sd), normal(seqlen_k, 1.0), normal(seqlen_k, 1.0)


def run(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    options: ContractOptions = LEAN,
    scale: float = 128**-0.5,
    **keywords: object,
) -> ContractResult:
    return attention(q, k, v, softmax_scale=scale, options=options, **keywords)  # type: ignore[arg-type]


def relative(out: torch.Tensor, ref: torch.Tensor) -> float:
    return ((out.double() - ref).norm() / ref.norm()).item()


def test_fma32_rounds_once() -> None:
    generator = torch.Generator().manual_seed(1)
    bits = torch.randint(0, 2**31, (3, 4000), generator=generator, dtype=torch.int64)
    exponents = torch.randint(100, 150, (3, 4000), generator=generator, dtype=torch.int64)
    a, b, c = ((bits & 0x807FFFFF) | (exponents << 23)).to(torch.int32).view(torch.float32)
    # sums that sit within a hair of a tie between two floats
    a[:1000], b[:1000] = 1 + 2.0**-12, 1 + 2.0**-12
    c[:1000] = torch.where(torch.arange(1000) % 2 == 0, 2.0**-60, -(2.0**-60))
    got = fma32(a, b, c)
    for x, y, z, r in zip(a.tolist(), b.tolist(), c.tolist(), got.tolist(), strict=True):
        exact = Fraction(x) * Fraction(y) + Fraction(z)
        r32 = torch.tensor(r, dtype=torch.float32)
        neighbours = [torch.nextafter(r32, torch.tensor(s * math.inf)).item() for s in (-1, 1)]
        assert all(abs(exact - Fraction(r)) <= abs(exact - Fraction(n)) for n in neighbours)


def test_code_table_is_e4m3fn() -> None:
    values = e4m3_values(torch.arange(256, dtype=torch.uint8))
    expected = torch.arange(256, dtype=torch.uint8).view(FP8).double()
    assert torch.equal(values.nan_to_num(nan=-1e9), expected.nan_to_num(nan=-1e9))
    for octave in range(-6, 9):  # codes grow by 8 an octave: code(2^t) = 56 + 8 t
        assert values[56 + 8 * octave] == 2.0**octave


@pytest.mark.parametrize("block_scale", [True, False])
def test_no_code_above_126_at_any_magnitude(block_scale: bool) -> None:
    generator = torch.Generator().manual_seed(2)
    for magnitude in (1.0, 1e3, 1e5, 1e7, 1e9):
        scores = torch.randn(512, 64, generator=generator) * magnitude
        block_max = scores.amax(-1, keepdim=True)
        for ahead in (0.0, 0.3, 50.0):  # the reference may lie above this block's maximum
            reference = block_max + ahead
            scale = torch.tensor(0.1275)
            exponent = torch.zeros_like(reference)
            if block_scale:
                exponent = block_exponents(block_max, reference, scale)
            codes = lean_codes(scores, scale, reference, exponent, block_scale)
            assert codes.max() <= 126
            if ahead == 0.0 and magnitude <= 1e3:
                assert (codes.amax(-1) == 126).all()
    masked = torch.full((1, 64), -math.inf)
    zero = torch.zeros(1, 1)
    assert not lean_codes(masked, torch.tensor(1.0), zero, zero - 120.0, block_scale).any()


@pytest.mark.parametrize("name", ROUNDED)
def test_ones_give_one(name: str) -> None:
    q, k, v = gaussian()
    out = run(q, k, torch.ones_like(v.float()).to(FP8), ROUNDED[name], causal=True).out
    assert (out - 1).abs().max() <= 2e-7


@pytest.mark.parametrize("name", ROUNDED)
def test_one_hot_row_gives_its_value(name: str) -> None:
    _, _, v = gaussian(seqlen_k=256)
    q, k = torch.zeros(1, 32, 1, 128), torch.zeros(1, 256, 1, 128)
    q[..., 0] = 448
    k[:, 77, :, 0] = 448
    out = run(q.to(FP8), k.to(FP8), v, ROUNDED[name], scale=1e-2).out
    expected = v[:, 77:78].float().expand_as(out)
    assert ((out - expected).abs() <= 3e-7 * expected.abs()).all()


@pytest.mark.parametrize("name", OPTIONS)
def test_a_mean_of_v_is_added_to_rows_that_see_a_key(name: str) -> None:
    """In float32 with the last product: rows without keys stay 0, lse is unchanged."""
    q, k, v = gaussian(seqlen_q=80, seqlen_k=64)
    mean = 3.0 * torch.randn(1, 1, 128, generator=torch.Generator().manual_seed(5))
    plain = run(q, k, v, OPTIONS[name], causal=True, v_descale=0.25)
    moved = run(q, k, v, OPTIONS[name], causal=True, v_descale=0.25, v_mean=mean)
    assert not moved.out[:, :16].any()
    assert torch.equal(moved.lse, plain.lse)
    difference = moved.out[:, 16:].double() - plain.out[:, 16:].double() - mean.double()
    assert float(difference.abs().max()) <= 2.0**-22 * float(moved.out.abs().max())
    nothing = torch.zeros_like(v.float()).to(FP8)
    alone = run(q, k, nothing, OPTIONS[name], causal=True, v_mean=mean).out
    assert torch.equal(alone[:, 16:], mean.expand(1, 64, 1, 128))
    assert not alone[:, :16].any()


@pytest.mark.parametrize("name", ROUNDED)
def test_a_constant_in_v_or_in_its_mean_is_the_same(name: str) -> None:
    """The weights of a row sum to 1: whole numbers, so that V with the constant is exact too."""
    q, k, _ = gaussian()
    generator = torch.Generator().manual_seed(4)
    v = torch.randint(-4, 5, (1, 1024, 1, 128), generator=generator).float()
    constant = torch.randint(-8, 9, (1, 1, 128), generator=generator).float()
    within = run(q, k, (v + constant[:, None]).to(FP8), ROUNDED[name], causal=True).out
    beside = run(q, k, v.to(FP8), ROUNDED[name], causal=True, v_mean=constant).out
    torch.testing.assert_close(beside, within, rtol=1e-6, atol=4e-6)


@pytest.mark.parametrize("name", OPTIONS)
def test_equal_logits_give_the_mean(name: str) -> None:
    q, _, v = gaussian(seqlen_q=32, seqlen_k=512)
    k = torch.ones(1, 512, 1, 128).to(FP8)
    out = run(q, k, v, OPTIONS[name]).out
    torch.testing.assert_close(
        out, v.float().mean(1, keepdim=True).expand_as(out), atol=1e-4, rtol=1e-6
    )


@pytest.mark.parametrize("name", ["lean-block", "exact-block"])
def test_whole_octaves_change_nothing(name: str) -> None:
    """An extra channel adds whole octaves to every logit: same output bits, lse shifted exactly.

    Small integers, so that all scores are exact and only the algorithm could make a difference.
    """
    generator = torch.Generator().manual_seed(3)
    q, k = (torch.randint(-4, 5, (1, n, 1, 128), generator=generator).float() for n in (64, 1024))
    v = torch.randn(1, 1024, 1, 128, generator=generator).to(FP8)
    q[..., 127] = 16.0
    k[..., 127] = 0.0
    scale = 2.0**-6 * math.log(2.0)  # 64 raw units an octave
    plain = run(q.to(FP8), k.to(FP8), v, OPTIONS[name], scale=scale, causal=True)
    for octaves in (1, 3, -7):
        k[..., 127] = 4.0 * octaves
        moved = run(q.to(FP8), k.to(FP8), v, OPTIONS[name], scale=scale, causal=True)
        assert torch.equal(plain.out, moved.out)
        shift = torch.full_like(plain.lse, octaves * math.log(2.0))
        torch.testing.assert_close(moved.lse - plain.lse, shift, atol=2e-6, rtol=0)


@pytest.mark.parametrize("name", OPTIONS)
def test_rows_and_blocks_without_keys(name: str) -> None:
    q, k, v = gaussian(seqlen_q=300, seqlen_k=100)
    result = run(q, k, v, OPTIONS[name], causal=True)
    assert not result.out[:, :200].any()
    assert torch.isneginf(result.lse[..., :200]).all()
    assert torch.isfinite(result.out).all() and torch.isfinite(result.lse[..., 200:]).all()
    # row 200 sees key 0 alone
    torch.testing.assert_close(result.out[:, 200], v[:, 0].float(), rtol=3e-7, atol=0)
    empty = run(q, k[:, :0], v[:, :0], OPTIONS[name])
    assert not empty.out.any() and torch.isneginf(empty.lse).all()


def test_appended_masked_block_changes_nothing() -> None:
    """Causal rows that cannot see the last block give the bits they give without it."""
    q, k, v = gaussian(seqlen_q=256, seqlen_k=256)
    long = run(q, k, v, causal=True)
    short = run(q[:, :128], k[:, :128], v[:, :128], causal=True)
    assert torch.equal(long.out[:, :128], short.out)
    assert torch.equal(long.lse[..., :128], short.lse)


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("factor", [1e2, 1e4, 2e5])
def test_no_nan_at_huge_logits(name: str, factor: float) -> None:
    q, k, v = gaussian()
    result = run(q, k, v, OPTIONS[name], scale=128**-0.5 * factor, causal=True)
    assert torch.isfinite(result.out).all() and torch.isfinite(result.lse).all()


@pytest.mark.parametrize("name", ["lean-block", "lean-constant"])
def test_error_bound_and_convexity(name: str) -> None:
    q, k, v = gaussian()
    result = run(q, k, v, OPTIONS[name])
    ref, lse = attention_ref(q, k, v, softmax_scale=128**-0.5)
    scores = (q[0, :, 0].double() @ k[0, :, 0].double().T) * 128**-0.5
    p = torch.softmax(scores, -1)
    values, o = v[0, :, 0].double(), ref[0, :, 0]
    spread = torch.stack([(p[i][:, None] * (values - o[i]).abs()).sum(0) for i in range(len(p))])
    out = result.out[0, :, 0].double()
    assert ((out - o).abs() <= 0.09 * spread).all()
    assert (out <= values.amax(0) + 1e-6).all() and (out >= values.amin(0) - 1e-6).all()
    assert (result.lse.double() - lse).abs().max() <= LSE_BIAS_BOUND


@pytest.mark.parametrize("octaves", [2.0, 60.0])
@pytest.mark.parametrize("reverse", [False, True])
def test_stale_reference_does_not_saturate(octaves: float, reverse: bool) -> None:
    q, k, v = gaussian(sd=8.0)
    stale = ContractOptions("lean", True, rescale_threshold=octaves, reverse=reverse)
    ref, _ = attention_ref(q, k, v, softmax_scale=128**-0.5)
    fresh = run(q, k, v).out
    result = run(q, k, v, stale, return_codes=True)
    assert result.codes is not None and result.codes.max() <= 126
    assert result.exponents is not None
    if octaves == 60.0 and not reverse:
        assert result.exponents.max() > 0  # the reference really was stale
    # away from the true maximum the phase of the top code is lost, which costs up to 2.5 times
    assert relative(result.out, ref) <= 2.5 * relative(fresh, ref)


@pytest.mark.parametrize(
    ("sd", "low", "high"), [(0.5, 2.9e-2, 3.1e-2), (2.0, 1.6e-2, 1.85e-2)], ids=["sd0.5", "sd2"]
)
def test_expected_size_of_the_error(sd: float, low: float, high: float) -> None:
    """1.6 times as much means that the phase of the maximum was lost."""
    q, k, v = gaussian(seqlen_q=256, seqlen_k=2048, sd=sd)
    ref, _ = attention_ref(q, k, v, softmax_scale=128**-0.5, causal=True)
    assert low <= relative(run(q, k, v, causal=True).out, ref) <= high


def test_needle_is_found() -> None:
    q, k, v = gaussian(seqlen_q=64, seqlen_k=2048, sd=1.0)
    keys = k.float()
    position = torch.arange(64) * 31
    direction = q[0, :, 0].float()
    norm = direction.norm(dim=-1, keepdim=True)
    keys[0, position, 0] = direction / norm * (12.0 * math.sqrt(128.0) / norm)
    keys8 = keys.to(FP8)
    ref, _ = attention_ref(q, keys8, v, softmax_scale=128**-0.5)
    assert relative(run(q, keys8, v).out, ref) < 3e-3


def test_codes_follow_the_formula_by_hand() -> None:
    """Two keys an octave apart: codes 126 and 118; the next block, 3 octaves lower, has E = -3."""
    scale = math.log(2.0) / 64.0  # 64 raw units an octave
    q, k = torch.zeros(1, 1, 1, 128), torch.zeros(1, 128, 1, 128)
    q[..., 0] = 64.0
    k[0, :64, 0, 0] = -32.0
    k[0, 0, 0, 0], k[0, 1, 0, 0] = 5.0, 4.0
    k[0, 64:, 0, 0] = 2.0
    v = torch.ones(1, 128, 1, 128).to(FP8)
    result = run(q.to(FP8), k.to(FP8), v, scale=scale, return_codes=True)
    assert result.codes is not None and result.exponents is not None
    assert result.codes[0, 0, 0, :3].tolist() == [126, 118, 0]
    assert result.codes[0, 0, 0, 64:].unique().tolist() == [126]
    assert result.exponents[0, 0, 0].tolist() == [0.0, -3.0]


def test_grouped_heads_descales_and_bottom_right_mask() -> None:
    generator = torch.Generator().manual_seed(5)
    q = torch.randn(2, 130, 6, 192, generator=generator).to(FP8)
    k = torch.randn(2, 197, 2, 192, generator=generator).to(FP8)
    v = torch.randn(2, 197, 2, 128, generator=generator).to(FP8)
    descales = {f"{n}_descale": torch.rand(2, 2, generator=generator) + 0.5 for n in "qkv"}
    for name, options in OPTIONS.items():
        result = attention(q, k, v, softmax_scale=0.07, causal=True, options=options, **descales)
        ref, lse = attention_ref(q, k, v, softmax_scale=0.07, causal=True, **descales)
        assert relative(result.out, ref) < 4e-2, name
        assert (result.lse.double() - lse).abs().max() <= LSE_BIAS_BOUND, name


def test_options_that_contradict_are_refused() -> None:
    with pytest.raises(ValueError, match="p_mode: got 'fast'"):
        ContractOptions("fast")
    with pytest.raises(ValueError, match="block_scale: got True"):
        ContractOptions("unscaled", True)
    with pytest.raises(ValueError, match="row_sum: got 'unrounded'"):
        ContractOptions("lean", True, row_sum="unrounded")
