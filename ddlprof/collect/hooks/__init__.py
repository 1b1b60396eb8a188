"""One file a hook: `install(...) -> uninstall`. Hooks tell the recorder what begins and ends; they decide nothing.

A wrapper calls the original whatever happens to us, and returns at once under `torch.compiler.is_compiling()`.
"""
