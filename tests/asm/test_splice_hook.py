"""When the hook acts, what it leaves alone, and how a loop that does not fit falls back."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import triton
from triton import knobs
from triton.backends.compiler import GPUTarget

from examples import scaled_product as example
from tests.asm.splice_cases import (
    ProductLoop,
    compile_kernel,
    compile_product,
    instructions,
    spliced_text,
)
from zyfa_triton import splice
from zyfa_triton.kernels import pingpong
from zyfa_triton.splice import SpliceError, SpliceWarning, hook

UNFIT = ProductLoop(step=64)
REASON = "the loop's step is 128.0, scaled_product takes 64"
ASKS_FOR_A_KEY = tuple(int(part) for part in triton.__version__.split(".")[:2]) > (3, 6)


@pytest.fixture(autouse=True)
def clean(fresh_splice: None) -> Iterator[None]:
    yield


def test_the_kernels_metadata_says_which_loop_it_has() -> None:
    loop = splice.use(ProductLoop())
    compiled = compile_product(loop)
    assert loop.startswith("scaled_product__")
    assert compiled.metadata.splice == loop
    assert splice.fallback_reason(compiled) == ""
    assert "v_mfma" in " ".join(spliced_text(compiled.asm["amdgcn"]))


def test_a_recipe_that_does_not_fit_leaves_tritons_loop_and_warns_once() -> None:
    plain = compile_product("")
    loop = splice.use(UNFIT)
    with pytest.warns(SpliceWarning) as caught:
        compiled = compile_product(loop)
    assert [str(one.message) for one in caught] == [
        f"kernel scaled_product: {REASON}. Triton's own loop is used."
    ]
    assert compiled.metadata.splice == f"fallback: {REASON}"
    assert compiled.asm["hsaco"] == plain.asm["hsaco"]
    assert compiled.metadata.shared == plain.metadata.shared
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compile_product(loop, num_stages=1)  # another compilation, the same reason
        assert splice.fallback_reason(compiled) == REASON


def test_a_failure_after_the_loop_was_cut_falls_back_as_completely() -> None:
    """The text is refused by the assembler, Triton's last stage."""
    plain = compile_product("")
    loop = splice.use(ProductLoop(before="v_add_f32 v12, s40, s41"))
    with pytest.warns(SpliceWarning, match="does not compile"):
        compiled = compile_product(loop)
    assert compiled.asm["hsaco"] == plain.asm["hsaco"]
    assert compiled.metadata.shared == plain.metadata.shared
    assert instructions(compiled.asm["amdgcn"]) == instructions(plain.asm["amdgcn"])
    assert compiled.asm["llir"].count("inline") == plain.asm["llir"].count("inline")


def test_strict_mode_raises_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZYFA_STRICT", "1")
    with pytest.raises(SpliceError, match=REASON):
        compile_product(splice.use(UNFIT))


