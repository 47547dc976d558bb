"""What LLVM, Triton or the hardware would do to a replaced loop without a word, trap by trap."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from triton import knobs

from asm_overrides.emulator import load_text
from examples import scaled_product as example
from tests.asm.splice_cases import (
    IdleAttentionLoop,
    ProductLoop,
    compile_attention,
    compile_product,
    instructions,
    spliced_text,
)
from zyfa_triton import splice
from zyfa_triton.backends import emulated
from zyfa_triton.splice import SpliceError, hook
from zyfa_triton.splice.gfx950 import compilation, cut, text
from zyfa_triton.splice.gfx950.amdgcn import descriptor_value

pytestmark = pytest.mark.usefixtures("fresh_splice")


@pytest.fixture(autouse=True)
def strict(fresh_splice: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A recipe that does not fit is an error, so that its reason can be looked at."""
    monkeypatch.setenv("ZYFA_STRICT", "1")
    yield


def refused(recipe: ProductLoop, match: str) -> None:
    with pytest.raises(SpliceError, match=match):
        compile_product(splice.use(recipe))


# --- registers -------------------------------------------------------------------------------


def test_every_register_stands_alone_among_the_clobbers() -> None:
    clobbers = [one for one in cut.constraints(ProductLoop()) if one.startswith("~")]
    assert len(clobbers) == len(set(clobbers)) == 14 + 80 + 7 + 3
    assert not [one for one in clobbers if ":" in one]


def test_clobbers_that_llvm_ignores_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it ignores ranges; that of Triton 3.6 crashes over some, so here they are left out."""
    monkeypatch.setattr(cut, "single_registers", lambda numbers: ["s40"])
    refused(ProductLoop(), r"LLVM gives the kernel v0 to v\d+, scaled_product uses v179")


def test_a_result_that_llvm_put_elsewhere_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = cut.constraints

    def wrong(recipe: Any) -> list[str]:
        return ["={v81}" if one == "={v80}" else one for one in right(recipe)]

    monkeypatch.setattr(cut, "constraints", wrong)
    refused(ProductLoop(), "LLVM put the results into v81 instead of v80")


def test_a_call_that_llvm_deleted_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What LLVM does, after printing `error:`, with a constraint that it cannot meet."""
    before = compilation.prepare_llir

    def without_call(llir: str, recipe: Any, metadata: dict[str, Any]) -> str:
        before(llir, recipe, metadata)
        return re.sub(r'"; @splice-body \w+ .*? end"', '""', llir)

    monkeypatch.setattr(compilation, "prepare_llir", without_call)
    refused(ProductLoop(), "the assembly holds the loop's place 0 times")


RESERVED = "clobber list contains reserved registers"  # LLVM's warning, on stderr only


def test_registers_above_127_are_not_taken_for_accumulation(
    capfd: pytest.CaptureFixture[str],
) -> None:
    compiled = compile_attention(splice.use(IdleAttentionLoop(p_mode="lean", is_causal=True)))
    assembly = compiled.asm["amdgcn"]
    assert descriptor_value(assembly, ".amdhsa_accum_offset") == 256
    assert descriptor_value(assembly, ".agpr_count") == 0
    assert RESERVED not in capfd.readouterr().err


