"""Decides how a kernel marks the loop that may be replaced; does not replace anything.

A kernel takes `LOOP: tl.constexpr = ""` and passes the upper bound of its (last) loop through
`marked_bound`, together with the scalars that a replacement needs; `handed` adds tensors that the
loop reads, and in a Gluon kernel `located` says where shared memory lies; `in_cluster` marks single
instructions. With LOOP == "" none of them must be reached, so that nothing changes.
With another value the bound comes out as it went in: the assembly gains comments, and the source
stays specification and fallback. All work in Triton and in Gluon kernels.
"""

from typing import Any

from triton.language import core

from zyfa_triton.splice.markers import CLUSTER, LOCATION, MARK, TENSOR

_COMMENT = {"hip": "; ", "cuda": "// "}  # Triton's names of its back ends
_WIDE = 64
_NARROW = (8, 16, 32)  # bits


@core.builtin
def marked_bound(LOOP: Any, bound: Any, operands: Any = (), _semantic: Any = None) -> Any:
    """`bound` unchanged, int32.

    LOOP: what `zyfa_triton.splice.use` returned. operands: tuple of scalars (int32, int64, float32
    or pointers) in the order of the recipe's inputs after the bound.
    """
    backend = _semantic.builder.options.backend_name
    values = [_semantic.to_tensor(one) for one in (bound, *operands)]
    if values[0].type != core.int32:
        raise ValueError(f"marked_bound: bound is {values[0].type}; accepted is an int32")
    for number, value in enumerate(values[1:]):
        if value.type.is_block():
            raise ValueError(
                f"marked_bound: operand {number} is {value.type}; accepted are scalars"
            )
    inputs = ["s" if backend == "hip" else _register(value.dtype) for value in values[1:]]
    # the bound comes out in the register it went in; on AMD everything is in scalar ones
    constraints = ",".join(["=s" if backend == "hip" else "=r", "0", *inputs])
    text = _COMMENT[backend] + MARK + core._unwrap_if_constexpr(LOOP)
    return core.inline_asm_elementwise(
        text, constraints, values, core.int32, True, 1, _semantic=_semantic
    )


def _register(dtype: Any) -> str:
    """LLVM's constraint for a value in PTX."""
    if dtype.is_ptr() or dtype.primitive_bitwidth == _WIDE:
        return "l"
    return "f" if dtype.is_floating() else "r"


@core.builtin
def located(LOOP: Any, NAME: Any, memory: Any, _semantic: Any = None) -> None:
    """Hands the address of shared memory to the text of a marked loop below, under a name.

    LOOP: as for `marked_bound`. NAME: one of the recipe's `memory`. memory: what Gluon's
    `allocate_shared_memory` returned, a whole allocation.
    """
    _comment(LOCATION, LOOP, NAME, _semantic.to_tensor(0), _semantic)
    memory._keep_alive(_semantic=_semantic)  # names the memory in the IR; no instruction


@core.builtin
def handed(LOOP: Any, NAME: Any, tensor: Any, _semantic: Any = None) -> None:
    """Hands a tensor that the loop reads and does not change to the text of a marked loop below.

    LOOP: as for `marked_bound`. NAME: one of the recipe's `tensors`. tensor: elements of 8, 16 or
    32 bits, in the layout of a matrix result or of a matrix instruction's first operand.
    """
    if not tensor.type.is_block() or tensor.dtype.primitive_bitwidth not in _NARROW:
        raise ValueError(
            f"handed: tensor is {tensor.type}; accepted are tensors of 8, 16 or 32 bit elements"
        )
    _comment(TENSOR, LOOP, NAME, tensor, _semantic)


@core.builtin
def in_cluster(LOOP: Any, WHAT: Any, _semantic: Any = None) -> None:
    """Says what the next instruction is to a cluster of workgroups; `sm90.cluster` lists WHAT.

    Gluon code of one workgroup, whose recipe has a `cluster`. LOOP: as for `marked_bound`. Unlike
    other marks it is no comment: such a kernel is wrong without its change, and does not assemble.
    """
    _comment(CLUSTER, LOOP, WHAT, _semantic.to_tensor(0), _semantic, prefix="")


def _comment(
    kind: str, loop: Any, name: Any, value: Any, semantic: Any, prefix: str | None = None
) -> None:
    """A comment with effects, so that it stays, on a value, so that the IR names it. prefix: what
    makes it a comment, if not the back end's."""
    backend = semantic.builder.options.backend_name
    prefix = _COMMENT[backend] if prefix is None else prefix
    is_scalar = not value.type.is_block()
    register = "f" if value.dtype.is_fp32() else "r"
    if backend == "hip":
        register = "s" if is_scalar else "v"
    pack = 1 if is_scalar else _NARROW[-1] // value.dtype.primitive_bitwidth
    text = f"{kind}{core._unwrap_if_constexpr(loop)} {core._unwrap_if_constexpr(name)}"
    core.inline_asm_elementwise(
        prefix + text, f"={register},{register}", [value], value.dtype, False, pack,
        _semantic=semantic,
    )  # fmt: skip
