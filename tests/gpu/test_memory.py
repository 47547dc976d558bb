"""Where tensors lie on a device: strides, offsets beyond 2^31, outputs between other data,
devices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from zyfa_triton import flash_attn_fp8_func, flash_attn_func, quantize_fp8
from zyfa_triton.problem import FP8
from zyfa_triton.testing import LAYOUTS, Inputs, make_inputs

GIB = 2**30


def attend(x: Inputs, out: torch.Tensor | None = None, kernel: str = "auto") -> torch.Tensor:
    result = flash_attn_func(x.q, x.k, x.v, causal=True, out=out, kernel=kernel, **x.descales)
    assert isinstance(result, torch.Tensor)
    return result


def contiguous(x: Inputs) -> Inputs:
    return replace(x, q=x.q.contiguous(), k=x.k.contiguous(), v=x.v.contiguous())


@pytest.mark.parametrize("dtype", [FP8, torch.bfloat16], ids=["e4m3", "bf16"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layout_changes_no_bit(
    e4m3_device: torch.device, layout: str, dtype: torch.dtype
) -> None:
    for headdim in (128, 192):
        x = make_inputs(
            257, 257, batch=2, headdim=headdim, dtype=dtype, device=e4m3_device, layout=layout
        )
        assert torch.equal(attend(x), attend(contiguous(x)))


def test_each_input_has_strides_of_its_own(e4m3_device: torch.device) -> None:
    kinds = [make_inputs(200, 200, dtype=FP8, device=e4m3_device, layout=n) for n in LAYOUTS]
    mixed = replace(kinds[0], q=kinds[1].q, k=kinds[2].k, v=kinds[4].v)
    assert torch.equal(attend(mixed), attend(contiguous(mixed)))


def test_expanded_descales_read_like_copies(e4m3_device: torch.device) -> None:
    x = make_inputs(100, 100, batch=2, dtype=FP8, device=e4m3_device)
    column = torch.tensor([[0.5], [2.0]], device=e4m3_device).expand(2, 2)
    transposed = torch.tensor([[0.5, 2.0], [1.0, 3.0]], device=e4m3_device).T
    for descale in (column, transposed):
        views = replace(x, q_descale=descale, k_descale=descale, v_descale=descale)
        copy = descale.contiguous()
        copies = replace(x, q_descale=copy, k_descale=copy, v_descale=copy)
        assert torch.equal(attend(views), attend(copies))


@pytest.mark.parametrize("dtype", [FP8, torch.bfloat16], ids=["e4m3", "bf16"])
def test_a_strided_output_is_written_and_what_lies_around_it_is_not(
    e4m3_device: torch.device, dtype: torch.dtype
) -> None:
    x = make_inputs(130, 140, batch=2, dtype=dtype, device=e4m3_device)
    buffer = torch.full((2, 9, 132, 192), float("nan"), device=e4m3_device).to(torch.bfloat16)
    out = buffer[:, 1:9:2, 1:131, 32:160].transpose(1, 2)
    assert torch.equal(attend(x, out), attend(x))
    assert int(buffer.isfinite().sum()) == out.numel()


def far_apart(
    tensor: torch.Tensor, strides: tuple[int, int, int], fill: bool = True
) -> torch.Tensor:
    """The tensor's values in memory of its own with other strides for batch, sequence and head."""
    reach = sum(s * (n - 1) for s, n in zip(strides, tensor.shape[:3], strict=True))
    buffer = torch.empty(reach + tensor.shape[3], dtype=tensor.dtype, device=tensor.device)
    view = buffer.as_strided(tensor.shape, (*strides, 1))
    if fill:
        view.copy_(tensor)
    return view


def needs_memory(device: torch.device, size: int) -> None:
    free, _ = torch.cuda.mem_get_info(device)
    if free < size:
        pytest.skip(f"needs {size / GIB:.0f} GiB of device memory, {free / GIB:.0f} are free")


