"""Decides what must be known of a loop of one's own whatever it is written for: `Recipe`.

What a machine adds lies beside its code: `gfx950.recipe`, `sm90.recipe`. It knows no loop and does
not look into kernels. docs/hand-scheduling.md walks through an example.
"""

from __future__ import annotations

import hashlib
import re
from abc import ABC
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from types import FunctionType
from typing import ClassVar

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9]*(?:_[A-Za-z0-9]+)*")
_DIGEST_LENGTH = 16


@dataclass(frozen=True, kw_only=True)
class Recipe(ABC):
    """A loop that can take the place of Triton's; what recipes of all targets have in common.

    Parameters of a subclass are further fields of the dataclass; they are part of `digest`.

    Attributes:
        target: Triton's name of the machine that the text is for.
        name: letters, digits and single underscores; with `digest` it becomes the LOOP constexpr.
        operations: operation -> how often the replaced loops together hold it in Triton's GPU IR,
            such as {"tt.dot": 2}. Guards against a marker in a kernel that computes something
            else.
        step: constant step of the replaced loop; None: any.
        options: compile options while splicing.
    """

    target: ClassVar[str]

    name: str
    operations: Mapping[str, int]
    step: int | None = None
    options: Mapping[str, int] = field(default_factory=dict)

    def sources(self) -> tuple[Path, ...]:
        """Files whose content decides the text. Add those of generators that `text` calls."""
        own = __package__ + "."  # the package's sources are hashed by `hook.use`
        names = {
            function.__code__.co_filename
            for kind in type(self).__mro__
            if kind is not object and not kind.__module__.startswith(own)
            for function in vars(kind).values()
            if isinstance(function, FunctionType) and not function.__name__.startswith("__")
        }
        paths = sorted(Path(name) for name in names if not name.startswith("<"))
        if not paths or not all(path.is_file() for path in paths):
            raise TypeError(
                f"recipe {self.name!r}: the source of {type(self).__name__} is in no file; "
                "override sources()"
            )
        return tuple(paths)

    @cached_property
    def digest(self) -> str:
        """Changes whenever the text or the interface may: parameters and sources, hashed.

        Sources are read once for an object, so that using it again costs nothing.
        """
        state = [(part.name, _stable(getattr(self, part.name))) for part in fields(self)]
        content = hashlib.sha256(repr((type(self).__qualname__, state)).encode())
        for path in self.sources():
            content.update(path.read_bytes())
        return content.hexdigest()[:_DIGEST_LENGTH]

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise self.wrong(
                "name", "accepted are letters, digits and single underscores between them"
            )

    def wrong(self, part: str, what: str) -> ValueError:
        """What to raise for a field that contradicts itself or another."""
        return ValueError(f"recipe {self.name!r}: {part}: {what}")


def _stable(value: object) -> object:
    return sorted(value.items()) if isinstance(value, Mapping) else value
