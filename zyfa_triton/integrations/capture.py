"""Which attention inputs of a running transformers model are kept, as `activations` stores them.

Within `Capture` every attention implementation of transformers that computes through
`AttentionInterface` ("sdpa", the default, among them) hands a copy of its inputs over before it
runs. These are q, k and v after the position embedding. It does not load models or read texts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from types import TracebackType
from typing import Any

import torch

from zyfa_triton.activations import Activations, ActivationsError

# Arguments of an attention function that change its result and are not stored.
_NOT_STORED = ("softcap", "s_aux", "sinks", "position_bias")


class Capture:
    """Keeps the inputs of the first prefill of each chosen layer, of the batch's first entry.

        with Capture(layers={0, 14}, text="prose") as capture:
            model(input_ids)
        capture.found[14].save("prose_L14.npz")

    Args:
        layers: numbers of layers, from 0; None is all.
        min_tokens: shorter calls are not taken, decode steps never.
        text, model: what the files say about themselves.
    Attributes:
        found: layer to its inputs, bfloat16 on the CPU.
        notes: for a layer, what its attention does besides softmax(scale Q K^T) V, which a file
            does not say: soft caps, sinks, masks.
    Raises:
        ActivationsError: while the model runs, at inputs of another dtype than bfloat16.
    """

    def __init__(
        self,
        layers: Collection[int] | None = None,
        *,
        min_tokens: int = 2,
        text: str = "",
        model: str = "",
    ) -> None:
        self.layers = None if layers is None else frozenset(layers)
        self.min_tokens = max(2, min_tokens)
        self.text, self.model = text, model
        self.found: dict[int, Activations] = {}
        self.notes: dict[int, list[str]] = {}
        self._replaced: dict[str, Callable[..., Any]] = {}

    def __enter__(self) -> Capture:
        from transformers import AttentionInterface

        registered = AttentionInterface()
        for name in registered.valid_keys():
            self._replaced[name] = registered[name]
            AttentionInterface.register(name, self._watching(registered[name]))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        from transformers import AttentionInterface

        for name, function in self._replaced.items():
            AttentionInterface.register(name, function)
        self._replaced.clear()

    def _watching(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def watched(
            module: torch.nn.Module,
            query: torch.Tensor,
            key: torch.Tensor,
            value: torch.Tensor,
            attention_mask: torch.Tensor | None,
            *others: Any,
            **options: Any,
        ) -> Any:
            layer = getattr(module, "layer_idx", None)
            if isinstance(layer, int) and self._wants(layer, query, key):
                self._keep(layer, query, key, value, attention_mask, options)
            return function(module, query, key, value, attention_mask, *others, **options)

        return watched

    def _wants(self, layer: int, query: torch.Tensor, key: torch.Tensor) -> bool:
        return (
            layer not in self.found
            and (self.layers is None or layer in self.layers)
            and query.shape[2] == key.shape[2] >= self.min_tokens
        )

    def _keep(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        options: dict[str, Any],
    ) -> None:
        for name, tensor in (("q", query), ("k", key), ("v", value)):
            if tensor.dtype != torch.bfloat16:
                raise ActivationsError(
                    f"layer {layer}: {name} is {tensor.dtype}; activations are bfloat16: load the "
                    "model with dtype=torch.bfloat16"
                )
        q, k, v = (x[:1].detach().transpose(1, 2).cpu() for x in (query, key, value))
        scaling = options.get("scaling")
        self.found[layer] = Activations(
            name=f"{self.text or 'captured'}_L{layer}",
            q=q,
            k=k,
            v=v,
            softmax_scale=1 / math.sqrt(q.shape[3]) if scaling is None else float(scaling),
            layer=layer,
            text=self.text,
            model=self.model,
        )
        notes = [name for name in _NOT_STORED if options.get(name) is not None]
        window = options.get("sliding_window")
        if window is not None and window < q.shape[1]:
            notes.append(f"a sliding window of {window}")
        elif attention_mask is not None and not _is_causal(attention_mask):
            notes.append("a mask that is not causal")
        if notes:
            self.notes[layer] = notes


def _is_causal(mask: torch.Tensor) -> bool:
    """Whether the first entry of a mask, boolean or added to logits, is the plain causal one."""
    if mask.ndim != 4:
        return bool(mask[0].all())  # a padding mask of the flash implementations
    seen = mask[0, 0] if mask.dtype == torch.bool else mask[0, 0] > torch.finfo(mask.dtype).min / 2
    rows = torch.arange(seen.shape[0], device=seen.device)[:, None]
    causal = torch.arange(seen.shape[1], device=seen.device) <= rows
    return torch.equal(seen, causal)
