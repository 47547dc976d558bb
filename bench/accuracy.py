"""How exact the FP8 variants are on real attention inputs: writes docs/accuracy.md.

It runs the numerics contract (`zyfa_triton.numerics`), not a kernel; kernels are held to the
contract by the tests. All rows of the first two heads of each file, causal, one scale a key head.
Means of K and V are left in, except in two rows that say so: what P is rounded by is compared on
the same codes, and those are the harder ones.

    python bench/accuracy.py FOLDER -o docs/accuracy.md
"""

from __future__ import annotations

import argparse
import hashlib
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from tqdm import tqdm

import zyfa_triton
from zyfa_triton import activations, quantize_fp8
from zyfa_triton.measure import relative_error
from zyfa_triton.numerics import ContractOptions, attention
from zyfa_triton.reference import attention_ref

FILES = {
    "prose4k_L14": "0059db8fab3eaaac55a698c170e67e067dfb2e802c6b4007efdddf7631fdc707",
    "code4k_L14": "59ea4718d045bfa865e1fc0ec32e55f2b9c4e5bd245d279e142979698522b088",
    "prose4k_L0": "2f3c9af15510441c45b846dd5198d7c7893609b66f649502cfad95bb82fea01e",
    "prose4k_L27": "cd19fac06ccc54bb392517b36e73a28cdb21d9be378a59d83a751911fa16556c",
    "prose16k_L14": "52731c16ebe5684a024131c9650d246957652ab752c37e1d2519e53dc1a4924f",
}
HEADS = 2

UNSCALED = "unscaled"
CONSTANT = "exact, constant 2^8"
CONSTANT_ROUNDED = "exact, constant 2^8, rounded sum"
EXACT = "exact, block scaled"
LEAN = "Lean, block scaled"
LEAN_CONSTANT = "Lean, constant"

VARIANTS = {
    UNSCALED: ContractOptions("unscaled", block_scale=False),
    CONSTANT: ContractOptions("exact", block_scale=False, row_sum="unrounded"),
    CONSTANT_ROUNDED: ContractOptions("exact", block_scale=False),
    EXACT: ContractOptions("exact", block_scale=True),
    LEAN: ContractOptions("lean", block_scale=True),
    LEAN_CONSTANT: ContractOptions("lean", block_scale=False),
}

# What an earlier study of these numerics found, x1e-2, by its own model, one scale a query head.
_STUDIED = (UNSCALED, CONSTANT, EXACT, LEAN, LEAN_CONSTANT)
STUDY = {
    "prose4k_L14": dict(zip(_STUDIED, (4.04, 0.753, 0.495, 0.601, 0.649), strict=True)),
    "code4k_L14": dict(zip(_STUDIED, (3.28, 0.748, 0.475, 0.575, 0.608), strict=True)),
    "prose4k_L0": dict(zip(_STUDIED, (0.589, 0.360, 0.207, 0.264, 0.265), strict=True)),
    "prose4k_L27": dict(zip(_STUDIED, (0.791, 0.520, 0.423, 0.508, 0.508), strict=True)),
}
MEAN_REMOVED = f"{LEAN}, K's mean removed"
MEANS_REMOVED = f"{LEAN}, means of K and V removed"  # flash_attn_fp8_func's default
LEAN_TOLERANCE = 0.03  # relative, against the study


@dataclass(frozen=True)
class Errors:
    """Relative Frobenius errors of one variant on one file, against fp64."""

    same_inputs: float
    original_inputs: float
    largest_row: float
    lse: float


@dataclass(frozen=True)
class FileErrors:
    """Errors of all VARIANTS on one file; removed: LEAN's against the original inputs with means
    removed before quantising, by MEAN_REMOVED and MEANS_REMOVED."""

    variants: dict[str, Errors]
    removed: dict[str, float]


# bench/model_kl.py writes what follows this line
MARKER = "<!-- Below: written by bench/model_kl.py. bench/accuracy.py leaves it alone. -->\n"

Cell = Callable[[Errors], str]


