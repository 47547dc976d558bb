"""Decides how a loop is written before registers, waits and nops exist: values and operations.

A recipe says what is computed, with a `Builder`; the passes of asm_overrides/passes turn the result
into instructions. It knows no register number of its own, except those that an interface fixes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

File = Literal["v", "s"]


@dataclass(frozen=True)
class Value:
    """A named run of registers that a program owns.

    Attributes:
        name: role, unique in its program, such as "acc_o".
        file: "v" (64 lanes) or "s" (one a wave).
        width: dwords. align: the first register's number is a multiple of it.
        fixed: first register if an interface prescribes it, else None.
        read_only: an input that the program must not write.
    """

    name: str
    file: File
    width: int
    align: int = 1
    fixed: int | None = None
    read_only: bool = False

    def __getitem__(self, index: int | slice) -> Part:
        first, last, step = (
            index.indices(self.width) if isinstance(index, slice) else (index, index + 1, 1)
        )
        if step != 1 or not 0 <= first < last <= self.width:
            raise IndexError(f"{self.name}[{index}]: it has {self.width} dwords")
        return Part(self, first, last - first)

    @property
    def all(self) -> Part:
        """All of its dwords as one operand."""
        return Part(self, 0, self.width)


@dataclass(frozen=True)
class Part:
    """Dwords first .. first+count-1 of a value as an operand, with source modifiers."""

    value: Value
    first: int
    count: int
    negate: bool = False
    absolute: bool = False

    def __neg__(self) -> Part:
        return replace(self, negate=not self.negate)

    def __abs__(self) -> Part:
        return replace(self, absolute=True)

    def __str__(self) -> str:
        name = self.value.name
        if self.value.width > 1:
            end = f":{self.first + self.count - 1}" if self.count > 1 else ""
            name = f"{name}[{self.first}{end}]"
        name = f"|{name}|" if self.absolute else name
        return f"-{name}" if self.negate else name


@dataclass(frozen=True)
class Special:
    """An architectural register by its assembler name: vcc, exec, m0, off, ..."""

    name: str

    def __str__(self) -> str:
        return self.name


VCC, EXEC, M0, OFF, SCC = (Special(name) for name in ("vcc", "exec", "m0", "off", "scc"))
Argument = Part | Special | int | float | str


@dataclass(frozen=True)
class Op:
    """One operation with symbolic operands.

    Attributes:
        opcode: as the assembler spells it, without encoding suffix; "" for a label.
        arguments: destinations first; a str is a label or literal text.
        modifiers: assembler text behind the operands, such as "offset:64".
        role: what it is for, printed as a comment.
        source: "file:line" of the recipe.
        label: name, if this is a label.
        lds_reads, lds_writes: names of LDS rings that it touches.
        publishes: (ring, generations) pairs, only on the pseudo operation "publish", which stands
            in front of a barrier: of this wave's LDS-direct loads into the ring, those of all but
            the latest `generations` tiles have landed.
    """

    opcode: str
    arguments: tuple[Argument, ...] = ()
    modifiers: str = ""
    role: str = ""
    source: str = ""
    label: str = ""
    lds_reads: tuple[str, ...] = ()
    lds_writes: tuple[str, ...] = ()
    publishes: tuple[tuple[str, int], ...] = ()

    @property
    def parts(self) -> Iterator[Part]:
        """Operands that are registers of the program."""
        return (each for each in self.arguments if isinstance(each, Part))

    def __str__(self) -> str:
        if self.label:
            return f"{self.label}:"
        text = ", ".join(str(each) for each in self.arguments)
        return " ".join(each for each in (self.opcode, text, self.modifiers) if each)


@dataclass(frozen=True)
class Stage:
    """Operations that one wave issues between two points where it may be held.

    A stage has no branch into or out of its middle; a scheduling pass may reorder it within data
    dependencies. kind "matrix" feeds the matrix pipe, "vector" computes beside the other wave's
    matrix stage, "fixed" keeps its order.
    """

    name: str
    kind: Literal["matrix", "vector", "fixed"]
    ops: tuple[Op, ...]


@dataclass(frozen=True)
class Ring:
    """A ring of equal LDS tiles that LDS-direct loads fill and other instructions read.

    Attributes:
        name: such as "k". base: first LDS byte. slots: tiles. tile_bytes: bytes of one tile.
        pieces: load operations that one wave issues for one tile.
    """

    name: str
    base: int
    slots: int
    tile_bytes: int
    pieces: int = 1

    @property
    def end(self) -> int:
        """First LDS byte behind it."""
        return self.base + self.slots * self.tile_bytes


@dataclass(frozen=True)
class LoopProgram:
    """A whole loop replacement: values, LDS tiles and stages in program order.

    Attributes:
        name: recipe and parameters, for comments and labels.
        values: every Value used.
        live_in, live_out: names of values that hold something before and after.
        stages: in program order; labels, branches and barriers stand in "fixed" stages only.
        rings: LDS rings. lds_bytes: LDS that it needs, from byte 0.
    """

    name: str
    values: tuple[Value, ...]
    live_in: frozenset[str]
    live_out: frozenset[str]
    stages: tuple[Stage, ...]
    rings: tuple[Ring, ...] = ()
    lds_bytes: int = 0

    @property
    def ops(self) -> list[Op]:
        """All operations in program order."""
        return [op for stage in self.stages for op in stage.ops]

    def with_stages(self, stages: Iterable[Stage]) -> LoopProgram:
        """The same program with other stages."""
        return replace(self, stages=tuple(stages))


class Builder:
    """Writes a LoopProgram. Every method that emits records the caller's line as the source."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._values: dict[str, Value] = {}
        self._stages: list[Stage] = []
        self._rings: list[Ring] = []
        self._open: list[Op] | None = None
        self._labels = 0

    def vector(
        self,
        name: str,
        width: int = 1,
        *,
        align: int = 1,
        fixed: int | None = None,
        read_only: bool = False,
    ) -> Value:
        """Declare `width` vector registers."""
        return self._declare(Value(name, "v", width, align, fixed, read_only))

    def scalar(
        self,
        name: str,
        width: int = 1,
        *,
        align: int | None = None,
        fixed: int | None = None,
        read_only: bool = False,
    ) -> Value:
        """Declare `width` scalar registers; pairs are aligned to 2 and quadruples to 4."""
        alignment = align or (4 if width >= 4 else width)
        return self._declare(Value(name, "s", width, alignment, fixed, read_only))

    def _declare(self, value: Value) -> Value:
        if value.name in self._values:
            raise ValueError(f"{self.name}: the value {value.name!r} is declared twice")
        self._values[value.name] = value
        return value

    @contextmanager
    def stage(self, name: str, kind: Literal["matrix", "vector", "fixed"]) -> Iterator[None]:
        """Operations emitted inside belong to one stage."""
        if self._open is not None:
            raise ValueError(f"{self.name}: stage {name!r} opened inside another")
        self._open = []
        yield
        self._stages.append(Stage(name, kind, tuple(self._open)))
        self._open = None

    def op(
        self,
        opcode: str,
        *arguments: Argument | Value,
        modifiers: str = "",
        role: str = "",
        lds_reads: Sequence[str] = (),
        lds_writes: Sequence[str] = (),
    ) -> None:
        """Emit one operation; a Value stands for all of its dwords."""
        self._emit(
            Op(
                opcode,
                tuple(each.all if isinstance(each, Value) else each for each in arguments),
                modifiers,
                role,
                _caller(),
                lds_reads=tuple(lds_reads),
                lds_writes=tuple(lds_writes),
            )
        )

    def ring(self, name: str, slots: int, tile_bytes: int, pieces: int = 1) -> Ring:
        """Reserve an LDS ring behind those reserved before."""
        base = self._rings[-1].end if self._rings else 0
        ring = Ring(name, base, slots, tile_bytes, pieces)
        self._rings.append(ring)
        return ring

    def publish(self, **generations: int) -> None:
        """Before the barrier that follows, this wave's loads into the named rings have landed,
        except those of the latest `generations` tiles of each."""
        self._emit(Op("publish", publishes=tuple(generations.items()), source=_caller()))

    def label(self, name: str) -> None:
        """Place a label."""
        self._emit(Op("", label=name, source=_caller()))

    def new_label(self, hint: str) -> str:
        """A label name that is unique in this program; `{L}` is the splice's own prefix."""
        self._labels += 1
        return f"{{L}}_{hint}_{self._labels}"

    def _emit(self, op: Op) -> None:
        if self._open is None:
            raise ValueError(f"{self.name}: {op} outside a stage")
        self._open.append(op)

    def finish(self, live_in: Iterable[str], live_out: Iterable[str]) -> LoopProgram:
        """The program written so far."""
        return LoopProgram(
            self.name,
            tuple(self._values.values()),
            frozenset(live_in),
            frozenset(live_out),
            tuple(self._stages),
            tuple(self._rings),
            max((ring.end for ring in self._rings), default=0),
        )


def _caller() -> str:
    """file:line of the nearest frame outside this module."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
