"""Probes of the cycle model's constants: streams of instructions between two readings of s_memtime.

They are held to asm_overrides/timing/constants.py and to the instruction table. Only a card can
answer; the emulator has no time. Two waves share a SIMD where there are eight.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from asm_overrides.isa import parse_instruction
from asm_overrides.probes.builder import LANES, Builder, Probe, Words, part
from asm_overrides.timing.constants import DEFAULT

TOLERANCE = 0.1
"""What a measured figure may differ from the model's, as a share: the loop round the stream costs
some, and clocks of memory and shader differ."""

_ROUNDS = 16
_ONE_A_SIMD, _TWO_A_SIMD = 4, 8


@dataclass(frozen=True)
class CycleProbe:
    """A stream and what the model says about it.

    cycles: of one unit of the stream, or the fewest that it takes (at_least). units: how many of
    them lie between the readings. wave: the one whose time counts.
    """

    probe: Probe
    cycles: float
    units: int
    wave: int = 0
    at_least: bool = False

    def measured(self, words: Words) -> float:
        """Cycles of one unit, from the output."""
        return float(words.reshape(-1)[self.wave * LANES]) / self.units

    def agrees(self, cycles: float) -> bool:
        """Whether a figure is the model's, within `TOLERANCE`."""
        if self.at_least:
            return cycles >= self.cycles
        return abs(cycles - self.cycles) <= TOLERANCE * self.cycles


class _Stream:
    """Registers and instructions of one kernel that measures."""

    def __init__(self, name: str, question: str, waves: int) -> None:
        self.build = Builder(f"cycles/{name}", question, waves=waves, lds=8192)
        self.sums = [self.build.reserve(16) for _ in range(4)]
        self.a, self.b = self.build.reserve(8), self.build.reserve(8)
        self.plain = self.build.reserve(32)
        self.build.line(f"v_and_b32_e32 v1, {LANES - 1}, v0", "v_lshlrev_b32_e32 v1, 4, v1")

    def fp8(self, index: int) -> str:
        d = self.sums[index % 4]
        return f"v_mfma_f32_32x32x64_f8f6f4 {d}, {self.a}, {self.b}, {d}"

    def bf16(self, index: int) -> str:
        d = self.sums[index % 4]
        return f"v_mfma_f32_32x32x16_bf16 {d}, {part(self.a, 0, 4)}, {part(self.b, 0, 4)}, {d}"

    def sparse(self, index: int) -> str:
        d, a = part(self.sums[index % 4], 0, 4), part(self.a, 0, 4)
        return f"v_smfmac_f32_16x16x128_fp8_fp8 {d}, {a}, {self.b}, v1"

    def fma(self, index: int) -> str:
        d = part(self.plain, index % 32)
        return f"v_fma_f32 {d}, {d}, v1, v1"

    def packed(self, index: int) -> str:
        d = part(self.plain, index % 16 * 2, 2)
        return f"v_pk_fma_f32 {d}, {d}, {part(self.a, 0, 2)}, {part(self.a, 0, 2)}"

    def exp(self, index: int) -> str:
        d = part(self.plain, index % 32)
        return f"v_exp_f32_e32 {d}, {d}"

    def swap(self, index: int) -> str:
        first = index % 16 * 2
        return f"v_permlane32_swap_b32_e32 {part(self.plain, first)}, {part(self.plain, first + 1)}"

    def read(self, index: int) -> str:
        return f"ds_read_b128 {part(self.plain, index % 8 * 4, 4)}, v1 offset:{index % 4 * 1024}"

    def time(self, label: str, lines: Sequence[str], rounds: int = _ROUNDS) -> None:
        """Run the lines so many times and store the cycles between, to the low 32 bits."""
        self.build.line(
            f"s_mov_b32 s16, {rounds}",
            "s_barrier",
            "s_memtime s[12:13]",
            "s_waitcnt lgkmcnt(0)",
            f".L{label}:",
            *lines,
            "s_sub_u32 s16, s16, 1",
            "s_cmp_lg_u32 s16, 0",
            f"s_cbranch_scc1 .L{label}",
            "s_waitcnt lgkmcnt(0)",
            "s_memtime s[14:15]",
            "s_waitcnt lgkmcnt(0)",
            "s_sub_u32 s14, s14, s12",
            "v_mov_b32_e32 v2, s14",
        )

    def finish(
        self, cycles: float, units: int, *, wave: int = 0, at_least: bool = False
    ) -> CycleProbe:
        self.build.store("v2")
        assumed = f"{'at least ' if at_least else ''}{cycles:.3g} cycles"
        probe = self.build.probe(lambda words: "", assumed)
        return CycleProbe(probe, cycles, units, wave, at_least)


