"""Whole prefill passes of transformers models, with our attention and with torch's, on a CUDA GPU.

Shapes of Mistral-7B-v0.3, Qwen3-8B and DeepSeek-V2-Lite, with random weights: times are those of
the shapes, outputs mean nothing. A pass reads one text of N tokens, fills a cache and makes the
last token's logits. Passes of all implementations take turns; medians are reported, and beside them
the time between the start and the end of the attention calls, quantising included, measured in the
same passes with events. No time is reported of an implementation whose attention is wrong: in a
first pass the last queries' output of every layer is held to float32 attention on the same inputs.

    python bench/model_prefill.py --json prefill.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import zyfa_triton
from zyfa_triton.cli.output import table
from zyfa_triton.integrations.transformers import register

LENGTHS = (4096, 16384, 32768)
CHECKED_QUERIES = 64
# Relative error of a layer's attention. e4m3 inputs are each off by 2^-4 / sqrt(12) of themselves
# at most, where attention is as flat as random weights make it; several times that is a fault.
LARGEST_ERROR = {"16bit": 2.0**-6, "fp8": 2.0**-3}

# config.json of the models on the Hugging Face hub, fields that the times depend on.
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "Mistral-7B": (  # mistralai/Mistral-7B-v0.3
        "MistralConfig",
        {
            "vocab_size": 32768,
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "max_position_embeddings": 32768,
            "sliding_window": None,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
        },
    ),
    "Qwen3-8B": (  # Qwen/Qwen3-8B
        "Qwen3Config",
        {
            "vocab_size": 151936,
            "hidden_size": 4096,
            "intermediate_size": 12288,
            "num_hidden_layers": 36,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "max_position_embeddings": 40960,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
        },
    ),
    "DeepSeek-V2-Lite": (  # deepseek-ai/DeepSeek-V2-Lite
        "DeepseekV2Config",
        {
            "vocab_size": 102400,
            "hidden_size": 2048,
            "intermediate_size": 10944,
            "moe_intermediate_size": 1408,
            "num_hidden_layers": 27,
            "num_attention_heads": 16,
            "num_key_value_heads": 16,
            "n_routed_experts": 64,
            "n_shared_experts": 2,
            "num_experts_per_tok": 6,
            "first_k_dense_replace": 1,
            "norm_topk_prob": False,
            "routed_scaling_factor": 1.0,
            "topk_method": "greedy",
            "kv_lora_rank": 512,
            "q_lora_rank": None,
            "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64,
            "v_head_dim": 128,
            "max_position_embeddings": 163840,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 10000,
                "factor": 40,
                "original_max_position_embeddings": 4096,
                "beta_fast": 32,
                "beta_slow": 1,
                "mscale": 0.707,
                "mscale_all_dim": 0.707,
            },
        },
    ),
}

Function = Callable[..., tuple[torch.Tensor, Any]]


@dataclass
class Timing:
    """One implementation on one model and length, times in ms, or why there are none."""

    model: str
    seqlen: int
    implementation: str
    whole: list[float] = field(default_factory=list)
    attention: list[float] = field(default_factory=list)
    error: float | None = None  # of the worst layer
    missing: str = ""

    @property
    def median(self) -> float:
        return statistics.median(self.whole)

    @property
    def median_attention(self) -> float:
        return statistics.median(self.attention)


def _events() -> tuple[torch.cuda.Event, torch.cuda.Event]:
    first = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    last = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    return first, last


class Timed:
    """An attention function between two events, or, while `errors` is a list, beside float32."""

    def __init__(self, function: Function, largest_error: float) -> None:
        self.function = function
        self.largest_error = largest_error
        self.events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        self.errors: list[float] | None = None

    def __call__(
        self,
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *others: Any,
        **options: Any,
    ) -> tuple[torch.Tensor, Any]:
        first, last = _events()
        first.record()
        reply = self.function(module, query, key, value, *others, **options)
        last.record()
        self.events.append((first, last))
        if self.errors is not None:
            exact = last_queries(query, key, value, options["scaling"])
            out = reply[0][:, -exact.shape[1] :].float()
            self.errors.append(float((out - exact).norm() / exact.norm()))
        return reply

    def milliseconds(self) -> float:
        """Sum of all calls since the last time; waits for them."""
        torch.cuda.synchronize()
        total = 0.0
        for first, last in self.events:
            total += first.elapsed_time(last)
        self.events.clear()
        return total


def last_queries(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float
) -> torch.Tensor:
    """float32 causal attention of the last CHECKED_QUERIES, (batch, queries, heads, headdim_v)."""
    group, seqlen = query.shape[1] // key.shape[1], key.shape[2]
    q = query[:, :, -CHECKED_QUERIES:].float()
    k, v = (x.float().repeat_interleave(group, 1) for x in (key, value))
    rows = torch.arange(seqlen - q.shape[2], seqlen, device=q.device)[:, None]
    hidden = torch.arange(seqlen, device=q.device) > rows
    scores = (q @ k.transpose(2, 3) * scaling).masked_fill_(hidden, float("-inf"))
    return (scores.softmax(-1) @ v).transpose(1, 2)


class TorchAttention:
    """torch's scaled_dot_product_attention by one of its kernels, causal, without a mask.

    A kernel that does not take grouped queries gets repeated keys and values, and one that wants
    one head dim gets padded values, as transformers does it for flash-attn; that is part of its
    time. The first form that a kernel takes is kept.
    """

    FORMS = ((False, False), (True, False), (False, True), (True, True))  # repeats heads, pads v

    def __init__(self, backend: SDPBackend) -> None:
        self.backend = backend
        self.form: dict[tuple[int, int, int], tuple[bool, bool]] = {}

    def __call__(
        self,
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        scaling: float | None = None,
        **_: Any,
    ) -> tuple[torch.Tensor, None]:
        assert attention_mask is None
        group = query.shape[1] // key.shape[1]
        shape = (group, query.shape[3], value.shape[3])
        for form in (self.form[shape],) if shape in self.form else self.FORMS:
            try:
                out = self._computed(query, key, value, scaling, *form)
            except RuntimeError:
                if form == self.FORMS[-1] or shape in self.form:
                    raise
                continue
            self.form[shape] = form
            break
        return out.transpose(1, 2), None

    def _computed(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scaling: float | None,
        repeats: bool,
        pads: bool,
    ) -> torch.Tensor:
        group, headdim_v = query.shape[1] // key.shape[1], value.shape[3]
        if pads:
            value = F.pad(value, (0, query.shape[3] - headdim_v))
        if repeats:
            key, value = (x.repeat_interleave(group, 1) for x in (key, value))
        with sdpa_kernel(self.backend):
            out = F.scaled_dot_product_attention(
                query,
                key,
                value,
                is_causal=True,
                scale=scaling,
                enable_gqa=group > 1 and not repeats,
            )
        return out[..., :headdim_v]

    def describe(self) -> str:
        """What was done for shapes that the kernel does not take as they are."""
        notes = []
        for (group, headdim, headdim_v), (repeats, pads) in self.form.items():
            done = [word for word, is_so in (("repeated", repeats), ("padded", pads)) if is_so]
            if done:
                notes.append(
                    f"group {group}, head dims {headdim}/{headdim_v}: {' and '.join(done)}"
                )
        return "; ".join(notes)


def implementations(kernel: str) -> dict[str, Timed]:
    """Name to timed function; transformers knows them under these names from now on."""
    from transformers import AttentionInterface, AttentionMaskInterface

    registered = AttentionInterface()
    options: dict[str, Any] = {"fallback": "error", "kernel": kernel}
    functions: dict[str, Function] = {
        "torch-cudnn": TorchAttention(SDPBackend.CUDNN_ATTENTION),
        "torch-fa2": TorchAttention(SDPBackend.FLASH_ATTENTION),
        "zyfa-bf16": registered[register("zyfa-inner-bf16", precision="16bit", **options)],
        "zyfa-fp8": registered[register("zyfa-inner-fp8", precision="fp8", **options)],
    }
    mask = AttentionMaskInterface()["zyfa-inner-fp8"]
    timed = {
        name: Timed(function, LARGEST_ERROR["fp8" if name.endswith("fp8") else "16bit"])
        for name, function in functions.items()
    }
    for name, function in timed.items():
        AttentionInterface.register(name, function)
        AttentionMaskInterface.register(name, mask)
    return timed


def config_of(name: str) -> Any:
    import transformers

    kind, fields = CONFIGS[name]
    return getattr(transformers, kind)(**fields, tie_word_embeddings=False)


def build(name: str) -> Any:
    """The model on the GPU, bfloat16, random weights."""
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    with torch.device("cuda"):
        model = AutoModelForCausalLM.from_config(config_of(name), dtype=torch.bfloat16)
    return model.eval()


@torch.no_grad()
def one_pass(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """The last token's logits."""
    logits: torch.Tensor = model(input_ids=ids, use_cache=True, logits_to_keep=1).logits
    return logits


