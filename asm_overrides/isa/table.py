"""Decides what each gfx950 opcode reads, writes, occupies and counts in; holds no policy.

The one table from which decoding, read/write sets, checks, execution and timing come. Opcodes are
declared in families (opcodes_*.py); `lookup` finds one. Roles are written in a small notation:

    access  r read, w write, b both
    kind    v vector register; x vector register, scalar register or constant; s scalar register or
            constant; m lane mask (scalar pair); i immediate, label or special operand
    width   dwords, alternatives separated by "/": "bv4", "rx1", "rv4/6/8"
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from asm_overrides.isa import registers

Port = Literal["valu", "trans", "mfma", "salu", "smem", "lds", "vmem", "branch", "special"]


class UnknownOpcodeError(ValueError):
    """The table has no such opcode."""


@dataclass(frozen=True, slots=True)
class Role:
    """One operand position: how it is accessed, of which kind, how wide (alternatives)."""

    access: str
    kind: str
    widths: tuple[int, ...]

    @property
    def reads(self) -> bool:
        return self.access in "rb"

    @property
    def writes(self) -> bool:
        return self.access in "wb"


@dataclass(frozen=True, slots=True)
class MatrixShape:
    """Shape of a matrix instruction: D is (m, n), the sum runs over k, for each of `blocks`."""

    m: int
    n: int
    k: int
    blocks: int
    a_type: str
    b_type: str
    d_type: str
    sparse: bool = False
    scaled: bool = False


@dataclass(frozen=True, slots=True)
class OpSpec:
    """What the table knows of one opcode.

    Attributes:
        opcode: mnemonic without encoding suffix.
        roles: operand positions as written, destinations first.
        port: issue port.
        cycles: cycles on the port (see docs on the gfx950 facts; matrix fp8 = worst format).
        passes: matrix instructions only: 4-cycle passes, which set the wait states.
        wait_class: what LLVM's hazard rules call it: valu, trans, xdl, sgemm, dgemm, lane,
            permlane, cmp, salu, smem, lds, vmem, special.
        reads, writes: implicit registers (exec, vcc, scc, m0, mode).
        counters: outstanding-work counters it increments: vmcnt, lgkmcnt.
        access: "" or load, store, atomic: what it does to memory or LDS.
        bytes: bytes a lane moves to or from memory (for read2/write2: one element).
        source_type: element type of sources, deciding the bits of constants: f16, bf16, f32, ...
        matrix: shape of matrix instructions.
        rare: here to be read and checked; the emulator executes few of these.
    """

    opcode: str
    roles: tuple[Role, ...]
    port: Port
    cycles: int = 4
    passes: int = 0
    wait_class: str = "valu"
    reads: frozenset[int] = frozenset()
    writes: frozenset[int] = frozenset()
    counters: tuple[str, ...] = ()
    access: str = ""
    bytes: int = 0
    source_type: str = "b32"
    matrix: MatrixShape | None = None
    rare: bool = False

    def constant_kind(self, role: Role) -> str:
        """Kind of constant (see Constant.bits) that stands in a source of `role`."""
        if role.widths[0] == 2:
            return "f64" if self.source_type == "f64" else "b64"
        return self.source_type if self.source_type in ("f16", "bf16") else "b32"


_ROLE = re.compile(r"([rwb])([vxsmi])(\d+(?:/\d+)*)$")


def parse_roles(notation: str) -> tuple[Role, ...]:
    """Roles from the notation of the module's docstring."""
    roles = []
    for token in notation.split():
        match = _ROLE.match(token)
        if match is None:
            raise ValueError(f"operand role {token!r} is not in the table's notation")
        widths = tuple(int(width) for width in match[3].split("/"))
        roles.append(Role(match[1], match[2], widths))
    return tuple(roles)


_TYPES = re.compile(r"_(bf16|f16|f32|f64|bf8|fp8|[iub](?:8|16|24|32|64))(?=_|$)")


def source_type(opcode: str) -> str:
    """Element type named last in an opcode, which is the type of its sources."""
    names = _TYPES.findall(opcode)
    return names[-1] if names else "b32"


