"""Decides how the op's kernels become gfx950 machine code on a machine without such a card.

It compiles for exactly the arguments given (types, alignments, values that Triton specialises on),
so that the result is the code a launch on the card would run. It does not run anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch

from zyfa_triton.code_object import assemble
from zyfa_triton.kernels import hip as hip_kernel
from zyfa_triton.kernels.launch import LAUNCH_OPTIONS, TRITON, kernel_constants
from zyfa_triton.kernels.pingpong import PingPongFamily
from zyfa_triton.problem import Problem
from zyfa_triton.splice import fallback_reason

TARGET = "gfx950"
_WAVE_SIZE = 64
_ALIGNMENT = 16  # bytes, or value of an integer: what Triton specialises on
_POINTER_TYPES = {
    torch.float8_e4m3fn: "*fp8e4nv",
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.float32: "*fp32",
}
_CONFIGURED_CONSTANTS = ("BLOCK_M", "BLOCK_N", "LOOP", "HEADS_FASTEST")
Attributes = tuple[tuple[tuple[int], tuple[tuple[str, int], ...]], ...]


@dataclass(frozen=True)
class Signature:
    """What Triton specialises a kernel on: types by argument, constants, and divisibilities."""

    types: tuple[tuple[str, str], ...]
    constants: tuple[tuple[str, Any], ...]
    attributes: Attributes

    @property
    def run_time_names(self) -> tuple[str, ...]:
        """Arguments that are passed at run time, in the order of the kernel's argument block."""
        return tuple(name for name, kind in self.types if kind != "constexpr")


@dataclass(frozen=True)
class CompiledKernel:
    """gfx950 code of one specialisation.

    amdgcn: assembly text. hsaco: code object. shared: dynamic LDS bytes a workgroup.
    config: BLOCK_M, BLOCK_N, num_warps, num_stages and back-end options that were used.
    kernel: whose code it is, a name of `kernels.registry.KERNELS`; "triton" also where another loop
    did not fit. splice: the LOOP whose recipe took the place of Triton's loop, "fallback: " and the
    reason why it did not, or "" where none was asked for.
    """

    name: str
    amdgcn: str = field(repr=False)
    hsaco: bytes = field(repr=False)
    shared: int
    num_warps: int
    signature: Signature
    config: Mapping[str, Any]
    splice: str = ""

    @property
    def kernel(self) -> str:
        """See the class."""
        if "kernel" in self.config:
            return str(self.config["kernel"])
        return TRITON if self.kept_own_loop else PingPongFamily.name

    @property
    def kept_own_loop(self) -> bool:
        """Whether the loop is Triton's own: none other was asked for, or the one asked for did not
        fit, of which a warning and `splice` tell."""
        return not self.splice or self.splice.startswith("fallback: ")


def signature_of(
    arguments: Mapping[str, Any], constants: Mapping[str, Any], unspecialised: frozenset[str]
) -> Signature:
    """The specialisation that Triton's launcher would derive from run-time arguments.

    Args:
        arguments: run-time arguments by name, in the kernel's order: tensors, ints, floats or None.
        constants: compile-time constants by name.
        unspecialised: integers that the kernel marks `do_not_specialize`.
    """
    types: list[tuple[str, str]] = []
    fixed = dict(constants)
    attributes = []
    for index, (name, value) in enumerate(arguments.items()):
        marks: list[tuple[str, int]] = []
        if value is None or (isinstance(value, int) and value == 1 and name not in unspecialised):
            types.append((name, "constexpr"))
            fixed[name] = value
            continue
        if isinstance(value, torch.Tensor):
            types.append((name, _POINTER_TYPES[value.dtype]))
            if value.data_ptr() % _ALIGNMENT == 0:
                marks.append(("tt.divisibility", _ALIGNMENT))
            if value.untyped_storage().nbytes() < 2**31:
                marks.append(("tt.pointer_range", 32))
        elif isinstance(value, int):
            types.append((name, "i32" if -(2**31) <= value < 2**31 else "i64"))
            if value % _ALIGNMENT == 0 and name not in unspecialised:
                marks.append(("tt.divisibility", _ALIGNMENT))
        else:
            types.append((name, "fp32"))
        if marks:
            attributes.append(((index,), tuple(marks)))
    types += [(name, "constexpr") for name in constants]
    return Signature(tuple(types), tuple(fixed.items()), tuple(attributes))


