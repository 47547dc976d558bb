"""Which calls the Hopper kernel serves, and how they are launched: the "gluon" kernel.

It decides descriptors and grid; the kernel itself is `forward`, and what is made of the inputs
before is `preparation`'s. It imports Triton only to launch.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import torch

from zyfa_triton.kernels.family import Config, Launch
from zyfa_triton.kernels.hopper.preparation import COUNTERS, quantise, transposed_values
from zyfa_triton.kernels.launch import LAUNCH_OPTIONS, launch_arguments
from zyfa_triton.problem import FP8, Problem

ALIGNMENT = 16  # bytes: what the copy engine asks of addresses and strides
LARGEST_STRIDE = 2**40  # bytes
TILE_M = 128  # rows of a workgroup, 64 a warpgroup
FIRST = 128  # columns that one copy takes; a head dim of 192 is 128 + 64
SHARED_BYTES = 227 * 1024
_ONES_ROWS = 8  # behind each tile of V^T, `values`
_SHARED_RESERVE = 8 * 1024  # barriers, announced tiles, the exchange of output columns
_MOST_STAGES = 8
_MEASURED = 4  # configurations that tuning compares
_HEAD_DIM_V = 128
_REGISTERS = {"CONSUMER_REGISTERS": 240, "PRODUCER_REGISTERS": 24}
_PASSED_ON = (  # arguments that reach the kernel as they are
    *("o_ptr", "lse_ptr", "softmax_scale_log2", "seqlen_q", "seqlen_k", "group_size", "v_mean_ptr"),
    *(f"{name}_descale_ptr" for name in "qkv"),
    *(f"stride_{name}d{axis}" for name in "qkv" for axis in "bh"),
    *(f"stride_o{axis}" for axis in "bsh"),
)


class GluonFamily:
    """The Gluon kernel for Hopper."""

    name = "gluon"
    target: str | None = "sm90"
    backends: tuple[str, ...] | None = ("device",)
    nature = "Gluon code"
    reads_parts = True

    def misfit(self, problem: Problem, arguments: Mapping[str, Any]) -> str:
        """See Family."""
        unfit = _misfit_of_kind(problem)
        if unfit:
            return unfit
        copied = ["q", "k"] if problem.is_fp8 else ["q", "k", "v"]
        if arguments["k_rope_ptr"] is not None:
            copied += ["q_rope", "k_rope"]
        return next(filter(None, (_misplaced(n, arguments[f"{n}_ptr"]) for n in copied)), "")

    def configurations(self, problem: Problem) -> list[Config]:
        """See Family."""
        found = self.fitting(problem)[:_MEASURED]
        if problem.is_fp8 and problem.p_mode == "lean" and not registers_suffice():
            found.sort(key=lambda config: config["OVERLAP"])
        return found

    def fitting(self, problem: Problem) -> list[Config]:
        """Every configuration that shared memory has room for, larger blocks and deeper rings
        first."""
        return [
            {"BLOCK_N": block_n, "num_stages": stages, "OVERLAP": overlap}
            for block_n in _blocks(problem)
            for stages in range(_MOST_STAGES, 1, -1)
            for overlap in (True, False)
            if shared_bytes(problem, block_n, stages) <= SHARED_BYTES
        ]

    def complaint(self, config: Mapping[str, Any], problem: Problem) -> str | None:
        """See Family."""
        unfit = _misfit_of_kind(problem)
        if unfit:
            return f"{unfit} ({self.name})"
        block_n, stages = config.get("BLOCK_N"), config.get("num_stages")
        if type(block_n) is not int or block_n not in _blocks(problem):
            return f"BLOCK_N is {block_n!r}, not one of {_blocks(problem)} ({self.name})"
        if not isinstance(config.get("OVERLAP"), bool):
            return f"OVERLAP is {config.get('OVERLAP')!r}, not true or false ({self.name})"
        if type(stages) is not int or not 2 <= stages <= _MOST_STAGES:
            return f"num_stages is {stages!r}, not 2 to {_MOST_STAGES} ({self.name})"
        taken = shared_bytes(problem, block_n, stages)
        if taken > SHARED_BYTES:
            return (
                f"num_stages is {stages}: with BLOCK_N {block_n} that takes {taken} bytes of "
                f"shared memory of {SHARED_BYTES} ({self.name})"
            )
        return None

    def constants(
        self, *, headdim: int, p_mode: str, is_causal: bool, settings: Mapping[str, str]
    ) -> dict[str, Any]:
        """See Family."""
        return {}

    def launch(
        self,
        launch: Launch,
        problem: Problem,
        arguments: Mapping[str, Any],
        config: Mapping[str, Any],
    ) -> None:
        """See Family."""
        v = arguments["v_ptr"]
        if problem.is_fp8:
            counter = torch.empty(COUNTERS, dtype=torch.int32, device=v.device)
            v = transposed_values(launch, problem, v, counter)
        else:
            counter = torch.zeros(COUNTERS, dtype=torch.int32, device=v.device)
        launch_forward(launch, problem, arguments, v, counter, config)

    def launch_quantising(
        self,
        launch: Launch,
        problem: Problem,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        out: torch.Tensor,
        lse: torch.Tensor | None,
        *,
        softmax_scale: float,
        per_tensor: bool,
        subtract_k_mean: bool,
        subtract_v_mean: bool,
        config: Mapping[str, Any],
    ) -> torch.Tensor | None:
        """See QuantisingFamily."""
        quantised = quantise(launch, problem, q, k, v, per_tensor, subtract_k_mean, subtract_v_mean)
        q_descale, k_descale, v_descale = quantised.descales
        arguments = launch_arguments(
            problem,
            quantised.q,
            quantised.k,
            v,
            out,
            lse,
            softmax_scale=softmax_scale,
            q_descale=q_descale,
            k_descale=k_descale,
            v_descale=v_descale,
            v_mean=quantised.v_mean,
        )
        launch_forward(launch, problem, arguments, quantised.v, quantised.counter, config)
        return quantised.k_mean


def launch_forward(
    launch: Launch,
    problem: Problem,
    arguments: Mapping[str, Any],
    v: torch.Tensor,
    counter: torch.Tensor,
    config: Mapping[str, Any],
) -> None:
    """Enqueues `hopper_attention_forward`.

    Args:
        arguments: from `kernels.launch.launch_arguments`. counter: int32 (COUNTERS,), the first
            zero when it runs.
        v: bfloat16 as the caller has it, or e4m3 V^T as `empty_transposed` makes room for.
    """
    from zyfa_triton.kernels.hopper.forward import hopper_attention_forward
    from zyfa_triton.kernels.hopper.schedule import heads_at_once

    block_n, pack = config["BLOCK_N"], packed_heads(problem)
    cluster = config.get("CLUSTER", 1)
    q, k = (arguments[f"{name}_ptr"].transpose(1, 2) for name in "qk")
    rest = problem.headdim - FIRST
    rows = TILE_M // 2 // pack
    wide, narrow, v_block = key_parts(problem.headdim, problem.is_fp8, block_n, cluster)
    descriptors = {
        "q_first": _descriptor(q, (1, pack, rows, FIRST)),
        "q_rest": _descriptor(_rest(arguments, "q"), (1, pack, rows, rest)) if rest else None,
        "k_first": _descriptor(k, wide),
        "k_rest": _descriptor(_rest(arguments, "k"), narrow) if rest else None,
        "v": _descriptor(v if problem.is_fp8 else v.transpose(1, 2), v_block),
    }
    m_blocks = -(-problem.seqlen_q // (TILE_M // pack * cluster))
    heads = problem.batch * problem.nheads // pack
    workgroups = min(max(_multiprocessors(q.device) // cluster, 1), heads * m_blocks)
    launch(
        hopper_attention_forward,
        (workgroups * cluster,),
        {
            **{name: arguments[name] for name in _PASSED_ON},
            **descriptors,
            "counter_ptr": counter,
            "m_blocks": m_blocks,
            "heads": heads,
            "heads_at_once": heads_at_once(m_blocks, heads, workgroups),
            "heads_a_batch": problem.nheads // pack,
            "IS_FP8": problem.is_fp8,
            "P_MODE": problem.p_mode,
            "IS_CAUSAL": problem.causal,
            "PACK": pack,
            "HEAD_DIM": problem.headdim,
            "HEAD_DIM_V": problem.headdim_v,
            "BLOCK_N": block_n,
            "STAGES": config["num_stages"],
            "OVERLAP": config["OVERLAP"],
            "LOOP": config.get("LOOP", ""),
            "CLUSTER": cluster,
            "num_warps": 4,
            **_REGISTERS,
            **LAUNCH_OPTIONS,
        },
    )


def _blocks(problem: Problem) -> tuple[int, ...]:
    """Keys of a block that are accepted, those first that are tried first. In e4m3 64 of them have
    never been run."""
    return (128,) if problem.is_fp8 else (128, 64)


def _rest(arguments: Mapping[str, Any], name: str) -> torch.Tensor:
    """The columns of q or k behind the first ones, (batch, nheads, seqlen, columns)."""
    whole: torch.Tensor = arguments[f"{name}_ptr"]
    part: torch.Tensor | None = arguments[f"{name}_rope_ptr"]
    if part is None:
        return whole[..., FIRST:].transpose(1, 2)
    return part.expand(-1, -1, whole.shape[2], -1).transpose(1, 2)


def key_parts(
    headdim: int, is_fp8: bool, block_n: int, cluster: int
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Blocks of the descriptors of K's first columns, its other ones, and V: what one workgroup of
    a cluster copies of a tile, some of its rows."""
    part = block_n // cluster
    v = (1, 1, 1, _HEAD_DIM_V // cluster, block_n) if is_fp8 else (1, 1, block_n, _HEAD_DIM_V)
    return (1, 1, part, FIRST), (1, 1, part, headdim - FIRST), v


def packed_heads(problem: Problem) -> int:
    """Query heads of a group that share a row tile: several where one head's queries leave most of
    it empty, so that K and V are read once for all of them."""
    pack = 1
    while (
        problem.group_size % (2 * pack) == 0
        and problem.seqlen_q * 2 * pack <= TILE_M
        and 2 * pack <= TILE_M // 8  # no fewer than 4 positions a warpgroup
    ):
        pack *= 2
    return pack


def shared_bytes(problem: Problem, block_n: int, stages: int) -> int:
    """Shared memory of the kernel, somewhat more than it takes."""
    item = problem.dtype.itemsize
    q_tile = TILE_M * problem.headdim * item
    return (
        q_tile
        + stages * block_n * (problem.headdim + problem.headdim_v) * item
        + (stages * block_n * _ONES_ROWS if problem.is_fp8 else 0)
        + _SHARED_RESERVE
    )


def _misfit_of_kind(problem: Problem) -> str:
    """Why the kernel does not serve a kind of problem, whatever its tensors; "" if it does."""
    if problem.dtype not in (FP8, torch.bfloat16):
        return f"it takes e4m3 and bfloat16 inputs, not {problem.dtype}"
    if problem.is_fp8 and problem.p_mode not in ("lean", "exact"):
        return f"it has no p_mode {problem.p_mode!r}"
    if problem.block_scale:
        return "it has no block_scale"
    return ""


def _misplaced(name: str, tensor: torch.Tensor) -> str:
    """Why the copy engine cannot read a tensor (batch, seqlen, nheads, headdim); "" if it can."""
    item = tensor.element_size()
    steps = [s * item for s, n in zip(tensor.stride()[:3], tensor.shape[:3], strict=True) if n > 1]
    if any(number % ALIGNMENT for number in (tensor.data_ptr(), *steps)):
        return f"{name}'s rows do not all start at multiples of {ALIGNMENT} bytes"
    if any(step >= LARGEST_STRIDE for step in steps):
        return f"{name} has a stride of {LARGEST_STRIDE} bytes or more"
    return ""


def _descriptor(tensor: torch.Tensor, block: tuple[int, ...]) -> Any:
    """A descriptor of a (batch, heads, .., columns) tensor; strides of single entries are free, so
    they become ones that the copy engine takes."""
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    strides = [
        stride if size > 1 else ALIGNMENT
        for stride, size in zip(tensor.stride()[:-1], tensor.shape[:-1], strict=True)
    ]
    layout = _layout(tensor.element_size(), block[-1], len(block))
    return TensorDescriptor(tensor, list(tensor.shape), [*strides, 1], list(block), layout)


@cache
def _layout(item: int, columns: int, rank: int) -> Any:
    from triton.experimental.gluon.language._layouts import NVMMASharedLayout

    width = min(128, columns * item)
    return NVMMASharedLayout(swizzle_byte_width=width, element_bitwidth=8 * item, rank=rank)


@cache
def registers_suffice() -> bool:
    """Whether ptxas keeps the overlapped Lean loop in registers: that of Triton 3.9 (13.4) spills
    in the loop, that of 3.6 (12.8) does not."""
    import triton

    major, minor = (int(part) for part in triton.__version__.split(".")[:2])
    return (major, minor) < (3, 9)


@cache
def _multiprocessors(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
