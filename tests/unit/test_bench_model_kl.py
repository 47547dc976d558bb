"""What the benchmark of whole models computes from logits, stores and writes."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from bench import accuracy, kl_page, kl_variants, model_kl
from bench.kl_variants import (
    LEAN,
    MEAN_REMOVED,
    MEANS_REMOVED,
    PER_HEAD,
    PER_TENSOR,
    VARIANTS,
    Outcome,
    Variant,
)
from zyfa_triton import activations, flash_attn_fp8_func
from zyfa_triton.measure import relative_error
from zyfa_triton.reference import attention_ref


def outcome(kl: list[float], local: float = 0.1) -> Outcome:
    return Outcome(
        kl=kl,
        agrees=[True] * (len(kl) - 1) + [False],
        nll=[1.0, 2.0],
        nll_reference=[1.0, 1.0],
        local=[local] * 28,
        drift=[local] * 28,
        seconds=30.0,
    )


def test_figures_of_an_outcome() -> None:
    found = outcome([float(n) for n in range(100)])
    assert found.mean == 49.5
    assert found.top == 98.0  # 99 of 100 positions are at most this
    assert found.agreement == 0.99
    assert found.perplexity == pytest.approx(math.exp(1.5))
    assert found.perplexity_reference == pytest.approx(math.e)
    assert found.standard_error == pytest.approx(torch.arange(100.0).std().item() / 10)


class TinyRunner(model_kl.Runner):
    """A model of which only the last layer's output exists."""

    def __init__(self, reference: torch.Tensor, changed: torch.Tensor) -> None:
        self.attention = model_kl.Attention()
        self.head = torch.randn(50, 8, generator=torch.Generator().manual_seed(1)).bfloat16()
        rows = len(reference)
        self.logits = torch.mm(reference, self.head.float().T).log_softmax(-1)
        self.work = torch.empty(2, model_kl.LOGIT_ROWS, 50)
        self.ids = torch.arange(rows)[None] % 50
        self.hidden, self.changed = reference, changed

    def _hidden(self) -> torch.Tensor:
        return self.changed


def test_kl_top_1_and_nll_are_those_of_the_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_kl, "TOKENS", 600)
    generator = torch.Generator().manual_seed(0)
    reference = torch.randn(600, 8, generator=generator).bfloat16().float()
    changed = (reference + 0.1 * torch.randn(600, 8, generator=generator)).bfloat16().float()
    runner = TinyRunner(reference, changed)
    found = runner.run(VARIANTS[0])
    log_p = (reference.double() @ runner.head.double().T).log_softmax(-1)
    log_q = (changed.double() @ runner.head.double().T).log_softmax(-1)
    kl = (log_p.exp() * (log_p - log_q)).sum(-1)
    assert found.mean == pytest.approx(kl.mean().item(), rel=0.01)
    assert found.kl == pytest.approx(kl.tolist(), rel=0.1, abs=1e-4)
    same = (log_p.argmax(-1) == log_q.argmax(-1)).double().mean().item()
    assert found.agreement == pytest.approx(same, abs=2 / 600)
    targets = runner.ids[0, 1:, None]
    assert len(found.nll) == 599
    assert found.nll == pytest.approx((-log_q[:-1].gather(1, targets)[:, 0]).tolist(), abs=5e-3)


def test_every_p_with_every_quantisation_once_and_the_floor() -> None:
    names = [variant.name for variant in VARIANTS]
    assert len(set(names)) == len(names) == len(kl_variants.P_VARIANTS) * 4 + 1


def test_p_not_rounded_is_exact_attention_of_the_rounded_inputs() -> None:
    inputs = activations.load(activations.SAMPLE).cut(seqlen=256)
    out = model_kl.attention(
        inputs.q, inputs.k, inputs.v, inputs.softmax_scale,
        Variant(kl_variants.UNROUNDED, PER_HEAD),
    )  # fmt: skip
    lean = model_kl.attention(
        inputs.q, inputs.k, inputs.v, inputs.softmax_scale,
        Variant(LEAN, PER_HEAD),
    )  # fmt: skip
    assert 0 < relative_error(lean, out.double()) < 0.01
    bf16 = model_kl.attention(
        inputs.q, inputs.k, inputs.v, inputs.softmax_scale, Variant(kl_variants.BF16_EXACT, None)
    )
    exact, _ = attention_ref(
        inputs.q, inputs.k, inputs.v, softmax_scale=inputs.softmax_scale, causal=True
    )
    assert relative_error(bf16, exact) < 1e-5
    assert relative_error(out, exact) > 0.01


def test_the_default_is_what_the_op_computes_by_default() -> None:
    """On gfx950, which scales blocks of P; and K and V of the sample have means that show."""
    inputs = activations.load(activations.SAMPLE).cut(seqlen=256)
    tensors, scale = (inputs.q, inputs.k, inputs.v), inputs.softmax_scale
    options: dict[str, Any] = {"block_scale": True, "backend": "reference"}
    out = flash_attn_fp8_func(*tensors, scale, causal=True, **options)
    assert isinstance(out, torch.Tensor)
    default = Variant(kl_page.DEFAULT_P, kl_page.DEFAULT_QUANTISATION)
    ours = model_kl.attention(*tensors, scale, default).bfloat16()
    assert torch.equal(ours, out)
    others = [Variant(LEAN, quantisation) for quantisation in (PER_HEAD, PER_TENSOR)]
    others += [Variant(LEAN, MEAN_REMOVED), Variant(kl_variants.EXACT, MEANS_REMOVED)]
    for other in others:
        assert not torch.equal(model_kl.attention(*tensors, scale, other).bfloat16(), out), other