_ENTRIES: dict[str, OpSpec] = {}


def declare(
    opcodes: str | Iterable[str],
    notation: str,
    port: Port,
    *,
    cycles: int = 4,
    wait_class: str | None = None,
    reads: Iterable[int] = (),
    writes: Iterable[int] = (),
    counters: tuple[str, ...] = (),
    access: str = "",
    bytes_per_lane: int = 0,
    rare: bool = False,
) -> None:
    """Enter opcodes that share roles and properties.

    `opcodes` is a blank-separated list in which {a,b} stands for each alternative.
    """
    names = opcodes.split() if isinstance(opcodes, str) else list(opcodes)
    roles = parse_roles(notation)
    for pattern in names:
        for opcode in _expand(pattern):
            implicit = set(reads)
            kind = source_type(opcode)
            if port in ("valu", "trans") and re.search(r"f16|f32|f64|fp8|bf8", opcode):
                implicit.add(registers.MODE)
            enter(
                OpSpec(
                    opcode,
                    roles,
                    port,
                    cycles=cycles,
                    wait_class=wait_class or port,
                    reads=frozenset(implicit),
                    writes=frozenset(writes),
                    counters=counters,
                    access=access,
                    bytes=bytes_per_lane,
                    source_type=kind,
                    rare=rare,
                )
            )


def enter(spec: OpSpec) -> None:
    """Add one entry; a second one for the same opcode is a mistake in the table."""
    if spec.opcode in _ENTRIES:
        raise ValueError(f"opcode {spec.opcode} is declared twice")
    _ENTRIES[spec.opcode] = spec


def amend(opcodes: str, **changes: object) -> None:
    """Replace properties of entries already declared."""
    for pattern in opcodes.split():
        for opcode in _expand(pattern):
            _ENTRIES[opcode] = replace(_ENTRIES[opcode], **changes)  # type: ignore[arg-type]


def _expand(pattern: str) -> list[str]:
    """All spellings of a pattern with {a,b} alternatives."""
    match = re.search(r"\{([^{}]*)\}", pattern)
    if match is None:
        return [pattern]
    head, tail = pattern[: match.start()], pattern[match.end() :]
    return [name for choice in match[1].split(",") for name in _expand(head + choice + tail)]


def lookup(opcode: str) -> OpSpec:
    """Entry of an opcode without encoding suffix; UnknownOpcodeError names what is missing.

    Older spellings of matrix opcodes (v_mfma_f32_32x32x8f16) give the entry of the newer one.
    """
    _load()
    entry = _ENTRIES.get(opcode) or _older_matrix_spelling(opcode)
    if entry is None:
        raise UnknownOpcodeError(f"unknown opcode {opcode!r}: the gfx950 table has none")
    return entry


_OLDER_MATRIX = re.compile(r"(v_mfma_[fi]\d+_\d+x\d+x\d+)_?(bf16|f16|f32|f64|i8)(?:_1k)?$")


def _older_matrix_spelling(opcode: str) -> OpSpec | None:
    match = _OLDER_MATRIX.match(opcode)
    if match is None:
        return None
    for blocks in ("", "_2b", "_4b", "_16b"):
        entry = _ENTRIES.get(f"{match[1]}{blocks}_{match[2]}")
        if entry is not None:
            return entry
    return None


def opcodes() -> tuple[str, ...]:
    """Every opcode in the table, sorted."""
    _load()
    return tuple(sorted(_ENTRIES))


def _load() -> None:
    """Import the families on first use (they import this module)."""
    if not _ENTRIES:
        from asm_overrides.isa import (  # noqa: F401
            opcodes_matrix,
            opcodes_memory,
            opcodes_rare,
            opcodes_scalar,
            opcodes_vector,
        )


__all__ = [
    "MatrixShape",
    "OpSpec",
    "Role",
    "UnknownOpcodeError",
    "amend",
    "declare",
    "enter",
    "lookup",
    "opcodes",
    "parse_roles",
    "source_type",
]
