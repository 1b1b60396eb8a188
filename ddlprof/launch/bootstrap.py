"""The file that the interpreter runs in place of the user's script: `python bootstrap.py [-m] SCRIPT|MODULE [ARGS]...`

It only frees sys.path of ddlprof's own directories; `ddlprof.launch.program` does the rest.
Python looks for no circles among what is imported and stays, until the program switches that on for the script.
"""

import gc
import os
import sys


def _start() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    root = os.path.dirname(os.path.dirname(here))
    if not getattr(sys.flags, "safe_path", sys.flags.isolated):
        del sys.path[0]  # this file's directory
    # Ours must be found even if the user has a `ddlprof` of their own, so it is imported before their directory is set.
    sys.path.insert(0, root)
    gc.disable()
    from ddlprof.launch.program import main

    del sys.path[0]
    if root not in sys.path:
        sys.path.append(root)  # not installed, run from a checkout: loader workers must find it too
    main()


_start()
