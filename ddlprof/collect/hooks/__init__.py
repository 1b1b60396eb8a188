"""Hooks, a file for each group of them, and what they share; `table.py` lists all. Hooks tell the recorder what begins
and ends; they decide nothing.

A wrapper calls the original whatever happens to us, and returns at once under `torch.compiler.is_compiling()`.
"""
