"""How the outcomes of `bench.model_kl` become a section of docs/accuracy.md. It runs nothing."""

from __future__ import annotations

import math
import platform
import statistics
import time

import torch

import zyfa_triton
from bench.kl_variants import (
    COMPARED,
    CONSTANT,
    LEAN,
    LEAN_CONSTANT,
    MEANS_REMOVED,
    PER_TENSOR,
    QUANTISATIONS,
    TEXTS,
    TOKENS,
    UNROUNDED,
    UNSCALED,
    VARIANTS,
    Outcome,
    Variant,
)

Results = dict[tuple[str, int], dict[str, Outcome]]
"""Outcomes by variant, of each piece of each text: its name and the number of the piece."""

MARKER = "<!-- Below: written by bench/model_kl.py. bench/accuracy.py leaves it alone. -->\n"

# what flash_attn_fp8_func does by default on gfx950, and AITER as it is called: one scale a tensor
DEFAULT_P, DEFAULT_QUANTISATION = LEAN, MEANS_REMOVED
AITER_P, AITER_QUANTISATION = UNSCALED, PER_TENSOR

ZYFA_RATIO = 0.58  # KL of Lean over KL of AITER's numerics that ZYFA's authors report: 3.4 / 5.9

SECTION = """\
## On a whole model

Made by `python -m bench.model_kl FOLDER -o docs/accuracy.md`, which fetches what it needs.

{circumstances}

Qwen2.5-Coder-1.5B-Instruct in bfloat16 (4-bit weights unpacked), the first {tokens} tokens of two
texts, attention of all 28 layers by the numerics contract. Reference: the same model with torch's
bfloat16 attention. KL: nats, KL(reference || variant) of the next token's distribution, mean and
standard error over the positions, and 99th percentile. Top-1: how often the most likely token is
the reference's. Ratio: mean KL over that of "unscaled" (AITER's numerics) with the same
quantisation. Error: relative error of a layer's attention output against fp32 attention on the same
bfloat16 inputs, mean over the layers.

- "P not rounded" is fp32 attention on the e4m3 inputs: what quantising Q, K and V alone costs.
- "bf16, fp32 inside" is fp32 attention on the bfloat16 inputs: what is left of KL when nothing but
  the last bits differ.
- Each run is compared with the reference of its own process; the last bits of that depend on how
  many threads torch has.
- "per head, K and V means removed" is the default of `flash_attn_fp8_func`, "per head, K mean
  removed" what it does with `subtract_v_mean=False`, "per head" with `subtract_k_mean=False` too,
  "per tensor" with `granularity="tensor"` beside.

Texts: {texts}.

{tables}

### Error by layer

Relative error of the attention output, x1e-2, {by_layer_text}; all {layers} layers are in FOLDER.

{by_layer}

### What it comes to

As they come: `flash_attn_fp8_func` with its defaults (one scale a head, the means of K and V
removed, Lean P, with a block scale as on gfx950) against the numerics of AITER's FP8 attention as
it is called (one scale a tensor, means left in, exact P unscaled):

{as_called}

That is the work of the quantisation, not of P. This model's keys have a bias; nothing follows from
this for models without one.

With the same quantisation on both sides only what P is rounded by differs:

{verdicts}

{reached}

### More of the same texts

`--windows {windows}` reads further pieces of {tokens} tokens, which know nothing of each other,
with {compared} and the default quantisation. All pieces of a text together:

{pooled}
"""
SHOWN_LAYERS = (0, 1, 7, 14, 21, 27)