def measure_file(path: Path, bar: tqdm[object]) -> FileErrors:
    inputs = activations.load(path)
    inputs = inputs.cut(heads=min(HEADS, inputs.nheads))
    q, q_descale = quantize_fp8(inputs.q, nheads_k=inputs.nheads_k)[:2]
    k, k_descale = quantize_fp8(inputs.k)[:2]
    v, v_descale = quantize_fp8(inputs.v)[:2]
    scale = inputs.softmax_scale
    original, _ = attention_ref(inputs.q, inputs.k, inputs.v, softmax_scale=scale, causal=True)
    same, lse = attention_ref(
        q,
        k,
        v,
        softmax_scale=scale,
        causal=True,
        q_descale=q_descale,
        k_descale=k_descale,
        v_descale=v_descale,
    )
    found = {}
    for name, options in VARIANTS.items():
        bar.set_description(f"{path.stem}: {name}")
        result = attention(
            q,
            k,
            v,
            options=options,
            softmax_scale=scale,
            causal=True,
            q_descale=q_descale,
            k_descale=k_descale,
            v_descale=v_descale,
        )
        rows = (result.out.double() - same).norm(dim=-1) / same.norm(dim=-1)
        found[name] = Errors(
            same_inputs=relative_error(result.out, same),
            original_inputs=relative_error(result.out, original),
            largest_row=rows.max().item(),
            lse=(result.lse.double() - lse).abs().max().item(),
        )
        bar.update()
    removed = {}
    k, k_descale = quantize_fp8(inputs.k, subtract_mean=True)[:2]
    for name in (MEAN_REMOVED, MEANS_REMOVED):
        bar.set_description(f"{path.stem}: {name}")
        v, v_descale, *v_mean = quantize_fp8(inputs.v, subtract_mean=name == MEANS_REMOVED)
        result = attention(
            q,
            k,
            v,
            options=VARIANTS[LEAN],
            softmax_scale=scale,
            causal=True,
            q_descale=q_descale,
            k_descale=k_descale,
            v_descale=v_descale,
            v_mean=v_mean[0] if v_mean else None,
        )
        removed[name] = relative_error(result.out, original)
        bar.update()
    return FileErrors(found, removed)


PAGE = """\
# Accuracy on real inputs

Made by `python bench/accuracy.py FOLDER -o docs/accuracy.md`, where FOLDER holds the captured
activations named below (Qwen2.5-Coder-1.5B-Instruct, after the position embedding; the script pins
their sha256).

{circumstances}

Every figure comes from the numerics contract (`zyfa_triton/numerics.py`), which the kernels'
machine code matches code for code (`tests/asm`). Causal, all rows of the first two heads (one in
prose16k_L14), one scale a key head for each of Q, K and V. Means of K and V are left in unless a
row says otherwise.

- unscaled: true exponential, P unscaled, row sum before rounding: the numerics of AITER's FP8
  kernels.
- exact, constant 2^8: true exponential times 256, row sum before rounding: FlashAttention-3,
  Composable Kernel. "Rounded sum" is the same with the sum of the rounded P, which
  `p_mode="exact"` without a block scale computes.
- block scaled: every 64 keys of P carry a power of two, and the sum is that of the rounded P.
- Lean, constant: code 126 at the running maximum, small codes by a second line.

## Error of the attention itself

Relative Frobenius error of the output, x1e-2, against fp64 attention on the same e4m3 inputs.

{same_inputs}

## Error against the original inputs

The same outputs against fp64 attention on the bfloat16 inputs before quantisation, x1e-2. Rounding
Q, K and V to e4m3 costs far more than rounding P. The last rows have means removed first:
K's, and both, as `flash_attn_fp8_func` does by default. Where keys share a
bias (prose4k_L0) everything depends on K's. It can also cost: in prose4k_L14 and code4k_L14 the key
that gets most of the attention is nearly zero and so has hardly a rounding error; without the mean
it has that of any other key, and the other keys have less.

{original_inputs}

## Worst row

Largest relative error of a single row, x1e-2, same e4m3 inputs.

{largest_row}

## Log-sum-exp

Largest absolute error, nats. Lean's is not meant for a backward pass.

{lse}

## Against the study

An earlier study modelled these variants independently, with one scale for each query head (here:
one for the query heads that share a key head). Its figures, and ours relative to them. Its "Lean,
constant" has no second line for small codes; ours has, and is lower where small probabilities
matter.

{study}
"""


