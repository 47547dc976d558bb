"""Which attention calls of a transformers model the op takes, and what becomes of the others.

`register` adds one attention implementation to transformers, under a name for
`attn_implementation=`. It needs transformers 5.17 or later (5.17.0 and 5.24.0 are tested). What the
op computes is not decided here.

Two registries belong together: `AttentionInterface` holds the function that computes, and
`AttentionMaskInterface` the one that makes its mask. A name that only the first one knows gets no
mask at all, and padding or a window would be ignored in silence.

The op takes a call without a mask: more than one query, no dropout, no gradient, a dtype and head
dim that it has. Ours is the mask function, and None from it means one of two things: every query
sees every key (layers that are not causal), or query i sees keys up to i + kv_length - q_length.
Everything else, masks, decode steps, training, goes to the fallback, and the first time for each
reason a warning says so. What the fallback would get wrong is refused.
"""

from __future__ import annotations

import functools
import inspect
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch

from zyfa_triton import checks, dispatch
from zyfa_triton.interface import PMode, flash_attn_fp8_func, flash_attn_func
from zyfa_triton.problem import FP8, HEADDIMS

Precision = Literal["fp8", "16bit"]
Fallback = Literal["sdpa", "error"]

DEFAULT_NAME = "zyfa"
PRECISIONS = ("fp8", "16bit")
FALLBACKS = ("sdpa", "error")
_SIXTEEN_BIT = (torch.bfloat16, torch.float16)
# transformers gives these a meaning of its own wherever they occur in a name.
_RESERVED = ("flash", "flex", "sdpa", "eager", "paged")

# Arguments of an attention function that change no result: what they say is in the mask, or is
# nothing that attention depends on.
_HARMLESS = frozenset(
    (
        "cache_position",
        "deterministic",
        "max_length_k",
        "max_length_q",
        "num_items_in_batch",
        "output_attentions",
        "output_hidden_states",
        "position_embeddings",
        "position_ids",
        "return_dict",
        "use_cache",
    )
)
_FALLBACK_HAS = frozenset(("position_bias",))

Reply = tuple[torch.Tensor, torch.Tensor | None]


@dataclass(frozen=True)
class Options:
    """How a registered implementation computes; the arguments of `register`."""

    name: str
    precision: Precision
    fallback: Fallback
    min_queries: int
    keywords: tuple[tuple[str, Any], ...]


def register(
    name: str = DEFAULT_NAME,
    *,
    precision: Precision = "fp8",
    fallback: Fallback = "sdpa",
    min_queries: int = 2,
    granularity: Literal["head", "tensor"] = "head",
    subtract_k_mean: bool | None = None,
    subtract_v_mean: bool | None = None,
    p_mode: PMode = "lean",
    block_scale: bool | Literal["auto"] = "auto",
    kernel: str = "auto",
    backend: str = "auto",
) -> str:
    """Makes the op an attention implementation of transformers.

        AutoModelForCausalLM.from_pretrained(path, attn_implementation=register())

    Args:
        name: what models then call it; a name that is taken already is replaced. Letters, digits,
            "_" and "-", without one of transformers' own names (flash, flex, sdpa, eager, paged).
        precision: "fp8" quantises q, k and v of each call (`flash_attn_fp8_func`); "16bit"
            computes in their bfloat16 or float16 (`flash_attn_func`).
        fallback: what calls go to that the op does not take: "sdpa", torch's attention as
            transformers calls it; "error" raises NotImplementedError with the reason.
        min_queries: calls with fewer queries go to the fallback; 2 or more, so that decode steps
            do.
        granularity, subtract_k_mean, subtract_v_mean: as in `flash_attn_fp8_func`; "fp8" only. None
            is its default, True: models with a bias in their keys lose their way without K's
            (docs/accuracy.md).
        p_mode, block_scale, kernel, backend: as in `flash_attn_func`.
    Returns:
        name.
    Raises:
        ValueError, TypeError: an argument that is not accepted, or arguments with which no call
            could run, whatever its shape and device.
        ImportError: no transformers, or one that is too old.
    """
    _check_name(name)
    for argument, value, accepted in (
        ("precision", precision, PRECISIONS),
        ("fallback", fallback, FALLBACKS),
        ("granularity", granularity, ("head", "tensor")),
    ):
        if value not in accepted:
            listed = ", ".join(f'"{each}"' for each in accepted)
            checks.refuse(ValueError, argument, repr(value), listed)
    if isinstance(min_queries, bool) or not isinstance(min_queries, int) or min_queries < 2:
        checks.refuse(ValueError, "min_queries", repr(min_queries), "an integer of 2 or more")
    subtractions = {"subtract_k_mean": subtract_k_mean, "subtract_v_mean": subtract_v_mean}
    for argument, subtracts in subtractions.items():
        if subtracts is not None and not isinstance(subtracts, bool):
            checks.refuse(TypeError, argument, repr(subtracts), "None, True, False")
    told = {name for name, subtracts in subtractions.items() if subtracts is not None}
    told |= {"granularity"} if granularity != "head" else set()
    if precision == "16bit" and told:
        checks.refuse(
            ValueError,
            "precision",
            f'"16bit" with {", ".join(sorted(told))}, which say how to quantise',
            '"fp8", or "16bit" with the defaults of granularity and of both means',
        )
    checks.check_options(causal=True, p_mode=p_mode, block_scale=block_scale, return_lse=False)
    dtypes = (FP8,) if precision == "fp8" else _SIXTEEN_BIT
    dispatch.check_combination(
        kernel, backend, dtypes=dtypes, p_mode=p_mode, block_scale=block_scale
    )
    keywords = {"p_mode": p_mode, "block_scale": block_scale, "kernel": kernel, "backend": backend}
    if precision == "fp8":
        keywords["granularity"] = granularity
        keywords |= {name: subtracts is not False for name, subtracts in subtractions.items()}
    options = Options(name, precision, fallback, min_queries, tuple(keywords.items()))

    interface, mask_interface = _registries()
    interface.register(name, functools.partial(_attention, options))
    mask_interface.register(name, _mask)
    return name


