"""What the public functions accept: one error an argument, with what came and what may come.

It computes nothing and chooses nothing. Everything here is traceable by torch.compile, apart from
the memory overlap of `out`, which is looked at in eager mode only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NoReturn

import torch
from torch.autograd import forward_ad

from zyfa_triton.problem import DTYPES, FP8, HEADDIMS, OUT_DTYPES, P_MODES, ROPE_WIDTHS

_LARGEST_FLOAT32 = (2.0 - 2.0**-23) * 2.0**127
_ZERO_FLOAT32 = 2.0**-150  # the largest double that becomes 0 as float32
HEADDIM_V_OF_PARTS = dict(HEADDIMS)[sum(ROPE_WIDTHS)]
_LAYOUT = "(batch, seqlen, nheads, headdim)"
_OTHER_FP8 = {
    torch.float8_e4m3fnuz: "its exponent bias is 8, not 7; convert through float32",
    torch.float8_e5m2: "it has two fraction bits; convert through float32",
    torch.float8_e5m2fnuz: "it has two fraction bits and another bias; convert through float32",
}


def refuse(kind: type[Exception], name: str, got: object, accepted: str) -> NoReturn:
    """Raises `kind` in the one form that all errors about arguments have."""
    raise kind(f"{name}: got {got}; accepted: {accepted}")


def check_inputs(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dtypes: Sequence[torch.dtype] = DTYPES
) -> None:
    """q, k and v on their own and against each other."""
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        check_tensor(name, tensor, dtypes)
    for name, tensor in (("k", k), ("v", v)):
        if tensor.dtype != q.dtype:
            refuse(TypeError, name, tensor.dtype, f"{q.dtype}, the dtype of q")
        if tensor.device != q.device:
            refuse(ValueError, name, f"a tensor on {tensor.device}", f"{q.device}, where q is")
        if tensor.shape[0] != q.shape[0]:
            refuse(ValueError, name, f"batch {tensor.shape[0]}", f"{q.shape[0]}, the batch of q")
    if k.shape[3] != q.shape[3]:
        refuse(ValueError, "k", f"headdim {k.shape[3]}", f"{q.shape[3]}, the headdim of q")
    if v.shape[1] != k.shape[1]:
        refuse(ValueError, "v", f"seqlen {v.shape[1]}", f"{k.shape[1]}, the seqlen of k")
    if v.shape[2] != k.shape[2]:
        refuse(ValueError, "v", f"{v.shape[2]} heads", f"{k.shape[2]}, the heads of k")
    if (q.shape[3], v.shape[3]) not in HEADDIMS:
        refuse(
            ValueError,
            "headdim",
            f"{q.shape[3]} of q and k, {v.shape[3]} of v",
            ", ".join(f"{headdim}/{headdim_v}" for headdim, headdim_v in HEADDIMS) + " (q and k/v)",
        )
    if k.shape[2] == 0 or q.shape[2] == 0 or q.shape[2] % k.shape[2] != 0:
        refuse(
            ValueError,
            "q",
            f"{q.shape[2]} heads with {k.shape[2]} heads of k and v",
            "a positive multiple of the heads of k",
        )


def check_parts(
    q_nope: torch.Tensor,
    q_rope: torch.Tensor,
    k_nope: torch.Tensor,
    k_rope: torch.Tensor,
    v: torch.Tensor | None,
    dtypes: Sequence[torch.dtype] = DTYPES,
) -> None:
    """q and k in two parts, and v unless None, on their own and against q_nope and k_nope."""
    tensors = {"q_nope": q_nope, "q_rope": q_rope, "k_nope": k_nope, "k_rope": k_rope}
    if v is not None:
        tensors["v"] = v
    for name, tensor in tensors.items():
        check_tensor(name, tensor, dtypes)
        if tensor.dtype != q_nope.dtype:
            refuse(TypeError, name, tensor.dtype, f"{q_nope.dtype}, the dtype of q_nope")
        if tensor.device != q_nope.device:
            place = f"{q_nope.device}, where q_nope is"
            refuse(ValueError, name, f"a tensor on {tensor.device}", place)
    first, rope = ROPE_WIDTHS
    batch, seqlen_q, nheads, _ = q_nope.shape
    _, seqlen_k, nheads_k, _ = k_nope.shape
    keys = (batch, seqlen_k, nheads_k)
    accepted = {
        "q_nope": ((batch, seqlen_q, nheads, first),),
        "q_rope": ((batch, seqlen_q, nheads, rope),),
        "k_nope": ((*keys, first),),
        "k_rope": ((batch, seqlen_k, 1, rope), (*keys, rope)),
        "v": ((*keys, HEADDIM_V_OF_PARTS),),
    }
    for name, tensor in tensors.items():
        if not any(_equal(tensor.shape, shape) for shape in accepted[name]):
            shapes = " or ".join(str(tuple(map(int, shape))) for shape in accepted[name])
            refuse(ValueError, name, f"shape {tuple(map(int, tensor.shape))}", shapes)
    if nheads_k == 0 or nheads == 0 or nheads % nheads_k != 0:
        refuse(
            ValueError,
            "q_nope",
            f"{nheads} heads with {nheads_k} heads of k_nope",
            "a positive multiple of the heads of k_nope",
        )


def check_v_mean(
    v_mean: torch.Tensor | None, q: torch.Tensor, nheads_k: int, headdim_v: int
) -> None:
    """The mean that was taken off v: None, or float32 (batch, nheads_k, headdim_v), last stride 1.
    Its values are not looked at."""
    if v_mean is None:
        return
    if not isinstance(v_mean, torch.Tensor):
        refuse(TypeError, "v_mean", type(v_mean).__name__, "None, or a float32 tensor")
    if q.dtype != FP8:
        refuse(ValueError, "v_mean", "a mean", f"None: {q.dtype} inputs have no mean taken off")
    if v_mean.dtype != torch.float32:
        refuse(TypeError, "v_mean", v_mean.dtype, "torch.float32")
    if v_mean.device != q.device:
        refuse(ValueError, "v_mean", f"a tensor on {v_mean.device}", f"{q.device}, where q is")
    if v_mean.layout != torch.strided:
        refuse(ValueError, "v_mean", f"layout {v_mean.layout}", "torch.strided")
    shape = (q.shape[0], nheads_k, headdim_v)
    if v_mean.ndim != 3 or not _equal(v_mean.shape, shape):
        accepted = f"(batch, nheads_k, headdim_v) = {tuple(map(int, shape))}"
        refuse(ValueError, "v_mean", f"shape {tuple(map(int, v_mean.shape))}", accepted)
    if v_mean.stride(2) != 1:
        strides = f"strides {tuple(v_mean.stride())}"
        refuse(ValueError, "v_mean", strides, "a last stride of 1; the others are free")
    _refuse_derivative("v_mean", v_mean)


def _equal(shape: Sequence[int], other: Sequence[int]) -> bool:
    return all(a == b for a, b in zip(shape, other, strict=True))


def check_tensor(name: str, tensor: torch.Tensor, dtypes: Sequence[torch.dtype]) -> None:
    """One of q, k, v, x: a strided 4-d tensor of an accepted dtype that needs no gradient."""
    if not isinstance(tensor, torch.Tensor):
        refuse(TypeError, name, type(tensor).__name__, f"a torch.Tensor {_LAYOUT}")
    if tensor.dtype not in dtypes:
        accepted = ", ".join(str(dtype) for dtype in dtypes)
        note = _OTHER_FP8.get(tensor.dtype)
        if note:
            accepted += f" ({tensor.dtype} is another encoding: {note})"
        refuse(TypeError, name, tensor.dtype, accepted)
    if tensor.device.type not in ("cpu", "cuda", "meta"):
        refuse(ValueError, name, f"a tensor on {tensor.device}", "cpu, cuda (ROCm's name too)")
    if tensor.layout != torch.strided:
        refuse(ValueError, name, f"layout {tensor.layout}", "torch.strided")
    if tensor.ndim != 4:
        refuse(ValueError, name, f"shape {tuple(tensor.shape)}", f"4 axes: {_LAYOUT}")
    if tensor.stride(3) != 1 and tensor.shape[3] != 1:
        refuse(
            ValueError,
            name,
            f"strides {tuple(tensor.stride())}",
            "a last stride of 1; the others are free",
        )
    _refuse_derivative(name, tensor)


def _refuse_derivative(name: str, tensor: torch.Tensor) -> None:
    """The op has no derivative, backward or forward mode, and does not pass for one that is 0."""
    if torch.is_grad_enabled() and tensor.requires_grad:
        refuse(
            NotImplementedError,
            name,
            "a tensor that requires grad, in grad mode",
            f"forward only: call under torch.no_grad(), or pass {name}.detach()",
        )
    if torch.compiler.is_compiling() or forward_ad._current_level < 0:
        return
    if forward_ad.unpack_dual(tensor).tangent is not None:  # type: ignore[no-untyped-call]
        refuse(
            NotImplementedError,
            name,
            "a dual tensor, in forward mode",
            f"forward only: pass unpack_dual({name}).primal (torch.autograd.forward_ad)",
        )


def check_options(
    *, causal: object, p_mode: object, block_scale: object, return_lse: object
) -> None:
    """Options that need no tensor to be judged."""
    check_flags(causal=causal, return_lse=return_lse)
    if p_mode not in P_MODES:
        refuse(ValueError, "p_mode", repr(p_mode), ", ".join(f'"{mode}"' for mode in P_MODES))
    if block_scale != "auto" and not isinstance(block_scale, bool):
        refuse(ValueError, "block_scale", repr(block_scale), '"auto", True, False')


def check_flags(**flags: object) -> None:
    """Options, by name, that are True or False."""
    for name, value in flags.items():
        if not isinstance(value, bool):
            refuse(TypeError, name, repr(value), "True, False")


def scale_or_default(softmax_scale: float | None, headdim: int) -> float:
    """The softmax scale: 1/sqrt(headdim of q) for None.

    Kernels take it times log2(e), as float32: raises unless both are positive and finite as such.
    """
    if softmax_scale is None:
        return 1.0 / math.sqrt(headdim)
    if isinstance(softmax_scale, bool) or not isinstance(softmax_scale, (int, float)):
        refuse(TypeError, "softmax_scale", type(softmax_scale).__name__, "a float, or None")
    return _float32("softmax_scale", softmax_scale, _LARGEST_FLOAT32 / math.log2(math.e))


def _float32(name: str, number: int | float, largest: float) -> float:
    """A number above 0, up to `largest`, that float32 does not round to 0."""
    if not _ZERO_FLOAT32 < number <= largest:  # also for an int that float() refuses
        if isinstance(number, int) and number.bit_length() > 64:
            got = f"an integer of {number.bit_length()} bits"
        else:
            got = str(float(number))
        refuse(ValueError, name, got, f"a positive number of float32, up to {largest:.6g}")
    return float(number)


def expanded_descale(
    name: str, descale: float | torch.Tensor | None, q: torch.Tensor, nheads_k: int
) -> torch.Tensor | None:
    """A descale as float32 (batch, nheads_k), a view where a tensor came. None stays None (1.0).

    The values of a tensor are not looked at: that would wait for the device.
    """
    if descale is None:
        return None
    if q.dtype != FP8:
        refuse(ValueError, name, "a descale", f"None: {q.dtype} inputs have no descale")
    batch = q.shape[0]
    if not isinstance(descale, torch.Tensor):
        if isinstance(descale, bool) or not isinstance(descale, (int, float)):
            refuse(TypeError, name, type(descale).__name__, "None, a float or a float32 tensor")
        number = _float32(name, descale, _LARGEST_FLOAT32)
        full = torch.full((1, 1), number, dtype=torch.float32, device=q.device)
        return full.expand(batch, nheads_k)
    if descale.dtype != torch.float32:
        refuse(TypeError, name, descale.dtype, "torch.float32")
    if descale.device != q.device:
        refuse(ValueError, name, f"a tensor on {descale.device}", f"{q.device}, where q is")
    if descale.layout != torch.strided:
        refuse(ValueError, name, f"layout {descale.layout}", "torch.strided")
    _refuse_derivative(name, descale)
    if descale.ndim == 2 and descale.shape[0] == batch and descale.shape[1] == nheads_k:
        return descale
    if all(size == 1 for size in descale.shape):
        return descale.reshape(1, 1).expand(batch, nheads_k)
    refuse(
        ValueError,
        name,
        f"shape {tuple(descale.shape)}",
        f"one element, or (batch, nheads_k) = ({batch}, {nheads_k})",
    )


def check_out(
    out: torch.Tensor,
    q: torch.Tensor,
    v: torch.Tensor,
    dtypes: Sequence[torch.dtype],
    inputs: Mapping[str, torch.Tensor | None],
) -> None:
    """`out`: where it lies, what it holds, and that writing to it changes no input."""
    if not isinstance(out, torch.Tensor):
        refuse(TypeError, "out", type(out).__name__, "None or a torch.Tensor")
    if out.dtype not in dtypes:
        refuse(TypeError, "out", out.dtype, ", ".join(str(dtype) for dtype in dtypes))
    if out.device != q.device:
        refuse(ValueError, "out", f"a tensor on {out.device}", f"{q.device}, where q is")
    if out.layout != torch.strided:
        refuse(ValueError, "out", f"layout {out.layout}", "torch.strided")
    shape = (q.shape[0], q.shape[1], q.shape[2], v.shape[3])
    if out.ndim != 4 or any(got != asked for got, asked in zip(out.shape, shape, strict=True)):
        refuse(ValueError, "out", f"shape {tuple(out.shape)}", f"{tuple(shape)}")
    if out.stride(3) != 1:
        refuse(
            ValueError,
            "out",
            f"strides {tuple(out.stride())}",
            "a last stride of 1; the others are free",
        )
    _refuse_derivative("out", out)
    if torch.compiler.is_compiling():
        return
    if may_overlap_itself(out):
        refuse(
            ValueError,
            "out",
            f"strides {tuple(out.stride())} at shape {tuple(out.shape)}, which share memory",
            "elements that do not overlap",
        )
    for name, tensor in inputs.items():
        if tensor is not None and may_overlap(out, tensor):
            refuse(ValueError, "out", f"memory that {name} uses", "memory that no input uses")


def out_dtypes(dtype: torch.dtype) -> tuple[torch.dtype, ...]:
    """Accepted output dtypes for an input dtype, the default first."""
    return OUT_DTYPES if dtype == FP8 else (dtype,)


def may_overlap_itself(tensor: torch.Tensor) -> bool:
    """Whether two elements of a tensor may lie at one address; exact for nested strides."""
    axes = sorted(
        (stride, size)
        for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
        if size > 1
    )
    if tensor.numel() == 0:
        return False
    reach = 0
    for stride, size in axes:
        if stride <= reach:
            return True
        reach += stride * (size - 1)
    return False


def may_overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether a and b share a byte: exact for equal strides, else by their address ranges."""
    if a.numel() == 0 or b.numel() == 0 or a.device != b.device or _has_no_memory(a, b):
        return False
    distance = b.data_ptr() - a.data_ptr()
    spans = tuple(_span(tensor) for tensor in (a, b))
    if distance >= spans[0] or -distance >= spans[1]:
        return False
    strides = [tuple(s * t.element_size() for s in t.stride()) for t in (a, b)]
    if strides[0] != strides[1]:
        return True
    axes = sorted(zip(strides[0], a.shape, b.shape, strict=True), reverse=True)
    return _meets(distance, [*axes, (1, a.element_size(), b.element_size())])


def _meets(distance: int, axes: list[tuple[int, int, int]]) -> bool:
    """Whether sum(stride * n) = distance for integers with -(size_b - 1) <= n <= size_a - 1."""
    if not axes:
        return distance == 0
    (stride, size_a, size_b), rest = axes[0], axes[1:]
    highest = sum(s * (a - 1) for s, a, _ in rest)
    lowest = -sum(s * (b - 1) for s, _, b in rest)
    if stride == 0:
        return _meets(distance, rest)
    first = max(-(size_b - 1), -((highest - distance) // stride))
    last = min(size_a - 1, (distance - lowest) // stride)
    return any(_meets(distance - stride * n, rest) for n in range(first, last + 1))


def _span(tensor: torch.Tensor) -> int:
    """Bytes from the first element to the end of the last."""
    reach = sum(st * (n - 1) for n, st in zip(tensor.shape, tensor.stride(), strict=True))
    return (reach + 1) * tensor.element_size()


def _has_no_memory(*tensors: torch.Tensor) -> bool:
    from torch._subclasses.fake_tensor import FakeTensor

    return any(isinstance(t, FakeTensor) or t.device.type == "meta" for t in tensors)
