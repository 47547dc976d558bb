"""What a benchmark asks for: the shape of an attention call, and how its FLOP are counted.

It holds no tensors and does not know who takes part.
"""

from __future__ import annotations

from dataclasses import dataclass

DTYPES = ("fp8", "bf16")


@dataclass(frozen=True)
class Shape:
    """One forward call: seqlen queries and as many keys in each batch entry.

    headdim is of q and k, headdim_v of v. causal: query i sees keys 0 to i.
    """

    seqlen: int
    nheads: int
    nheads_k: int
    batch: int = 1
    headdim: int = 128
    headdim_v: int = 128
    causal: bool = True

    @property
    def group_size(self) -> int:
        """Query heads that share one key head."""
        return self.nheads // self.nheads_k

    @property
    def flop(self) -> int:
        """2 (headdim + headdim_v) for each (query, key) pair, batch entry and query head.

        seqlen^2 pairs, and half of that where causal: seqlen^2 / 2, the count that FlashAttention's
        benchmarks use, not seqlen (seqlen + 1) / 2. Softmax and quantisation count nothing.
        """
        pairs = self.seqlen * self.seqlen
        total = 2 * pairs * (self.headdim + self.headdim_v) * self.nheads * self.batch
        return total // 2 if self.causal else total

    def tflops(self, seconds: float) -> float:
        """TFLOP/s of a call that takes so long."""
        return self.flop / seconds / 1e12

    @property
    def label(self) -> str:
        """For tables and pictures: "16K x 32", with what is not the rule behind it."""
        size = f"{self.seqlen // 1024}K" if self.seqlen % 1024 == 0 else str(self.seqlen)
        heads = str(self.nheads)
        if self.nheads_k != self.nheads:
            heads += f":{self.nheads_k}"
        parts = [f"{size} x {heads}"]
        if self.batch > 1:
            parts.append(f"batch {self.batch}")
        if (self.headdim, self.headdim_v) != (128, 128):
            parts.append(f"{self.headdim}/{self.headdim_v}")
        if not self.causal:
            parts.append("full")
        return ", ".join(parts)


@dataclass(frozen=True)
class Case:
    """A shape, and who is asked for it.

    dtypes: of the paths, from DTYPES. quantise: FP8 paths get bfloat16 tensors and quantise them
    within the time; else they get e4m3 tensors. 16-bit paths get bfloat16 tensors in any case.
    """

    shape: Shape
    dtypes: tuple[str, ...] = ("fp8",)
    quantise: bool = False

    def __post_init__(self) -> None:
        unknown = [dtype for dtype in self.dtypes if dtype not in DTYPES]
        if unknown or not self.dtypes:
            raise ValueError(f"dtypes: got {self.dtypes}; accepted: some of {', '.join(DTYPES)}")

    @property
    def label(self) -> str:
        """The shape's label, and whether quantising is in the time."""
        return self.shape.label + (", quantising" if self.quantise else "")
