"""A loop of an sm_90a kernel replaced by PTX: what is cut, what goes in, what is refused."""

from __future__ import annotations

import re
import sys
import threading
import warnings
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler.errors import CompilationError

from examples import scaled_product as example
from examples import scaled_product_sm90 as hopper
from tests.asm.splice_cases import ProductLoop, compile_kernel
from tests.asm.splice_sm90_cases import (
    HOPPER,
    WorkLoop,
    compile_twice,
    misused,
    sums,
)
from tests.asm.test_hopper_compile import instructions as sass_of
from zyfa_triton import splice
from zyfa_triton.splice import Carried, PtxInput, PtxTensor, SpliceError, SpliceWarning, hook
from zyfa_triton.splice.markers import has_mark, read_marks, scopes, without_marks
from zyfa_triton.splice.sm90 import compilation, ptxas
from zyfa_triton.splice.sm90.cut import cut_loops
from zyfa_triton.splice.sm90.ptx import insert_text

WORK = WorkLoop()


@pytest.fixture(autouse=True)
def clean(fresh_splice: None) -> Iterator[None]:
    yield


@pytest.fixture
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZYFA_STRICT", "1")


@cache
def marked() -> str:
    """GPU IR of the marked kernel as a recipe meets it, compiled without the hook."""
    with knobs.runtime.scope():
        knobs.runtime.add_stages_inspection_hook = None
        return str(compile_twice("work__0").asm["ttgir"])


def instructions(ptx: str) -> list[str]:
    """Lines of a kernel without those for debuggers."""
    lines = (re.sub(r"//.*", "", line).strip() for line in ptx.split("\t.section")[0].splitlines())
    return [
        line for line in lines if line and not re.match(r"\.(loc|file)\b|\$L__(tmp|func)", line)
    ]


# --- what is put in --------------------------------------------------------------------------


def test_each_copy_of_a_loop_is_replaced_under_names_of_its_own(strict: None) -> None:
    loop = splice.use(WORK)
    compiled = compile_twice(loop)
    assert compiled.metadata.splice == loop and splice.fallback_reason(compiled, loop) == ""
    assert "scf.for" not in compiled.asm["ttgir"] and "arrive_barrier" not in compiled.asm["ttgir"]
    ptx = compiled.asm["ptx"]
    assert re.findall(r"// splice work (\d): begin", ptx) == ["0", "1"]
    for copy in "01":
        assert ptx.count(f".reg .b32 zy{copy}c_acc_<32>;") == 1
        assert ptx.count(f"zy{copy}t_loop:") == 1
        text = ptx.partition(f"// splice work {copy}: begin")[2].partition("// splice ")[0]
        other = "0" if copy == "1" else "1"
        assert f"zy{copy}" in text and f"zy{other}" not in text
    assert not has_mark(ptx)


def test_addresses_of_shared_memory_are_those_that_triton_uses(strict: None) -> None:
    """The third barrier is used beside the loops, the first lies 16 bytes below."""
    ptx = compile_twice(splice.use(WORK)).asm["ptx"]
    initialised = re.findall(r"mbarrier\.init\.shared::cta\.b64 \[(%r\d+)\]", ptx)
    first = value_of(ptx, initialised[0])
    assert [value_of(ptx, register) - first for register in initialised] == [0, 8, 16]
    for copy in "01":
        given = re.search(rf"mov\.b32 zy{copy}m_barriers, (%r\d+);", ptx)
        ring = re.search(rf"mov\.b32 zy{copy}m_ring, (%r\d+);", ptx)
        assert given is not None and ring is not None
        assert value_of(ptx, given[1]) == first
        assert value_of(ptx, ring[1]) == 0  # the largest comes first
        assert first >= 5 * 64 * 128


def value_of(ptx: str, register: str) -> int:
    """Offset of an address from the start of shared memory."""
    found = re.findall(rf"^\s*(\w+)(?:\.\w+)+\s+{register}, (.*);", ptx, re.MULTILINE)
    assert len(found) == 1, f"{register} is written {len(found)} times"
    operation, operands = found[0]
    if operation == "mov" and operands == "global_smem":
        return 0
    if operation == "mov":
        return value_of(ptx, operands)
    assert operation == "add", operation
    base, offset = operands.split(", ")
    return value_of(ptx, base) + int(offset)


