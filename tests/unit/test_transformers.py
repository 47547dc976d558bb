"""The op as an attention implementation of transformers: as eager attention, or refused."""

from __future__ import annotations

import copy
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    DeepseekV2Config,
    Gemma2Config,
    GptOssConfig,
    LlamaConfig,
    MistralConfig,
    PretrainedConfig,
    Qwen2Config,
    Qwen3Config,
)
from transformers.masking_utils import sdpa_mask

from zyfa_triton import dispatch, quantize_fp8
from zyfa_triton.integrations import transformers as integration
from zyfa_triton.integrations.transformers import register
from zyfa_triton.reference import attention_ref
from zyfa_triton.testing import LOW_FACTOR

ROOT = Path(__file__).resolve().parents[2]
VOCABULARY = 96
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 256,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    # attention that depends on its logits, not one that is flat as at a usual start of training
    "initializer_range": 0.08,
}
GQA: dict[str, Any] = {**SIZES, "num_key_value_heads": 2, "head_dim": 128}
CONFIGS: dict[str, Callable[[], PretrainedConfig]] = {
    "llama": lambda: LlamaConfig(**GQA),
    "qwen2": lambda: Qwen2Config(**{**GQA, "hidden_size": 512}),
    "qwen3": lambda: Qwen3Config(**GQA),
    "mistral": lambda: MistralConfig(**GQA, sliding_window=128),
    "deepseek_v2": lambda: DeepseekV2Config(
        **SIZES,
        num_key_value_heads=4,
        q_lora_rank=None,
        kv_lora_rank=64,
        qk_nope_head_dim=128,
        qk_rope_head_dim=64,
        v_head_dim=128,
        first_k_dense_replace=2,
    ),
}
FAMILIES = tuple(CONFIGS)

# The error budget (zyfa_triton.testing): against the float32 model, ours may be off by twice what
# the same model is off by whose attention is torch's, in bfloat16, or for "fp8" plain float64
# attention of inputs rounded to e4m3.
E4M3 = "rounded-inputs"


def attention_of_rounded_inputs(
    module: Any, query: Any, key: Any, value: Any, mask: Any, scaling: float, **_: Any
) -> tuple[torch.Tensor, None]:
    if mask is not None:  # of a window that is as long as the text: it hides what causality does
        assert torch.equal(mask, torch.ones_like(mask).tril())
    rounded: list[Any] = []
    for tensor in (query, key, value):
        x = tensor.transpose(1, 2).to(torch.bfloat16)
        rounded.append(quantize_fp8(x, nheads_k=key.shape[1])[:2])
    (q, q_descale), (k, k_descale), (v, v_descale) = rounded
    out, _lse = attention_ref(
        q, k, v, softmax_scale=scaling, causal=True,
        q_descale=q_descale, k_descale=k_descale, v_descale=v_descale,
    )  # fmt: skip
    return out.to(query.dtype), None


AttentionInterface.register(E4M3, attention_of_rounded_inputs)
AttentionMaskInterface.register(E4M3, sdpa_mask)


def build(config: PretrainedConfig, implementation: str, dtype: torch.dtype) -> Any:
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(
        copy.deepcopy(config), attn_implementation="eager", dtype=torch.float32
    )
    model = model.to(torch.bfloat16).to(dtype).eval()
    model.set_attn_implementation(implementation)
    return model


