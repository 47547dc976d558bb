"""Decides how Triton's own loop becomes the text of a recipe; it tests nothing.

A kernel that holds only the loop is compiled by Triton. Its assembly, from the entry to the place
where the results are complete, is the text: with other register numbers, because the interface
leaves others free, and with moves from and to the interface's registers at its ends.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import triton
import triton.language as tl

from asm_overrides.emulator import load_text
from asm_overrides.isa import parse_instruction
from tests.asm.splice_cases import instructions

RESULT = tl.constexpr("; @result $1")
_RESULT = re.compile(r"; @result v(\d+)\s*$")
_REGISTER = re.compile(r"\b([sv])(?:(\d+)\b|\[(\d+):(\d+)\])")
_LOAD_ARGUMENT = re.compile(
    r"s_load_dword(?:x(\d+))? s(?:(\d+)|\[(\d+):\d+\]), s\[(\d+):\d+\], (0x[0-9a-f]+|\d+)"
)


@triton.jit
def show_results(x):
    """Comment with the register of each element; what is computed in between is of the loop."""
    tl.inline_asm_elementwise(RESULT, "=v,0", [x], dtype=tl.float32, is_pure=False, pack=1)


class RegisterLimit:
    """Stage hook that makes LLVM do with fewer registers, so that they can be renumbered.

    Works without waves_per_eu only, whose register counts LLVM prefers.
    """

    def __init__(self, scalars: int, vectors: int) -> None:
        self.attributes = (
            f'"amdgpu-num-sgpr"="{scalars}" "amdgpu-num-vgpr"="{vectors}" "amdgpu-agpr-alloc"="0"'
        )

    def __call__(self, backend: Any = None, stages: Any = None, *more: Any) -> Any:
        if stages is None:
            return self.attributes, self.attributes
        make_llir = stages["llir"]

        def llir(source: Any, metadata: dict[str, Any]) -> str:
            text = make_llir(source, metadata)
            kernel = re.search(r"^define amdgpu_kernel .*#(\d+)", text, re.MULTILINE)
            assert kernel, "no kernel in LLVM IR"
            group = f"attributes #{kernel[1]} = {{"
            return str(text.replace(group, f"{group} {self.attributes}"))

        stages["llir"] = llir
        return None


def loop_text(
    amdgcn: str,
    arguments: Sequence[str],
    results: Sequence[int],
    vector_base: int,
    scalar_base: int,
    label: str,
) -> str:
    """The text of a kernel that ends with `show_results`.

    Args:
        arguments: scalar register of the interface for each dword of the kernel's arguments.
        results: vector register of the interface for each register shown.
        vector_base, scalar_base: what v0 and s0 become. v255 is used for moves.
    """
    descriptor = load_text(amdgcn).descriptor
    first_preloaded = descriptor.user_sgpr("kernarg_preload")
    pointer = descriptor.user_sgpr("kernarg_segment_ptr")
    assert first_preloaded is not None and pointer is not None
    before, _, _ = amdgcn.partition("; @result")
    entry = before.split("\t.p2align\t8\n")  # in front of the kernel, and of its second entry
    assert len(entry) == 3, "no second entry, for preloaded arguments"
    code_text = amdgcn[len(before) - len(entry[2]) :]
    own: list[str] = []
    shown: list[int] = []
    for line in code_text.splitlines():
        match = _RESULT.search(line)
        if match:
            shown.append(int(match[1]))
        code = instructions(line)
        if not code or (code[0].startswith(".") and not code[0].endswith(":")):
            continue
        if len(shown) == len(results):
            break
        if shown:
            written = parse_instruction(code[0]).writes
            assert not written.intersection(shown), f"a result is written after it is shown: {line}"
        own += code
    assert len(shown) == len(results), f"{len(shown)} results, {len(results)} registers for them"
    text = [f"v_mov_b32 v{vector_base}, v0"]
    for dword in range(min(descriptor.preload_dwords, len(arguments))):
        target = scalar_base + first_preloaded + dword
        text.append(f"s_mov_b32 s{target}, {arguments[dword]}")
    for line in own:
        loaded = _LOAD_ARGUMENT.match(line)
        if loaded and int(loaded[4]) == pointer:  # an argument beyond those preloaded
            count, low = int(loaded[1] or 1), int(loaded[2] or loaded[3]) + scalar_base
            dword = int(loaded[5], 0) // 4
            text += [f"s_mov_b32 s{low + i}, {arguments[dword + i]}" for i in range(count)]
        else:
            text.append(_renamed(line, vector_base, scalar_base, label))
    text += ["s_nop 15", "s_nop 7"]  # results of matrix instructions
    moves = {target: vector_base + source for target, source in zip(results, shown, strict=True)}
    return "\n".join([*text, *_parallel_moves(moves, 255)])


def _renamed(line: str, vector_base: int, scalar_base: int, label: str) -> str:
    line = re.sub(r"\.LBB\d+_(\d+)", rf"{label}_\1", line)
    mnemonic, _, operands = line.replace("\t", " ").partition(" ")

    def rename(match: re.Match[str]) -> str:
        base = vector_base if match[1] == "v" else scalar_base
        if match[2]:
            return f"{match[1]}{int(match[2]) + base}"
        return f"{match[1]}[{int(match[3]) + base}:{int(match[4]) + base}]"

    return f"{mnemonic} {_REGISTER.sub(rename, operands)}".strip()


def _parallel_moves(moves: dict[int, int], scratch: int) -> list[str]:
    """Moves target <- source as if all happened at once."""
    pending = {target: source for target, source in moves.items() if target != source}
    lines = []
    while pending:
        sources = set(pending.values())
        free = [target for target in pending if target not in sources]
        if free:
            target = free[0]
            lines.append(f"v_mov_b32 v{target}, v{pending.pop(target)}")
        else:  # only cycles are left
            target = next(iter(pending))
            lines.append(f"v_mov_b32 v{scratch}, v{target}")
            pending = {to: scratch if at == target else at for to, at in pending.items()}
    return lines
