"""The output of `ddlprof share`: what the file contains, and what was left out of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping, Sequence
from functools import partial

from ddlprof.base.text import shell_word, text_of
from ddlprof.base.units import count
from ddlprof.report.text import labelled

_labelled = partial(labelled, width=110)
_KEPT = (
    "times of steps, collectives and counters; sizes and numbers of the model, its operators, batch, cores and memory; "
    "GPU models, cloud instance types and versions of torch, Python and CUDA"
)
_REMOVED = (
    "names of job, script, model, hosts and process groups; paths, arguments, source lines, job and machine ids, "
    "process ids, texts of notes and errors, the date (the run begins on 2000-01-01)"
)


def written(path: str, ranks: int, steps: int, file_bytes: int, replaced: Mapping[str, int]) -> str:
    """The page about a file that was written."""
    numbers = ", ".join(f"{number} of kind {kind}" for kind, number in sorted(replaced.items()))
    lines = [f"Wrote    {path}: {count(ranks, 'rank')}, {count(steps, 'step')} in all, {file_bytes / 1024:,.0f} KiB"]
    lines += _labelled("Kept", _KEPT)
    lines += _labelled("Removed", _REMOVED)
    lines += _labelled("Replaced", f"names by numbers: {numbers or 'none'}")
    return text_of(
        [*lines, f"Look     at every text in it before you send it: ddlprof share --inspect {shell_word(path)}"]
    )


def checked(path: str, texts: Mapping[str, Counter[str]], others: Sequence[str], own_words: Container[str]) -> str:
    """The page with every text of a file but `own_words`, which every run has."""
    together = {text for each in texts.values() for text in each}
    shown = sorted(text for text in together if text not in own_words)
    lines = [f"File     {path}: {count(len(texts), 'member')}"]
    lines += _labelled("Members", ", ".join(texts))
    if others:
        lines += _labelled("Others", f"{', '.join(others)} (ddlprof wrote none of them)")
    lines += _labelled("Texts", " · ".join(map(repr, shown)))
    rest = f"everything else in it is numbers, and {len(together) - len(shown)} names of fields that every run has"
    return text_of([*lines, f"Look     {rest}"])
