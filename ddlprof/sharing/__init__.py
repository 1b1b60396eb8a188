"""`ddlprof share`: a run as one file that tells how its steps went, and not whose they are.

By construction: everything is made anew from a list of what is allowed, field by field (`allowed`). What is on no list
is not in the file. That includes what a later version of ddlprof writes into a run.
"""
