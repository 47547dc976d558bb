"""Which attention inputs of a running transformers model are kept, as `activations` stores them.

Within `Capture` every attention implementation of transformers that computes through
`AttentionInterface` ("sdpa", the default, among them) hands a copy of its inputs over before it
runs. These are q, k and v after the position embedding. It does not load models or read texts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
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
            does not say: soft caps, sinks, masks other than the plain causal one, no mask.
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
            attention_mask: Any,  # a tensor, flex attention's BlockMask or None
            *others: Any,
            **options: Any,
        ) -> Any:
            layer = getattr(module, "layer_idx", None)
            if isinstance(layer, int) and self._wants(layer, query, key):
                self._keep(layer, query, key, value, options)
                notes = _notes(module, attention_mask, self.found[layer].seqlen, options)
                if notes:
                    self.notes[layer] = notes
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


def _notes(
    module: torch.nn.Module, mask: Any, seqlen: int, options: Mapping[str, Any]
) -> list[str]:
    """What a file does not say of a call of seqlen queries and keys, causal as commands take it."""
    notes = [name for name in _NOT_STORED if options.get(name) is not None]
    is_causal = options.get("is_causal")
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)
    window = options.get("sliding_window")
    if options.get("cu_seq_lens_q") is not None:
        notes.append("several texts in one sequence")
    if window is not None and window < seqlen:
        notes.append(f"a sliding window of {window}")
    elif mask is None and not is_causal:
        notes.append("no mask: every query sees every key")
    elif mask is not None and not _is_causal(mask, seqlen):
        notes.append("a mask that is not causal")
    return notes


def _is_causal(mask: Any, seqlen: int) -> bool:
    """Whether the first entry of a mask, boolean or added to logits, is the plain causal one."""
    if not isinstance(mask, torch.Tensor):  # flex attention's BlockMask
        from torch.nn.attention.flex_attention import create_mask

        mask = create_mask(mask.mask_mod, 1, 1, seqlen, seqlen, device=mask.kv_num_blocks.device)
    if mask.ndim != 4:
        return bool(mask[0].all())  # a padding mask of the flash implementations
    seen = mask[0, 0] if mask.dtype == torch.bool else mask[0, 0] > torch.finfo(mask.dtype).min / 2
    rows = torch.arange(seen.shape[0], device=seen.device)[:, None]
    causal = torch.arange(seen.shape[1], device=seen.device) <= rows
    return torch.equal(seen, causal)