def test_narrow_elements_come_two_in_a_register(strict: None) -> None:
    ptx = compile_twice(splice.use(WORK)).asm["ptx"]
    assert ptx.count(".reg .b32 zy0c_half_<16>;") == 1
    copied = re.search(r"// @splice-in 0 half\n(?:\s*\.loc.*\n)?(.*)", ptx)
    assert copied is not None and copied[1].count("mov.b32 zy0c_half_") == 16


def test_without_the_hook_a_mark_is_a_comment() -> None:
    loop = splice.use(WORK)
    splice.uninstall()
    plain, with_mark = compile_twice(""), compile_twice(loop)
    assert not hasattr(with_mark.metadata, "splice")
    assert with_mark.asm["ptx"].count(f"// @splice {loop}") == 2
    assert with_mark.asm["ptx"].count("mbarrier") == plain.asm["ptx"].count("mbarrier")
    assert with_mark.metadata.shared == plain.metadata.shared


def test_marks_that_were_taken_out_leave_nothing() -> None:
    with pytest.warns(SpliceWarning):
        compiled = compile_twice(splice.use(WorkLoop(step=2)))
    assert instructions(compiled.asm["ptx"]) == instructions(compile_twice("").asm["ptx"])
    text = without_marks(marked())
    assert not has_mark(text) and len(read_marks(marked())) == 2
    dropped = 2 * 7  # a mark, two tensors, and two lines each for two places in memory
    assert len(text.splitlines()) == len(marked().splitlines()) - dropped


def test_names_of_values_are_told_apart_by_partition() -> None:
    lines = marked().splitlines()
    scope_of = scopes(lines)
    names = [(mark.result, mark.scope) for mark in read_marks(marked())]
    assert len({scope for _, scope in names}) == 2
    headers = [line.split("(")[0].strip() for line in lines if re.match(r" *partition\d+\(", line)]
    assert headers == ["partition0", "partition1"]
    assert len(set(scope_of)) == 4  # outside, the function with its default part, two partitions


# --- what is refused: the loop ---------------------------------------------------------------

ACC, HALF, ROWS, SLOT = WORK.carried
W, OUT, SCALE = WORK.inputs
BIAS, OPERAND = WORK.tensors


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"step": 2}, "the loop's step is 1.0, work takes 2"),
        ({"operations": {}}, "does not name among its operations: 1 ttng.arrive"),
        ({"operations": {"ttng.arrive_barrier": 2}}, "holds 1 ttng.arrive_barrier, work stands"),
        ({"operations": {"ttng.arrive_barrier": 1, "math.exp2": 1}}, "holds 0 math.exp2"),
        ({"carried": (ACC, HALF, ROWS)}, "the loop carries 4 values (tensor<64x64xf32, #mma>, "),
        ({"carried": (HALF, ACC, ROWS, SLOT)}, "half is tensor<64x64xf32, #mma> in the loop"),
        ({"carried": (replace(ACC, shape=(64, 32)), HALF, ROWS, SLOT)}, "takes f32 (64, 32)"),
        ({"carried": (ACC, replace(HALF, element="bf16"), ROWS, SLOT)}, "takes bf16 (64, 64)"),
        ({"carried": (replace(ACC, registers=64), HALF, ROWS, SLOT)}, "acc needs 32 registers"),
        ({"carried": (ACC, replace(HALF, registers=32), ROWS, SLOT)}, "half needs 16 registers"),
        ({"carried": (ACC, HALF, ROWS, Carried("slot", 1, "f32"))}, "slot is i32 in the loop"),
        ({"carried": (ACC, HALF, Carried("rows", 1, "f32"), SLOT)}, "rows is tensor<64xf32"),
        ({"inputs": (W, OUT)}, "the mark passes 3 values, work takes 2"),
        ({"inputs": (W, OUT, PtxInput("scale"))}, "scale is f32 in the kernel, work takes i32"),
        ({"inputs": (W, PtxInput("out", "i64"), SCALE)}, "out is pointer in the kernel"),
        ({"tensors": (replace(BIAS, registers=16), OPERAND)}, "bias needs 32 registers"),
        ({"tensors": (BIAS, replace(OPERAND, element="i8"))}, "operand is tensor<64x128xf8E4M3FN"),
        ({"tensors": (BIAS, replace(OPERAND, registers=8))}, "operand needs 16 registers"),
        ({"tensors": (replace(BIAS, name="other"),)}, "needs tensor other, which is named nowhere"),
        ({"memory": ("ring", "tiles")}, "needs memory tiles, which is named nowhere above"),
    ],
)  # fmt: skip
def test_a_recipe_for_another_loop_is_refused(changes: dict[str, Any], reason: str) -> None:
    cut_loops(marked(), WORK)
    with pytest.raises(SpliceError, match=re.escape(reason)):
        cut_loops(marked(), replace(WORK, **changes))