def _alone(name: str, question: str, kind: str, count: int = 128) -> CycleProbe:
    """Independent instructions of one kind, one wave a SIMD: the cycles of their port."""
    stream = _Stream(name, question, _ONE_A_SIMD)
    lines = [getattr(stream, kind)(index) for index in range(count)]
    stream.time("one", lines)
    return stream.finish(_port_cycles(lines[0]), count * _ROUNDS)


def _port_cycles(line: str) -> int:
    return DEFAULT.port_cycles(parse_instruction(line))


def _same_wave(name: str, question: str, kind: str, beside: int, cycles: float) -> CycleProbe:
    """An fp8 MFMA and `beside` other instructions behind it, one wave a SIMD."""
    stream = _Stream(name, question, _ONE_A_SIMD)
    other = getattr(stream, kind)
    lines = []
    for unit in range(8):
        lines += [stream.fp8(unit), *(other(unit * beside + index) for index in range(beside))]
    stream.time("one", lines)
    return stream.finish(cycles, 8 * _ROUNDS)


def _other_wave(
    name: str, question: str, kind: str, cycles: float, *, at_least: bool = False
) -> CycleProbe:
    """Waves 0 to 3 multiply; wave 4, on wave 0's SIMD, runs a stream of the kind."""
    stream = _Stream(name, question, _TWO_A_SIMD)
    stream.build.line(
        "v_readfirstlane_b32 s17, v0",
        f"s_cmp_ge_u32 s17, {_ONE_A_SIMD * LANES}",
        "s_cbranch_scc1 .Lother",
    )
    stream.time("matrix", [stream.fp8(index) for index in range(16)], rounds=8 * _ROUNDS)
    stream.build.line("s_branch .Ldone", ".Lother:")
    stream.time("second", [getattr(stream, kind)(index) for index in range(128)])
    stream.build.line(".Ldone:")
    return stream.finish(cycles, 128 * _ROUNDS, wave=_ONE_A_SIMD, at_least=at_least)


def barrier() -> CycleProbe:
    """s_barrier of eight waves that have nothing else to do."""
    stream = _Stream("barrier", "s_barrier of 8 waves", _TWO_A_SIMD)
    stream.time("one", ["s_barrier"] * 64)
    return stream.finish(DEFAULT.barrier, 64 * _ROUNDS)


@cache
def all_cycle_probes() -> tuple[CycleProbe, ...]:
    """Every stream. The figures are the instruction table's and the cycle model's.

    Beside matrix instructions: vector work goes on, of the same wave once the operands are read
    and of the other wave at once; packed fp32 waits for the end, also the other wave's (how long,
    if those follow each other without a gap, the model does not say).
    """
    stream = _Stream("ports", "", _ONE_A_SIMD)
    matrix, packed, plain = (
        _port_cycles(line) for line in (stream.fp8(0), stream.packed(0), stream.fma(0))
    )
    waiting = matrix + DEFAULT.packed_after_matrix + 4 * packed
    return (
        _alone("mfma-fp8", "MFMA 32x32x64 fp8", "fp8", 16),
        _alone("mfma-bf16", "MFMA 32x32x16 bf16", "bf16", 32),
        _alone("smfmac-fp8", "v_smfmac 16x16x128 fp8", "sparse", 64),
        _alone("valu", "v_fma_f32", "fma"),
        _alone("pk-fma", "v_pk_fma_f32", "packed"),
        _alone("exp", "v_exp_f32", "exp"),
        _alone("permlane", "v_permlane32_swap_b32", "swap"),
        _alone("ds-read", "ds_read_b128", "read", 64),
        _same_wave("valu-beside-mfma", "MFMA fp8, 12 v_fma_f32 behind it", "fma", 12, matrix),
        _same_wave(
            "pk-fma-beside-mfma", "MFMA fp8, 4 v_pk_fma_f32 behind it", "packed", 4, waiting
        ),
        _other_wave("valu-other-wave", "v_fma_f32 beside another wave's MFMAs", "fma", plain),
        _other_wave(
            "pk-fma-other-wave",
            "v_pk_fma_f32 waits for another wave's MFMAs",
            "packed",
            2 * packed,
            at_least=True,
        ),
        barrier(),
    )