def timings(
    name: str, model: Any, seqlen: int, functions: dict[str, Timed], rounds: int
) -> list[Timing]:
    """One length of one model: gate, one pass to warm up, then rounds in turns."""
    generator = torch.Generator(device=model.device).manual_seed(0)
    vocabulary = model.config.vocab_size
    ids = torch.randint(0, vocabulary, (1, seqlen), device=model.device, generator=generator)
    found = [Timing(name, seqlen, implementation) for implementation in functions]
    for timing in found:
        function = functions[timing.implementation]
        function.errors = []
        model.set_attn_implementation(timing.implementation)
        try:
            one_pass(model, ids)
        except Exception as error:  # compilers have exceptions of their own; the others go on
            timing.missing = f"{type(error).__name__}: {error}".splitlines()[0][:200]
            torch.cuda.empty_cache()
            continue
        finally:
            errors, function.errors = function.errors, None
        timing.error = max(errors)
        if not timing.error <= function.largest_error:
            timing.missing = (
                f"error {timing.error:.4f}, at most {function.largest_error:.4f} may be"
            )
    usable = [timing for timing in found if not timing.missing]
    for _ in range(rounds):
        for timing in usable:
            function = functions[timing.implementation]
            model.set_attn_implementation(timing.implementation)
            function.milliseconds()
            first, last = _events()
            first.record()
            one_pass(model, ids)
            last.record()
            timing.attention.append(function.milliseconds())
            timing.whole.append(first.elapsed_time(last))
    return found