def compile_call(
    kernel: str, problem: Problem, arguments: Mapping[str, Any], config: Mapping[str, Any]
) -> CompiledKernel:
    """Compile a call for gfx950.

    Args:
        kernel: a name of `kernels.registry.KERNELS`.
        arguments: from `kernels.launch.launch_arguments`; tensors may be on any device.
        config: from `tuning.launchable`.
    Raises:
        RuntimeError: it does not compile here. ValueError: a configuration that it does not have.
    """
    if kernel == hip_kernel.HipFamily.name:
        complaint = hip_kernel.HipFamily().complaint(config, problem)
        if complaint:
            raise ValueError(f"config: {complaint}")
        return compile_hip(problem)
    return compile_attention(arguments, kernel_constants(problem, arguments), config)


def compile_attention(
    arguments: Mapping[str, Any], constants: Mapping[str, Any], config: Mapping[str, Any]
) -> CompiledKernel:
    """Compile `attention_forward` for gfx950.

    Args:
        arguments: from `kernels.launch.launch_arguments`; tensors may be on any device.
        constants: from `kernels.launch.kernel_constants`.
        config: BLOCK_M, BLOCK_N, num_warps, num_stages and AMD options such as waves_per_eu; LOOP
            for a recipe in place of Triton's loops; HEADS_FASTEST for another order of the grid.
    Raises:
        RuntimeError: this Triton has no AMD back end, or the kernel does not compile.
    """
    from zyfa_triton.kernels.attention import attention_forward

    blocks = {name: config[name] for name in _CONFIGURED_CONSTANTS if name in config}
    options = {name: value for name, value in config.items() if name not in blocks}
    return compile_kernel(attention_forward, arguments, {**constants, **blocks}, options)


def compile_hip(problem: Problem) -> CompiledKernel:
    """The kernel in HIP C++ for a problem that it serves; raises hip.HipCompilerError."""
    instance = hip_kernel.Instance.of(problem)
    text = instance.assembly()
    return CompiledKernel(
        name=instance.name,
        amdgcn=text,
        hsaco=assemble(text),
        shared=0,
        num_warps=hip_kernel.WAVES,
        signature=Signature(tuple(hip_kernel.TYPES.items()), (), ()),
        config={**hip_kernel.CONFIG, "kernel": hip_kernel.HipFamily.name},
    )


def compile_kernel(
    kernel: Any,
    arguments: Mapping[str, Any],
    constants: Mapping[str, Any],
    options: Mapping[str, Any],
) -> CompiledKernel:
    """Compile any `@triton.jit` function for gfx950; raises as `compile_attention`.

    Args:
        kernel: the function.
        arguments: its run-time arguments by name, in its order.
        constants: its constexpr arguments by name; those with a default may be left out.
        options: num_warps, num_stages and AMD options. Products and sums stay two roundings.
    """
    unspecialised = frozenset(
        parameter.name for parameter in kernel.params if parameter.do_not_specialize
    )
    defaults = {
        one.name: one.default for one in kernel.params if one.is_constexpr and one.has_default
    }
    signature = signature_of(arguments, defaults | dict(constants), unspecialised)
    return _compile(kernel, signature, tuple(sorted((dict(options) | LAUNCH_OPTIONS).items())))


@cache
def _compile(
    kernel: Any, signature: Signature, options: tuple[tuple[str, Any], ...]
) -> CompiledKernel:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    source = ASTSource(
        kernel,
        dict(signature.types),
        constexprs=dict(signature.constants),
        attrs={key: [list(mark) for mark in marks] for key, marks in signature.attributes},
    )
    target = GPUTarget("hip", TARGET, _WAVE_SIZE)
    compiled = triton.compile(source, target=target, options=dict(options))
    constants = dict(signature.constants)
    if constants.get("LOOP"):  # a fallback that Triton found in its cache warns too
        fallback_reason(compiled, constants["LOOP"])
    return CompiledKernel(
        name=compiled.metadata.name,
        amdgcn=compiled.asm["amdgcn"],
        hsaco=compiled.asm["hsaco"],
        shared=compiled.metadata.shared,
        num_warps=compiled.metadata.num_warps,
        signature=signature,
        config={name: constants[name] for name in _CONFIGURED_CONSTANTS if name in constants}
        | dict(options),
        splice=getattr(compiled.metadata, "splice", ""),
    )
