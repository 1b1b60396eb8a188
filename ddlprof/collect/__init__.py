"""Runs inside the training process: hooks, recorder, helper thread, writer.

Imports torch lazily (only once the script has imported it) and none of pandas, numpy, rich, typer or boto3.
"""
