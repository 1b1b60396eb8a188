"""Measures what operators and links reach on this machine: `ddlprof probe`. Imports torch inside functions only."""
