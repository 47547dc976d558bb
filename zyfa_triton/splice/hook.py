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
import warnings
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import Any

from zyfa_triton import env
from zyfa_triton.splice import markers
from zyfa_triton.splice.errors import SpliceError, SpliceWarning, require
from zyfa_triton.splice.gfx950 import compilation as _gfx950
from zyfa_triton.splice.recipe import Recipe
from zyfa_triton.splice.sm90 import compilation as _sm90
from zyfa_triton.splice.stages import Stage, parse_module

_KEY = "zyfa-splice"  # for Triton's cache: the same mark means nothing without the hook
_FALLBACK = "fallback: "
# Triton's name of a target -> its stages and what compiles with a loop replaced
_TARGETS: dict[str, tuple[tuple[str, ...], Any]] = {
    "gfx950": (_gfx950.STAGES, _gfx950.compile_spliced),
    "sm90": (_sm90.STAGES, _sm90.compile_spliced),
}

_LATER_STAGES = {name for names, _ in _TARGETS.values() for name in names[1:]}

_recipes: dict[str, Recipe] = {}
_warned: set[tuple[str, str]] = set()
_is_building_stages: ContextVar[bool] = ContextVar("_is_building_stages", default=False)


def use(recipe: Recipe) -> str:
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
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        content.update(path.read_bytes())
    return content.hexdigest()


def install() -> None:
    """Put the hook into Triton, over a hook that is already there; once is enough."""
    from triton import knobs

    current = knobs.runtime.add_stages_inspection_hook
    if not isinstance(current, SpliceHook):
        knobs.runtime.add_stages_inspection_hook = SpliceHook(current)


def uninstall() -> None:
    """Take the hook out again and put back what was there. Marks are inert comments from then on,
    except for those of a cluster, with which a kernel does not assemble.

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
        for name in list(self.stages):
            if name in _LATER_STAGES:
                self.stages[name] = self._later_stage(name)

    def _ttgir(self, module: Any, metadata: dict[str, Any]) -> Any:
        text = str(module)
        if not markers.has_mark(text):
            return self.original["ttgir"](module, metadata)
        try:
            return self._splice(text, module.context, metadata)
        except SpliceError as error:
            if env.strict() or markers.CLUSTER in text:  # one workgroup alone computes nothing
                raise
            _warn(_kernel_name(text), str(error))
            metadata["splice"] = _FALLBACK + str(error)
        plain = parse_module(markers.without_marks(text), module.context)
        return self.original["ttgir"](plain, metadata)

    def _later_stage(self, name: str) -> Stage:
        def stage(source: Any, metadata: dict[str, Any]) -> Any:
            if name in self.ready and self.ready[name][0] is source:
                return self.ready[name][1]
            return self.original[name](source, metadata)

        return stage

    def _splice(self, text: str, context: Any, metadata: dict[str, Any]) -> Any:
        """GPU IR module of the kernel with its loop replaced; keeps the later stages' results."""
        loops = {mark.loop for mark in markers.read_marks(text)}
        require(len(loops) == 1, f"the kernel's marks ask for {len(loops)} loops, not one")
        loop = loops.pop()
        recipe = _recipes.get(loop)
        require(recipe, f"no recipe {loop} is known in this process")
        assert recipe is not None
        target = getattr(self.options, "arch", None)
        names, compile_spliced = _TARGETS[recipe.target]
        require(
            target == recipe.target and all(name in self.original for name in names),
            f"the target is {target}, {recipe.name} is for {recipe.target}",
        )
        metadata_after = dict(metadata)
        options = dataclasses.replace(self.options, **recipe.options)
        results = compile_spliced(
            text, context, recipe, self._stages(options), options, metadata_after
        )
        metadata.update(metadata_after, splice=loop)
        steps = zip(names[1:], results[:-1], results[1:], strict=True)
        self.ready = {name: (before, after) for name, before, after in steps}
        return results[0]

    def _stages(self, options: Any) -> dict[str, Stage]:
        """Triton's stages, and those of other hooks, for the recipe's compile options."""
        stages: dict[str, Stage] = {}
        token = _is_building_stages.set(True)
        try:
            self.backend.add_stages(stages, options, self.language)
        finally:
            _is_building_stages.reset(token)
        return stages


def _kernel_name(text: str) -> str:
    _, _, rest = text.partition("tt.func public @")
    return rest.partition("(")[0] or "?"
