"""Every private name of torch that ddlprof uses, and the only place that spells one.

Each file has the names of one part of torch in its table `NAMES`, and beneath it the functions and constants by which
the rest of `ddlprof.collect` reaches them. A function returns None where this torch lacks the name, so that the caller
does without; what every measurement of its kind needs is asked for with `need`, whose error becomes a note of the
report. `check` compares the tables with the torch that is installed (`ddlprof doctor`, and a test).

Nothing here imports torch: it is handed in, or found among the modules that the script has imported.
"""
