"""The passes: from a symbolic loop to text; one pass a file, program in, program out.

schedule.py orders operations, allocate.py gives them registers, waits.py and hazards.py add what
the hardware does not enforce, verify.py proves what must hold, emit.py spells it; pipeline.py runs
them in this order.
"""
