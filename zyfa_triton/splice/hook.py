"""Decides when a kernel is compiled with its loop replaced, and what happens when that fails.

It wraps Triton's compile stages through the stage hook that Triton offers, together with whatever
hook is already there. It knows no loop and reads no IR.

Which recipe: the LOOP constexpr names it, with a digest of its sources and parameters, of this
package and of strict mode. So LOOP is in every cache key, also that of Triton 3.6, which never
asks a hook for one.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import Any

from zyfa_triton import env
from zyfa_triton.splice import markers
from zyfa_triton.splice.amdgcn import insert_text
from zyfa_triton.splice.errors import SpliceError, SpliceWarning, require
from zyfa_triton.splice.llir import prepare_llir
from zyfa_triton.splice.recipe import LoopRecipe
from zyfa_triton.splice.ttgir import cut_loop

TARGET = "gfx950"
_KEY = "zyfa-splice"  # for Triton's cache: the same mark means nothing without the hook
_FALLBACK = "fallback: "
_SPLICED_STAGES = ("ttgir", "llir", "amdgcn", "hsaco")

Stage = Callable[[Any, dict[str, Any]], Any]

_recipes: dict[str, LoopRecipe] = {}
_warned: set[tuple[str, str]] = set()
_is_building_stages: ContextVar[bool] = ContextVar("_is_building_stages", default=False)


def use(recipe: LoopRecipe) -> str:
    """Make a recipe known, install the hook, and return the LOOP constexpr that asks for it.

    The value is valid in this process; it may be one of several in an autotuner's configurations.
    """
    content = recipe.digest + _machinery_digest() + str(env.strict())
    loop = recipe.name + markers.SEPARATOR + hashlib.sha256(content.encode()).hexdigest()[:16]
    _recipes[loop] = recipe
    install()
    return loop


@cache
def _machinery_digest() -> str:
    """Hash of this package's sources: what it accepts and how it pads decides the binary too."""
    content = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        content.update(path.read_bytes())
    return content.hexdigest()


def install() -> None:
    """Put the hook into Triton, over a hook that is already there; once is enough."""
    from triton import knobs

    current = knobs.runtime.add_stages_inspection_hook
    if not isinstance(current, SpliceHook):
        knobs.runtime.add_stages_inspection_hook = SpliceHook(current)


def uninstall() -> None:
    """Take the hook out again and put back what was there. Marks are inert comments from then on.

    Raises:
        RuntimeError: somebody has since installed a hook over this one.
    """
    from triton import knobs

    current = knobs.runtime.add_stages_inspection_hook
    if not isinstance(current, SpliceHook):
        raise RuntimeError("the splice hook is not the one installed in Triton")
    knobs.runtime.add_stages_inspection_hook = current.previous


def fallback_reason(compiled: Any, loop: str = "") -> str:
    """Why a compiled kernel kept Triton's own loop although a mark asked for another; "" if not.

    Warns (once for a reason) also where the kernel came from Triton's disk cache, when nothing was
    compiled and so nobody has warned yet.

    Args:
        compiled: what a launch or `warmup` returned.
        loop: the LOOP that it was asked for, if any: tells a kernel that was compiled while the
            hook was not installed, which Triton 3.6 would take from its cache.
    """
    outcome = getattr(compiled.metadata, "splice", None)
    if outcome is None and loop:
        outcome = _FALLBACK + "it was compiled without the splice hook; clear Triton's cache"
    if outcome is None or not outcome.startswith(_FALLBACK):
        return ""
    reason = str(outcome.removeprefix(_FALLBACK))
    _warn(compiled.metadata.name, reason)
    return reason


def _warn(kernel: str, reason: str) -> None:
    if (kernel, reason) in _warned:
        return
    _warned.add((kernel, reason))
    warnings.warn(
        f"kernel {kernel}: {reason}. Triton's own loop is used.", SpliceWarning, stacklevel=3
    )


class SpliceHook:
    """What Triton calls for every compilation, and (from 3.9) without arguments for a cache key."""

    def __init__(self, previous: Any | None) -> None:
        self.previous = previous

    def __call__(
        self,
        backend: Any = None,
        stages: dict[str, Stage] | None = None,
        options: Any = None,
        language: Any = None,
        capability: Any = None,
    ) -> Any:
        if stages is None:
            key, content = self.previous() if self.previous is not None else ("", "")
            return _KEY + key, _KEY + content
        if self.previous is not None:
            self.previous(backend, stages, options, language, capability)
        if not _is_building_stages.get() and "ttgir" in stages:
            _Compilation(backend, stages, options, language).wrap()
        return None


