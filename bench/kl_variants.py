"""Which variants `bench.model_kl` runs on which texts, and what it keeps of each run.

It runs nothing and writes nothing.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field

from zyfa_triton.numerics import ContractOptions

TOKENS = 2048
TOP_SHARE = 0.99  # the percentile of KL that is reported


@dataclass(frozen=True)
class Text:
    """A file of a package on PyPI, from its character `start` on."""

    package: str
    archive: str
    member: str
    sha256: str
    start: int
    description: str


TEXTS = {
    "prose": Text(
        "Brotli==1.1.0",
        "Brotli-1.1.0.tar.gz",
        "Brotli-1.1.0/tests/testdata/lcet10.txt",
        "5314ba1dbb03f471df88bec6cd120a938ef60d0fd3511c5c1dce61bf7463245f",
        3592,
        "proceedings of a workshop at the Library of Congress, public domain, from its introduction"
        " on (lcet10.txt of the Canterbury corpus)",
    ),
    "code": Text(
        "requests==2.32.3",
        "requests-2.32.3-py3-none-any.whl",
        "requests/models.py",
        "938daba17cc2f2efce6a000f422f54e0c91f3bb8b8af615d6aabccaacb4f7a17",
        0,
        "models.py of the Python package requests 2.32.3, Apache-2.0",
    ),
}

UNSCALED = "unscaled"
CONSTANT = "exact, constant 2^8"
EXACT = "exact, block scaled"
LEAN = "Lean, block scaled"
LEAN_CONSTANT = "Lean, constant"
UNROUNDED = "P not rounded"  # fp32 attention on the e4m3 inputs: what quantising alone costs

P_VARIANTS: dict[str, ContractOptions | None] = {
    UNSCALED: ContractOptions("unscaled", block_scale=False),
    CONSTANT: ContractOptions("exact", block_scale=False, row_sum="unrounded"),
    EXACT: ContractOptions("exact", block_scale=True),
    LEAN: ContractOptions("lean", block_scale=True),
    LEAN_CONSTANT: ContractOptions("lean", block_scale=False),
    UNROUNDED: None,
}
PER_TENSOR, PER_HEAD, MEAN_REMOVED = "per tensor", "per head", "per head, K mean removed"
MEANS_REMOVED = "per head, K and V means removed"
QUANTISATIONS = (MEANS_REMOVED, MEAN_REMOVED, PER_HEAD, PER_TENSOR)
BF16_EXACT = "bf16, fp32 inside"


@dataclass(frozen=True)
class Variant:
    """How attention is computed: a name of P_VARIANTS and of QUANTISATIONS, or fp32 on bfloat16
    inputs (quantisation None), which shows what differences of rounding alone amount to."""

    p: str
    quantisation: str | None

    @property
    def name(self) -> str:
        return self.p if self.quantisation is None else f"{self.p}; {self.quantisation}"


VARIANTS = (
    *(Variant(p, quantisation) for quantisation in QUANTISATIONS for p in P_VARIANTS),
    Variant(BF16_EXACT, None),
)


# what more of the texts is read for, with --windows
COMPARED = tuple(Variant(p, MEANS_REMOVED) for p in (UNSCALED, CONSTANT, LEAN))


@dataclass
class Outcome:
    """One variant on one text.

    kl: nats, KL(reference || variant) of the next token's distribution at each position. agrees:
    whether both have the same most likely token. nll: of the text's next token, reference and
    variant. local: each layer's relative error of the attention output against fp32 attention on
    the same bfloat16 inputs. drift: against the reference run's output of that layer.
    """

    kl: list[float] = field(default_factory=list)
    agrees: list[bool] = field(default_factory=list)
    nll: list[float] = field(default_factory=list)
    nll_reference: list[float] = field(default_factory=list)
    local: list[float] = field(default_factory=list)
    drift: list[float] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def mean(self) -> float:
        return statistics.fmean(self.kl)

    @property
    def standard_error(self) -> float:
        return statistics.stdev(self.kl) / math.sqrt(len(self.kl))

    @property
    def top(self) -> float:
        return sorted(self.kl)[math.ceil(TOP_SHARE * len(self.kl)) - 1]

    @property
    def agreement(self) -> float:
        return statistics.fmean(self.agrees)

    @property
    def perplexity(self) -> float:
        return math.exp(statistics.fmean(self.nll))

    @property
    def perplexity_reference(self) -> float:
        return math.exp(statistics.fmean(self.nll_reference))