@pytest.mark.parametrize(
    ("pattern", "new", "reason"),
    [
        (r"^( *)(%[\w.$-]+) = (tt\.elementwise_inline_asm \"// @splice work)", r"\1\2:9 = \3",
         "a mark that is not of marked_bound's form"),
        (r"^( *)scf\.yield", r"\1ttg.local_store %p, %x : z\n\1scf.yield", "1 ttg.local_store"),
        (r"^( *)scf\.yield", r"\1tt.store %p, %x : z\n\1scf.yield", "1 tt.store"),
        (r"^( *)scf\.yield", r"\1ttng.async_tma_copy_global_to_local %p\n\1scf.yield", "async_tma"),
        (r"^( *)scf\.yield", r'\1%z = tt.elementwise_inline_asm "x" {pure = false}\n\1scf.yield',
         "1 tt.elementwise_inline_asm"),
        (r"^( *)scf\.yield", r"\1%z = arith.negf %end : i32\n\1scf.yield", "used elsewhere"),
        (r"(ttg.local_dealloc %ring : !ttg.memdesc<)(5x64x128xf8E4M3FN, #shared, #smem, mutable)",
         r"\g<1>\2, 9x64x128", "accepted are whole allocations"),
        (r"(nvidia_mma<\{)", r"\1CGALayout = [[0, 0]], ", "a matrix instruction's layout"),
        (r"(scf\.for %[\w.$-]+ = %[\w.$-]+ to )%end ", r"\1%size ", "0 loops end at the marked"),
    ],
)  # fmt: skip
def test_ir_that_does_not_fit_is_refused(pattern: str, new: str, reason: str) -> None:
    text, hits = re.subn(pattern, new, marked(), count=1, flags=re.MULTILINE)
    assert hits, f"{pattern!r} is nowhere in the IR"
    with pytest.raises(SpliceError, match=re.escape(reason)):
        cut_loops(text, WORK)


def test_a_tensor_in_no_matrix_layout_is_refused(strict: None) -> None:
    """A plain Triton kernel, whose loop carries a vector of numbers."""
    total = Carried("total", 1, "f32", (128,))
    recipe = replace(
        WORK, operations={}, inputs=(), memory=(), tensors=(), carried=(total,),
        options={"num_stages": 1},
    )  # fmt: skip
    arguments = {"in_ptr": example.example_arguments(256, 32, 128)["c_ptr"], "count": 3}
    with pytest.raises(SpliceError, match="total is tensor<128xf32, #blocked> in the loop"):
        compile_kernel(sums, arguments, {"LOOP": splice.use(recipe)}, HOPPER)


@pytest.mark.parametrize(
    ("which", "reason"),
    [
        ("bound", "marked_bound: bound is <['128'], int32>; accepted is an int32"),
        ("long bound", "marked_bound: bound is int64; accepted is an int32"),
        ("operand", "marked_bound: operand 1 is <['128'], int32>; accepted are scalars"),
        ("handed", "handed: tensor is int32; accepted are tensors of 8, 16 or 32 bit elements"),
    ],
)
def test_a_mark_on_something_else_is_an_error(which: str, reason: str) -> None:
    loop = splice.use(WORK)
    with pytest.raises(CompilationError) as caught:
        compile_kernel(misused, {"count": 3}, {"LOOP": loop, "WHICH": which}, HOPPER)
    assert reason in str(caught.value.__cause__ or caught.value)


# --- what is refused: the text ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ("mine:", "label mine does not start with zy0t_"),
        ("bra zy0t_elsewhere;", "branches to zy0t_elsewhere, which is no label of the text"),
        ("ret;", "ret leaves the loop"),
        ("exit;", "exit leaves the loop"),
        ("mov.b32 %r1, 0;", "%r1 is a register of Triton's"),
        (".shared .b8 mine[16];", "directive .shared; accepted are .reg and .pragma"),
        ("mov.b32 zy0c_slot_0, 0; }", "braces do not match"),
        ("{", "braces do not match"),
        ("setmaxnreg.dec.sync.aligned.u32 40;", "setmaxnreg changes"),
        ("mov.b32 nobody, 0;", "does not compile: ptxas"),
    ],
)
def test_a_text_that_is_not_allowed_is_refused(strict: None, more: str, reason: str) -> None:
    with pytest.raises(SpliceError, match=re.escape(reason)):
        compile_twice(splice.use(WorkLoop(more=more)))


