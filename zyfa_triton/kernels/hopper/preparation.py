"""What is made of the caller's tensors before the Hopper kernel runs: V^T of e4m3, or codes and
descales of 16-bit inputs. The programs are `prepare`'s; this decides their workspace and grids.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from zyfa_triton.kernels.family import Launch
from zyfa_triton.kernels.launch import LAUNCH_OPTIONS
from zyfa_triton.kernels.quantize_launch import CHUNK, ROWS, partial_sums
from zyfa_triton.problem import FP8, Problem

_TILE_KEYS = 128  # of a tile of V^T, `prepare.TILE`
_LARGEST_CHUNK = 256  # rows in which a program looks for the largest magnitude
_QUANTISED_ROWS = 64  # of a program
_ALIGNED_WORDS = 4  # words of 32 bits to a multiple of 16 bytes, which Triton compiles for apart
_MAIL = 16  # `pair.MAIL`
_MOST_CLUSTERS = 128  # of two; a Hopper card has up to 144 multiprocessors
COUNTERS = 1 + _MAIL * _MOST_CLUSTERS  # the next tile's, then the tiles on their way to others


@dataclass(frozen=True)
class Quantised:
    """What the Hopper kernel takes of 16-bit inputs.

    q, k: e4m3, contiguous. v: e4m3 V^T, see `empty_transposed`. descales: of q, k and v, float32
    (batch, nheads_k). counter: int32 (COUNTERS,), zero. k_mean, v_mean: float32 (batch, nheads_k,
    headdim or headdim_v), or None.
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    descales: tuple[torch.Tensor, torch.Tensor, torch.Tensor]
    counter: torch.Tensor
    k_mean: torch.Tensor | None
    v_mean: torch.Tensor | None


