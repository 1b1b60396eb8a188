"""Reports of one run, one file a format. `data` turns analysis into plain data; the formats only render it."""
