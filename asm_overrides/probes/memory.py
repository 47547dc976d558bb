"""Probes of buffers and of loads that go to LDS: addresses, M0, bounds, lanes that are off."""

from __future__ import annotations

import numpy as np

from asm_overrides.probes.builder import LANES, UNWRITTEN, Builder, Probe
from asm_overrides.probes.outcomes import among

_LANE = np.arange(LANES, dtype=np.uint32)
_RAW_BUFFER = 0x27000  # word 3 of a descriptor of bytes: the one that Triton uses


def _descriptor(size: int) -> tuple[str, ...]:
    """s[8:11]: a buffer of `size` bytes over the input."""
    return (
        "s_mov_b32 s8, s6",
        "s_and_b32 s9, s7, 0xffff",
        f"s_mov_b32 s10, {size:#x}",
        f"s_mov_b32 s11, {_RAW_BUFFER:#x}",
    )


def buffer_bounds() -> Probe:
    """16 bytes a lane from a buffer that ends in the middle of lane 3's."""
    build = Builder("memory/buffer-bounds", "buffer bounds are judged for each dword")
    build.load(0x5000 + np.arange(4 * LANES).reshape(4, LANES))
    address, read = build.load(_LANE * 16), build.reserve(4)
    build.line(
        *_descriptor(3 * 16 + 8),
        f"buffer_load_dwordx4 {read}, {address}, s[8:11], 0 offen",
        "s_waitcnt vmcnt(0)",
    )
    build.store(read)
    index = _LANE * 4 + np.arange(4)[:, None]

    def inside(limit: object) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
        return np.where(index < limit, 0x5000 + index, 0)  # type: ignore[operator]

    answers = {
        "each dword": inside(14),
        "the whole load": inside(12),
        "the first dword": inside(16),
    }
    return build.probe(among(answers), "each dword")


def _lds_read_back(build: Builder, address: str, words: int) -> None:
    """Store `words` times 64 dwords of LDS, in order."""
    read = build.reserve(words)
    first = int(read.strip("v[]").split(":")[0])
    for index in range(words):
        build.line(f"ds_read_b32 v{first + index}, {address} offset:{256 * index}")
    build.line("s_waitcnt lgkmcnt(0)")
    build.store(read)


def _fill_lds(build: Builder, words: int) -> str:
    """Write a pattern over 64 * words dwords of LDS; returns the lanes' addresses."""
    address, pattern = build.load(_LANE * 4), build.load(UNWRITTEN)
    for index in range(words):
        build.line(f"ds_write_b32 {address}, {pattern} offset:{256 * index}")
    build.line("s_waitcnt lgkmcnt(0)", "s_barrier")
    return address


def direct_address() -> Probe:
    """M0 = 256, offset 32: the offset moves both addresses; lanes follow each other by 4 bytes."""
    build = Builder(
        "memory/direct-address", "a buffer load to LDS goes to M0 + offset + 4 * lane", lds=1024
    )
    build.load(0x5000 + np.arange(2 * LANES).reshape(2, LANES))
    address = _fill_lds(build, 3)
    build.line(
        *_descriptor(512),
        "s_mov_b32 m0, 0x100",
        "s_nop 0",
        f"buffer_load_dword {address}, s[8:11], 0 offen offset:32 lds",
        "s_waitcnt vmcnt(0)",
    )
    _lds_read_back(build, address, 3)

    def placed(first: int, moved: int) -> np.ndarray[tuple[int, ...], np.dtype[np.uint32]]:
        image = np.full(3 * LANES, UNWRITTEN, np.uint32)
        image[first : first + LANES] = 0x5000 + moved + _LANE
        return image.reshape(3, LANES)

    answers = {
        "M0 + offset + 4 lane": placed(64 + 8, 8),
        "M0 + 4 lane": placed(64, 8),
        "offset + 4 lane": placed(8, 8),
        "M0 + offset + 4 lane, the offset not in memory": placed(64 + 8, 0),
    }
    return build.probe(among(answers), "M0 + offset + 4 lane")


def direct_wide() -> Probe:
    """16 bytes a lane: lanes follow each other by 16 bytes."""
    build = Builder("memory/direct-wide", "16 bytes a lane to LDS: lane l at M0 + 16 l", lds=2048)
    build.load(0x5000 + np.arange(4 * LANES).reshape(4, LANES))
    address = _fill_lds(build, 4)
    wide = build.load(_LANE * 16)
    build.line(
        *_descriptor(1024),
        "s_mov_b32 m0, 0",
        "s_nop 0",
        f"buffer_load_dwordx4 {wide}, s[8:11], 0 offen lds",
        "s_waitcnt vmcnt(0)",
    )
    _lds_read_back(build, address, 4)
    image = 0x5000 + np.arange(4 * LANES).reshape(LANES, 4)
    answers = {
        "16 bytes a lane": image.reshape(4, LANES),
        "4 planes of 4 bytes a lane": image.T,
    }
    return build.probe(among(answers), "16 bytes a lane")


def direct_bounds() -> Probe:
    """A buffer that ends after 16 lanes, and lanes from 48 on switched off."""
    build = Builder(
        "memory/direct-bounds", "to LDS: out of range writes zeros, inactive nothing", lds=512
    )
    build.load(0x5000 + _LANE)
    address = _fill_lds(build, 1)
    build.line(
        *_descriptor(64),
        "s_mov_b32 m0, 0",
        "s_mov_b64 s[12:13], exec",
        "s_mov_b32 exec_lo, -1",
        "s_mov_b32 exec_hi, 0xffff",
        f"buffer_load_dword {address}, s[8:11], 0 offen lds",
        "s_mov_b64 exec, s[12:13]",
        "s_waitcnt vmcnt(0)",
    )
    _lds_read_back(build, address, 1)
    inside = np.where(_LANE < 16, 0x5000 + _LANE, 0)
    old = UNWRITTEN
    answers = {
        "zeros, nothing": np.where(_LANE < 48, inside, old),
        "nothing, nothing": np.where(_LANE < 16, inside, old),
        "zeros, zeros": inside,
    }
    return build.probe(among(answers), "zeros, nothing")


def global_direct() -> Probe:
    """global_load_lds with M0 that is no multiple of 4."""
    build = Builder(
        "memory/global-direct", "global_load_lds goes to M0[17:2] * 4 + 4 * lane", lds=1024
    )
    build.load(0x5000 + _LANE)
    address = _fill_lds(build, 2)
    build.line(
        "s_mov_b32 m0, 0x102",
        "s_nop 0",
        f"global_load_lds_dword {address}, s[6:7]",
        "s_waitcnt vmcnt(0)",
    )
    _lds_read_back(build, address, 2)
    answers = {}
    for name, first in {"M0[17:2] * 4 + 4 lane": 0x100, "M0 + 4 lane": 0x102}.items():
        image = np.full(516, UNWRITTEN & 0xFF, np.uint8)
        image[first : first + 256] = (0x5000 + _LANE).view(np.uint8)
        answers[name] = image[:512].view(np.uint32).reshape(2, LANES)
    return build.probe(among(answers), "M0[17:2] * 4 + 4 lane")


PROBES = (buffer_bounds, direct_address, direct_wide, direct_bounds, global_direct)