def quantise(
    launch: Launch,
    problem: Problem,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    per_tensor: bool,
    subtract_k_mean: bool,
    subtract_v_mean: bool,
) -> Quantised:
    """Codes, V^T and descales of 16-bit inputs, two launches (three with a mean)."""
    from zyfa_triton.kernels.hopper import prepare

    batch, nheads_k, device = problem.batch, problem.nheads_k, q.device
    shape = (1, 1) if per_tensor else (batch, nheads_k)
    scales = shape[0] * shape[1]
    # each on its own 16 bytes: other numbers of heads are no other compilation
    room = -(-scales // _ALIGNED_WORDS) * _ALIGNED_WORDS
    zeros = torch.zeros(3 * room + COUNTERS, dtype=torch.int32, device=device)
    descales = torch.empty((3, room), dtype=torch.float32, device=device)
    descales = descales[:, :scales].unflatten(1, shape)
    q_codes = torch.empty(q.shape, dtype=FP8, device=device)
    k_codes = torch.empty(k.shape, dtype=FP8, device=device)
    transposed = empty_transposed(problem, device)
    k_mean, v_mean = (
        torch.empty((batch, nheads_k, width), dtype=torch.float32, device=device) if has else None
        for has, width in (
            (subtract_k_mean, problem.headdim),
            (subtract_v_mean, problem.headdim_v),
        )
    )
    k_sums, v_sums = _sums(launch, k if subtract_k_mean else None, v if subtract_v_mean else None)
    inputs = {"q": q, "k": k, "v": v}
    shared: dict[str, Any] = {f"{name}_ptr": tensor for name, tensor in inputs.items()}
    shared |= {
        f"stride_{n}{a}": t.stride(i) for n, t in inputs.items() for i, a in enumerate("bsh")
    }
    shared |= {f"{n}_amax_ptr": zeros[i * room : i * room + scales] for i, n in enumerate("qkv")}
    shared |= {
        "k_mean_ptr": k_mean,
        "v_mean_ptr": v_mean,
        "nheads": problem.nheads,
        "nheads_k": nheads_k,
        "q_heads_a_scale": batch * problem.nheads // scales,
        "k_heads_a_scale": batch * nheads_k // scales,
        "seqlen_q": problem.seqlen_q,
        "seqlen_k": problem.seqlen_k,
        "HEAD_DIM": problem.headdim,
        "HEAD_DIM_V": problem.headdim_v,
        "HAS_K_MEAN": subtract_k_mean,
        "HAS_V_MEAN": subtract_v_mean,
        "ROWS": _QUANTISED_ROWS,
        "WIDTH": 1 << (problem.headdim - 1).bit_length(),
        "num_warps": 4,
        **LAUNCH_OPTIONS,
    }

    def programs(rows: int, seqlen_v: int) -> tuple[dict[str, int], tuple[int]]:
        q_programs = -(-problem.seqlen_q // rows) * problem.nheads * batch
        k_programs = -(-problem.seqlen_k // rows) * nheads_k * batch
        v_programs = -(-seqlen_v // rows) * nheads_k * batch
        counts = {"q_programs": q_programs, "k_programs": k_programs}
        return counts, (q_programs + k_programs + v_programs,)

    counts, grid = programs(_LARGEST_CHUNK, problem.seqlen_k)
    more: dict[str, Any] = {"k_sums_ptr": k_sums, "v_sums_ptr": v_sums}
    more |= {"chunks": -(-problem.seqlen_k // CHUNK), "CHUNK": _LARGEST_CHUNK}
    launch(prepare.largest_magnitudes, grid, {**shared, **counts, **more})
    tiles = transposed.shape[2]
    counts, grid = programs(_QUANTISED_ROWS, tiles * _TILE_KEYS)
    more = {f"{name}_descale_ptr": descales[i] for i, name in enumerate("qkv")}
    more["q_codes_ptr"], more["k_codes_ptr"] = q_codes.view(torch.uint8), k_codes.view(torch.uint8)
    more |= {"t_ptr": transposed.view(torch.uint8), "tiles": tiles}
    launch(prepare.quantise_inputs, grid, {**shared, **counts, **more})
    expanded = descales.expand(3, batch, nheads_k)
    scales_of_all = (expanded[0], expanded[1], expanded[2])
    return Quantised(q_codes, k_codes, transposed, scales_of_all, zeros[3 * room :], k_mean, v_mean)


def _sums(
    launch: Launch, k: torch.Tensor | None, v: torch.Tensor | None
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Sums of each chunk of rows of k and v, see `quantize_launch.partial_sums`, in one launch.
    None stays None."""
    if k is None or v is None:
        k_sums, v_sums = (None if x is None else partial_sums(launch, x) for x in (k, v))
        return k_sums, v_sums
    from zyfa_triton.kernels.hopper import prepare

    batch, seqlen, nheads, headdim = k.shape
    chunks = -(-seqlen // CHUNK)
    inputs = {"k": k, "v": v}
    k_sums, v_sums = (
        x.new_empty((batch, nheads, chunks, x.shape[3]), dtype=torch.float32) for x in (k, v)
    )
    programs = chunks * nheads * batch
    strides = {
        f"stride_{n}{a}": t.stride(i) for n, t in inputs.items() for i, a in enumerate("bsh")
    }
    launch(
        prepare.partial_sums_of_both,
        (2 * programs,),
        {
            "k_ptr": k,
            "v_ptr": v,
            "k_sums_ptr": k_sums,
            "v_sums_ptr": v_sums,
            **strides,
            "nheads_k": nheads,
            "seqlen_k": seqlen,
            "chunks": chunks,
            "k_programs": programs,
            "HEAD_DIM": headdim,
            "HEAD_DIM_V": v.shape[3],
            "CHUNK": CHUNK,
            "ROWS": ROWS,
            "WIDTH": 1 << (headdim - 1).bit_length(),
            "num_warps": 4,
            **LAUNCH_OPTIONS,
        },
    )
    return k_sums, v_sums


def transposed_values(
    launch: Launch, problem: Problem, v: torch.Tensor, counter: torch.Tensor
) -> torch.Tensor:
    """V^T of e4m3 v, and the first counter zeroed."""
    from zyfa_triton.kernels.hopper import prepare

    transposed = empty_transposed(problem, v.device)
    tiles = transposed.shape[2]
    launch(
        prepare.transpose_values,
        (tiles * problem.nheads_k * problem.batch,),
        {
            "v_ptr": v.view(torch.uint8),
            "t_ptr": transposed.view(torch.uint8),
            "counter_ptr": counter,
            "stride_b": v.stride(0),
            "stride_s": v.stride(1),
            "stride_h": v.stride(2),
            "nheads": problem.nheads_k,
            "seqlen": problem.seqlen_k,
            "tiles": tiles,
            "HEAD_DIM_V": problem.headdim_v,
            "num_warps": 4,
        },
    )
    return transposed


def empty_transposed(problem: Problem, device: torch.device) -> torch.Tensor:
    """Workspace for V^T: e4m3 (batch, nheads_k, tiles of keys, headdim_v, keys of a tile)."""
    tiles = -(-problem.seqlen_k // _TILE_KEYS)
    shape = (problem.batch, problem.nheads_k, tiles, problem.headdim_v, _TILE_KEYS)
    return torch.empty(shape, dtype=FP8, device=device)
