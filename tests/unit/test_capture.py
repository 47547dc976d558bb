"""`zyfa capture` saves what a model's attention was given, in files that the op's commands read."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from torch.nn.attention.flex_attention import create_block_mask, create_mask
from transformers import (
    AttentionInterface,
    AutoModelForCausalLM,
    DeepseekV2Config,
    LlamaConfig,
    PreTrainedTokenizerFast,
)

from zyfa_triton import activations
from zyfa_triton.activations import ActivationsError
from zyfa_triton.cli import main
from zyfa_triton.integrations.capture import Capture
from zyfa_triton.reference import attention_ref

WORDS = [f"w{number}" for number in range(40)]
LENGTH = 70
TINY = LlamaConfig(
    vocab_size=64,
    hidden_size=512,
    intermediate_size=64,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    initializer_range=0.08,
)


def saved_model(folder: Path, config: Any = TINY) -> Any:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(folder)
    vocabulary = {word: number for number, word in enumerate([*WORDS, "[UNK]"])}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
    return model.eval()


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny-llama"
    saved_model(folder)
    return folder


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("texts") / "prose.txt"
    path.write_text(" ".join(WORDS[(7 * place) % 40] for place in range(LENGTH)))
    return path


def test_a_model_folder(model_folder: Path, text: Path, tmp_path: Path) -> None:
    output, listing = tmp_path / "captured", tmp_path / "rows.json"
    command = ["capture", str(model_folder), "--text", str(text), "--tokens", "64"]
    command += ["--layers", "0", "2", "-o", str(output), "--json", str(listing)]
    assert main(command) == 0
    assert sorted(path.name for path in output.iterdir()) == ["prose_L0.npz", "prose_L2.npz"]
    found = activations.load(output / "prose_L2.npz")
    assert (found.layer, found.text, found.model) == (2, "prose", "tiny-llama")
    assert tuple(found.q.shape) == (1, 64, 4, 128)
    assert tuple(found.k.shape) == tuple(found.v.shape) == (1, 64, 2, 128)
    assert found.softmax_scale == pytest.approx(128**-0.5)
    rows = json.loads(listing.read_text())
    assert [row["layer"] for row in rows] == [0, 2]
    assert rows[1]["sha256"] == found.digest()


def test_the_inputs_are_those_after_the_position_embedding(model_folder: Path) -> None:
    """From them fp64 attention makes what the model's attention made."""
    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.bfloat16).eval()
    made: list[torch.Tensor] = []
    model.model.layers[1].self_attn.o_proj.register_forward_pre_hook(
        lambda module, inputs: made.append(inputs[0])
    )
    with torch.no_grad(), Capture({1}) as capture:
        model(input_ids=torch.arange(40)[None])
    inputs = capture.found[1]
    out, _ = attention_ref(
        inputs.q, inputs.k, inputs.v, softmax_scale=inputs.softmax_scale, causal=True
    )
    error = (made[0].double() - out.flatten(2)).norm() / out.norm()
    assert float(error) < 2.0**-8