def tokens(batch: int, length: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(3, VOCABULARY, (batch, length), generator=generator)


def relative(out: torch.Tensor, ref: torch.Tensor) -> float:
    return float((out.double() - ref.double()).norm() / ref.double().norm())


class Calls:
    """How often the op was called, and with what."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.shapes: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
        self.options: list[dict[str, Any]] = []
        for name in ("flash_attn_fp8_func", "flash_attn_func"):
            monkeypatch.setattr(integration, name, self._counting(getattr(integration, name)))

    def _counting(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(q: torch.Tensor, k: torch.Tensor, *others: Any, **options: Any) -> Any:
            self.shapes.append((tuple(q.shape), tuple(k.shape)))
            self.options.append(options)
            return function(q, k, *others, **options)

        return counted


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    return Calls(monkeypatch)


@pytest.fixture(autouse=True)
def nothing_said_yet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(integration, "_said", set())
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*does not take.*")
        yield


class Expected:
    """float32 logits of a model and how far ours may be from them."""

    def __init__(self, config: PretrainedConfig, precision: str = "16bit", **inputs: Any) -> None:
        self.ref = logits(build(config, "eager", torch.float32), **inputs)
        low = (E4M3, torch.float32) if precision == "fp8" else ("eager", torch.bfloat16)
        self.low = logits(build(config, *low), **inputs)

    def check(self, out: torch.Tensor, where: Any = slice(None)) -> None:
        ref, low = self.ref[where], self.low[where]
        assert relative(out[where], ref) <= LOW_FACTOR * relative(low, ref)


@torch.no_grad()
def logits(model: Any, **inputs: Any) -> torch.Tensor:
    out: torch.Tensor = model(**inputs, use_cache=False).logits
    return out


@pytest.mark.parametrize("precision", integration.PRECISIONS)
@pytest.mark.parametrize("family", FAMILIES)
def test_prefill_agrees_with_eager(family: str, precision: str, calls: Calls) -> None:
    config, ids = CONFIGS[family](), tokens(2, 70)
    expected = Expected(config, precision, input_ids=ids)
    out = logits(build(config, register(precision=precision), torch.bfloat16), input_ids=ids)
    assert len(calls.shapes) == config.num_hidden_layers
    assert calls.shapes[0][1][2] == config.num_key_value_heads  # not repeated
    expected.check(out)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("family", FAMILIES)
def test_padding_agrees_with_eager_on_real_tokens(family: str, side: str, calls: Calls) -> None:
    config, ids = CONFIGS[family](), tokens(2, 24)
    mask = torch.ones_like(ids)
    mask[0, slice(0, 9) if side == "left" else slice(15, 24)] = 0
    inputs = {"input_ids": ids, "attention_mask": mask}
    expected = Expected(config, **inputs)
    out = logits(build(config, register(), torch.bfloat16), **inputs)
    assert not calls.shapes
    expected.check(out, mask.bool())


def test_a_mask_without_padding_is_no_reason_to_fall_back(calls: Calls) -> None:
    config, ids = CONFIGS["llama"](), tokens(2, 24)
    model = build(config, register(), torch.bfloat16)
    masked = logits(model, input_ids=ids, attention_mask=torch.ones_like(ids))
    assert len(calls.shapes) == config.num_hidden_layers
    assert torch.equal(masked, logits(model, input_ids=ids))


@torch.no_grad()
def cached_logits(model: Any, ids: torch.Tensor, lengths: tuple[int, ...]) -> torch.Tensor:
    """The logits of all positions, computed in calls of such lengths with a growing cache."""
    cache, first, parts = None, 0, []
    for length in lengths:
        reply = model(
            input_ids=ids[:, first : first + length], past_key_values=cache, use_cache=True
        )
        cache, first = reply.past_key_values, first + length
        parts.append(reply.logits)
    return torch.cat(parts, 1)


@pytest.mark.parametrize("precision", integration.PRECISIONS)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_cache_over_several_calls(family: str, precision: str, calls: Calls) -> None:
    config, ids, lengths = CONFIGS[family](), tokens(2, 70), (40, 1, 1, 25, 3)
    expected = Expected(config, precision, input_ids=ids)
    model = build(config, register(precision=precision), torch.bfloat16)
    out = cached_logits(model, ids, lengths)
    seen = [(q[1], k[1]) for q, k in calls.shapes[:: config.num_hidden_layers]]
    assert seen == [(40, 40), (25, 67), (3, 70)]
    expected.check(out)


def test_generating_takes_the_op_for_the_prompt_only(calls: Calls) -> None:
    config, ids = CONFIGS["qwen3"](), tokens(2, 20)
    arguments = {"max_new_tokens": 4, "do_sample": False}
    expected = build(config, "eager", torch.bfloat16).generate(ids, **arguments)
    found = build(config, register(precision="16bit"), torch.bfloat16).generate(ids, **arguments)
    assert torch.equal(found, expected)
    assert [q[1] for q, _ in calls.shapes] == [20] * config.num_hidden_layers


def test_a_static_cache_falls_back_and_is_right(calls: Calls) -> None:
    config, ids = CONFIGS["llama"](), tokens(1, 20)
    arguments = {"max_new_tokens": 3, "do_sample": False, "cache_implementation": "static"}
    arguments["disable_compile"] = True
    expected = build(config, "eager", torch.bfloat16).generate(ids, **arguments)
    found = build(config, register(precision="16bit"), torch.bfloat16).generate(ids, **arguments)
    assert torch.equal(found, expected)
    assert not calls.shapes


@pytest.mark.parametrize("precision", integration.PRECISIONS)
@pytest.mark.parametrize("window", [70, 71])
def test_a_sliding_window_that_hides_nothing(window: int, precision: str, calls: Calls) -> None:
    config, ids = MistralConfig(**GQA, sliding_window=window), tokens(1, 70)
    expected = Expected(config, precision, input_ids=ids)
    out = logits(build(config, register(precision=precision), torch.bfloat16), input_ids=ids)
    assert len(calls.shapes) == config.num_hidden_layers
    expected.check(out)


@pytest.mark.parametrize("window", [8, 69])
def test_a_sliding_window_is_never_ignored(window: int, calls: Calls) -> None:
    config, ids = MistralConfig(**GQA, sliding_window=window), tokens(1, 70)
    expected = Expected(config, input_ids=ids)
    out = logits(build(config, register(precision="16bit"), torch.bfloat16), input_ids=ids)
    assert not calls.shapes
    expected.check(out)


def test_a_sliding_window_with_a_cache_of_its_own(calls: Calls) -> None:
    config, ids = MistralConfig(**GQA, sliding_window=16), tokens(1, 40)
    expected = Expected(config, input_ids=ids)
    model = build(config, register(precision="16bit"), torch.bfloat16)
    out = cached_logits(model, ids, (10, 5, 1, 14, 10))
    expected.check(out)


@pytest.mark.parametrize("is_causal", [True, False])
def test_a_window_without_a_mask_is_refused(is_causal: bool) -> None:
    """transformers leaves a mask out only where the window hides nothing, causal or not."""
    function = AttentionInterface()[register()]
    x = torch.zeros(1, 2, 20, 128, dtype=torch.bfloat16)
    with pytest.raises(NotImplementedError, match=r"^sliding_window: got 8 with 20 keys"):
        function(torch.nn.Module(), x, x, x, None, sliding_window=8, is_causal=is_causal)
    function(torch.nn.Module(), x, x, x, None, sliding_window=20, is_causal=is_causal)


def test_arguments_that_nobody_knows_are_refused() -> None:
    function = AttentionInterface()[register()]
    x = torch.zeros(1, 2, 20, 128, dtype=torch.bfloat16)
    with pytest.raises(NotImplementedError, match=r"^temperature: got float from a model"):
        function(torch.nn.Module(), x, x, x, None, temperature=0.5)
    function(torch.nn.Module(), x, x, x, None, temperature=None, position_ids=x)


def test_a_scale_that_is_not_the_usual_one(calls: Calls) -> None:
    config, ids = CONFIGS["llama"](), tokens(1, 70)
    models = [
        build(config, "eager", torch.float32),
        build(config, "eager", torch.bfloat16),
        build(config, register(precision="16bit"), torch.bfloat16),
    ]
    usual = logits(models[0], input_ids=ids)
    for model in models:
        for layer in model.model.layers:
            layer.self_attn.scaling *= 3.0
    ref, low, out = (logits(model, input_ids=ids) for model in models)
    assert len(calls.shapes) == config.num_hidden_layers
    assert relative(usual, ref) > 10 * relative(low, ref)
    assert relative(out, ref) <= LOW_FACTOR * relative(low, ref)


def test_a_decoder_that_is_told_not_to_be_causal(calls: Calls) -> None:
    config, ids = CONFIGS["llama"](), tokens(1, 40)
    causal = logits(build(config, "eager", torch.float32), input_ids=ids)
    config.is_causal = False
    expected = Expected(config, input_ids=ids)
    out = logits(build(config, register(precision="16bit"), torch.bfloat16), input_ids=ids)
    assert calls.shapes
    assert relative(causal, expected.ref) > 0.5
    expected.check(out)


def test_packed_texts_do_not_see_each_other(calls: Calls) -> None:
    config, ids = CONFIGS["qwen3"](), tokens(1, 40)
    positions = torch.cat([torch.arange(15), torch.arange(25)])[None]
    expected = Expected(config, input_ids=ids, position_ids=positions)
    model = build(config, register(), torch.bfloat16)
    expected.check(logits(model, input_ids=ids, position_ids=positions))
    assert not calls.shapes


def test_soft_caps_are_refused() -> None:
    config = Gemma2Config(**GQA, query_pre_attn_scalar=128, attn_logit_softcapping=5.0)
    with pytest.raises(NotImplementedError, match=r"^softcap: got float .*accepted: None"):
        logits(build(config, register(), torch.bfloat16), input_ids=tokens(1, 20))


def test_attention_sinks_are_refused() -> None:
    config = GptOssConfig(**GQA, num_local_experts=2, num_experts_per_tok=1)
    with pytest.raises(NotImplementedError, match=r"^s_aux: got Parameter .*accepted: None"):
        logits(build(config, register(), torch.bfloat16), input_ids=tokens(1, 20))


def test_training_falls_back_and_has_gradients(calls: Calls) -> None:
    config, ids = CONFIGS["qwen3"](), tokens(1, 20)
    gradients = []
    for implementation in ("sdpa", register()):
        model = build(config, implementation, torch.bfloat16).train()
        model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
        gradients.append(model.model.layers[0].self_attn.q_proj.weight.grad)
    assert not calls.shapes
    assert torch.equal(*gradients)


def test_dropout_falls_back(calls: Calls) -> None:
    config = LlamaConfig(**GQA, attention_dropout=0.5)
    model = build(config, register(), torch.bfloat16).train()
    logits(model, input_ids=tokens(1, 20))
    assert not calls.shapes
    logits(model.eval(), input_ids=tokens(1, 20))
    assert calls.shapes


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dtypes_that_the_op_lacks_fall_back(dtype: torch.dtype, calls: Calls) -> None:
    config, ids = CONFIGS["llama"](), tokens(1, 20)
    expected = logits(build(config, "sdpa", dtype), input_ids=ids)
    assert torch.equal(logits(build(config, register(), dtype), input_ids=ids), expected)
    assert not calls.shapes


def test_head_dims_that_the_op_lacks_fall_back(calls: Calls) -> None:
    config, ids = LlamaConfig(**{**GQA, "head_dim": 64}), tokens(1, 20)
    expected = logits(build(config, "sdpa", torch.bfloat16), input_ids=ids)
    out = logits(build(config, register(), torch.bfloat16), input_ids=ids)
    assert torch.equal(out, expected)
    assert not calls.shapes


def test_a_fallback_without_a_mask_keeps_the_alignment(calls: Calls) -> None:
    config, ids = CONFIGS["llama"](), tokens(1, 70)
    whole = logits(build(config, "sdpa", torch.float64), input_ids=ids)
    parts = cached_logits(build(config, register(), torch.float64), ids, (40, 30))
    assert not calls.shapes
    assert relative(parts, whole) < 1e-12


def test_each_reason_is_said_once() -> None:
    config, ids = CONFIGS["llama"](), tokens(1, 20)
    name = register("zyfa-once")
    model = build(config, name, torch.bfloat16)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        cached_logits(model, ids, (17, 1, 1, 1))
        logits(model, input_ids=ids, attention_mask=torch.tensor([[0] + [1] * 19]))
    said = [str(warning.message) for warning in caught if "zyfa-once" in str(warning.message)]
    assert len(said) == 2
    assert "decode steps" in said[0] and 'run with "sdpa"' in said[0]
    assert "padding" in said[1]


def test_the_fallback_error_raises_with_the_reason() -> None:
    model = build(CONFIGS["llama"](), register(fallback="error"), torch.bfloat16)
    with pytest.raises(NotImplementedError, match="does not take decode steps"):
        logits(model, input_ids=tokens(1, 1))


def test_options_reach_the_op(calls: Calls) -> None:
    chosen: dict[str, Any] = {
        "granularity": "tensor",
        "subtract_k_mean": False,
        "subtract_v_mean": False,
        "p_mode": "exact",
        "block_scale": False,
        "kernel": "triton",
        "backend": "reference",
    }
    logits(build(CONFIGS["llama"](), register(**chosen), torch.bfloat16), input_ids=tokens(1, 20))
    assert calls.options[0] == chosen


def test_fp8_removes_the_means_of_keys_and_values_unless_told_not_to(calls: Calls) -> None:
    logits(build(CONFIGS["llama"](), register(), torch.bfloat16), input_ids=tokens(1, 20))
    assert calls.options[0]["subtract_k_mean"] is True
    assert calls.options[0]["subtract_v_mean"] is True


@torch.no_grad()
def prefill_logits(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """With a cache: without one, transformers looks for packed texts, and when compiled it cannot
    look and makes a mask for them."""
    out: torch.Tensor = model(input_ids=ids, use_cache=True).logits
    return out


@pytest.mark.parametrize("family", ["llama", "deepseek_v2"])
def test_a_compiled_model_is_one_graph_and_gives_the_same_bits(family: str, calls: Calls) -> None:
    config, ids = CONFIGS[family](), tokens(1, 40)
    model = build(config, register(), torch.bfloat16)
    expected = prefill_logits(model, ids)
    calls.shapes.clear()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    assert torch.equal(prefill_logits(compiled, ids), expected)
    assert calls.shapes


def test_a_model_whose_operators_are_taken_apart_agrees_with_eager(calls: Calls) -> None:
    config, ids = CONFIGS["llama"](), tokens(1, 40)
    expected = Expected(config, "fp8", input_ids=ids)
    model = build(config, register(), torch.bfloat16)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    expected.check(prefill_logits(compiled, ids))
    assert calls.shapes


def test_a_compiled_model_says_that_it_falls_back() -> None:
    config, ids = CONFIGS["llama"](), tokens(1, 20)
    model = build(config, register("zyfa-compiled"), torch.bfloat16)
    mask = torch.tensor([[0] * 3 + [1] * 17])
    expected = logits(model, input_ids=ids, attention_mask=mask)
    integration._said.clear()
    compiled = torch.compile(model, backend="eager")
    with pytest.warns(UserWarning, match="zyfa-compiled.*does not take masks"):
        found = logits(compiled, input_ids=ids, attention_mask=mask)
    assert torch.equal(found[:, 3:], expected[:, 3:])


def test_both_registries_know_the_name() -> None:
    name = register("zyfa-both")
    assert name in AttentionInterface().valid_keys()
    assert name in AttentionMaskInterface().valid_keys()


def test_importing_registers_nothing() -> None:
    code = (
        "import zyfa_triton.integrations.transformers\n"
        "from transformers import AttentionInterface, AttentionMaskInterface\n"
        "keys = [*AttentionInterface().valid_keys(), *AttentionMaskInterface().valid_keys()]\n"
        "print([key for key in keys if 'zyfa' in key])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "flash_zyfa"}, "name: got 'flash_zyfa'; accepted: letters"),
        ({"name": "a b"}, "name: got 'a b'; accepted: letters"),
        ({"precision": "bf16"}, 'precision: got \'bf16\'; accepted: "fp8", "16bit"'),
        ({"fallback": "eager"}, 'fallback: got \'eager\'; accepted: "sdpa", "error"'),
        ({"granularity": "row"}, 'granularity: got \'row\'; accepted: "head", "tensor"'),
        ({"kernel": "cuda"}, 'kernel: got \'cuda\'; accepted: "auto", "triton"'),
        ({"backend": "gpu"}, 'backend: got \'gpu\'; accepted: "auto", "device"'),
        ({"min_queries": 1}, "min_queries: got 1; accepted: an integer of 2 or more"),
        ({"precision": "16bit", "subtract_k_mean": True}, 'precision: got "16bit" with subtract_k'),
        (
            {"precision": "16bit", "granularity": "tensor", "subtract_v_mean": False},
            'precision: got "16bit" with granularity, subtract_v_mean, which',
        ),
        ({"p_mode": "leaner"}, "p_mode: got 'leaner'; accepted:"),
        ({"block_scale": 1}, "block_scale: got 1; accepted:"),
        ({"kernel": None}, "kernel: got None; accepted:"),
        # right on their own, but no call could run with both
        (
            {"precision": "16bit", "block_scale": True},
            "block_scale: got True; accepted with torch.bfloat16 inputs:",
        ),
        (
            {"p_mode": "unscaled", "block_scale": True},
            'block_scale: got True; accepted with p_mode="unscaled":',
        ),
        ({"kernel": "hip"}, 'kernel: got "hip"; it takes bfloat16 inputs, not'),
        (
            {"precision": "16bit", "kernel": "pingpong"},
            'kernel: got "pingpong"; it takes e4m3 inputs; accepted here: "auto", "triton"',
        ),
        (
            {"kernel": "pingpong", "block_scale": False},
            'kernel: got "pingpong"; it needs block_scale',
        ),
        ({"kernel": "gluon", "block_scale": True}, 'kernel: got "gluon"; it has no block_scale'),
        ({"kernel": "ptx", "p_mode": "unscaled"}, 'kernel: got "ptx"; it has no p_mode'),
        ({"kernel": "ptx", "backend": "reference"}, 'kernel: got "ptx", which is PTX, with'),
    ],
)
def test_wrong_options_are_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as caught:
        register(**arguments)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("kernel", dispatch.KERNELS)
def test_every_kernel_can_be_registered(kernel: str) -> None:
    assert register("zyfa-kernel", kernel=kernel, precision="16bit" if kernel == "hip" else "fp8")


def test_the_example_runs(tmp_path: Path, calls: Calls) -> None:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace

    from examples.transformers_prefill import answer

    model = build(CONFIGS["llama"](), "sdpa", torch.bfloat16)
    model.save_pretrained(tmp_path)
    tokenizer = Tokenizer(WordLevel({f"w{n}": n for n in range(90)}, unk_token="w0"))
    tokenizer.pre_tokenizer = Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(tmp_path)
    question = " ".join(f"w{n}" for n in range(3, 23))
    assert answer(str(tmp_path), question, tokens=2).startswith(question)
    assert [q[1] for q, _ in calls.shapes] == [20, 20]