def test_a_text_without_what_it_must_hold_is_refused(strict: None) -> None:
    recipe = WorkLoop(requires=("wgmma.mma_async",), more="// wgmma.mma_async is no comment")
    with pytest.raises(SpliceError, match="text of work: holds no wgmma"):
        compile_twice(splice.use(recipe))


def crowded(count: int) -> str:
    """Text that keeps `count` values alive at once."""
    lines = [f".reg .b32 many<{count}>; .reg .b64 from;", "cvta.to.global.u64 from, zy0i_out;"]
    lines += [f"ld.volatile.global.b32 many{i}, [from + {4 * i}];" for i in range(count)]
    lines += [f"st.volatile.global.b32 [from + {4 * i}], many{i};" for i in range(count)]
    return "\n".join(lines)


class Crowded(WorkLoop):
    """The first copy needs more registers than there are."""

    def text(self, names: Any) -> str:
        own = super().text(names)
        return crowded(300).replace("zy0i_out", names.inputs["out"]) + "\n" + own


def test_a_kernel_that_spills_is_refused(strict: None) -> None:
    with pytest.raises(SpliceError, match=r"spills registers: \d+ bytes stored, \d+ loaded, 0 are"):
        compile_twice(splice.use(Crowded()))
    loop = splice.use(Crowded(maximum_spill_bytes=100_000))
    assert compile_twice(loop).metadata.splice == loop


def test_a_kernel_with_more_registers_than_allowed_is_refused(strict: None) -> None:
    with pytest.raises(SpliceError, match=r"takes \d+ registers, work allows 40"):
        compile_twice(splice.use(WorkLoop(maximum_registers=40)))


class Serialised(WorkLoop):
    """Reads a result of wgmma before it is waited for."""

    def text(self, names: Any) -> str:
        acc = ", ".join(names.carried["acc"])
        wgmma = (
            f"wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3 {{{acc}}}, desc, desc, 1, 1, 1;"
        )
        lines = [
            ".reg .b64 desc;", "mov.b64 desc, 0;", "wgmma.fence.sync.aligned;", wgmma,
            f"add.f32 {names.carried['acc'][3]}, {names.carried['acc'][3]}, 0f3F800000;", wgmma,
            "wgmma.commit_group.sync.aligned;", "wgmma.wait_group.sync.aligned 0;",
        ]  # fmt: skip
        return "\n".join([*lines, super().text(names)])


def test_serialised_matrix_instructions_are_refused(strict: None) -> None:
    with pytest.raises(SpliceError, match=r"ptxas: .*\(C75\d\d\).*wgmma"):
        compile_twice(splice.use(Serialised()))


class Multiplying(WorkLoop):
    """wgmma on what the kernel carries, reads and keeps in shared memory, waited for."""

    def text(self, names: Any) -> str:
        acc, operand = ", ".join(names.carried["acc"]), names.tensors["operand"]
        label = names.label
        lines = [
            ".reg .b64 desc, from; .reg .pred done; .reg .b32 low, count;",
            f"shr.u32 low, {names.memory['ring']}, 4;",
            "cvt.u64.u32 from, low;",
            "or.b64 from, from, 0x4000004000010000;  // 128 byte swizzle, 1024 bytes to the next 8",
            f"mov.b32 count, {names.lower};",
            f"{label}again:",
            '.pragma "nounroll";',
            f"setp.ge.s32 done, count, {names.upper};",
            f"@done bra {label}over;",
            "wgmma.fence.sync.aligned;",
        ]
        for step in range(4):
            a = ", ".join(operand[4 * step : 4 * step + 4])
            lines += [f"add.s64 desc, from, {2 * step};",
                      "wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3 "
                      f"{{{acc}}}, {{{a}}}, desc, 1, 1, 1;"]  # fmt: skip
        lines += [
            "wgmma.commit_group.sync.aligned;", "wgmma.wait_group.sync.aligned 0;",
            "add.s32 count, count, 1;", f"bra.uni {label}again;", f"{label}over:",
        ]  # fmt: skip
        return "\n".join(lines)


