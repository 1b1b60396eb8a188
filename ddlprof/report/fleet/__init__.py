"""`ddlprof fleet`: all runs under a folder, by their summaries."""
