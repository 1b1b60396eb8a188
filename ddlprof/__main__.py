"""`python -m ddlprof`, and the file that a finished run starts by its path to print the card."""

import os
import sys

if not __package__:
    # Run by path: Python put this file's directory on sys.path, where our subpackages would pass for top-level ones.
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [os.path.dirname(here), *(entry for entry in sys.path if entry != here)]

from ddlprof.cli.app import main

sys.exit(main())