def _check_name(name: object) -> None:
    if not isinstance(name, str):
        checks.refuse(TypeError, "name", type(name).__name__, "a str")
    if not re.fullmatch(r"[A-Za-z0-9_-]+", name) or any(word in name for word in _RESERVED):
        checks.refuse(
            ValueError,
            "name",
            repr(name),
            f'letters, digits, "_" and "-", without {", ".join(_RESERVED)} in it',
        )


def _registries() -> tuple[Any, Any]:
    try:
        from transformers import AttentionInterface, AttentionMaskInterface
        from transformers.masking_utils import sdpa_mask
    except ImportError as error:
        raise ImportError(
            f"transformers 5.17 or later: {error}; pip install 'zyfa-triton[transformers]'"
        ) from None
    if "q_offset" not in inspect.signature(sdpa_mask).parameters:
        import transformers

        raise ImportError(
            f"transformers: got {transformers.__version__}; accepted: 5.17 or later, whose masks "
            "are made from q_length and q_offset"
        )
    return AttentionInterface, AttentionMaskInterface


def _mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | torch.Tensor = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] | None = None,
    attention_mask: torch.Tensor | None = None,
    local_size: int | None = None,
    allow_is_causal_skip: bool = True,
    allow_is_bidirectional_skip: bool = False,
    **others: Any,
) -> torch.Tensor | None:
    """None where the op's own masks are right (see the module), else transformers' boolean mask.

    Arguments are those of `transformers.masking_utils.sdpa_mask`.
    """
    from transformers.masking_utils import causal_mask_function, sdpa_mask

    if (
        q_length > 1
        and allow_is_causal_skip
        and _is_plain_causal(q_length, kv_length, q_offset, kv_offset, attention_mask, local_size)
    ):
        return None
    # sdpa_mask skips a causal mask in two cases. That of as many keys as queries is dealt with. Of
    # the other, the first keys of a static cache, the mask is wanted: without one it would look
    # like queries that continue a sequence.
    mask: torch.Tensor | None = sdpa_mask(
        batch_size=batch_size,
        q_length=q_length,
        kv_length=kv_length,
        q_offset=q_offset,
        kv_offset=kv_offset,
        mask_function=mask_function or causal_mask_function,
        attention_mask=attention_mask,
        local_size=local_size,
        allow_is_causal_skip=allow_is_causal_skip and q_length == 1,
        allow_is_bidirectional_skip=allow_is_bidirectional_skip,
        **others,
    )
    return mask


def _is_plain_causal(
    q_length: int,
    kv_length: int,
    q_offset: int | torch.Tensor,
    kv_offset: int,
    attention_mask: torch.Tensor | None,
    local_size: int | None,
) -> bool:
    """Whether query i sees exactly the keys up to i + kv_length - q_length, of every sequence."""
    if isinstance(q_offset, torch.Tensor):  # a static cache; reading it would wait for the device
        return False
    if kv_offset != 0 or q_offset + q_length != kv_length:
        return False
    if local_size is not None and kv_length > local_size:
        return False
    if attention_mask is None:
        return True
    if torch.compiler.is_compiling():
        return False
    covers = attention_mask.shape[-1] >= kv_length
    return covers and bool(attention_mask[:, :kv_length].all())