def readable(found: Sequence[Timing]) -> str:
    """A table: median of the pass, of its attention, attention's share, speed against the first."""
    rows = []
    for timing in found:
        cells: list[object] = [timing.model, timing.seqlen, timing.implementation]
        if timing.missing or not timing.whole:
            rows.append([*cells, "-", "-", "-", "-", timing.missing])
            continue
        base = next(
            each for each in found if (each.model, each.seqlen) == (timing.model, timing.seqlen)
        )
        speed = f"{base.median / timing.median:.3f}" if base.whole else "-"
        share = f"{100 * timing.median_attention / timing.median:.0f}%"
        rows.append(
            [
                *cells,
                f"{timing.median:.1f}",
                f"{timing.median_attention:.1f}",
                share,
                speed,
                f"{timing.error:.4f}",
            ]
        )
    header = ("model", "tokens", "attention", "pass ms", "of it attention ms", "share")
    return table((*header, "speed", "largest error"), rows)


def circumstances() -> dict[str, Any]:
    import transformers
    import triton

    return {
        "date": time.strftime("%Y-%m-%d"),
        "device": torch.cuda.get_device_name(),
        "zyfa_triton": zyfa_triton.__version__,
        "torch": torch.__version__,
        "triton": triton.__version__,
        "transformers": transformers.__version__,
        "cudnn": torch.backends.cudnn.version(),  # type: ignore[no-untyped-call]
    }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", choices=tuple(CONFIGS), default=list(CONFIGS))
    parser.add_argument("--lengths", nargs="+", type=int, default=list(LENGTHS), metavar="N")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--kernel", default="auto", help="of our attention (default: auto)")
    parser.add_argument("--limit", type=float, metavar="S", help="start no new length after S s")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args(argv)
    if not torch.cuda.is_available():
        parser.error("no CUDA GPU here")
    start = time.perf_counter()
    functions = implementations(args.kernel)
    found: list[Timing] = []
    models = {name: build(name) for name in args.models}  # 62 GB, all three
    print(f"{time.perf_counter() - start:.0f} s: models are built", flush=True)
    for seqlen in args.lengths:
        for name, model in models.items():
            if args.limit is not None and time.perf_counter() - start > args.limit:
                print(f"{name}, {seqlen} tokens: not run, {args.limit} s are over")
                continue
            new = timings(name, model, seqlen, functions, args.rounds)
            found += new
            print(readable(new), f"\n{time.perf_counter() - start:.0f} s\n", flush=True)
            if args.json is not None:  # after every length: what is measured is kept
                rows = [asdict(timing) for timing in found]
                args.json.write_text(json.dumps({**circumstances(), "rows": rows}, indent=1))
            torch.cuda.empty_cache()
    found.sort(key=lambda timing: (args.models.index(timing.model), timing.seqlen))
    print(readable(found))
    for implementation, timed in functions.items():
        if isinstance(timed.function, TorchAttention) and timed.function.describe():
            print(f"{implementation}: {timed.function.describe()}")
    return 0 if found and all(timing.whole for timing in found) else 1


if __name__ == "__main__":
    sys.exit(main())
