"""Decides the public names of the emulator; the modules beside it execute and distrust programs."""

from asm_overrides.emulator.arithmetic import DEFAULT_MACHINE, Machine
from asm_overrides.emulator.banks import BankUse
from asm_overrides.emulator.checks import Checks, Observer
from asm_overrides.emulator.findings import Finding, FindingLog
from asm_overrides.emulator.kernel import Argument, Descriptor, Kernel
from asm_overrides.emulator.launch import Result, run
from asm_overrides.emulator.loader import LoadError, load_code_object, load_text
from asm_overrides.emulator.memory import GlobalMemory
from asm_overrides.emulator.semantics.environment import UnsupportedInstructionError

__all__ = [
    "DEFAULT_MACHINE",
    "Argument",
    "BankUse",
    "Checks",
    "Descriptor",
    "Finding",
    "FindingLog",
    "GlobalMemory",
    "Kernel",
    "LoadError",
    "Machine",
    "Observer",
    "Result",
    "UnsupportedInstructionError",
    "load_code_object",
    "load_text",
    "run",
]
