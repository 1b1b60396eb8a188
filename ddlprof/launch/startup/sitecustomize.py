# Run by every Python that a profiled script or launcher starts, as this directory is first on its PYTHONPATH: a
# process that goes on to train becomes a rank of the run. Steps aside at once: the path is what it would be without
# us, and the next `sitecustomize` is run in our place. Until torch is imported, this file is all there is of ddlprof,
# and it may be an older Python that reads it.

import os
import sys


class _AtTorch(object):  # noqa: UP004
    """A finder that is called once, when Python looks for torch."""

    def __init__(self, root):  # type: ignore[no-untyped-def]
        self.root = root

    def find_spec(self, name, path=None, target=None):  # type: ignore[no-untyped-def]
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        if not self.arm():  # type: ignore[no-untyped-call]
            return None
        import importlib.util

        return importlib.util.find_spec(name)

    def arm(self):  # type: ignore[no-untyped-def]
        """Whether the process is measured if it trains."""
        try:
            sys.path.insert(0, self.root)  # before another package called `ddlprof`
            try:
                from ddlprof.launch.child import arm
            finally:
                sys.path.remove(self.root)
            arm()
        except Exception:  # the process is not measured
            return False
        return True


class _Ours(object):  # noqa: UP004
    """Finds ddlprof where nothing else does: loader workers unpickle objects of its classes."""

    def __init__(self, root):  # type: ignore[no-untyped-def]
        self.root = root

    def find_spec(self, name, path=None, target=None):  # type: ignore[no-untyped-def]
        if name != "ddlprof":
            return None
        from importlib.machinery import PathFinder

        return PathFinder.find_spec(name, [self.root])


def _start():  # type: ignore[no-untyped-def]
    here = os.path.dirname(os.path.abspath(__file__))
    root = os.path.dirname(os.path.dirname(os.path.dirname(here)))
    sys.path[:] = [entry for entry in sys.path if entry != here]
    off = os.environ.get("DDLPROF_DISABLE", "0") not in ("", "0")
    if sys.version_info >= (3, 10) and os.environ.get("DDLPROF_JOB") and not off:
        sys.meta_path.append(_Ours(root))  # type: ignore
        if not os.environ.get("DDLPROF_OPTIONS"):  # otherwise this process is the one that `ddlprof run` becomes
            at_torch = _AtTorch(root)  # type: ignore[no-untyped-call]
            if "torch" in sys.modules:  # imported by a line of a .pth file
                at_torch.arm()  # type: ignore[no-untyped-call]
            else:
                sys.meta_path.insert(0, at_torch)


_start()  # type: ignore[no-untyped-call]
del sys.modules["sitecustomize"]
import sitecustomize  # type: ignore # noqa: E402, F401 - not ours any more; what it raises is for Python to handle, as ever