def _attention(
    options: Options,
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    sliding_window: int | None = None,
    **others: Any,
) -> Reply:
    """What a model calls. query (batch, heads, q_length, headdim), key and value with their own
    heads and kv_length; returns (batch, q_length, heads, headdim_v) and no weights."""
    _refuse_unknown(options, others)
    if is_causal is None:
        is_causal = bool(getattr(module, "is_causal", True))
    if attention_mask is None and sliding_window is not None and key.shape[2] > sliding_window:
        checks.refuse(
            NotImplementedError,
            "sliding_window",
            f"{sliding_window} with {key.shape[2]} keys and no mask",
            "a mask made by the mask function of this implementation",
        )
    reason = _reason(options, query, key, value, attention_mask, dropout, others)
    if reason is None:
        return _ours(options, query, key, value, is_causal, scaling), None
    _say(options.name, options.fallback, reason)
    return _sdpa(
        module,
        query,
        key,
        value,
        attention_mask,
        dropout=dropout,
        scaling=scaling,
        is_causal=is_causal,
        **others,
    )


def _refuse_unknown(options: Options, others: dict[str, Any]) -> None:
    for argument, value in others.items():
        if value is None or argument in _HARMLESS or argument in _FALLBACK_HAS:
            continue
        checks.refuse(
            NotImplementedError,
            argument,
            f"{type(value).__name__} from a model that uses it in attention",
            f'None with attn_implementation="{options.name}"; "eager" knows it',
        )


def _reason(
    options: Options,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float,
    others: dict[str, Any],
) -> str | None:
    """Why the op does not take a call; None if it does. A few texts only: each is said once."""
    if query.shape[2] < options.min_queries:
        return f"decode steps (fewer than {options.min_queries} queries)"
    if attention_mask is not None:
        return "masks other than a plain causal one (padding, windows, packed texts, static caches)"
    if dropout:
        return "dropout"
    if torch.is_grad_enabled() and (
        query.requires_grad or key.requires_grad or value.requires_grad
    ):
        return "training (an input requires grad; torch.no_grad() switches that off)"
    if others.get("position_bias") is not None:
        return "a position bias"
    if others.get("output_attentions"):
        return "output_attentions=True"
    if not query.dtype == key.dtype == value.dtype:
        return "mixed dtypes"
    if query.dtype not in _SIXTEEN_BIT:
        return f"{query.dtype}"
    if query.device.type not in ("cpu", "cuda"):
        return f"tensors on {query.device.type}"
    headdims = (query.shape[3], value.shape[3])
    if headdims not in HEADDIMS or key.shape[3] != query.shape[3]:
        return f"head dims {headdims[0]}/{headdims[1]}"
    return None


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _say(name: str, fallback: str, reason: str) -> None:
    """Raises for the fallback "error"; else warns, once for each name and reason. Under
    torch.compile it runs while the graph is traced."""
    text = f'attn_implementation="{name}" does not take {reason}'
    if fallback == "error":
        raise NotImplementedError(text)
    if (name, reason) not in _said:
        _said.add((name, reason))
        warnings.warn(f'{text}: such calls run with "{fallback}"', stacklevel=2)


_said: set[tuple[str, str]] = set()


def _ours(
    options: Options,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    is_causal: bool,
    scaling: float | None,
) -> torch.Tensor:
    q, k, v = (_last_stride_1(tensor.transpose(1, 2)) for tensor in (query, key, value))
    function = flash_attn_fp8_func if options.precision == "fp8" else flash_attn_func
    out = function(q, k, v, scaling, is_causal, **dict(options.keywords))
    assert isinstance(out, torch.Tensor)
    return out


def _last_stride_1(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _sdpa(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **others: Any,
) -> Reply:
    """transformers' own. Without a mask it aligns queries with the first keys, the op with the last
    ones: where that differs it gets a mask."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    q_length, kv_length = query.shape[2], key.shape[2]
    if attention_mask is None and others["is_causal"] and 1 < q_length < kv_length:
        rows = torch.arange(kv_length - q_length, kv_length, device=query.device)
        attention_mask = torch.arange(kv_length, device=query.device) <= rows[:, None]
        attention_mask = attention_mask[None, None].expand(query.shape[0], 1, -1, -1)
    reply: Reply = sdpa_attention_forward(module, query, key, value, attention_mask, **others)
    return reply
