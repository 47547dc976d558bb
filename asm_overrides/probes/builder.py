"""Decides how a few instructions become a kernel with its inputs; knows no assumption.

Every probe is one workgroup. s[4:5] points to the output, s[6:7] to the input, v62 holds a
thread's number times 4; v64 and up hold inputs and results, v0 to v61 and s8 and up are free.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from asm_overrides.isa.registers import VGPR

Words = NDArray[np.uint32]
Floats = NDArray[np.float32]
Judge = Callable[[Words], str]

LANES = 64
UNWRITTEN = 0xCCCCCCCC
"""What the output holds before the launch."""

_PAGE = 4096  # an offset in a global instruction is below this
_FIRST = VGPR + 64
_THREADS_OFFSET = "v62"


@dataclass(frozen=True)
class Probe:
    """One question to the machine.

    Attributes:
        name: "group/question", as docs/hardware-assumptions.md names it.
        question: what is settled, in a few words.
        text: a whole assembly file with one kernel.
        kernel: that kernel's name; source: its input; words: dwords of its output.
        assumed: the outcome that the emulator assumes.
        judge: names the outcome from the output (stores, 64 * waves).
        deliberate: kinds of the static check's findings that are what is asked about.
    """

    name: str
    question: str
    text: str
    kernel: str
    source: Words
    words: int
    assumed: str
    judge: Judge
    waves: int = 1
    deliberate: frozenset[str] = frozenset()


def kernel_name(probe: str) -> str:
    """Symbol of a probe's kernel."""
    return "probe_" + probe.replace("/", "_").replace("-", "_")


@dataclass
class Builder:
    """Collects inputs, instructions and stores of one probe; `probe` makes it."""

    name: str
    question: str
    waves: int = 1
    lds: int = 0
    _inputs: list[tuple[int, Words]] = field(default_factory=list)
    _lines: list[str] = field(default_factory=list)
    _stores: int = 0
    _next: int = _FIRST

    def reserve(self, count: int = 1) -> str:
        """Registers for results: "v70", or "v[70:71]", which starts at an even number."""
        if count > 1:
            self._next += self._next % 2
        first = self._next
        self._next += count
        if self._next > VGPR + 256:
            raise ValueError(f"{self.name}: no vector registers are left")
        return span(first - VGPR, count)

    def load(self, values: ArrayLike) -> str:
        """Registers filled with (64,) or (registers, 64) values of 32 bits, or with one value."""
        words = as_words(values)
        if words.ndim == 0 or words.shape[-1] != LANES * self.waves:
            words = np.broadcast_to(words[..., None], (*words.shape, LANES * self.waves))
        words = words.reshape(-1, LANES * self.waves)
        registers = self.reserve(len(words))
        self._inputs.append((first_of(registers), words))
        return registers

    def line(self, *texts: str) -> None:
        """Instructions, one a line."""
        self._lines += [each.strip() for text in texts for each in text.strip().splitlines()]

    def result(self, instruction: str, count: int = 1, *, fill: ArrayLike | None = None) -> str:
        """An instruction whose destination is {d}, from `reserve` or filled first; then stored."""
        registers = self.reserve(count) if fill is None else self.load(fill)
        self.line(instruction.format(d=registers))
        self.store(registers)
        return registers

    def store(self, registers: str) -> None:
        """Append registers to the output, after waits that any result needs."""
        count = count_of(registers)
        self.line("s_nop 15", "s_nop 7")  # 24: the longest wait of a matrix result is 20
        for index in range(count):
            self._move_page(self._stores)
            offset = self._stores * 4 * LANES * self.waves % _PAGE
            self.line(
                f"global_store_dword v61, v{first_of(registers) + index}, s[4:5] offset:{offset}"
            )
            self._stores += 1

    def _move_page(self, row: int) -> None:
        page = row * 4 * LANES * self.waves // _PAGE * _PAGE
        self.line(f"v_add_u32_e32 v61, {page:#x}, {_THREADS_OFFSET}")

    def probe(
        self, judge: Judge, assumed: str, *, deliberate: frozenset[str] = frozenset()
    ) -> Probe:
        """The finished probe."""
        rows = [row for _, words in self._inputs for row in words]
        source = np.concatenate(rows) if rows else np.zeros(LANES, np.uint32)
        threads = LANES * self.waves
        text = kernel_text(
            kernel_name(self.name),
            [*_PROLOGUE, *self._loads(), *self._lines, "s_endpgm"],
            threads=threads,
            lds=self.lds,
        )
        return Probe(
            name=self.name,
            question=self.question,
            text=text,
            kernel=kernel_name(self.name),
            source=source.astype(np.uint32),
            words=self._stores * threads,
            assumed=assumed,
            judge=lambda words: judge(words.reshape(-1, threads)),
            waves=self.waves,
            deliberate=deliberate,
        )

    def _loads(self) -> list[str]:
        saved, self._lines = self._lines, []
        row = 0
        for first, words in self._inputs:
            for index in range(len(words)):
                self._move_page(row)
                offset = row * 4 * LANES * self.waves % _PAGE
                self.line(f"global_load_dword v{first + index}, v61, s[6:7] offset:{offset}")
                row += 1
        self.line("s_waitcnt vmcnt(0)")
        loads, self._lines = self._lines, saved
        return loads


