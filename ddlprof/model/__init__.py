"""The shared vocabulary: events, records, the manifest and their text form.

Standard library only: this package is imported inside training processes.
"""
