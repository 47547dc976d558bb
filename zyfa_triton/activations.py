"""What captured attention inputs look like: the .npz format, and how heads and tokens are cut.

It decides nothing about quantisation or about what is run on them.

A file holds `q` (heads, tokens, headdim), `k` and `v` (key heads, tokens, headdim) as uint16 with
the bits of bfloat16, after the position embedding, and `scale`, the softmax scale. `layer`, `text`,
`model` and `q_heads` (first and one past the last query head) say where they come from.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

SAMPLE = Path(__file__).parent / "data" / "prose1k_L14.npz"

_REQUIRED = ("q", "k", "v", "scale")


class ActivationsError(ValueError):
    """A file that does not hold captured activations, or a cut that it does not have."""


@dataclass(frozen=True)
class Activations:
    """Attention inputs of one layer.

    q, k, v: bfloat16, (1, seqlen, heads, headdim); k and v have fewer heads where they are shared.
    """

    name: str
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    softmax_scale: float
    layer: int | None = None
    text: str = ""
    model: str = ""

    @property
    def seqlen(self) -> int:
        return self.q.shape[1]

    @property
    def nheads(self) -> int:
        return self.q.shape[2]

    @property
    def nheads_k(self) -> int:
        return self.k.shape[2]

    def cut(self, *, seqlen: int | None = None, heads: int | None = None) -> Activations:
        """The first tokens and the first query heads, with the key heads that these heads read.

        Raises ActivationsError where the file has fewer, or where `heads` cuts through a group of
        query heads beyond the first.
        """
        seqlen = self.seqlen if seqlen is None else seqlen
        heads = self.nheads if heads is None else heads
        group_size = self.nheads // self.nheads_k
        if not 1 <= seqlen <= self.seqlen:
            raise ActivationsError(
                f"seqlen: {seqlen} asked for, {self.name} has 1 to {self.seqlen}"
            )
        if not 1 <= heads <= self.nheads:
            raise ActivationsError(f"heads: {heads} asked for, {self.name} has 1 to {self.nheads}")
        if heads > group_size and heads % group_size:
            raise ActivationsError(
                f"heads: {heads} asked for; beyond {group_size}, {self.name} can be cut at "
                f"multiples of {group_size}, the query heads that share a key head"
            )
        nheads_k = math.ceil(heads / group_size)
        return replace(
            self,
            q=self.q[:, :seqlen, :heads],
            k=self.k[:, :seqlen, :nheads_k],
            v=self.v[:, :seqlen, :nheads_k],
        )

    def with_rope_part(self) -> Activations:
        """Inputs of head dim 192/128 as an MLA layer has them, made of these (head dim 128).

        Columns 128 to 191 are the 32 pairs (c, c + 64) that rotate fastest with the position, once
        more: scores are those of all columns plus those of the pairs. softmax_scale is 1/sqrt(192).
        Raises ActivationsError for another head dim.
        """
        if self.q.shape[3] != 128:
            raise ActivationsError(f"{self.name} has head dim {self.q.shape[3]}, 128 is needed")
        pairs = torch.cat((torch.arange(32), 64 + torch.arange(32))).to(self.q.device)
        q, k = (torch.cat((x, x[..., pairs]), 3) for x in (self.q, self.k))
        return replace(self, name=f"{self.name}+rope", q=q, k=k, softmax_scale=1 / math.sqrt(192))

    def to(self, device: torch.device | str) -> Activations:
        """The same inputs on another device."""
        return replace(self, q=self.q.to(device), k=self.k.to(device), v=self.v.to(device))

    def digest(self) -> str:
        """sha256 of the bits of q, k and v, whatever file they came from."""
        sha = hashlib.sha256()
        for tensor in (self.q, self.k, self.v):
            sha.update(repr(tuple(tensor.shape)).encode())
            sha.update(_to_bits(tensor).tobytes())
        return sha.hexdigest()

    def save(self, path: Path | str) -> None:
        """Writes the .npz format that `load` reads."""
        arrays = {
            "q": _to_bits(self.q),
            "k": _to_bits(self.k),
            "v": _to_bits(self.v),
            "scale": np.float64(self.softmax_scale),
            "layer": np.int64(-1 if self.layer is None else self.layer),
            "n": np.int64(self.seqlen),
            "q_heads": np.array([0, self.nheads], dtype=np.int64),
            "model": np.array(self.model),
            "text": np.array(self.text),
        }
        with open(path, "wb") as file:
            np.savez_compressed(file, **arrays)


def load(path: Path | str) -> Activations:
    """Reads a file of captured activations. Raises ActivationsError, which names what is wrong."""
    path = Path(path)
    try:
        file = np.load(path, allow_pickle=False)
        if isinstance(file, np.ndarray):
            raise ActivationsError(f"{path} holds one array, not q, k, v and scale")
        with file:
            arrays = {name: file[name] for name in file.files}
    except FileNotFoundError:
        raise ActivationsError(f"no such file: {path}") from None
    except ActivationsError:
        raise
    except (OSError, ValueError, EOFError) as error:
        raise ActivationsError(f"{path} is not an .npz file of activations: {error}") from None
    missing = [name for name in _REQUIRED if name not in arrays]
    if missing:
        raise ActivationsError(
            f"{path} lacks {', '.join(missing)}; activations hold {', '.join(_REQUIRED)}"
        )
    for name in ("q", "k", "v"):
        if arrays[name].dtype != np.uint16 or arrays[name].ndim != 3:
            raise ActivationsError(
                f"{path}: {name} is {arrays[name].dtype} with {arrays[name].ndim} axes; "
                "uint16 (bfloat16 bits) with 3 is needed: heads, tokens, headdim"
            )
    q, k, v = (_from_bits(arrays[name]) for name in ("q", "k", "v"))
    _check_shapes(path, q, k, v)
    layer = int(arrays["layer"]) if "layer" in arrays else -1
    return Activations(
        name=path.stem,
        q=q,
        k=k,
        v=v,
        softmax_scale=float(arrays["scale"]),
        layer=None if layer < 0 else layer,
        text=str(arrays.get("text", "")),
        model=str(arrays.get("model", "")),
    )


def gaussian(
    *, seqlen: int, nheads: int = 2, nheads_k: int = 1, headdim: int = 128, seed: int = 0
) -> Activations:
    """Made-up inputs for head sizes of which none are captured: normal, logits of deviation 2."""
    headdim_v = 128
    generator = torch.Generator().manual_seed(seed)

    def normal(heads: int, size: int, deviation: float) -> torch.Tensor:
        values = torch.randn(1, seqlen, heads, size, generator=generator) * deviation
        return values.to(torch.bfloat16)

    return Activations(
        name=f"gaussian{headdim}",
        q=normal(nheads, headdim, 2.0),
        k=normal(nheads_k, headdim, 1.0),
        v=normal(nheads_k, headdim_v, 1.0),
        softmax_scale=1 / math.sqrt(headdim),
        text="gaussian",
    )


def _check_shapes(path: Path, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    if not q.shape[1] == k.shape[1] == v.shape[1] or k.shape[2] != v.shape[2]:
        raise ActivationsError(
            f"{path}: q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)} (batch, tokens, "
            "heads, headdim) do not belong together: same tokens, and as many heads in v as in k"
        )
    if k.shape[2] == 0 or q.shape[2] % k.shape[2]:
        raise ActivationsError(
            f"{path}: {q.shape[2]} query heads cannot share {k.shape[2]} key heads evenly"
        )


def _from_bits(bits: np.ndarray) -> torch.Tensor:
    """(heads, tokens, headdim) of uint16 -> bfloat16 (1, tokens, heads, headdim)."""
    tensor = torch.from_numpy(np.ascontiguousarray(bits).view(np.int16)).view(torch.bfloat16)
    return tensor.permute(1, 0, 2).unsqueeze(0).contiguous()


def _to_bits(tensor: torch.Tensor) -> np.ndarray:
    bits = tensor[0].permute(1, 0, 2).contiguous().cpu().view(torch.int16).numpy()
    return bits.view(np.uint16)
