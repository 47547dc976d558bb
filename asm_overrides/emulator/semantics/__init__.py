"""Decides what each instruction does to a group of waves: one module for each kind of instruction.

A step is a callable made once from an instruction and run for each group that reaches it.
Arithmetic is in asm_overrides.emulator.arithmetic; scheduling and branches are in scheduler.py.
"""