FAR: dict[str, Callable[[int], tuple[int, int, int]]] = {
    "batch": lambda headdim: (2**31 + 4096, 4 * headdim, headdim),
    "head": lambda headdim: (4096 * headdim, headdim, (2**31 // 3 + 4096) // 16 * 16),
    # no multiple of 16 bytes, which copy engines ask for
    "odd": lambda headdim: (4096 * headdim, headdim, 2**31 // 3 + 4081),
    "row": lambda headdim: (640 * (2**22 + 256), 2**22 + 256, headdim),
    "tile": lambda headdim: (300 * (2**23 + 256), 2**23 + 256, headdim),
}


@pytest.mark.parametrize("dtype", [FP8, torch.bfloat16], ids=["e4m3", "bf16"])
@pytest.mark.parametrize("which", FAR)
def test_offsets_beyond_two_to_the_31(
    e4m3_device: torch.device, which: str, dtype: torch.dtype
) -> None:
    """Elements for e4m3, and bytes well beyond; q, k, v and out all lie that far apart."""
    seqlen = {"row": 640, "tile": 300}.get(which, 129)
    batch = 2 if which == "batch" else 1
    kernel = "triton" if which == "odd" else "auto"  # two kernels round differently
    needs_memory(e4m3_device, 30 * GIB)
    x = make_inputs(
        seqlen, seqlen, batch=batch, nheads=4, nheads_k=4, dtype=dtype, device=e4m3_device
    )
    near = attend(x, kernel=kernel)
    strides = FAR[which](128)
    far = replace(
        x, q=far_apart(x.q, strides), k=far_apart(x.k, strides), v=far_apart(x.v, strides)
    )
    out = far_apart(near, strides, fill=False)
    out.fill_(float("nan"))
    attend(far, out, kernel)
    assert torch.equal(out, near)
    if which == "odd":  # what "auto" falls to
        attend(far, out)
        assert torch.equal(out, near)
    del far, out
    torch.cuda.empty_cache()


def test_quantising_reaches_beyond_two_to_the_31(e4m3_device: torch.device) -> None:
    needs_memory(e4m3_device, 8 * GIB)
    x = make_inputs(640, 640, device=e4m3_device).q
    far = far_apart(x, FAR["row"](128))
    for ours, same in zip(
        quantize_fp8(far, subtract_mean=True), quantize_fp8(x, subtract_mean=True), strict=True
    ):
        assert torch.equal(ours.view(torch.uint8), same.view(torch.uint8))


def test_tensors_need_not_be_on_the_current_device(second_device: torch.device) -> None:
    x = make_inputs(129, 200, dtype=FP8, device=second_device)
    assert torch.cuda.current_device() == 0
    first = make_inputs(129, 200, dtype=FP8, device="cuda:0")
    out = attend(x)
    assert out.device == second_device
    assert torch.equal(out.cpu(), attend(first).cpu())
    half = make_inputs(129, 200, device=second_device)
    assert flash_attn_fp8_func(half.q, half.k, half.v, subtract_k_mean=True).device == second_device
    assert torch.cuda.current_device() == 0


def test_mixed_devices_are_refused(device: torch.device) -> None:
    x = make_inputs(4, 4, device=device)
    with pytest.raises(ValueError, match=r"k: got a tensor on cpu; accepted: cuda:0, where q is"):
        flash_attn_func(x.q, x.k.cpu(), x.v)
    with pytest.raises(ValueError, match=r"backend: 'reference' takes CPU tensors, q is on cuda"):
        flash_attn_func(x.q, x.k, x.v, backend="reference")


def test_memory_beyond_inputs_and_outputs_is_the_e4m3_copies(e4m3_device: torch.device) -> None:
    x = make_inputs(4096, 4096, nheads=8, nheads_k=8, device=e4m3_device)
    flash_attn_fp8_func(x.q, x.k, x.v, causal=True)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats(e4m3_device)
    before = torch.cuda.memory_allocated(e4m3_device)
    out = flash_attn_fp8_func(x.q, x.k, x.v, causal=True)
    assert isinstance(out, torch.Tensor)
    extra = torch.cuda.max_memory_allocated(e4m3_device) - before
    copies = x.q.numel() + x.k.numel() + x.v.numel()
    allowed = (out.numel() * 2 + copies) * 1.02
    assert extra <= allowed, (extra, allowed)
