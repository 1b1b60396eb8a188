"""From events to step rows: pure functions and state machines that know no torch and no files."""