def document(everything: Results) -> str:
    """The section as text."""
    results = {name: everything.get((name, 0), {}) for name in TEXTS}
    seconds = sum(outcome.seconds for found in everything.values() for outcome in found.values())
    runs = sum(len(found) for found in results.values())
    more = sum(len(found) for found in everything.values()) - runs
    return SECTION.format(
        circumstances=f"{time.strftime('%Y-%m-%d')}, zyfa-triton {zyfa_triton.__version__}, torch "
        f"{torch.__version__}, {platform.machine()} CPU; {runs} of {len(TEXTS) * len(VARIANTS)} "
        f"runs and {more} of further pieces, {seconds / 60:.0f} minutes beside other work on the "
        "machine.",
        tokens=f"{TOKENS:,}",
        texts="; ".join(f"{name}: {text.description}" for name, text in TEXTS.items()),
        tables="\n\n".join(_table(name, found) for name, found in results.items()),
        layers=max((len(o.local) for found in results.values() for o in found.values()), default=0),
        by_layer_text=next(iter(TEXTS)),
        by_layer=_layer_table(results[next(iter(TEXTS))]),
        as_called=_listed(as_called(results)),
        verdicts=_listed(verdicts(results)),
        reached=reached(results),
        compared=", ".join(f'"{variant.p}"' for variant in COMPARED),
        windows=1 + max((window for _, window in everything), default=0),
        pooled=_listed(pooled(everything)),
    )


def _listed(lines: list[str]) -> str:
    return "\n".join(f"- {line}" for line in lines) or "- not run"