def test_matrix_instructions_on_named_registers_are_not_serialised(
    strict: None, tmp_path: Path
) -> None:
    """The copies round the text do not count as reading or writing a result under way."""
    loop = splice.use(Multiplying(requires=("wgmma.mma_async",)))
    compiled = compile_twice(loop)
    assert compiled.metadata.splice == loop
    cubin = tmp_path / "kernel.cubin"
    cubin.write_bytes(compiled.asm["cubin"])
    code = sass_of(cubin)
    products = [at for at, (_, text) in enumerate(code) if "QGMMA.64x64x32" in text]
    assert len(products) == 2 * 4
    for first in range(0, len(products), 4):
        between = [text for _, text in code[products[first] : products[first + 3]]]
        assert not any("DEPBAR" in text or "BAR." in text for text in between)


@pytest.mark.parametrize(
    ("pattern", "new", "reason"),
    [
        (r"^(\s*// @splice-body 0 .*)$", r"\1\n\1", "the loop's place 2 times"),
        (r"^(\s*// @splice-body 0) (\S+) ", r"\1 ", "gives the loop 6 inputs, 7 are needed"),
        (r"^(\s*// @splice-in 0 acc)$", "", "the copy of acc into the loop 0 times"),
        (r"^(\s*// @splice-out 0 slot)$", r"\1\n\1", "the copy of slot out of the loop 2 times"),
        (r"^(\s*// @splice-body 0 .*)$", r"$L__BB7_1:\n\1", "LLVM put a jump between"),
        (r"^\s*// @splice-in 0 acc$([\s\S]*)^(\s*// @splice-body 0 .*)$",
         r"\1\2\n// @splice-in 0 acc", "moved a copy of a variable past"),
    ],
)  # fmt: skip
def test_what_llvm_may_do_to_the_pieces_is_noticed(
    monkeypatch: pytest.MonkeyPatch, pattern: str, new: str, reason: str
) -> None:
    seen: list[tuple[str, Any]] = []

    def keep(ptx: str, recipe: Any, places: Any) -> str:
        seen.append((ptx, places))
        return insert_text(ptx, recipe, places)

    monkeypatch.setattr(compilation, "insert_text", keep)
    compile_twice(splice.use(WORK))
    ptx, places = seen[0]
    text, hits = re.subn(pattern, new, ptx, count=1, flags=re.MULTILINE)
    assert hits
    with pytest.raises(SpliceError, match=re.escape(reason)):
        insert_text(text, WORK, places)


# --- when it does not fit --------------------------------------------------------------------


def test_a_loop_that_does_not_fit_leaves_tritons_and_warns_once() -> None:
    plain = compile_twice("")
    loop = splice.use(WorkLoop(more="mov.b32 nobody, 0;"))  # found by the last stage
    with pytest.warns(SpliceWarning) as caught:
        compiled = compile_twice(loop)
    assert len(caught) == 1 and "Triton's own loop is used" in str(caught[0].message)
    assert compiled.metadata.splice.startswith("fallback: the spliced kernel does not compile")
    assert instructions(compiled.asm["ptx"]) == instructions(plain.asm["ptx"])
    assert compiled.metadata.shared == plain.metadata.shared
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "does not compile" in splice.fallback_reason(compiled, loop)


