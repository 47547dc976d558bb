"""Which loops a recipe may replace: every way in which the kernel's IR can fail to fit."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import triton
import triton.language as tl

from examples import scaled_product as example
from tests.asm.splice_cases import (
    OPTIONS,
    IdleAttentionLoop,
    ProductLoop,
    attention_case,
    compile_attention,
    compile_kernel,
    compile_product,
)
from zyfa_triton import splice
from zyfa_triton.kernels.attention import attention_forward
from zyfa_triton.kernels.launch import LAUNCH_OPTIONS, kernel_constants
from zyfa_triton.splice import Input, MatrixLayout, Output, SpliceError
from zyfa_triton.splice.gfx950.cut import cut_loop
from zyfa_triton.splice.gfx950.layout import matrix_layout
from zyfa_triton.splice.marker import marked_bound
from zyfa_triton.splice.markers import has_mark, without_marks

PRODUCT = ProductLoop()
ATTENTION = IdleAttentionLoop(p_mode="lean", is_causal=True)


@pytest.fixture(autouse=True)
def clean(fresh_splice: None) -> Iterator[None]:
    yield


@cache
def marked(which: str) -> str:
    """GPU IR of a marked kernel as a recipe meets it, compiled without the hook."""
    options: dict[str, Any] = {"num_stages": 1, "matrix_instr_nonkdim": 32}
    if which == "product":
        return str(compile_product("scaled_product__0", **options).asm["ttgir"])
    return str(compile_attention("idle__0", **options).asm["ttgir"])


@pytest.fixture
def product() -> str:
    return marked("product")


@pytest.fixture
def attention() -> str:
    return marked("attention")


def edited(text: str, pattern: str, new: str, count: int = 1) -> str:
    """The text with a change that must hit something."""
    result, hits = re.subn(pattern, new, text, count=count, flags=re.MULTILINE)
    assert hits, f"{pattern!r} is nowhere in the IR"
    return result


FOR = r"^( *%[\w.$-]+(?::\d+)? = scf\.for )"


@pytest.mark.parametrize(
    ("pattern", "new", "reason"),
    [
        (r"^(#mma = .*)$", r"\1\n#mma1 = #ttg.amd_mfma<{version = 4}>", "has 2 MFMA layouts"),
        (r"^#mma = .*$", "", "has 0 MFMA layouts"),
        (r"(amd_mfma<\{)version = 4", r"\1version = 3", "version 3, not gfx950"),
        (r"(amd_mfma<\{)", r"\1tilesPerWarp = [1, 2], ", "layout with tilesPerWarp"),
        (r"instrShape = \[32, 32, 64\]", "instrShape = [16, 16, 128]", "row_sum needs 2 registers"),
        (r'"ttg.num-warps" = 8', '"ttg.num-warps" = 4', "does not use every wave once"),
        (r"^( *)(%[\w.$-]+ = tt\.elementwise_inline_asm .*)$", r"\1\2\n\1\2", "2 marks in one"),
        (FOR + r"(%[\w.$-]+) = (%[\w.$-]+) to (%[\w.$-]+)", r"\1\2 = \3 to %other", "0 loops end"),
        (FOR + r"(%[\w.$-]+) = (%[\w.$-]+) to", r"\1\2 = %size_k to", "does not start from 0"),
        (
            FOR,
            r'%z = tt.elementwise_inline_asm "; @splice-tensor l n" {} %x : tensor<z> -> '
            r"tensor<z>\n\1",
            "the kernel hands over n; gfx950 loops take scalars only",
        ),
        (r"step %c128_i32", "step %c0_i32", "step is 0.0, scaled_product takes 128"),
        (r"^( *)scf\.yield", r"\1tt.store %p, %x : !tt.ptr<f32>\n\1scf.yield", "tt.store"),
        (r"^( *)scf\.yield", r"\1ttg.local_store %p, %x : z\n\1scf.yield", "ttg.local_store"),
        (r"^( *)scf\.yield", r"\1amdg.buffer_store %x, %p\n\1scf.yield", "amdg.buffer_store"),
        (r"^( *)scf\.yield", r"\1tt.print {a}\n\1scf.yield", "tt.print"),
        (r"^( *)scf\.yield", r"\1%z = tt.dot %x, %y : z\n\1scf.yield", "holds 3 tt.dot"),
    ],
)
def test_ir_that_does_not_fit_is_refused(product: str, pattern: str, new: str, reason: str) -> None:
    with pytest.raises(SpliceError, match=re.escape(reason)):
        cut_loop(edited(product, pattern, new), PRODUCT)


SHORT = PRODUCT.inputs[:-1]
FLOAT_STRIDE = (*SHORT, Input("stride_b", "s26", "f32"))
ACC, ROW_SUM = PRODUCT.outputs


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"inputs": SHORT}, "the mark passes 5 values, scaled_product takes 4"),
        ({"inputs": FLOAT_STRIDE}, "input stride_b is i32 in the kernel, scaled_product takes f32"),
        ({"outputs": (ACC,)}, "the loop's results are tensor<256x32xf32, #mma>, tensor<256xf32"),
        ({"outputs": (ROW_SUM, ACC)}, "gives tensor<256xf32"),
        ({"outputs": (replace(ACC, count=15), ROW_SUM)}, "acc needs 16 registers"),
        ({"outputs": (ACC, replace(ROW_SUM, initial=1.0))}, "starts from 1.0"),
        ({"step": 64}, "the loop's step is 128.0, scaled_product takes 64"),
        ({"operations": {"tt.dot": 1}}, "holds 2 tt.dot, scaled_product stands for 1"),
        ({"operations": {"math.exp2": 1}}, "holds 0 math.exp2"),
    ],
)  # fmt: skip
def test_a_recipe_for_another_loop_is_refused(
    product: str, changes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(SpliceError, match=re.escape(reason)):
        cut_loop(product, replace(PRODUCT, **changes))


def test_the_loop_is_gone_and_everything_else_stays(product: str) -> None:
    cut, layout = cut_loop(product, PRODUCT)
    assert layout == matrix_layout(product) == example.LAYOUT
    assert "scf.for" not in cut and "tt.dot" not in cut
    assert cut.count("llvm.inline_asm") == 1
    assert cut.count("tt.store") == product.count("tt.store")
    assert not re.search(r"%row_sum_\d+#", cut), "a result of the loop is still used"


def test_both_attention_loops_are_one_chain(attention: str) -> None:
    assert attention.count("scf.for") == 2
    cut, _ = cut_loop(attention, ATTENTION)
    assert "scf.for" not in cut and cut.count("llvm.inline_asm") == 1


@pytest.mark.parametrize(
    ("pattern", "new", "reason"),
    [
        (r"= (%[\w.$-]+)#1, (%[\w.$-]+ = )(%[\w.$-]+)#2\)", r"= \3#2, \2\1#1)", "in order"),
        (r"(scf\.for %[\w.$-]+ = )%(\d+) to", r"\1%c0_i32 to", "where the first ended"),
    ],
)
def test_a_broken_chain_is_refused(attention: str, pattern: str, new: str, reason: str) -> None:
    with pytest.raises(SpliceError, match=reason):
        cut_loop(edited(attention, pattern, new), ATTENTION)


def test_a_result_of_the_first_loop_that_is_used_later_is_refused(attention: str) -> None:
    first = re.search(FOR, attention, re.MULTILINE)
    assert first is not None
    name = first[1].split(":")[0].strip()
    text = edited(attention, r"^( *)tt\.return", rf"\1%z = arith.negf {name}#0 : f32\n\1tt.return")
    with pytest.raises(SpliceError, match="used after it"):
        cut_loop(text, ATTENTION)


@pytest.mark.parametrize(
    ("p_mode", "is_causal"), [("exact", True), ("lean", False)], ids=["p_mode", "causal"]
)
def test_an_attention_loop_of_other_settings_is_refused(
    attention: str, p_mode: str, is_causal: bool
) -> None:
    with pytest.raises(SpliceError, match=r"holds \d+ (math|arith)\.\w+, idle stands for"):
        cut_loop(attention, IdleAttentionLoop(p_mode=p_mode, is_causal=is_causal))


def test_lds_that_is_alive_across_the_loop_is_refused(product: str) -> None:
    kept = (
        r"\n    %kept = ttg.local_alloc %x : (tensor<256xf32, #blocked>) -> !ttg.memdesc<256xf32>\n"
    )
    text = edited(product, FOR, kept + r"\1")
    cut_loop(text, replace(PRODUCT, lds_bytes=1024))  # used by nobody
    text = edited(text, r"^( *)tt\.return", r"\1%y = ttg.local_load %kept : z\n\1tt.return")
    cut_loop(text, PRODUCT)  # which has no LDS of its own
    with pytest.raises(SpliceError, match="%kept lies in LDS before the loop and is used after"):
        cut_loop(text, replace(PRODUCT, lds_bytes=1024))


def test_an_attention_kernel_with_64_bit_offsets_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ZYFA_STRICT", "1")
    problem, arguments = attention_case("lean")
    constants = {**kernel_constants(problem, arguments), "BLOCK_M": 256, "BLOCK_N": 64}
    constants |= {"INDEX_64": True, "LOOP": splice.use(ATTENTION)}
    with pytest.raises(SpliceError, match="input stride_qs is i64 in the kernel, idle takes i32"):
        compile_kernel(attention_forward, arguments, constants, num_warps=8, **LAUNCH_OPTIONS)


def test_without_its_mark_the_ir_is_that_of_an_unmarked_kernel(product: str) -> None:
    plain = without_marks(product)
    assert has_mark(product) and not has_mark(plain)
    assert len(plain.splitlines()) == len(product.splitlines()) - 1
    assert re.search(FOR + r"%[\w.$-]+ = %[\w.$-]+ to %size_k ", plain, re.MULTILINE)


@triton.jit
def indirect_product(
    a_ptr, b_ptr, c_ptr, row_sum_ptr, scale, size_k, stride_a, stride_b, stride_c,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, LOOP: tl.constexpr = "",
):  # fmt: skip
    """Everything that the loop gets was loaded behind a store, so through vector registers."""
    rows, columns, offs_k = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_K)
    tl.store(c_ptr, scale)
    shift = tl.load(row_sum_ptr).to(tl.int32)
    a_ptr += shift
    b_ptr += shift
    stride_a += shift
    stride_b += shift
    ones = tl.full([BLOCK_K, BLOCK_N], 0x38, tl.uint8).to(tl.float8e4nv, bitcast=True)
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    row_sum = tl.zeros([BLOCK_M], tl.float32)
    end = marked_bound(LOOP, size_k + shift, (a_ptr, b_ptr, stride_a, stride_b))
    for k in range(0, end, BLOCK_K):
        a = tl.load(a_ptr + rows[:, None] * stride_a + (k + offs_k)[None, :])
        b = tl.load(b_ptr + columns[None, :] * stride_b + (k + offs_k)[:, None])
        acc = tl.dot(a, b, acc)
        row_sum += tl.max(tl.dot(a, ones), 1)
    tl.store(c_ptr + rows[:, None] * stride_c + columns[None, :], acc)
    tl.store(row_sum_ptr + rows, row_sum)


def test_inputs_in_vector_registers_reach_scalar_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """LLVM of Triton 3.6 ends the process over `illegal VGPR to SGPR copy` otherwise."""
    monkeypatch.setenv("ZYFA_STRICT", "1")
    arguments = example.example_arguments(example.BLOCK_M, example.BLOCK_N, example.BLOCK_K)
    constants = {**example.BLOCKS, "LOOP": splice.use(PRODUCT)}
    compiled = compile_kernel(indirect_product, arguments, constants, **OPTIONS)
    before_loop = compiled.asm["amdgcn"].partition("; splice scaled_product: begin")[0]
    assert before_loop.count("v_readfirstlane_b32") >= 5


def test_coordinates_of_registers_cover_each_element_once() -> None:
    layout = MatrixLayout(waves=(4, 2), instruction=(32, 32, 64), is_transposed=True, version=4)
    shape = (256, 128)
    seen = {
        layout.coordinates(shape, register, lane, wave)
        for register in range(layout.registers(shape))
        for lane in range(64)
        for wave in range(8)
    }
    assert seen == {(row, column) for row in range(256) for column in range(128)}
    assert layout.registers(shape) == 64 and layout.registers((256,)) == 2
    with pytest.raises(SpliceError, match="100 rows are not a multiple"):
        layout.registers((100, 128))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"name": "a__b"}, "name: accepted are"),
        ({"inputs": ()}, "inputs: the first is the loop's bound"),
        ({"inputs": (Input("end", "s24", "f32"),)}, "inputs: the first is the loop's bound"),
        ({"inputs": (Input("end", "v24"),)}, "v24 is not a s register"),
        ({"inputs": (Input("end", "s24"), Input("a", "s[20:22]", "pointer"))}, "2 are needed"),
        ({"inputs": (Input("end", "s24"), Input("a", "s[21:22]", "pointer"))}, "even register"),
        ({"inputs": (Input("end", "s24"), Input("a", "s24"))}, "a: s24 is also end"),
        ({"inputs": (Input("end", "s24"), Input("a", "s25", "f64"))}, "kind 'f64'; accepted"),
        ({"outputs": (Output("acc", 250, 16, (256, 32), 0.0),)}, "register v265 does not exist"),
        ({"clobbers": ("v[60:70]",)}, "v64 is also acc"),
        ({"clobbers": ("v[10:300]",)}, "register v300 does not exist"),
        ({"clobbers": ("v10-20",)}, "register 'v10-20'; accepted are"),
        ({"clobbers": ("v[20:10]",)}, "runs backwards"),
        ({"clobbers": ("s[30:40]",)}, "s32 is LLVM's stack pointer"),
        ({"saves": {"m0": "s50"}}, "m0 needs 1 scalar register"),
        ({"saves": {"exec": "s40"}}, "exec needs 2 scalar register"),
        ({"saves": {"scc": "s40"}}, "'scc'; accepted are m0"),
        ({"lds_bytes": -1}, "lds_bytes: got -1"),
    ],
)  # fmt: skip
def test_an_interface_that_contradicts_itself_is_an_error(
    changes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(reason)):
        replace(PRODUCT, **changes)


def test_parameters_and_sources_are_in_the_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert PRODUCT.digest == ProductLoop().digest
    changed = [
        replace(PRODUCT, after="s_nop 0"),
        replace(PRODUCT, lds_bytes=4),
        replace(PRODUCT, operations={"tt.dot": 2}),
    ]
    assert len({one.digest for one in (PRODUCT, *changed)}) == 4
    assert {path.name for path in PRODUCT.sources()} == {"scaled_product.py", "splice_cases.py"}
    generator = tmp_path / "generator.py"
    monkeypatch.setattr(ProductLoop, "sources", lambda self: (generator,))
    generator.write_text("a = 1")
    first = ProductLoop().digest
    generator.write_text("a = 2")
    assert ProductLoop().digest != first
