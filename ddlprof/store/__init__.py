"""Reads run directories: complete, torn, or still being written.

Damage is counted and reported, not raised. Only what cannot be read as a run at all is a `UserError`.
"""

from ddlprof.model.records import Note
from ddlprof.store.reader import load_run
from ddlprof.store.tables import CollectiveTable, ContextTable, IntArray, RankData, RunData, StepTable

__all__ = ["CollectiveTable", "ContextTable", "IntArray", "Note", "RankData", "RunData", "StepTable", "load_run"]