class _Compilation:
    """The stages of one compilation. With a mark all of them run at once, in the first: it is then
    known whether the loop could be replaced before Triton is given anything."""

    def __init__(self, backend: Any, stages: dict[str, Stage], options: Any, language: Any) -> None:
        self.backend = backend
        self.stages = stages
        self.options = options
        self.language = language
        self.original = dict(stages)
        self.ready: dict[str, tuple[Any, Any]] = {}  # stage -> (input, output) of the splice

    def wrap(self) -> None:
        self.stages["ttgir"] = self._ttgir
        for name in _SPLICED_STAGES[1:]:
            if name in self.stages:
                self.stages[name] = self._later_stage(name)

    def _ttgir(self, module: Any, metadata: dict[str, Any]) -> Any:
        text = str(module)
        if not markers.has_mark(text):
            return self.original["ttgir"](module, metadata)
        try:
            return self._splice(text, module.context, metadata)
        except SpliceError as error:
            if env.strict():
                raise
            _warn(_kernel_name(text), str(error))
            metadata["splice"] = _FALLBACK + str(error)
        plain = _parse(markers.without_marks(text), module.context)
        return self.original["ttgir"](plain, metadata)

    def _later_stage(self, name: str) -> Stage:
        def stage(source: Any, metadata: dict[str, Any]) -> Any:
            if name in self.ready and self.ready[name][0] is source:
                return self.ready[name][1]
            return self.original[name](source, metadata)

        return stage

    def _splice(self, text: str, context: Any, metadata: dict[str, Any]) -> Any:
        """GPU IR module of the kernel with its loop replaced; keeps the later stages' results."""
        mark = markers.read_mark(text)
        recipe = _recipes.get(mark.loop)
        require(recipe, f"no recipe {mark.loop} is known in this process")
        assert recipe is not None
        target = getattr(self.options, "arch", None)
        require(
            target == TARGET and all(name in self.original for name in _SPLICED_STAGES),
            f"the target is {target}, recipes are for {TARGET}",
        )
        metadata_after = dict(metadata)
        options = dataclasses.replace(self.options, **recipe.options)
        stages = self._stages(options)
        with _triton_errors():
            uncut = stages["ttgir"](_parse(text, context), metadata_after)
        cut, layout = cut_loop(str(uncut), recipe)
        with _triton_errors():
            module = _parse(cut, context)
            llir = stages["llir"](_parse(cut, context), metadata_after)  # consumes its input
            llir = prepare_llir(llir, recipe, metadata_after)
            amdgcn = stages["amdgcn"](llir, metadata_after)
            amdgcn = insert_text(amdgcn, recipe, layout, metadata_after, options.waves_per_eu)
        with _triton_errors("LLVM's assembler, which says why on stderr"):
            binary = stages["hsaco"](amdgcn, metadata_after)
        metadata.update(metadata_after, splice=mark.loop)
        self.ready = {
            "llir": (module, llir),
            "amdgcn": (llir, amdgcn),
            "hsaco": (amdgcn, binary),
        }
        return module

    def _stages(self, options: Any) -> dict[str, Stage]:
        """Triton's stages, and those of other hooks, for the recipe's compile options."""
        stages: dict[str, Stage] = {}
        token = _is_building_stages.set(True)
        try:
            self.backend.add_stages(stages, options, self.language)
        finally:
            _is_building_stages.reset(token)
        return stages


@contextmanager
def _triton_errors(where: str = "") -> Iterator[None]:
    """What Triton's passes, MLIR's verifier or LLVM's assembler object to is a reason as well."""
    try:
        yield
    except RuntimeError as error:
        reason = where or str(error).strip().partition("\n")[0]
        raise SpliceError(f"the spliced kernel does not compile: {reason}") from error


def _parse(text: str, context: Any) -> Any:
    from triton._C.libtriton import ir

    handle, path = tempfile.mkstemp(suffix=".mlir")
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
        module = ir.parse_mlir_module(path, context)
    finally:
        os.unlink(path)
    module.context = context
    return module


def _kernel_name(text: str) -> str:
    _, _, rest = text.partition("tt.func public @")
    return rest.partition("(")[0] or "?"
