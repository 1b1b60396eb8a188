"""The vocabulary that all packages share: events, records, the manifest and their text form.

Standard library only, as this package is imported inside training processes.
"""