def document(results: dict[str, FileErrors], seconds: float) -> str:
    """docs/accuracy.md as text."""
    circumstances = (
        f"{time.strftime('%Y-%m-%d')}, zyfa-triton {zyfa_triton.__version__}, "
        f"torch {torch.__version__}, {platform.machine()} CPU, {torch.get_num_threads()} threads, "
        f"{seconds:.0f} s."
    )
    removed = [
        f"| {name} | {' | '.join(f'{100 * file.removed[name]:.2f}' for file in results.values())} |"
        for name in (MEAN_REMOVED, MEANS_REMOVED)
    ]
    return PAGE.format(
        circumstances=circumstances,
        same_inputs=_table(results, lambda errors: f"{100 * errors.same_inputs:.3f}"),
        original_inputs=_table(results, lambda errors: f"{100 * errors.original_inputs:.2f}")
        + "\n"
        + "\n".join(removed),
        largest_row=_table(results, lambda errors: f"{100 * errors.largest_row:.2f}"),
        lse=_table(results, lambda errors: f"{errors.lse:.4f}"),
        study=_study_table(results),
    )


def _table(results: dict[str, FileErrors], cell: Cell) -> str:
    lines = [f"| variant | {' | '.join(results)} |", "|---" * (len(results) + 1) + "|"]
    for name in VARIANTS:
        lines.append(f"| {name} | {' | '.join(cell(f.variants[name]) for f in results.values())} |")
    return "\n".join(lines)


def _study_table(results: dict[str, FileErrors]) -> str:
    files = [name for name in results if name in STUDY]
    lines = [f"| variant | {' | '.join(files)} |", "|---" * (len(files) + 1) + "|"]
    for name in STUDY[files[0]]:
        cells = []
        for file in files:
            ratio = 100 * results[file].variants[name].same_inputs / STUDY[file][name] - 1
            cells.append(f"{STUDY[file][name]:.3f} ({100 * ratio:+.1f}%)")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def complaints(results: dict[str, FileErrors]) -> list[str]:
    """What must hold on real inputs and does not."""
    found = []
    for file, measured in results.items():
        errors = measured.variants
        if errors[LEAN].same_inputs >= errors[CONSTANT].same_inputs:
            found.append(f"{file}: {LEAN} is not below {CONSTANT}")
        if file in STUDY:
            ratio = 100 * errors[LEAN].same_inputs / STUDY[file][LEAN] - 1
            if abs(ratio) > LEAN_TOLERANCE:
                found.append(f"{file}: {LEAN} is {100 * ratio:+.1f}% off the study")
    return found


def verified_files(folder: Path) -> list[Path]:
    """The files in the order of FILES. Exits with a message where one is absent or another."""
    paths = []
    for name, expected in FILES.items():
        path = folder / f"{name}.npz"
        if not path.is_file():
            sys.exit(f"{folder} has no {name}.npz; needed are {', '.join(FILES)}")
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        if digest != expected:
            sys.exit(f"{path}: sha256 is {digest}, not {expected}")
        paths.append(path)
    return paths


def kept(page: Path) -> str:
    """The part of an earlier page that another command writes."""
    if not page.is_file():
        return ""
    _, marker, section = page.read_text(encoding="utf-8").partition(MARKER)
    return f"\n{marker}{section}" if marker else ""


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="holds the .npz files of captured activations")
    parser.add_argument(
        "-o", "--output", type=Path, help="Markdown file (default: to the terminal)"
    )
    args = parser.parse_args(argv)
    start = time.perf_counter()
    paths = verified_files(args.folder)
    results = {}
    with tqdm(total=len(paths) * (len(VARIANTS) + 2), unit="variant") as bar:
        for path in paths:
            results[path.stem] = measure_file(path, bar)
    text = document(results, time.perf_counter() - start)
    if args.output is None:
        print(text)
    else:
        args.output.write_text(text + kept(args.output), encoding="utf-8")
    for complaint in complaints(results):
        print(f"error: {complaint}", file=sys.stderr)
    return 1 if complaints(results) else 0


if __name__ == "__main__":
    sys.exit(main())
