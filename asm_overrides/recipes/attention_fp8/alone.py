"""Decides how the FP8 attention loop runs by itself: the smallest kernel round it, and small tasks.

One workgroup, no Triton. What a loop should compute is not known here: runs of one text are
compared with runs of another.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
from numpy.typing import NDArray

from asm_overrides.emulator import GlobalMemory, Kernel, Result, run
from asm_overrides.emulator.arithmetic.formats import FP8, encode
from asm_overrides.emulator.launch import ChecksFactory
from asm_overrides.recipes.attention_fp8.parameters import (
    HEADDIM_FIRST,
    HEADDIM_V,
    TILE_M_WAVE,
    TILE_N,
    WAVES,
    Interface,
)

TILE_M = TILE_M_WAVE * WAVES
BEFORE = ("s_waitcnt vmcnt(0) lgkmcnt(0)", "s_barrier", "s_nop 7")
AFTER = ("s_waitcnt vmcnt(0) lgkmcnt(0)", "s_barrier", "s_nop 15", "s_nop 7")

_STRIDE_K, _STRIDE_V = 160, 192
_STRIDE_Q_ROPE, _STRIDE_K_ROPE = 80, 112
_NAN_CODE = 0x7F

Numbers = NDArray[np.float32]
_ACC_DWORDS = TILE_M_WAVE * HEADDIM_V // 64
_OUT_DWORDS = _ACC_DWORDS + 2
_FORMATS = {"_ptr": "Q", "_log2": "f"}  # by the end of a name; others are "i"
_POINTERS = ("q_ptr", "k_ptr", "v_ptr")
_ROPE_POINTERS = ("q_rope_ptr", "k_rope_ptr")
_NUMBERS = (
    *("stride_q", "stride_k", "stride_v", "full_end", "end"),
    *("scale_log2", "row_first", "seqlen_q", "seqlen_k"),
)
_ROPE_NUMBERS = ("stride_q_rope", "stride_k_rope")


def _arguments(headdim: int) -> dict[str, str]:
    """Names of the kernel's arguments in order, each with its struct format; 8-byte ones first."""
    has_rope = headdim > HEADDIM_FIRST
    pointers = (*_POINTERS, *(_ROPE_POINTERS if has_rope else ()), "out_ptr")
    names = (*pointers, *_NUMBERS, *(_ROPE_NUMBERS if has_rope else ()))
    return {
        name: next((code for end, code in _FORMATS.items() if name.endswith(end)), "i")
        for name in names
    }


def lone_kernel(
    loop: str,
    lds_bytes: int,
    interface: Interface,
    before: Sequence[str] = BEFORE,
    after: Sequence[str] = AFTER,
    headdim: int = 128,
) -> str:
    """Text of a kernel that loads the loop's arguments, runs it and stores what it leaves.

    Args:
        loop: its text. interface: where it expects and leaves what.
        before, after: instructions that the surrounding kernel puts right round it.
        headdim: of q and k, as the loop was generated.
    """
    loads, offset = [], 0
    for name, kind in _arguments(headdim).items():
        first = getattr(interface, name, 2)  # out_ptr is the frame's own
        if kind == "Q":
            loads.append(f"s_load_dwordx2 s[{first}:{first + 1}], s[0:1], {offset}")
        else:
            loads.append(f"s_load_dword s{first}, s[0:1], {offset}")
        offset += struct.calcsize(kind)
    registers = (
        *range(interface.acc_o, interface.acc_o + _ACC_DWORDS),
        *(interface.row_max, interface.row_sum),
    )
    stores = [f"v_mul_lo_u32 v1, v{interface.thread}, s4"] + [
        f"global_store_dword v1, v{register}, s[2:3] offset:{4 * i}"
        for i, register in enumerate(registers)
    ]
    code = [
        *(f"    {line}" for line in (*loads, "s_waitcnt lgkmcnt(0)", *before)),
        loop.rstrip("\n"),
        *(f"    {line}" for line in (*after, f"s_movk_i32 s4, {4 * _OUT_DWORDS}", *stores)),
        "    s_endpgm",
    ]
    head, _, tail = _FRAME.partition("@code@\n")
    return head + "\n".join(code) + "\n" + tail.format(lds=lds_bytes, kernarg=offset)


_FRAME = """\
    .amdgcn_target "amdgcn-amd-amdhsa--gfx950"
    .text
    .globl lone_loop
    .p2align 8
    .type lone_loop,@function
lone_loop:
@code@
    .section .rodata,"a",@progbits
    .p2align 6, 0x0
    .amdhsa_kernel lone_loop
        .amdhsa_group_segment_fixed_size {lds}
        .amdhsa_kernarg_size {kernarg}
        .amdhsa_user_sgpr_kernarg_segment_ptr 1
        .amdhsa_next_free_vgpr 256
        .amdhsa_next_free_sgpr 96
        .amdhsa_accum_offset 256
        .amdhsa_float_denorm_mode_32 3
        .amdhsa_float_denorm_mode_16_64 3
        .amdhsa_ieee_mode 1
        .amdhsa_dx10_clamp 1
    .end_amdhsa_kernel
"""


