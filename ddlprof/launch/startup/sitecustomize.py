# Run by every Python that a profiled script or launcher starts, as this directory is first on its PYTHONPATH: a
# process that goes on to train becomes a rank of the run. Steps aside at once: the path is what it would be without
# us, and the next `sitecustomize` is run in our place. Until torch is imported, this file is all there is of ddlprof,
# and it may be an older Python that reads it.

import os
import sys


class _AtTorch(object):  # noqa: UP004
    def __init__(self, root):  # type: ignore[no-untyped-def]
        self.root = root

    def find_spec(self, name, path=None, target=None):  # type: ignore[no-untyped-def]
        """Python looks for `torch`: whoever looks for it later finds ours no more."""
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        try:
            sys.path.insert(0, self.root)
            try:
                from ddlprof.launch.child import arm
            finally:
                sys.path.remove(self.root)
            arm()
        except Exception:  # the process is not measured
            return None
        import importlib.util

        return importlib.util.find_spec(name)


def _start():  # type: ignore[no-untyped-def]
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if entry != here]
    profiled_already = os.environ.get("DDLPROF_OPTIONS")  # set for the very process that `ddlprof run` becomes
    off = os.environ.get("DDLPROF_DISABLE", "0") not in ("", "0")
    if sys.version_info >= (3, 10) and os.environ.get("DDLPROF_JOB") and not profiled_already and not off:
        sys.meta_path.insert(0, _AtTorch(os.path.dirname(os.path.dirname(os.path.dirname(here)))))  # type: ignore


_start()  # type: ignore[no-untyped-call]
del sys.modules["sitecustomize"]
import sitecustomize  # type: ignore # noqa: E402, F401 - not ours any more; what it raises is for Python to handle, as ever
