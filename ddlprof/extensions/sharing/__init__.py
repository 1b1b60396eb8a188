"""`ddlprof share`: writes a run as one file that shows how its steps went, but not whose they are.

Every record is made anew from lists of allowed fields (`allowed`). Fields on no list are not in the file; that includes
fields that later versions of ddlprof add to runs.
"""
