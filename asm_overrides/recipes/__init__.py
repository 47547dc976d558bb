"""The loops: one package per algorithm; head size, precision and options are parameters.

A recipe names values and says what is computed. Waits, nops and register numbers come from
asm_overrides/passes.
"""
