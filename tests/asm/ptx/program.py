"""Decides how a text in PTX is read: statements, labels, registers. It executes nothing."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

DTYPES = {
    "pred": np.bool_, "b16": np.uint16, "f16": np.float16, "b32": np.uint32, "u32": np.uint32,
    "s32": np.int32, "f32": np.float32, "b64": np.uint64, "s64": np.int64,
}  # fmt: skip


class Finding(AssertionError):
    """A rule that the text breaks, with the line that breaks it."""


def kept_as(kind: str) -> type:
    """The dtype in which registers of a PTX type are kept: bits, or truth."""
    dtype = np.dtype(DTYPES[kind])
    return np.bool_ if dtype == np.bool_ else np.dtype(f"u{dtype.itemsize}").type


def names_in(operand: str) -> list[str]:
    """Registers of a vector operand, or the one."""
    return [name.strip() for name in operand.strip("{}").split(",")]


@dataclass(frozen=True)
class Statement:
    """One instruction. line: of the text, from 1. guard: "p", "!p" or ""."""

    line: int
    guard: str
    name: str
    operands: tuple[str, ...]

    def __str__(self) -> str:
        guard = f"@{self.guard} " if self.guard else ""
        return f"line {self.line}: {guard}{self.name} {', '.join(self.operands)}".rstrip()[:160]

    @cached_property
    def names(self) -> frozenset[str]:
        """Everything in it that may be a register."""
        return frozenset(re.findall(r"[%$\w.]+", " ".join((self.guard, *self.operands))))


@dataclass
class Program:
    """A text's statements, its labels (index of the statement behind), its registers' dtypes."""

    statements: list[Statement] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    kinds: dict[str, type] = field(default_factory=dict)

    @classmethod
    def read(cls, text: str) -> Program:
        program = cls()
        for line, whole in enumerate(text.split("\n"), 1):
            code = whole.partition("//")[0]
            for part in code.split(";"):
                program._take(line, part.strip())
        return program

    def _take(self, line: int, part: str) -> None:
        if part in ("", "{", "}") or part.startswith(".pragma "):
            return
        if label := re.fullmatch(r"([\w$]+):", part):
            assert label[1] not in self.labels, f"line {line}: {label[1]} stands twice"
            self.labels[label[1]] = len(self.statements)
        elif declared := re.fullmatch(r"\.reg \.(\w+) (.*)", part):
            for name in declared[2].split(","):
                self._declare(declared[1], name.strip())
        else:
            match = re.fullmatch(r"(?:@(!?[\w$]+) )?([\w.:]+)(?:\s+(.*))?", part)
            assert match is not None, f"line {line}: {part}"
            operands = tuple(re.findall(r"\{[^}]*\}|\[[^\]]*\]|[^,\s]+", match[3] or ""))
            self.statements.append(Statement(line, match[1] or "", match[2], operands))

    def _declare(self, kind: str, name: str) -> None:
        several = re.fullmatch(r"(.*)<(\d+)>", name)
        names = [f"{several[1]}{i}" for i in range(int(several[2]))] if several else [name]
        for each in names:
            assert each not in self.kinds, f"{each} is declared twice"
            self.kinds[each] = kept_as(kind)
