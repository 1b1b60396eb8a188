"""The file that the interpreter runs in place of the user's script: `python bootstrap.py [-m] SCRIPT|MODULE [ARGS]...`

It only removes ddlprof's own directories from sys.path; `ddlprof.launch.program` does the rest. The garbage collector
is off while ddlprof is imported; the program switches it on for the script.
"""

import gc
import os
import sys


def _start() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    root = os.path.dirname(os.path.dirname(here))
    if not getattr(sys.flags, "safe_path", sys.flags.isolated):
        del sys.path[0]  # the directory of this file
    # ddlprof is imported before the script's directory is on sys.path, where another `ddlprof` may be.
    sys.path.insert(0, root)
    gc.disable()
    from ddlprof.launch.program import main

    del sys.path[0]
    if root not in sys.path:
        sys.path.append(root)  # in a checkout that is not installed, loader workers must find ddlprof, too
    main()


_start()