def test_without_being_told_llvm_reserves_registers_above_127(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """LLVM only warns. Where it then spills into what it reserved (Triton 3.9), that is noticed."""
    before = compilation.prepare_llir

    def untold(llir: str, recipe: Any, metadata: dict[str, Any]) -> str:
        return before(llir, recipe, metadata).replace('"amdgpu-agpr-alloc"="0"', "")

    monkeypatch.setattr(compilation, "prepare_llir", untold)
    loop = splice.use(IdleAttentionLoop(p_mode="lean", is_causal=True))
    try:
        compiled = compile_attention(loop)
    except SpliceError as error:
        assert re.search(r"takes \d+ vector registers, 2 waves a SIMD leave 256", str(error))
    else:
        assert descriptor_value(compiled.asm["amdgcn"], ".agpr_count") == 0
    assert RESERVED in capfd.readouterr().err


def test_no_room_around_the_loop_is_noticed() -> None:
    """The epilogue needs scalar registers; the interface may not take nearly all of them."""
    greedy = IdleAttentionLoop(
        p_mode="lean", is_causal=True, clobbers=("v[10:63]", "v[130:255]", "s[0:19]", "s[36:95]"),
    )  # fmt: skip
    with pytest.raises(SpliceError, match=r"spills registers: \.sgpr_spill_count \d+"):
        compile_attention(splice.use(greedy))


# --- what is in flight -----------------------------------------------------------------------


def test_both_ends_wait_for_everything_and_meet_at_a_barrier() -> None:
    lines = spliced_text(compile_product(splice.use(ProductLoop())).asm["amdgcn"])
    wait = "s_waitcnt vmcnt(0) expcnt(0) lgkmcnt(0)"
    assert lines[:3] == [wait, "s_barrier", "s_nop 7"]
    assert [one for one in lines if one][-4:] == [wait, "s_barrier", "s_nop 15", "s_nop 7"]


UNFINISHED = "v_mfma_f32_32x32x64_f8f6f4 v[64:79], v[16:23], v[16:23], v[64:79]"


def test_a_matrix_instruction_at_the_end_is_over_before_triton_reads_its_result(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recipe = ProductLoop(after=UNFINISHED)
    arguments = example.example_arguments(example.BLOCK_M, example.BLOCK_N, example.BLOCK_K)
    assert not example.try_product(arguments, splice.use(recipe)).findings
    monkeypatch.setattr(text, "AFTER", text.AFTER[:2])  # the same without its nops
    monkeypatch.setattr(hook, "_machinery_digest", lambda: "without nops")
    findings = example.try_product(arguments, splice.use(recipe)).findings
    assert findings, "the emulator accepts a result that is read too early"


# --- state of the wave -----------------------------------------------------------------------


def test_saturation_leaves_with_tritons_loop() -> None:
    """So a replacement that casts to FP8 has to see to itself; the next tests hold that."""
    plain = compile_attention("", p_mode="exact").asm["amdgcn"]
    idle = IdleAttentionLoop(p_mode="exact", is_causal=True)
    spliced = compile_attention(splice.use(idle), p_mode="exact").asm["amdgcn"]
    assert any(one.startswith("s_setreg") for one in instructions(plain))
    assert not any(one.startswith("s_setreg") for one in instructions(spliced))


CAST = "v_cvt_pk_fp8_f32 v12, v12, v12"


def test_a_cast_to_fp8_needs_saturation_or_a_promise() -> None:
    refused(ProductLoop(after=CAST), "gives NaN above 448")
    compile_product(splice.use(ProductLoop(after=CAST, fp8_casts_bounded=True)))


def test_saturation_that_the_loop_switches_on_is_put_back() -> None:
    switch = "s_setreg_imm32_b32 hwreg(HW_REG_MODE, 23, 1), 1"
    refused(ProductLoop(before=switch, after=CAST), "not among the recipe's saves")
    recipe = ProductLoop(
        before=switch, after=CAST, clobbers=("v[10:23]", "v[100:179]", "s[40:47]"),
        saves={"fp8_saturation": "s47"},
    )  # fmt: skip
    lines = spliced_text(compile_product(splice.use(recipe)).asm["amdgcn"])
    saved = lines.index("s_getreg_b32 s47, hwreg(HW_REG_MODE, 23, 1)")
    restored = lines.index("s_setreg_b32 hwreg(HW_REG_MODE, 23, 1), s47")
    assert saved < lines.index(switch) < lines.index(CAST) < restored
    refused(replace(recipe, before="s_setreg_imm32_b32 hwreg(HW_REG_MODE, 0, 4), 3"), "state")


def test_m0_is_saved_and_put_back() -> None:
    refused(ProductLoop(before="s_mov_b32 m0, 0"), "writes m0, which is not among")
    recipe = ProductLoop(
        before="s_mov_b32 m0, 0", clobbers=("v[10:23]", "v[100:179]", "s[40:47]"),
        saves={"m0": "s47"},
    )  # fmt: skip
    lines = spliced_text(compile_product(splice.use(recipe)).asm["amdgcn"])
    assert lines.index("s_mov_b32 s47, m0") < lines.index("s_mov_b32 m0, 0")
    assert lines.index("s_mov_b32 m0, 0") < lines.index("s_mov_b32 m0, s47")
    refused(replace(recipe, after="s_mov_b32 s47, 0"), "writes s47, which keeps saved state")


def test_a_raised_priority_ends_with_the_loop() -> None:
    recipe = ProductLoop(before="s_setprio 2")
    lines = spliced_text(compile_product(splice.use(recipe)).asm["amdgcn"])
    assert lines.count("s_setprio 0") == 1 and lines.index("s_setprio 0") > lines.index(
        "s_setprio 2"
    )


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("v_mov_b32 v250, 0", "writes v250, neither an output nor a declared clobber"),
        ("v_mov_b32 v12, v250", "reads v250, neither"),
        ("v_mov_b32 v0, 0", "writes v0, an input"),
        ("s_mov_b32 s24, 0", "writes s24, an input"),
        ("v_accvgpr_write_b32 a0, v12", "writes a0, neither"),
        ("s_mov_b64 exec, 0", "writes exec_lo, which is not among"),
        ("s_endpgm", "leaves the loop"),
        ("s_branch .LBB0_1", "branches to no label of the text"),
        ("elsewhere:", "a label does not start with"),
        (".set x, 1", "holds directives"),
        ("v_nonsense v12, 0", "v_nonsense"),
        ("v_add_f32 v12, s40, s41", "does not compile"),
    ],
)
def test_text_that_touches_more_than_it_declares_is_refused(line: str, reason: str) -> None:
    refused(ProductLoop(before=line), reason)


