"""The hooks: one file for each group, and what they share. `table.py` lists all of them.

Hooks tell the recorder what begins and ends; they decide nothing. A wrapper always calls the original function, even if
the profiler fails, and does nothing else under `torch.compiler.is_compiling()`.
"""
