"""Which configurations a target can run: the default for each kind of problem, and what to measure.

It measures nothing. A configuration is what the launch takes: BLOCK_M, BLOCK_N, num_warps,
num_stages and options of the target's compiler; or it names another kernel under "kernel" and holds
what that one takes (`kernels.family`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zyfa_triton.kernels.family import Config
from zyfa_triton.kernels.launch import BLOCK_SCALE_KEYS
from zyfa_triton.kernels.registry import FAMILIES, KERNELS, kernel_of
from zyfa_triton.tuning.key import TuningKey, problem_of

_ITEM_BYTES = {"e4m3": 1, "bf16": 2, "fp16": 2}
_SM90_SHARED_BYTES = 227 * 1024
_SHARED_RESERVE = 8 * 1024  # barriers, and layout conversions of P


def default(key: TuningKey) -> Config:
    """The configuration of a problem of which nothing is measured. It fits every such problem."""
    if key.target == "gfx950":
        block_m, warps = (64, 2) if key.short_queries else (256, 8)
        return _gfx950(key, block_m, num_warps=warps)
    if key.target == "sm90":
        return _sm90_default(key)
    wide = key.headdim > 128 and key.dtype != "e4m3"
    return _config(64, 64, num_warps=4, num_stages=1 if wide else 2)


def candidates(key: TuningKey) -> list[Config]:
    """What tuning measures: the default first, none twice, none that cannot run."""
    if key.target == "gfx950":
        found = [
            _gfx950(key, block_m, num_warps=warps, num_stages=stages)
            for block_m, warps in ((256, 8), (128, 4), (64, 2))
            for stages in (1, 2)
        ]
        found.append(_gfx950(key, 128, num_warps=8) | {"matrix_instr_nonkdim": 16})
    elif key.target == "sm90":
        found = [
            _config(block_m, block_n, num_warps=warps, num_stages=stages)
            for block_m, warps in ((128, 8), (64, 4))  # 128 rows on 4 warps spill
            for block_n in (64, 128)
            for stages in (2, 3, 4)
        ]
        found = [config for config in found if _shared_bytes(config, key) <= _SM90_SHARED_BYTES]
    else:
        found = [
            _config(block_m, block_n, num_warps=4, num_stages=stages)
            for block_m in (64, 128)
            for block_n in (32, 64)
            for stages in (1, 2)
        ]
    if key.block_scale:
        found = [config for config in found if config["BLOCK_N"] == BLOCK_SCALE_KEYS]
    first = default(key)
    return [first, *(config for config in found if config != first)]


def complaint(config: Mapping[str, Any], key: TuningKey) -> str | None:
    """What is wrong with a configuration that somebody wrote down, or None."""
    kernel = kernel_of(config)
    if kernel not in KERNELS:
        return f"kernel is {config['kernel']!r}, not one of {', '.join(KERNELS)}"
    family = FAMILIES[kernel]
    if family.target not in (None, key.target):
        return f"kernel is {kernel!r}, which is {family.target} {family.nature}"
    return family.complaint(config, problem_of(key))


def _config(block_m: int, block_n: int, *, num_warps: int, num_stages: int) -> Config:
    return {
        "BLOCK_M": block_m,
        "BLOCK_N": block_n,
        "num_warps": num_warps,
        "num_stages": num_stages,
    }


def _gfx950(key: TuningKey, block_m: int, *, num_warps: int, num_stages: int = 1) -> Config:
    """32 rows a wave, so that P's registers are an operand of the second product as they are.

    With one stage e4m3 128/128 takes 242 of 256 registers and spills none, with two it spills 38
    (Triton 3.9): two waves a SIMD hide the loads instead.

    Its chiplets take workgroups in turn. Causal tiles of one head, longest first, would give the
    first chiplet the longest of every eight: heads come fastest there (docs/cycle-model.md).
    """
    config = _config(block_m, 64, num_warps=num_warps, num_stages=num_stages)
    options = {"matrix_instr_nonkdim": 32, "waves_per_eu": 2}
    return config | options | {"HEADS_FASTEST": key.causal}


def _sm90_default(key: TuningKey) -> Config:
    if key.short_queries:
        return _config(64, 64, num_warps=4, num_stages=2)
    if key.dtype == "e4m3" and not key.block_scale:
        return _config(128, 128, num_warps=8, num_stages=2)
    return _config(128, 64, num_warps=8, num_stages=2)


def _shared_bytes(config: Config, key: TuningKey) -> int:
    """Shared memory for the tiles: Q once, K and V once a stage."""
    item = _ITEM_BYTES[key.dtype]
    q_tile = int(config["BLOCK_M"]) * key.headdim * item
    stage = int(config["BLOCK_N"]) * (key.headdim + key.headdim_v) * item
    return q_tile + stage * int(config["num_stages"]) + _SHARED_RESERVE
