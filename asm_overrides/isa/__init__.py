"""Decides the public names of the instruction model; the modules beside it hold it."""

from asm_overrides.isa.instruction import Instruction
from asm_overrides.isa.operands import (
    Constant,
    HardwareField,
    Label,
    Operand,
    Register,
    Symbolic,
    WaitCounts,
)
from asm_overrides.isa.parse import ParseError, Program, parse, parse_instruction
from asm_overrides.isa.table import OpSpec, Role, UnknownOpcodeError, lookup, opcodes

__all__ = [
    "Constant",
    "HardwareField",
    "Instruction",
    "Label",
    "OpSpec",
    "Operand",
    "ParseError",
    "Program",
    "Register",
    "Role",
    "Symbolic",
    "UnknownOpcodeError",
    "WaitCounts",
    "lookup",
    "opcodes",
    "parse",
    "parse_instruction",
]
