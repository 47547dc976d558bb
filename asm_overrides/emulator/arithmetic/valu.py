"""Which function each vector ALU opcode is, and how modifiers wrap it; not which lanes are active.

An operation's function sees typed arrays (float32, int32, uint64, ...).  `bind_valu` makes a
callable of it that takes and returns words, with the instruction's modifiers built in.
"""

from __future__ import annotations

from collections.abc import Mapping

from . import (
    valu_compare,
    valu_convert,
    valu_dot,
    valu_double,
    valu_float32,
    valu_half,
    valu_integer,
)
from .assumptions import DEFAULT_MACHINE, Machine
from .binding import BoundOperation, Operation, bind
from .operands import UnknownOpcode

VALU: dict[str, Operation] = {}
for _module in (
    valu_compare,
    valu_convert,
    valu_dot,
    valu_double,
    valu_float32,
    valu_half,
    valu_integer,
):
    VALU.update(_module.OPERATIONS)


def bind_valu(
    opcode: str, modifiers: Mapping[str, object] | None = None, machine: Machine = DEFAULT_MACHINE
) -> BoundOperation:
    """The opcode with these modifiers as a callable of (mode, *sources, old=None).

    Raises UnknownOpcode for an opcode without arithmetic and UnsupportedArithmetic for a modifier
    that it cannot have.
    """
    operation = VALU.get(opcode)
    if operation is None:
        raise UnknownOpcode(f"opcode {opcode!r} is not a vector ALU operation of gfx950 known here")
    return bind(operation, dict(modifiers or {}), machine)