def _late(values: Numbers, number: int) -> Numbers:
    """The first block adds nothing to the output, which then is as small as what comes later."""
    if number == _V:
        values[:TILE_N] = 0
    return values


def _coarse(values: Numbers, number: int) -> Numbers:
    """Scores are multiples of 1/64: at 32 codes each, row offsets lie on their grid, and codes on
    integers, before anything is rounded down."""
    return (np.round(8 * values) / 8).astype(np.float32)


def _far(values: Numbers, number: int) -> Numbers:
    """All scores near (4 - headdim) * 2^8, which differ in four columns only: see _far_scale."""
    if number != _V:
        values[:, 4:] = 16 if number == _Q else -16
    return values


def _far_scale(power: int, headdim: int) -> float:
    """Row offsets, 126.5 + 8 * scale * (headdim - 4) * 2^8, end less than 128 codes below a power
    of two, so that it matters for rounding what is added to them first."""
    return float((2**power - 190) / (8 * (headdim - 4) * 2**8))


_Q, _K, _V = range(3)
_DRAWS = {"normal": lambda values, _: values, "late": _late, "coarse": _coarse, "far": _far}


@dataclass(frozen=True)
class Task:
    """One workgroup's work for the loop.

    Attributes:
        seqlen_q, seqlen_k: lengths. row_first: the workgroup's first query.
        causal: as the loop was generated.
        loudness: power of two by which each block of keys in turn is louder; what grows moves the
            row maximum.
        last_key: power of two by which the last key of each block is louder still.
        draw: how the inputs are made of random numbers, see _DRAWS.
        stride_q: bytes between queries. rows_q, rows_k: rows that are stored, if not all are.
        scale_log2: octaves per raw score. seed: of the inputs.
        headdim: of q and k, as the loop was generated.
    """

    seqlen_q: int
    seqlen_k: int
    row_first: int = 0
    causal: bool = True
    loudness: tuple[float, ...] = (0,)
    last_key: float = 0
    draw: str = "normal"
    stride_q: int = 144
    rows_q: int = 0
    rows_k: int = 0
    scale_log2: float = 0.125
    seed: int = 0
    headdim: int = 128

    @property
    def end(self) -> int:
        """Keys [0, end) are seen by some query of the workgroup."""
        if not self.causal:
            return self.seqlen_k
        seen = self.row_first + TILE_M + self.seqlen_k - self.seqlen_q
        return min(max(seen, 0), self.seqlen_k)

    @property
    def full_end(self) -> int:
        """Keys [0, full_end) are seen by all of its queries."""
        seen = self.row_first + self.seqlen_k - self.seqlen_q + 1 if self.causal else self.seqlen_k
        return min(max(seen, 0), self.seqlen_k) // TILE_N * TILE_N

    @property
    def blocks(self) -> int:
        """Blocks of keys that the loop visits."""
        return -(-self.end // TILE_N)

    @property
    def name(self) -> str:
        """What it consists of."""
        return f"{self.seqlen_q} x {self.seqlen_k}, {self.blocks} blocks"

    @cached_property
    def inputs(self) -> dict[str, NDArray[np.uint8]]:
        """Codes of q, k, v, and of the rope parts if there are any, with gaps between their rows:
        (rows, stride) each, the first `width_of` its name of a row used."""
        dice = np.random.default_rng(self.seed)
        rows_q, rows_k = self.rows_q or self.seqlen_q, self.rows_k or self.seqlen_k
        found: dict[str, NDArray[np.uint8]] = {}
        for number, (name, rows) in enumerate((("q", rows_q), ("k", rows_k), ("v", rows_k))):
            columns = HEADDIM_V if name == "v" else self.headdim
            values = dice.standard_normal((rows, columns)).astype(np.float32)
            values = _DRAWS[self.draw](values, number)
            if number == _K:
                block = np.arange(rows) // TILE_N % len(self.loudness)
                values *= np.exp2(np.array(self.loudness, np.float32))[block, None]
                values[TILE_N - 1 :: TILE_N] *= 2.0**self.last_key
            codes = encode(values, FP8, saturate=True)
            for part in (name, f"{name}_rope") if columns > HEADDIM_FIRST else (name,):
                first = 0 if part == name else HEADDIM_FIRST
                apart = np.full((rows, self._strides[part]), _NAN_CODE, np.uint8)
                width = self.width_of(part)
                apart[:, :width] = codes[:, first : first + width]
                found[part] = apart
        return found

    @property
    def _strides(self) -> dict[str, int]:
        """Bytes between rows of each input."""
        strides = {"q": self.stride_q, "k": _STRIDE_K, "v": _STRIDE_V}
        return strides | {"q_rope": _STRIDE_Q_ROPE, "k_rope": _STRIDE_K_ROPE}

    def width_of(self, part: str) -> int:
        """Columns of an input."""
        return self.headdim - HEADDIM_FIRST if part.endswith("_rope") else HEADDIM_FIRST

    def run(
        self,
        kernel: Kernel,
        *,
        seed: int | None = None,
        checks: bool | ChecksFactory = True,
        limit: int | None = None,
    ) -> tuple[Result, bytes]:
        """Run a lone kernel on it; returns the emulator's result and the bytes stored.

        Args:
            seed, checks, limit: see emulator.run (limit: max_wave_instructions).
        """
        memory = GlobalMemory()
        values: dict[str, float] = {
            name: getattr(self, name) for name in _NUMBERS if not name.startswith("stride")
        }
        for name, codes in self.inputs.items():
            stride = codes.shape[1]
            skipped = self.row_first * stride if name.startswith("q") else 0
            placed = _place(memory, name, codes, self.width_of(name), self.blocks)
            values |= {f"{name}_ptr": placed + skipped, f"stride_{name}": stride}
        out = memory.alloc("out", np.full((64 * WAVES, _OUT_DWORDS), np.nan, np.float32))
        values["out_ptr"] = out
        arguments = _arguments(self.headdim)
        kernarg = struct.pack(
            "<" + "".join(arguments.values()), *(values[name] for name in arguments)
        )
        result = run(
            kernel,
            grid=(1,),
            kernarg=kernarg,
            memory=memory,
            num_waves=WAVES,
            seed=seed,
            checks=checks,
            max_wave_instructions=limit,
        )
        return result, memory.array(out).tobytes()


def _place(
    memory: GlobalMemory, name: str, codes: NDArray[np.uint8], width: int, blocks: int
) -> int:
    """Address of a tensor that lies so that its last visited tile crosses a multiple of 2^32.

    The gap behind its last row is not allocated: nothing may be read there.
    """
    rows, stride = codes.shape
    front = TILE_N * stride * max(blocks - 1, 0)
    boundary = (memory.alloc_bytes(f"in front of {name}", 1) >> 32) + 1 << 32
    memory.advance(boundary - front)
    return memory.alloc(name, codes.reshape(-1)[: (rows - 1) * stride + width], readonly=True)


def tasks(causal: bool, headdim: int = 128) -> tuple[Task, ...]:
    """Tasks that visit 0 to 9 blocks, so that each slot of the rings is left and filled again.

    Masked and unmasked blocks, rows that see no key, rows behind the last query, row maxima that
    move and that stay, for one key too, rows of Q that span more than 2^32 bytes; and what the
    numerics contract says about small, round and huge numbers.
    """
    task = partial(Task, causal=causal, headdim=headdim)
    rising, mixed = (0.0,), (0, 1, -3, -3, 2, -3)
    lengths: list[tuple[int, int, int, tuple[float, ...]]] = [
        *((100, 100, 0, rising), (300, 190, 0, mixed), (256, 256, 0, mixed)),
        *((256, 300, 0, rising), (256, 333, 0, mixed), (300, 440, 44, (0, 3, -2))),
        *((256, 500, 0, rising), (270, 570, 14, (2, *[-3] * 9))),
    ]
    lengths = [(300, 44, 0, rising), (40, 50, 0, rising), *lengths]
    found = [
        task(seqlen_q, seqlen_k, row_first=row_first, loudness=loudness, seed=i)
        for i, (seqlen_q, seqlen_k, row_first, loudness) in enumerate(lengths)
    ]
    long = 2**18 + 1
    # causal: the first queries see the first keys, the others need not exist
    keys, rows_k = (long - 156, 640) if causal else (600, 0)
    wide = task(long, keys, stride_q=2**14, rows_q=TILE_M, rows_k=rows_k)
    spikes = task(256, 600, loudness=(0, *(0.5 * i - 4 for i in range(9))), last_key=5)
    fading = task(256, 600, loudness=(5.2, *[-3.0] * 9), draw="late", seed=1)
    coarse = task(256, 600, draw="coarse", scale_log2=4, seed=2)
    far, farther = (
        task(256, 600, draw="far", scale_log2=_far_scale(power, headdim), seed=3)
        for power in (13, 17)
    )
    return (*found, spikes, fading, coarse, far, farther, wide)