def test_what_was_captured_is_what_zyfa_run_reads(
    model_folder: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["capture", str(model_folder), "--text", str(text), "--tokens", "70"]
    assert main([*command, "--layers", "1", "-o", str(tmp_path)]) == 0
    file = str(tmp_path / "prose_L1.npz")
    assert main(["run", "--activations", file, "--backend", "reference"]) == 0
    assert "prose_L1: 70 tokens, 4 heads" in capsys.readouterr().out


def test_a_script(model_folder: Path, tmp_path: Path) -> None:
    script = tmp_path / "chat.py"
    script.write_text(
        "import sys, torch\n"
        "from transformers import AutoModelForCausalLM\n"
        "model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.bfloat16)\n"
        "model.generate(torch.arange(3, 33)[None], max_new_tokens=2, do_sample=False)\n"
    )
    before = dict(AttentionInterface._global_mapping)
    output = tmp_path / "out"
    assert main(["capture", str(script), str(model_folder), "-o", str(output)]) == 0
    assert dict(AttentionInterface._global_mapping) == before
    assert len(list(output.iterdir())) == TINY.num_hidden_layers
    assert activations.load(output / "chat_L2.npz").seqlen == 30


def test_head_dims_that_differ(tmp_path: Path, text: Path) -> None:
    config = DeepseekV2Config(
        vocab_size=64, hidden_size=128, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=2, q_lora_rank=None, kv_lora_rank=64,
        qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128, first_k_dense_replace=2,
    )  # fmt: skip
    saved_model(tmp_path / "mla", config)
    command = ["capture", str(tmp_path / "mla"), "--text", str(text), "--tokens", "20"]
    assert main([*command, "--layers", "1", "-o", str(tmp_path / "out")]) == 0
    found = activations.load(tmp_path / "out" / "prose_L1.npz")
    assert (found.q.shape[3], found.v.shape[3]) == (192, 128)


def test_masks_that_a_file_does_not_say_are_noted(model_folder: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.bfloat16).eval()
    ids = torch.arange(40)[None]
    mask = torch.ones_like(ids)
    mask[0, :5] = 0
    with torch.no_grad(), Capture({0}) as capture:
        model(input_ids=ids, attention_mask=mask)
    assert capture.notes == {0: ["a mask that is not causal"]}
    with torch.no_grad(), Capture({0}) as capture:
        model(input_ids=ids)
    assert not capture.notes


@pytest.fixture
def stub() -> Iterator[str]:
    """An attention implementation that computes nothing."""
    AttentionInterface.register("stub", lambda *arguments, **options: None)
    yield "stub"
    AttentionInterface._global_mapping.pop("stub")


def below(batch: Any, head: Any, query: Any, key: Any) -> Any:
    return query >= key


def near(batch: Any, head: Any, query: Any, key: Any) -> Any:
    return (query - key).abs() < 8


def in_form(form: str, mask: Any) -> Any:
    if form == "block":
        return create_block_mask(mask, 1, 1, 40, 40, device="cpu")
    made = create_mask(mask, 1, 1, 40, 40, device="cpu")
    if form == "boolean":
        return made
    lowest = torch.finfo(torch.bfloat16).min
    return torch.zeros(1, 1, 40, 40, dtype=torch.bfloat16).masked_fill(~made, lowest)


@pytest.mark.parametrize(
    ("mask", "options", "notes"),
    [
        (None, {}, []),
        (None, {"is_causal": True}, []),
        (None, {"is_causal": False}, ["no mask: every query sees every key"]),
        *(
            ((form, mask), options, notes)
            for form in ("boolean", "added", "block")
            for mask, options, notes in (
                (below, {}, []),
                (below, {"is_causal": False}, []),
                (near, {}, ["a mask that is not causal"]),
            )
        ),
        (None, {"sliding_window": 8}, ["a sliding window of 8"]),
        (None, {"cu_seq_lens_q": torch.tensor([0, 9, 40])}, ["several texts in one sequence"]),
        (None, {"softcap": 50.0}, ["softcap"]),
    ],
)
def test_what_the_file_does_not_say_is_noted(
    mask: Any, options: dict[str, Any], notes: list[str], stub: str
) -> None:
    """Of masks in every form that attention functions get; what is not plain causal is said."""
    made = None if mask is None else in_form(*mask)
    module = torch.nn.Module()
    module.layer_idx = 3
    x = torch.zeros(1, 2, 40, 128, dtype=torch.bfloat16)
    with Capture() as capture:
        AttentionInterface()[stub](module, x, x, x, made, **options)
    assert list(capture.found) == [3]
    assert capture.notes.get(3, []) == notes


def test_a_decoder_that_is_told_not_to_be_causal_is_noted() -> None:
    config = copy.deepcopy(TINY)
    config.is_causal = False
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    with torch.no_grad(), Capture({0}) as capture:
        model(input_ids=torch.arange(40)[None])
    assert capture.notes == {0: ["no mask: every query sees every key"]}


def test_other_dtypes_are_refused(model_folder: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32).eval()
    with (
        pytest.raises(ActivationsError, match=r"layer 0: q is torch\.float32"),
        torch.no_grad(),
        Capture(),
    ):
        model(input_ids=torch.arange(40)[None])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere", "--text", "TEXT"], "nowhere: no such model folder"),
        (["nowhere.py"], "nowhere.py: no such script"),
        (["MODEL"], "--text: missing"),
        (["MODEL", "--text", "nothing.txt"], "--text: no such file: nothing.txt"),
        (["MODEL", "--text", "TEXT", "--tokens", "999"], "--tokens: 999 asked for"),
        (["MODEL", "--text", "TEXT", "--tokens", "8", "--layers", "9"], "in layer 9; found: none"),
        (["MODEL", "--text", "TEXT", "--layers", "-1"], "--layers: got -1"),
    ],
)
def test_wrong_arguments_are_named(
    arguments: list[str],
    message: str,
    model_folder: Path,
    text: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    places = {"MODEL": str(model_folder), "TEXT": str(text)}
    words = [places.get(word, word) for word in arguments]
    assert main(["capture", *words, "-o", str(tmp_path)]) == 2
    assert message in capsys.readouterr().err