def test_strict_mode_does_not_take_a_fallback_from_the_cache(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.warns(SpliceWarning):
        compile_twice(splice.use(WorkLoop(step=2)))
    monkeypatch.setenv("ZYFA_STRICT", "1")
    with pytest.raises(SpliceError, match="the loop's step is 1"):
        compile_twice(splice.use(WorkLoop(step=2)))


def test_a_cached_kernel_needs_no_recipe(strict: None, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = splice.use(WORK)
    first = compile_twice(loop)

    def never(*arguments: Any) -> str:
        raise AssertionError("a cached call generated text")

    monkeypatch.setattr(WorkLoop, "text", never)
    second = compile_twice(loop)
    assert second.hash == first.hash and second.asm["cubin"] == first.asm["cubin"]


def test_another_recipe_is_another_binary(strict: None) -> None:
    first, second = splice.use(WORK), splice.use(WorkLoop(more="// another"))
    assert first != second
    assert compile_twice(first).hash != compile_twice(second).hash
    assert {path.name for path in WORK.sources()} == {"splice_sm90_cases.py"}
    assert {path.name for path in hopper.ScaledProductPtxLoop().sources()} == {
        "scaled_product.py",
        "scaled_product_sm90.py",
    }


@pytest.mark.parametrize(
    ("target", "name"),
    [(GPUTarget("cuda", 80, 32), "sm80"), (GPUTarget("hip", "gfx950", 64), "gfx950")],
    ids=["sm80", "gfx950"],
)
def test_another_target_gets_the_kernel_without_its_mark(target: GPUTarget, name: str) -> None:
    arguments = example.example_arguments(example.BLOCK_M, example.BLOCK_N, example.BLOCK_K)
    loop = splice.use(hopper.ScaledProductPtxLoop())
    kernel, constants = example.scaled_product, {**example.BLOCKS, "LOOP": loop}
    if name == "sm80":  # which has no e4m3
        kernel, arguments, constants = (
            sums,
            {"in_ptr": arguments["c_ptr"], "count": 3},
            {"LOOP": loop},
        )
    with pytest.warns(SpliceWarning, match=f"the target is {name}, scaled_product is for sm90"):
        compiled = compile_kernel(kernel, arguments, constants, target, num_warps=8)
    assert compiled.metadata.splice.startswith("fallback: ")
    assert "@splice" not in compiled.asm["amdgcn" if name == "gfx950" else "ptx"]


def test_marks_that_ask_for_two_loops_fall_back() -> None:
    with pytest.warns(SpliceWarning, match="marks ask for 2 loops"):
        compile_twice(splice.use(WORK), other=splice.use(ProductLoop()))


# --- ptxas's report --------------------------------------------------------------------------


def test_what_other_threads_print_is_not_taken(capsys: pytest.CaptureFixture[str]) -> None:
    with ptxas.captured_report() as kept:
        print("own")
        other = threading.Thread(target=print, args=("other",))
        other.start()
        other.join()
    assert "".join(kept) == "own\n"
    assert capsys.readouterr().out == "other\n"
    assert sys.stdout is not None and not isinstance(sys.stdout, ptxas._OwnThread)


def test_a_report_that_was_asked_for_is_printed(
    strict: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    compile_twice(splice.use(WORK))
    assert "bytes spill" not in capsys.readouterr().out
    monkeypatch.setenv("TRITON_DUMP_PTXAS_LOG", "1")
    compile_twice(splice.use(WorkLoop(more="// again")))
    assert "bytes spill" in capsys.readouterr().out


# --- an interface that contradicts itself ----------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"name": "a__b"}, "name: accepted are"),
        ({"carried": ()}, "a loop without results"),
        ({"inputs": (PtxInput("lower"),)}, "'lower'; accepted are identifiers other than lower"),
        ({"inputs": (PtxInput("a b"),)}, "'a b'; accepted are identifiers"),
        ({"inputs": (PtxInput("acc"),)}, "acc is also one of inputs"),
        ({"memory": ("slot",)}, "slot is also one of carried"),
        ({"inputs": (PtxInput("x", "f64"),)}, "kind 'f64'; accepted"),
        ({"carried": (Carried("x", 1, "f16"),)}, "'f16' of shape (); accepted are ['i32', 'f32']"),
        ({"carried": (Carried("x", 1, "f64", (64,)),)}, "x: 'f64' of shape (64,); accepted"),
        ({"carried": (Carried("x", 2),)}, "x: 2 registers"),
        ({"tensors": (PtxTensor("x", 1),)}, "tensors: x: 'f32' of shape (); accepted are []"),
        ({"tensors": (PtxTensor("acc", 1, "f32", (64,)),)}, "acc is also one of carried"),
        ({"carried": (Carried("x", 1, "f32", (1, 2, 3)),)}, "up to two dimensions"),
        ({"maximum_registers": -1}, "maximum_registers: got -1"),
        ({"maximum_spill_bytes": -1}, "maximum_spill_bytes: got -1"),
    ],
)
def test_an_interface_that_contradicts_itself_is_an_error(
    changes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(reason)):
        replace(WORK, **changes)


def test_the_sources_of_both_targets_are_in_the_digest() -> None:
    names = {path.name for path in Path(hook.__file__).parent.rglob("*.py")}
    assert {"ptx.py", "amdgcn.py"} <= names
    before = hook._machinery_digest()
    assert before == hook._machinery_digest.__wrapped__()
