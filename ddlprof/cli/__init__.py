"""The command line: one file a command, which parses, calls and hands over to a report."""