def _table(text: str, found: dict[str, Outcome]) -> str:
    lines = [
        f"{text[0].upper()}{text[1:]}, perplexity of the reference "
        f"{next(iter(found.values())).perplexity_reference:.3f}:\n"
        if found
        else f"{text}: not run\n",
        "| quantisation | P | KL x1e-3 | 99% | ratio | top-1 | perplexity | error x1e-2 |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for variant in VARIANTS:
        outcome = found.get(variant.name)
        if outcome is None:
            lines.append(f"| {variant.quantisation or '-'} | {variant.p} |" + " not run |" * 6)
            continue
        base = found.get(Variant(UNSCALED, variant.quantisation).name)
        ratio = "-" if base is None else f"{outcome.mean / base.mean:.2f}"
        lines.append(
            f"| {variant.quantisation or '-'} | {variant.p} "
            f"| {1e3 * outcome.mean:.2f} +- {1e3 * outcome.standard_error:.2f} "
            f"| {1e3 * outcome.top:.0f} | {ratio} | {100 * outcome.agreement:.2f}% "
            f"| {outcome.perplexity:.3f} | {100 * statistics.fmean(outcome.local):.2f} |"
        )
    return "\n".join(lines)


def _layer_table(found: dict[str, Outcome]) -> str:
    lines = [
        f"| quantisation | P | {' | '.join(f'layer {layer}' for layer in SHOWN_LAYERS)} |",
        "|---" * (len(SHOWN_LAYERS) + 2) + "|",
    ]
    for variant in VARIANTS:
        outcome = found.get(variant.name)
        if outcome is not None:
            cells = " | ".join(f"{100 * outcome.local[layer]:.2f}" for layer in SHOWN_LAYERS)
            lines.append(f"| {variant.quantisation or '-'} | {variant.p} | {cells} |")
    return "\n".join(lines)


def as_called(results: dict[str, dict[str, Outcome]]) -> list[str]:
    """Our defaults against AITER's usual call, for each text; and how much of that is P."""
    found = []
    for text, outcomes in results.items():
        pairs = (
            (DEFAULT_P, DEFAULT_QUANTISATION),
            (AITER_P, AITER_QUANTISATION),
            (AITER_P, DEFAULT_QUANTISATION),
            (LEAN_CONSTANT, DEFAULT_QUANTISATION),
        )
        names = [Variant(p, quantisation).name for p, quantisation in pairs]
        if not all(name in outcomes for name in names):
            continue
        ours, aiter, same, constant = (outcomes[name] for name in names)
        found.append(
            f"{text}: KL {_kl(ours)} against {_kl(aiter)} x1e-3, {ours.mean / aiter.mean:.4f} "
            f"times AITER's; the most likely token is the reference's in "
            f"{100 * ours.agreement:.2f}% against {100 * aiter.agreement:.2f}%; perplexity "
            f"{ours.perplexity:.3f} against {aiter.perplexity:.3f}, the reference's is "
            f"{ours.perplexity_reference:.3f}. AITER's P with our quantisation has {_kl(same)}. "
            f"{LEAN_CONSTANT}, the default of other targets, has {_kl(constant)}."
        )
    return found


def _kl(outcome: Outcome) -> str:
    return f"{1e3 * outcome.mean:.2f} +- {1e3 * outcome.standard_error:.2f}"


def reached(results: dict[str, dict[str, Outcome]]) -> str:
    """Whether Lean reaches the ratio of ZYFA's authors at equal quantisation, or what P not rounded
    at all reaches."""
    ratios = []
    for text, outcomes in results.items():
        names = [Variant(p, DEFAULT_QUANTISATION).name for p in (LEAN, UNROUNDED, UNSCALED)]
        if all(name in outcomes for name in names):
            lean, unrounded, unscaled = (outcomes[name].mean for name in names)
            ratios.append((text, lean / unscaled, unrounded / unscaled))
    if not ratios:
        return "Not run."
    report = ", ".join(f"{lean:.2f} ({text})" for text, lean, _ in ratios)
    if all(lean <= ZYFA_RATIO for _, lean, _ in ratios):
        return f"ZYFA's {ZYFA_RATIO} is reached at equal quantisation: {report}."
    alone = ", ".join(f"{unrounded:.2f} ({text})" for text, _, unrounded in ratios)
    answer = (
        f"So ZYFA's {ZYFA_RATIO} is not reached on this model at equal quantisation: {report} with "
        f"{DEFAULT_QUANTISATION}."
    )
    if all(unrounded > ZYFA_RATIO for *_, unrounded in ratios):
        answer += (
            f" P is not what decides it: with P not rounded at all, KL is {alone} times that of "
            "AITER's numerics. Rounding Q, K and V to e4m3 makes most of it, and leaves little "
            "that a better P could take away."
        )
    return answer


def verdicts(results: dict[str, dict[str, Outcome]]) -> list[str]:
    """Lean against AITER's numerics and against exact 2^8, for each text and quantisation."""
    found = []
    for text, outcomes in results.items():
        for quantisation in QUANTISATIONS:
            names = [Variant(p, quantisation).name for p in (LEAN, UNSCALED, CONSTANT, UNROUNDED)]
            if not all(name in outcomes for name in names):
                continue
            lean, unscaled, constant, unrounded = (outcomes[name] for name in names)
            ratio = lean.mean / unscaled.mean
            relation = "no more than" if ratio <= ZYFA_RATIO else "more than"
            found.append(
                f"{text}, {quantisation}: {LEAN} has {ratio:.2f} times the KL of AITER's numerics "
                f"({relation} {ZYFA_RATIO}, which ZYFA's authors report on Mistral-7B) and "
                f"{lean.mean / constant.mean:.2f} times that of {CONSTANT} (paired difference "
                f"{1e3 * (lean.mean - constant.mean):+.2f} +- "
                f"{1e3 * _standard_error_of_difference(lean, constant):.2f} x1e-3). Quantising "
                f"alone has {unrounded.mean / unscaled.mean:.2f} times AITER's."
            )
    return found


def pooled(everything: Results) -> list[str]:
    """Lean against AITER's numerics and exact 2^8, over all pieces of each text and of all."""
    found = []
    together: dict[str, list[dict[str, Outcome]]] = {name: [] for name in TEXTS}
    for (name, _), outcomes in everything.items():
        if all(variant.name in outcomes for variant in COMPARED):
            together[name].append(outcomes)
    groups = [*together.items(), ("all", [one for each in together.values() for one in each])]
    for name, pieces in groups:
        if len(pieces) < 2:
            continue
        unscaled, constant, lean = (
            Outcome(kl=[kl for piece in pieces for kl in piece[variant.name].kl])
            for variant in COMPARED
        )
        found.append(
            f"{name}, {len(lean.kl):,} tokens: {LEAN} {_kl(lean)}, {CONSTANT} {_kl(constant)}, "
            f"{UNSCALED} {_kl(unscaled)} (x1e-3): {lean.mean / unscaled.mean:.2f} times the KL of "
            f"AITER's numerics, {lean.mean / constant.mean:.2f} times that of {CONSTANT} (paired "
            f"difference {1e3 * (lean.mean - constant.mean):+.2f} +- "
            f"{1e3 * _standard_error_of_difference(lean, constant):.2f})."
        )
    return found


def _standard_error_of_difference(a: Outcome, b: Outcome) -> float:
    differences = [x - y for x, y in zip(a.kl, b.kl, strict=True)]
    return statistics.stdev(differences) / math.sqrt(len(differences))
