"""`zyfa capture`: saves attention inputs of the user's own transformers model.

What is kept of a call is decided in `zyfa_triton.integrations.capture`, the file's format in
`zyfa_triton.activations`.
"""

from __future__ import annotations

import argparse
import runpy
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zyfa_triton.cli import options
from zyfa_triton.cli.output import CommandError, table, write_json

if TYPE_CHECKING:
    from zyfa_triton.integrations.capture import Capture

SUMMARY = "save Q, K, V of your own transformers model, for run and bench"
DESCRIPTION = """\
Saves post-RoPE Q, K and V of chosen layers as .npz files for `zyfa run --activations`.
MODEL: a folder that transformers' from_pretrained reads, run once in bfloat16 on --text.
SCRIPT.py: any Python script that runs a transformers model in bfloat16, with attention "sdpa"
(the default) or another registered one; the first prefill of each layer is taken.
It needs transformers 5.17 or later: pip install 'zyfa-triton[transformers]'."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "source", type=Path, metavar="MODEL_OR_SCRIPT", help="folder, or a .py file"
    )
    parser.add_argument("arguments", nargs="*", metavar="ARG", help="arguments of SCRIPT.py")
    parser.add_argument("--text", type=Path, metavar="FILE", help="what MODEL reads")
    parser.add_argument(
        "--tokens",
        type=options.positive,
        metavar="N",
        help="first N of --text (default: 4096)",
    )
    parser.add_argument(
        "--layers", type=int, nargs="+", metavar="L", help="layers, from 0 (default: all)"
    )
    parser.add_argument(
        "-o", "--output", type=Path, default=Path("captured"), metavar="FOLDER",
        help="where the files go (default: captured)",
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    from zyfa_triton.activations import ActivationsError

    is_script = args.source.suffix == ".py"
    _check(args, is_script)
    try:
        capture = _of_script(args) if is_script else _of_model(args)
    except ActivationsError as error:
        raise CommandError(str(error)) from None
    missing = sorted(set(args.layers or ()) - set(capture.found))
    if missing or not capture.found:
        layers = ", ".join(map(str, missing)) or "any layer"
        raise CommandError(
            f"no prefill of 2 tokens or more was seen in layer {layers}; found: "
            f"{', '.join(map(str, sorted(capture.found))) or 'none'}. Attention must go through "
            'transformers\' AttentionInterface ("sdpa", not "eager")'
        )
    rows = _saved(capture, args.output)
    print(table(("file", "layer", "tokens", "heads", "of k", "head dims", "scale"),
                [[row[key] for key in _COLUMNS] for row in rows]))  # fmt: skip
    for layer, notes in sorted(capture.notes.items()):
        print(f"layer {layer}: the model's attention also has {', '.join(notes)}; not in the file")
    write_json(args.json, rows)
    return 0


_COLUMNS = ("file", "layer", "seqlen", "nheads", "nheads_k", "headdims", "softmax_scale")


def _check(args: argparse.Namespace, is_script: bool) -> None:
    if not (args.source.is_file() if is_script else args.source.is_dir()):
        raise CommandError(f"{args.source}: no such {'script' if is_script else 'model folder'}")
    if is_script and args.text is not None:
        raise CommandError("--text: got a file; a script brings its own text")
    if is_script:
        options.refuse(args, ["tokens"], "of --text; a script brings its own text")
    options.fill(args, {"tokens": 4096})
    if not is_script and args.text is None:
        raise CommandError("--text: missing; a model needs a text to read")
    if not is_script and args.arguments:
        raise CommandError(f"ARG: got {' '.join(args.arguments)}; only a script takes arguments")
    if args.text is not None and not args.text.is_file():
        raise CommandError(f"--text: no such file: {args.text}")
    for layer in args.layers or ():
        if layer < 0:
            raise CommandError(f"--layers: got {layer}; accepted are numbers from 0")


def _of_model(args: argparse.Namespace) -> Capture:
    import torch

    from zyfa_triton.integrations.capture import Capture

    transformers = _transformers()
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(args.source, local_files_only=True)
        model = transformers.AutoModelForCausalLM.from_pretrained(
            args.source, local_files_only=True, dtype=torch.bfloat16, attn_implementation="sdpa"
        )
    except (OSError, ValueError) as error:
        raise CommandError(f"{args.source}: {error}") from None
    text = args.text.read_text(encoding="utf-8", errors="replace")
    ids = tokenizer(text, return_tensors="pt").input_ids[:, : args.tokens]
    if ids.shape[1] < args.tokens:
        raise CommandError(f"--tokens: {args.tokens} asked for, {args.text} has {ids.shape[1]}")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    capture = Capture(args.layers, text=args.text.stem, model=args.source.resolve().name)
    with torch.no_grad(), capture:
        # the layers, not the head: its logits would be the largest tensor of the run
        model.to(device).eval().base_model(input_ids=ids.to(device), use_cache=False)
    return capture


def _of_script(args: argparse.Namespace) -> Capture:
    from zyfa_triton.integrations.capture import Capture

    _transformers()
    capture = Capture(args.layers, text=args.source.stem)
    before = sys.argv
    sys.argv = [str(args.source), *args.arguments]
    try:
        with capture:
            runpy.run_path(str(args.source), run_name="__main__")
    except SystemExit as end:  # the script's own way to say that it is done
        if end.code not in (None, 0):
            raise CommandError(f"{args.source} ended with {end.code}") from None
    finally:
        sys.argv = before
    return capture


def _transformers() -> Any:
    try:
        import transformers
    except ImportError:
        raise CommandError(
            "transformers is needed: pip install 'zyfa-triton[transformers]'"
        ) from None
    return transformers


def _saved(capture: Capture, folder: Path) -> list[dict[str, Any]]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        rows = []
        for layer, inputs in sorted(capture.found.items()):
            path = folder / f"{inputs.name}.npz"
            inputs.save(path)
            rows.append(
                {
                    "file": str(path),
                    "layer": layer,
                    "seqlen": inputs.seqlen,
                    "nheads": inputs.nheads,
                    "nheads_k": inputs.nheads_k,
                    "headdims": f"{inputs.q.shape[3]}/{inputs.v.shape[3]}",
                    "softmax_scale": round(inputs.softmax_scale, 6),
                    "sha256": inputs.digest(),
                }
            )
    except OSError as error:
        raise CommandError(f"--output: cannot write to {folder}: {error.strerror}") from None
    return rows
