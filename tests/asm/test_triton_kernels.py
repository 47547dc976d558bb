"""Decides whether machine code that Triton compiles for gfx950 computes what NumPy does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from asm_overrides.emulator import GlobalMemory, Kernel, load_code_object, load_text, run
from tests.asm import llvm, triton_programs


def compile_for_gfx950(
    function: Any, types: dict[str, str], constants: dict[str, int], aligned: tuple[int, ...],
    **options: object,
) -> Any:  # fmt: skip
    """Compiled kernel; `aligned` arguments are multiples of 16."""
    signature = types | dict.fromkeys(constants, "constexpr")
    attributes = {(index,): [["tt.divisibility", 16]] for index in aligned}
    source = ASTSource(function, signature, constexprs=constants, attrs=attributes)
    options.setdefault("enable_fp_fusion", False)
    return triton.compile(source, target=GPUTarget("hip", "gfx950", 64), options=options)


def loaded(compiled: Any, form: str) -> Kernel:
    if form == "text":
        return load_text(compiled.asm["amdgcn"])
    return load_code_object(compiled.asm["hsaco"], objdump=llvm.tool("llvm-objdump"))


def codes(tensor: torch.Tensor) -> np.ndarray:
    return tensor.contiguous().view(torch.uint8).numpy()


@pytest.fixture(scope="module")
def compiled_add() -> Any:
    types = {"x_ptr": "*fp32", "y_ptr": "*fp32", "out_ptr": "*fp32", "count": "i32"}
    return compile_for_gfx950(triton_programs.add, types, {"BLOCK": 1024}, (0, 1, 2))


@pytest.mark.parametrize("preload", [True, False])
@pytest.mark.parametrize("form", ["text", "code object"])
def test_vector_add(compiled_add: Any, form: str, preload: bool) -> None:
    kernel = loaded(compiled_add, form)
    generator = np.random.default_rng(0)
    count = 2100
    x, y = generator.standard_normal((2, count), np.float32)
    memory = GlobalMemory()
    x_ptr, y_ptr = memory.alloc("x", x, readonly=True), memory.alloc("y", y, readonly=True)
    out = memory.alloc("out", np.full(count, np.nan, np.float32))
    result = run(
        kernel,
        grid=(3,),
        kernarg=kernel.pack([x_ptr, y_ptr, out, count]),
        memory=memory,
        preload=preload,
    )
    assert np.array_equal(memory.array(out, np.float32), x + y)
    assert result.findings == []
    assert result.wave_instructions > 0


def test_text_and_code_object_are_the_same_kernel(compiled_add: Any) -> None:
    text, image = loaded(compiled_add, "text"), loaded(compiled_add, "code object")
    assert text.arguments == image.arguments
    assert text.descriptor.user_sgprs == image.descriptor.user_sgprs
    assert text.descriptor.preload_dwords == image.descriptor.preload_dwords > 0
    assert text.descriptor.mode == image.descriptor.mode
    ours, theirs = text.instructions[text.entry :], image.instructions[image.entry :]
    for left, right in zip(ours, theirs, strict=False):
        if left.spec.port != "branch":
            assert left.same_as(right), (left.text, right.text)


MATMULS = {
    "bf16": ("*bf16", torch.bfloat16, {"num_stages": 2}, 1e-5),
    "bf16 of 16x16": ("*bf16", torch.bfloat16, {"matrix_instr_nonkdim": 16}, 1e-5),
    "fp16": ("*fp16", torch.float16, {"num_stages": 1}, 1e-5),
    "fp32 with masked loads to LDS": ("*fp32", torch.float32, {"num_stages": 2}, 1e-5),
    "fp8": ("*fp8e4nv", torch.float8_e4m3fn, {"num_stages": 2, "num_warps": 2}, 0.0),
    "bf8": ("*fp8e5", torch.float8_e5m2, {"num_stages": 2}, 1e-5),
}


@pytest.mark.parametrize("name", MATMULS)
def test_matmul(name: str) -> None:
    pointer, dtype, options, tolerance = MATMULS[name]
    types = {"a_ptr": pointer, "b_ptr": pointer, "c_ptr": "*fp32"}
    types |= dict.fromkeys(("m", "n", "k", "stride_a", "stride_b", "stride_c"), "i32")
    blocks = {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 64}
    compiled = compile_for_gfx950(
        triton_programs.matmul, types, blocks, (0, 1, 2, 6, 7, 8), **options
    )
    kernel = load_text(compiled.asm["amdgcn"])
    m, n, k = 100, 80, 144
    generator = torch.Generator().manual_seed(0)
    # Multiples of 1/8 up to 8: products and sums are exact in fp32 where the format holds them.
    a = (torch.randint(-16, 17, (m, k), generator=generator) / 8).to(dtype)
    b = (torch.randint(-16, 17, (k, n), generator=generator) / 8).to(dtype)
    expected = (a.double() @ b.double()).numpy()
    results = []
    for seed in (None, 1):
        memory = GlobalMemory()
        c = memory.alloc("c", np.full((m, n), np.nan, np.float32))
        pointers = [memory.alloc("a", codes(a), True), memory.alloc("b", codes(b), True), c]
        result = run(
            kernel,
            grid=(2, 2),
            kernarg=kernel.pack([*pointers, m, n, k, k, n, n]),
            memory=memory,
            dynamic_lds=compiled.metadata.shared,
            seed=seed,
        )
        assert result.findings == []
        results.append(memory.array(c, np.float32).reshape(m, n).copy())
    assert np.array_equal(results[0], results[1])
    assert np.abs(results[0] - expected).max() <= tolerance


def test_softmax_of_rows() -> None:
    """Reductions over a row move data between lanes and between waves."""
    types = {"x_ptr": "*fp32", "out_ptr": "*fp32", "stride": "i32", "count": "i32"}
    compiled = compile_for_gfx950(
        triton_programs.row_softmax, types, {"BLOCK": 1024}, (0, 1, 2), num_warps=4
    )
    kernel = load_text(compiled.asm["amdgcn"])
    x = np.random.default_rng(0).standard_normal((3, 1008)).astype(np.float32)
    memory = GlobalMemory()
    x_ptr, out = memory.alloc("x", x, True), memory.alloc("out", np.full_like(x, np.nan))
    result = run(
        kernel,
        grid=(3,),
        kernarg=kernel.pack([x_ptr, out, 1008, 1001]),
        memory=memory,
        dynamic_lds=compiled.metadata.shared,
    )
    got = memory.array(out, np.float32).reshape(3, 1008)
    weights = np.exp(x[:, :1001].astype(np.float64) - x[:, :1001].max(1, keepdims=True))
    expected = weights / weights.sum(1, keepdims=True)
    assert np.abs(got[:, :1001] / expected - 1).max() < 1e-6
    assert np.isnan(got[:, 1001:]).all()
    assert result.findings == []


class Recorder:
    """Keeps the operands of every matrix instruction."""

    def __init__(self) -> None:
        self.operands: list[tuple[slice, np.ndarray, np.ndarray]] = []

    def on_mfma(self, workgroup, waves, instruction, a, b, scale_a, scale_b) -> None:  # type: ignore[no-untyped-def]
        self.operands.append((waves, a.copy(), b.copy()))


def test_observer_sees_operands_as_matrices() -> None:
    types = {"a_ptr": "*fp8e4nv", "b_ptr": "*fp8e4nv", "c_ptr": "*fp32"}
    types |= dict.fromkeys(("m", "n", "k", "stride_a", "stride_b", "stride_c"), "i32")
    blocks = {"BLOCK_M": 32, "BLOCK_N": 32, "BLOCK_K": 64}
    compiled = compile_for_gfx950(
        triton_programs.matmul, types, blocks, (0, 1, 2, 6, 7, 8), num_warps=1
    )
    kernel = load_text(compiled.asm["amdgcn"])
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(32, 64, generator=generator).to(torch.float8_e4m3fn)
    b = torch.randn(64, 32, generator=generator).to(torch.float8_e4m3fn)
    memory = GlobalMemory()
    c = memory.alloc("c", np.zeros((32, 32), np.float32))
    pointers = [memory.alloc("a", codes(a), True), memory.alloc("b", codes(b), True), c]
    recorder = Recorder()
    run(
        kernel,
        grid=(1,),
        kernarg=kernel.pack([*pointers, 32, 32, 64, 64, 32, 32]),
        memory=memory,
        dynamic_lds=compiled.metadata.shared,
        observer=recorder,
    )
    ((waves, left, right),) = recorder.operands
    assert waves == slice(0, 1)
    assert left.shape == right.shape == (1, 1, 32, 64)
    # Whichever operand is A, rows hold the codes of the tensors' rows, permuted in k.
    wanted = [*codes(a).reshape(32, 64), *codes(b.T.contiguous()).reshape(32, 64)]
    seen = [*left[0, 0], *right[0, 0]]
    assert sorted(sorted(row) for row in seen) == sorted(sorted(row) for row in wanted)