def test_strict_mode_does_not_take_a_fallback_from_the_cache(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.warns(SpliceWarning):
        compile_product(splice.use(UNFIT))
    monkeypatch.setenv("ZYFA_STRICT", "1")
    with pytest.raises(SpliceError):
        compile_product(splice.use(UNFIT))


def test_a_value_of_strict_that_means_nothing_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZYFA_STRICT", "yes")
    with pytest.raises(ValueError, match="ZYFA_STRICT: got 'yes'; accepted are '0' and '1'"):
        splice.use(ProductLoop())


def test_a_fallback_from_the_cache_still_warns_in_a_process_that_did_not_compile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = splice.use(UNFIT)
    with pytest.warns(SpliceWarning):
        compile_product(loop)
    monkeypatch.setattr(splice.hook, "_warned", set())
    with pytest.warns(SpliceWarning, match=REASON):
        assert splice.fallback_reason(compile_product(loop)) == REASON


def test_an_unknown_recipe_falls_back() -> None:
    splice.install()
    with pytest.warns(SpliceWarning, match="no recipe scaled_product__0 is known"):
        compile_product("scaled_product__0")


def test_without_the_hook_a_mark_is_a_comment() -> None:
    loop = splice.use(ProductLoop())
    splice.uninstall()
    plain, marked = compile_product(""), compile_product(loop)
    assert not hasattr(marked.metadata, "splice")
    assert "v_mfma" in marked.asm["amdgcn"] and f"; @splice {loop}" in marked.asm["amdgcn"]
    assert marked.metadata.shared == plain.metadata.shared


def test_a_marked_binary_made_without_the_hook_is_not_taken_for_a_spliced_one() -> None:
    """Triton 3.6 finds it in its cache: it asks no hook for a key."""
    loop = splice.use(ProductLoop())
    splice.uninstall()
    inert = compile_product(loop)
    splice.install()
    compiled = compile_product(loop)
    if ASKS_FOR_A_KEY:
        assert compiled.hash != inert.hash
        assert splice.fallback_reason(compiled, loop) == ""
    else:
        assert compiled.hash == inert.hash
        with pytest.warns(SpliceWarning, match="compiled without the splice hook"):
            assert splice.fallback_reason(compiled, loop)


def test_a_cached_kernel_needs_no_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = splice.use(ProductLoop())
    first = compile_product(loop)

    def never(*arguments: Any) -> str:
        raise AssertionError("a cached call generated text")

    monkeypatch.setattr(ProductLoop, "text", never)
    second = compile_product(loop)
    assert second.hash == first.hash and second.asm["hsaco"] == first.asm["hsaco"]


# --- beside other hooks ----------------------------------------------------------------------


class OtherHook:
    """Somebody else's hook: counts, and leaves a trace in every kernel's assembly."""

    def __init__(self, below: Any = None) -> None:
        self.below = below
        self.stages_seen: list[str] = []

    def __call__(
        self, backend: Any = None, stages: Any = None, options: Any = None, *more: Any
    ) -> Any:
        below = self.below() if self.below is not None and stages is None else ("", "")
        if stages is None:
            return "other" + below[0], "other" + below[1]
        if self.below is not None:
            self.below(backend, stages, options, *more)
        for name in ("ttgir", "amdgcn"):
            stages[name] = self._traced(name, stages[name])
        return None

    def _traced(self, name: str, stage: Any) -> Any:
        def traced(source: Any, metadata: dict[str, Any]) -> Any:
            self.stages_seen.append(name)
            result = stage(source, metadata)
            return result + "\n; other was here\n" if name == "amdgcn" else result

        return traced


def test_a_hook_that_was_there_before_keeps_working() -> None:
    other = OtherHook()
    knobs.runtime.add_stages_inspection_hook = other
    loop = splice.use(ProductLoop())
    spliced, plain = compile_product(loop), compile_product("")
    assert spliced.metadata.splice == loop
    for compiled in (spliced, plain):
        assert compiled.asm["amdgcn"].count("other was here") == 1
    assert other.stages_seen == ["ttgir", "amdgcn"] * 2
    splice.uninstall()
    assert knobs.runtime.add_stages_inspection_hook is other


def test_a_hook_that_is_put_over_this_one_keeps_working() -> None:
    loop = splice.use(ProductLoop())
    other = OtherHook(below=knobs.runtime.add_stages_inspection_hook)
    knobs.runtime.add_stages_inspection_hook = other
    spliced = compile_product(loop)
    assert spliced.metadata.splice == loop
    assert "other was here" in spliced.asm["amdgcn"]
    with pytest.raises(RuntimeError, match="is not the one installed"):
        splice.uninstall()


def test_using_a_recipe_again_over_a_hook_above_splices_once() -> None:
    loop = splice.use(ProductLoop())
    knobs.runtime.add_stages_inspection_hook = OtherHook(
        below=knobs.runtime.add_stages_inspection_hook
    )
    assert splice.use(ProductLoop()) == loop
    compiled = compile_product(loop)
    assert compiled.metadata.splice == loop
    assert compiled.asm["amdgcn"].count("; splice scaled_product: begin") == 1


def test_both_hooks_are_in_the_cache_key() -> None:
    other = OtherHook()
    knobs.runtime.add_stages_inspection_hook = other
    splice.install()
    installed = knobs.runtime.add_stages_inspection_hook
    assert installed is not None
    key, content = installed()
    assert key == content == "zyfa-spliceother"


# --- other targets ---------------------------------------------------------------------------


def test_another_target_gets_the_kernel_without_its_mark() -> None:
    """A gfx950 mark is no assembly of an NVIDIA GPU; the kernel has to compile all the same."""
    loop = splice.use(ProductLoop())
    arguments = example.example_arguments(example.BLOCK_M, example.BLOCK_N, example.BLOCK_K)
    hopper = GPUTarget("cuda", 90, 32)
    with pytest.warns(SpliceWarning, match="scaled_product is for gfx950"):
        marked = compile_kernel(
            example.scaled_product, arguments, {**example.BLOCKS, "LOOP": loop}, hopper, num_warps=8
        )
    assert marked.metadata.splice.startswith("fallback: ")
    assert "@splice" not in marked.asm["ptx"]


def test_importing_the_package_loads_no_triton() -> None:
    code = "import sys, zyfa_triton.splice; print('triton' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "False"


def test_a_loop_asked_for_again_is_registered_as_the_environment_is_then(
    fresh_splice: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    loose = pingpong.loop_of("lean", is_causal=True)
    monkeypatch.setenv("ZYFA_STRICT", "1")
    strict = pingpong.loop_of("lean", is_causal=True)
    monkeypatch.setattr(hook, "_recipes", {})
    assert strict != loose
    assert pingpong.loop_of("lean", is_causal=True) == strict and strict in hook._recipes