_PROLOGUE = (
    "s_load_dwordx4 s[4:7], s[0:1], 0x0",
    "v_and_b32_e32 v0, 0x3ff, v0",
    "v_lshlrev_b32_e32 v62, 2, v0",
    "s_waitcnt lgkmcnt(0)",
)


def as_words(values: ArrayLike) -> Words:
    """Values of 32 bits as their patterns; Python's floats as fp32, its integers modulo 2^32."""
    array = np.asarray(values)
    if array.dtype == np.float64:
        array = array.astype(np.float32)
    if array.dtype == np.int64:
        array = (array & 0xFFFFFFFF).astype(np.uint32)
    return np.ascontiguousarray(array).view(np.uint32).reshape(array.shape)


def floats(values: ArrayLike) -> Floats:
    """Values as fp32."""
    return np.asarray(values, np.float32)


def span(first: int, count: int) -> str:
    """ "v4" or "v[4:7]"."""
    return f"v{first}" if count == 1 else f"v[{first}:{first + count - 1}]"


def first_of(registers: str) -> int:
    """Number of the first register of "v4" or "v[4:7]"."""
    return int(registers.strip("v[]").split(":")[0])


def count_of(registers: str) -> int:
    """How many registers "v4" or "v[4:7]" are."""
    ends = registers.strip("v[]").split(":")
    return int(ends[-1]) - int(ends[0]) + 1


def part(registers: str, first: int, count: int = 1) -> str:
    """Registers first to first + count - 1 of a longer run."""
    return span(first_of(registers) + first, count)


def kernel_text(
    name: str, lines: list[str], *, threads: int, lds: int = 0, preload_dwords: int = 0
) -> str:
    """An assembly file with one kernel of two pointer arguments, as Triton's driver loads it."""
    body = "\n".join(line if line[0] == "." else f"\t{line}" for line in lines)
    preload = (
        f"\n\t\t.amdhsa_user_sgpr_kernarg_preload_length {preload_dwords}"
        "\n\t\t.amdhsa_user_sgpr_kernarg_preload_offset 0"
        if preload_dwords
        else ""
    )
    return f"""\
\t.amdgcn_target "amdgcn-amd-amdhsa--gfx950"
\t.amdhsa_code_object_version 5
\t.text
\t.globl\t{name}
\t.p2align\t8
\t.type\t{name},@function
{name}:
{body}
\t.section\t.rodata,"a",@progbits
\t.p2align\t6, 0x0
\t.amdhsa_kernel {name}
\t\t.amdhsa_group_segment_fixed_size {lds}
\t\t.amdhsa_private_segment_fixed_size 0
\t\t.amdhsa_kernarg_size 16
\t\t.amdhsa_user_sgpr_kernarg_segment_ptr 1{preload}
\t\t.amdhsa_next_free_vgpr 256
\t\t.amdhsa_next_free_sgpr 96
\t\t.amdhsa_accum_offset 256
\t.end_amdhsa_kernel
\t.text
\t.amdgpu_metadata
---
amdhsa.kernels:
  - .args:
      - .address_space:  global
        .offset:         0
        .size:           8
        .value_kind:     global_buffer
      - .address_space:  global
        .offset:         8
        .size:           8
        .value_kind:     global_buffer
    .group_segment_fixed_size: {lds}
    .kernarg_segment_align: 8
    .kernarg_segment_size: 16
    .max_flat_workgroup_size: {threads}
    .name:           {name}
    .private_segment_fixed_size: 0
    .sgpr_count:     102
    .sgpr_spill_count: 0
    .symbol:         {name}.kd
    .vgpr_count:     256
    .vgpr_spill_count: 0
    .wavefront_size: 64
amdhsa.target:   amdgcn-amd-amdhsa--gfx950
amdhsa.version:
  - 1
  - 2
...
\t.end_amdgpu_metadata
"""