def results_with(factors: dict[Variant, float]) -> dict[str, dict[str, Outcome]]:
    """One text; KL of all variants is 1e-2 but for those given, x1e-3."""
    kl = {variant.name: 1e-3 * factors.get(variant, 10.0) for variant in VARIANTS}
    return {"prose": {name: outcome([mean] * 10) for name, mean in kl.items()}}


def test_the_first_answer_is_our_default_against_aiters_usual_call() -> None:
    ours, aiter = Variant(LEAN, MEANS_REMOVED), Variant(kl_variants.UNSCALED, PER_TENSOR)
    factors = {ours: 5.0, aiter: 1000.0}
    text = kl_page.document({(name, 0): found for name, found in results_with(factors).items()})
    assert "prose: KL 5.00 +- 0.00 against 1000.00 +- 0.00 x1e-3, 0.0050 times AITER's" in text
    assert "AITER's P with our quantisation has 10.00 +- 0.00." in text
    assert text.index("As they come:") < text.index("With the same quantisation")


def test_the_page_says_whether_the_published_ratio_is_reached_and_what_p_alone_could_do() -> None:
    lean = Variant(LEAN, MEANS_REMOVED)
    exact = Variant(kl_variants.UNROUNDED, MEANS_REMOVED)
    reached = kl_page.reached(results_with({lean: 5.0, exact: 4.0}))
    assert reached == "ZYFA's 0.58 is reached at equal quantisation: 0.50 (prose)."
    missed = kl_page.reached(results_with({lean: 9.0, exact: 5.0}))
    assert missed.startswith("So ZYFA's 0.58 is not reached") and "0.90 (prose)" in missed
    assert "not rounded" not in missed
    hopeless = kl_page.reached(results_with({lean: 9.0, exact: 7.8}))
    assert "with P not rounded at all, KL is 0.78 (prose) times" in hopeless
    assert kl_page.reached({"prose": {}}) == "Not run."


def stored_results(folder: Path, skipped: str = "") -> None:
    for place, name in enumerate(kl_variants.TEXTS):
        for number, variant in enumerate(VARIANTS):
            if variant.name == skipped:
                continue
            path = folder / "results" / name / f"{variant.name}.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            kl = [1e-3 * (1 + place + number) * (1 + position % 3) for position in range(90)]
            path.write_text(json.dumps({"key": "old", **vars(outcome(kl))}))


def test_the_section_replaces_itself_and_the_other_command_keeps_it(tmp_path: Path) -> None:
    page = tmp_path / "accuracy.md"
    page.write_text("# Accuracy\n\nfirst part\n")
    stored_results(tmp_path)
    for _ in range(2):
        assert model_kl.main([str(tmp_path), "--stored", "-o", str(page)]) == 0
    text = page.read_text()
    assert text.count("## On a whole model") == 1
    assert text.startswith("# Accuracy\n\nfirst part\n\n")
    assert f"{2 * len(VARIANTS)} of {2 * len(VARIANTS)} runs" in text
    assert accuracy.MARKER == kl_page.MARKER
    assert accuracy.kept(page) == text[text.index("\n" + kl_page.MARKER) :]


def test_runs_that_are_missing_are_said_to_be(tmp_path: Path) -> None:
    stored_results(tmp_path, skipped=f"{LEAN}; {PER_HEAD}")
    text = kl_page.document(model_kl.stored(tmp_path))
    assert text.count("| per head | Lean, block scaled | not run |") == 2
    assert "prose, per head:" not in text
    assert "prose, per tensor: Lean, block scaled has" in text


def test_more_pieces_are_read_stored_and_put_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As far as a text goes; what is stored is not run again."""
    pieces = {"prose": 3, "code": 1}
    for name in pieces:
        (tmp_path / f"{name}.txt").write_text("x" * 4000 + name, encoding="latin-1")
    stored_results(tmp_path)
    monkeypatch.setattr(model_kl, "_key", lambda variant: "old")
    ran: list[tuple[str, int, Variant]] = []

    class Runner:
        def __init__(self, folder: Path) -> None:
            self.at = ("", 0)

        def start(self, text: str, window: int = 0) -> bool:
            self.at = (next(name for name in pieces if text.endswith(name)), window)
            return window < pieces[self.at[0]]

        def run(self, variant: Variant) -> Outcome:
            ran.append((*self.at, variant))
            return outcome([1e-3 * (2 + len(ran) % 3)] * 90)

    monkeypatch.setattr(model_kl, "Runner", Runner)
    found = model_kl.measure(tmp_path, 5)
    assert ran == [("prose", window, v) for window in (1, 2) for v in kl_variants.COMPARED]
    assert set(found) == {("prose", 0), ("code", 0), ("prose", 1), ("prose", 2)}
    assert model_kl.stored(tmp_path) == found
    text = kl_page.document(found)
    assert "- prose, 270 tokens: Lean, block scaled " in text and "- all, 360 tokens: " in text
    assert "code, 90 tokens" not in text  # one piece is in the tables
    kl = [found["prose", window][kl_variants.COMPARED[2].name].mean for window in range(3)]
    assert f"Lean, block scaled {1e3 * sum(kl) / 3:.2f} +-" in text
    assert len(ran) == 6 and model_kl.measure(tmp_path, 3) == found and len(ran) == 6


def test_stored_results_of_other_numerics_are_not_taken() -> None:
    keys = [model_kl._key(Variant(p, PER_HEAD)) for p in (kl_variants.EXACT, LEAN)]
    assert keys[0] != keys[1]
    assert keys[0] == model_kl._key(Variant(kl_variants.EXACT, PER_HEAD))
