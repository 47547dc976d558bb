"""Decides how something untrustworthy in a program is recorded; does not look for it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from asm_overrides.isa.instruction import Instruction


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that hardware might not forgive.

    Attributes:
        kind: slug, such as "lds-race" or "global-out-of-bounds".
        workgroup: (x, y, z) of its first occurrence.
        wave: wave of the workgroup at its first occurrence; -1 where no wave is meant.
        instruction, line: text and 1-based line of the instruction.
        message: what is wrong, in a sentence.
    """

    kind: str
    workgroup: tuple[int, int, int]
    wave: int
    instruction: str
    line: int
    message: str

    def __str__(self) -> str:
        where = f"workgroup {self.workgroup} wave {self.wave}" if self.wave >= 0 else "program"
        return f"{self.kind}: line {self.line}: {self.instruction}: {self.message} ({where})"


@dataclass(slots=True)
class FindingLog:
    """Findings of one run, one for each kind and line, with the number of occurrences."""

    workgroup: tuple[int, int, int] = (0, 0, 0)
    _first: dict[tuple[str, int], Finding] = field(default_factory=dict)
    _counts: dict[tuple[str, int], int] = field(default_factory=dict)

    def add(self, kind: str, wave: int, instruction: Instruction, message: str) -> None:
        """Record an occurrence in the current workgroup."""
        self.add_finding(
            Finding(kind, self.workgroup, wave, instruction.text, instruction.line, message)
        )

    def add_finding(self, finding: Finding, count: int = 1) -> None:
        """Record a finding made elsewhere."""
        key = (finding.kind, finding.line)
        self._first.setdefault(key, finding)
        self._counts[key] = self._counts.get(key, 0) + count

    def seen(self, kind: str, line: int) -> bool:
        """True if the kind was already recorded for the line."""
        return (kind, line) in self._first

    def extend(self, findings: Iterable[Finding]) -> None:
        """Record several findings."""
        for finding in findings:
            self.add_finding(finding)

    def count(self, finding: Finding) -> int:
        """How often the finding occurred."""
        return self._counts[finding.kind, finding.line]

    def __iter__(self) -> Iterator[Finding]:
        return iter(sorted(self._first.values(), key=lambda finding: (finding.line, finding.kind)))

    def __len__(self) -> int:
        return len(self._first)