# --- the kernel around the loop --------------------------------------------------------------


def test_lds_is_what_the_larger_of_both_needs() -> None:
    small = compile_product(splice.use(ProductLoop()))
    large = compile_product(splice.use(ProductLoop(lds_bytes=98304)))
    assert 0 < small.metadata.shared < 65536  # of the kernel's epilogue
    assert large.metadata.shared == 98304
    refused(ProductLoop(lds_bytes=163841), "needs 163841 bytes of LDS")


def test_preloaded_arguments_and_the_entry_without_them_both_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """gfx950 starts at entry + 256 bytes where its firmware preloads arguments."""
    arguments = example.example_arguments(example.BLOCK_M, example.BLOCK_N, 3 * example.BLOCK_K)
    loop = splice.use(ProductLoop())
    trial = example.try_product(arguments, loop)
    kernel = load_text(trial.compiled.amdgcn)
    assert kernel.descriptor.preload_dwords > 0
    assert kernel.fallback_entry != kernel.entry
    outputs = [arguments[name] for name in ("c_ptr", "row_sum_ptr")]
    preloaded = [tensor.clone() for tensor in outputs]
    for tensor in outputs:
        tensor.fill_(float("nan"))
    monkeypatch.setattr(emulated, "run_kernel", partial(emulated.run_kernel, preload=False))
    assert not example.try_product(arguments, loop).findings
    for tensor, before in zip(outputs, preloaded, strict=True):
        assert torch.equal(tensor, before)


# --- caches ----------------------------------------------------------------------------------


def test_another_recipe_is_another_binary_on_every_triton() -> None:
    """Triton 3.6 asks no hook for a cache key: the LOOP constexpr has to tell them apart."""
    first = splice.use(ProductLoop())
    second = splice.use(ProductLoop(after="s_nop 0"))
    assert first != second
    a, b = compile_product(first), compile_product(second)
    assert a.hash != b.hash
    assert a.asm["hsaco"] != b.asm["hsaco"]


def test_nothing_to_replace_changes_nothing() -> None:
    without_hook = compile_product("")
    splice.install()
    with_hook = compile_product("")
    assert with_hook.asm["hsaco"] == without_hook.asm["hsaco"]
    assert not hasattr(with_hook.metadata, "splice")
    if hasattr(knobs.runtime, "add_stages_inspection_hook"):
        splice.uninstall()
    assert compile_product("").asm["hsaco"] == without_hook.asm["hsaco"]
