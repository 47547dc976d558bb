"""Decides how a kernel marks the loop that may be replaced; does not replace anything.

A kernel takes `LOOP: tl.constexpr = ""` and passes the upper bound of its (last) loop through
`marked_bound`, together with the scalars that a replacement needs; a Gluon kernel says by `located`
where its shared memory lies. With LOOP == "" neither must be reached, so that nothing changes.
With another value the bound comes out as it went in: the assembly gains comments, and the source
stays specification and fallback. Both work in Triton and in Gluon kernels.
"""

from typing import Any

from triton.language import core

from zyfa_triton.splice.markers import LOCATION, MARK

_COMMENT = {"hip": "; ", "cuda": "// "}  # Triton's names of its back ends
_WIDE = 64


@core.builtin
def marked_bound(LOOP: Any, bound: Any, operands: Any = (), _semantic: Any = None) -> Any:
    """`bound` unchanged, int32.

    LOOP: what `zyfa_triton.splice.use` returned. operands: tuple of scalars (int32, int64, float32
    or pointers) in the order of the recipe's inputs after the bound.
    """
    backend = _semantic.builder.options.backend_name
    values = [_semantic.to_tensor(one) for one in (bound, *operands)]
    for number, value in enumerate(values):
        if value.type.is_block():
            name = "bound" if number == 0 else f"operand {number - 1}"
            raise ValueError(f"marked_bound: {name} is {value.type}; accepted are scalars")
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
    loop, name = core._unwrap_if_constexpr(LOOP), core._unwrap_if_constexpr(NAME)
    backend = _semantic.builder.options.backend_name
    register = "s" if backend == "hip" else "r"
    core.inline_asm_elementwise(
        f"{_COMMENT[backend]}{LOCATION}{loop} {name}", f"={register},{register}",
        [_semantic.to_tensor(0)], core.int32, False, 1, _semantic=_semantic,
    )  # fmt: skip
    memory._keep_alive(_semantic=_semantic)  # names the memory in the IR; no instruction
