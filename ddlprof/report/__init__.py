"""The output of every command: for each subject its data, then one file for each format (text, json, csv, html).

`text.py` and `json_csv.py` are what all of them are written with, `html/` is the kit for pages, and `trace_format.py`
the one for timelines. `ddlprof.base.units` puts times, sizes and shares into words.
"""
