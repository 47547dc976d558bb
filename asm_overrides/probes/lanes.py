"""Probes of what moves between lanes and LDS: swaps, transposing reads, equal addresses."""

from __future__ import annotations

import numpy as np

from asm_overrides.probes.builder import LANES, Builder, Probe, Words
from asm_overrides.probes.outcomes import among

_LANE = np.arange(LANES, dtype=np.uint32)


def permlane_swap() -> Probe:
    """Two registers that name their lanes."""
    build = Builder(
        "lanes/permlane-swap", "v_permlane32_swap: upper half of the first, lower of the second"
    )
    first, second = build.load(_LANE), build.load(_LANE + 256)
    build.line("s_nop 1", f"v_permlane32_swap_b32_e32 {first}, {second}")
    build.store(first)
    build.store(second)
    upper = _LANE >= 32
    swapped = [
        np.where(upper, _LANE - 32 + 256, _LANE),
        np.where(upper, _LANE + 256, _LANE + 32),
    ]
    exchanged = [np.where(upper, _LANE, _LANE + 32 + 256), np.where(upper, _LANE - 32, _LANE + 256)]
    answers = {
        "upper half of the first": np.stack(swapped),
        "lower half of the first": np.stack(exchanged),
        "whole registers": np.stack([_LANE + 256, _LANE]),
    }
    return build.probe(among(answers), "upper half of the first")


def transposing_read() -> Probe:
    """ds_read_b64_tr_b8 of bytes that name where they lie: lane in 4 bits, byte in 3."""
    build = Builder(
        "lanes/transposing-read", "ds_read_b64_tr_b8 transposes 8 bytes of 16 lanes", lds=512
    )
    lane = np.arange(LANES)[:, None]
    place = (lane % 16 * 8 + np.arange(8)).astype(np.uint8)  # what each lane writes and addresses
    words = np.ascontiguousarray(place).view(np.uint32)
    data, address = build.load(words.T), build.load(_LANE * 8)
    build.line(f"ds_write_b64 {address}, {data}", "s_waitcnt lgkmcnt(0)", "s_barrier")
    read = build.reserve(2)
    build.line(f"ds_read_b64_tr_b8 {read}, {address}", "s_waitcnt lgkmcnt(0)")
    build.store(read)
    t, j = lane % 16, np.arange(8)

    def lanes_read(source: np.ndarray[tuple[int, ...], np.dtype[np.int64]], byte: object) -> Words:
        values = (source * 8 + byte).astype(np.uint8)  # type: ignore[operator]
        packed: Words = np.ascontiguousarray(values).view(np.uint32).T
        return packed

    answers = {
        "byte t%8 of lane 2j + t/8": lanes_read(2 * j + t // 8, t % 8),
        "byte t%8 of lane j + 8(t/8)": lanes_read(j + 8 * (t // 8), t % 8),
        "byte t/2 of lane j + 8(t%2)": lanes_read(j + 8 * (t % 2), t // 2),
        "no transposition": words.T,
    }
    return build.probe(among(answers), "byte t%8 of lane 2j + t/8")


def transposing_read_16() -> Probe:
    """ds_read_b64_tr_b16 of elements that name where they lie: lane in 6 bits, element in 2."""
    build = Builder(
        "lanes/transposing-read-16", "ds_read_b64_tr_b16 transposes 4 elements of 16 lanes", lds=512
    )
    lane = np.arange(LANES)[:, None]
    place = (lane * 4 + np.arange(4)).astype(np.uint16)  # what each lane writes and addresses
    words = np.ascontiguousarray(place).view(np.uint32)
    data, address = build.load(words.T), build.load(_LANE * 8)
    build.line(f"ds_write_b64 {address}, {data}", "s_waitcnt lgkmcnt(0)", "s_barrier")
    read = build.reserve(2)
    build.line(f"ds_read_b64_tr_b16 {read}, {address}", "s_waitcnt lgkmcnt(0)")
    build.store(read)
    t, j = lane % 16, np.arange(4)

    def lanes_read(
        source: np.ndarray[tuple[int, ...], np.dtype[np.int64]], element: object
    ) -> Words:
        values = ((lane - t + source) * 4 + element).astype(np.uint16)  # type: ignore[operator]
        packed: Words = np.ascontiguousarray(values).view(np.uint32).T
        return packed

    answers = {
        "element t%4 of lane 4j + t/4": lanes_read(4 * j + t // 4, t % 4),
        "element t%4 of lane j + 4(t/4)": lanes_read(j + 4 * (t // 4), t % 4),
        "element t/4 of lane j + 4(t%4)": lanes_read(j + 4 * (t % 4), t // 4),
        "no transposition": words.T,
    }
    return build.probe(among(answers), "element t%4 of lane 4j + t/4")


def equal_addresses() -> Probe:
    """All lanes store their number at one place."""
    build = Builder(
        "lanes/equal-addresses", "equal LDS addresses in a store: the highest lane wins", lds=512
    )
    lane, zero = build.load(_LANE), build.load(0)
    read = build.reserve()
    build.line(
        f"ds_write_b32 {zero}, {lane}",
        "s_waitcnt lgkmcnt(0)",
        "s_barrier",
        f"ds_read_b32 {read}, {zero}",
        "s_waitcnt lgkmcnt(0)",
    )
    build.store(read)
    answers = {"highest lane": np.full((1, 1), 63), "lowest lane": np.full((1, 1), 0)}
    return build.probe(among(answers), "highest lane")


PROBES = (permlane_swap, transposing_read, transposing_read_16, equal_addresses)
