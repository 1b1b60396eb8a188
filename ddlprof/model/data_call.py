"""`--data-call MODULE:FUNCTION`: the name of a function whose calls are waiting for data."""

from __future__ import annotations

from typing import NamedTuple

from ddlprof.base.errors import UserError

MAIN = "__main__"
_LOCALS = ".<locals>"


class DataCall(NamedTuple):
    """Both names may have dots: `package.module`, `Class.method`, `main.get_batch` for a function inside `main`."""

    module: str
    function: str

    def __str__(self) -> str:
        return f"{self.module}:{self.function}"

    @classmethod
    def parse(cls, text: str) -> DataCall:
        """The data call that the text names. Raises UserError where the text is not of the form."""
        module, _, function = text.partition(":")
        function = function.replace(_LOCALS, "")  # as in a function's __qualname__
        if not all(word.isidentifier() for name in (module, function) for word in name.split(".")):
            raise UserError(
                f"--data-call {text}: give MODULE:FUNCTION, such as package.data:get_batch, "
                f"{MAIN}:get_batch for a function of the script itself, or package.data:Batches.__next__"
            )
        return cls(module, function)
