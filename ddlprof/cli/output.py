"""The places and formats of results: the options `-o` and `--format`, which mean the same for every command.

A command names its formats, calls `wanted` before its work and `Wanted.write` after it. See docs/commands.md.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

from ddlprof.base.errors import UserError, complain, refusing
from ddlprof.cli.panels import output_option
from ddlprof.model.naming import on_this_machine

STDOUT = "-"
TABLE = "table"
"""The format for people, which is shown unless another one is asked for."""
_ENDINGS = {
    ".json": "json",
    ".csv": "csv",
    ".html": "html",
    ".htm": "html",
    ".md": "markdown",
    ".txt": TABLE,
}
"""The formats of all commands by the ending of a file's name; `.gz` may follow. `.FORMAT.ENDING` is a command's own."""

_Result = TypeVar("_Result")
_Made = str | Iterable[str]

Out = Annotated[
    list[str] | None,
    output_option(
        "--out",
        "-o",
        metavar="FILE",
        help="Write to FILE instead of standard output (-), in the format that its ending tells; may be given again.",
    ),
]


def format_option(
    formats: Sequence[str], folders: Collection[str] = (), besides: str = "", also: Sequence[str] = ()
) -> Any:
    """The option `--format` of a command with these formats; those in `folders` are several files."""
    names = [f"{name} (to a folder)" if name in folders else name for name in formats]
    return output_option(
        "--format",
        *also,
        metavar="F,...",
        help=f"Formats: {', '.join(names)}{besides} [{formats[0]}].",
        autocompletion=lambda: list(formats),
    )


def directory_option(help: str) -> Any:
    """The option `-o` of a command whose result is a directory."""
    return output_option("--out", "-o", metavar="DIR", callback=on_this_machine, help=help)


@dataclass(frozen=True)
class Destination:
    """One format of the result, and where it goes."""

    format: str
    path: Path | None
    """The file or folder; None: standard output."""


@dataclass(frozen=True)
class Wanted:
    """All formats of one result that are asked for, with their places."""

    destinations: Sequence[Destination]

    @property
    def has_files_only(self) -> bool:
        """Whether nothing goes to standard output."""
        return all(destination.path for destination in self.destinations)

    def path_of(self, format: str) -> Path | None:
        """The file or folder that gets this format; None if there is none."""
        return next((destination.path for destination in self.destinations if destination.format == format), None)

    def write(
        self,
        renderers: Mapping[str, Callable[[_Result], _Made]],
        result: _Result,
        folders: Mapping[str, Callable[[Path], None]] | None = None,
        standard_error: bool = False,
    ) -> None:
        """Shows the format without a file, on stderr if asked to, then writes the files and names them on stderr.

        `folders` has the functions that write the formats of several files. Raises the UserError of the first file
        that cannot be written, once all others are.
        """
        shown = [destination.format for destination in self.destinations if destination.path is None]
        for number, name in enumerate(shown):
            made = renderers[name](result)
            text = made if isinstance(made, str) else "".join(made)
            _show(f"\n{text}" if number and text else text, name == TABLE, standard_error)
        failures: list[UserError] = []
        for destination in self.destinations:
            if destination.path is None:
                continue
            try:
                if folders and destination.format in folders:
                    folders[destination.format](destination.path)
                else:
                    made = renderers[destination.format](result)
                    write_pieces(destination.path, [made] if isinstance(made, str) else made)
                say_written(destination.path)
            except UserError as error:
                failures.append(error)
        if failures:
            raise failures[0]


def _show(text: str, for_people: bool, standard_error: bool) -> None:
    from ddlprof.cli.screen import echo, show

    if for_people and not standard_error:
        show(text)
    else:
        echo(text, err=standard_error)


def say_written(path: Path | str) -> None:
    """Says on stderr that a file, or a folder of files, has been written."""
    complain(f"wrote {path}")


def wanted(
    out: Sequence[str] | None,
    format: str | None,
    known: Sequence[str],
    folders: Collection[str] = (),
    besides: str = "",
    endings: Mapping[str, str] = {},
) -> Wanted:
    """The formats and places that `-o` and `--format` ask for; `known` are the command's formats, its usual one first.

    `endings`: the command's own formats by the ending of a file's name, besides those of all commands.

    Raises UserError for an unknown format, naming `besides`, and for a place that cannot be written, so that a command
    fails before its work rather than after it.
    """
    formats = _formats(format, known, besides)
    if not out:
        destinations = [Destination(name, None) for name in formats or known[:1]]
    else:
        if len(out) == 1 and len(formats) > 1 and out[0] != STDOUT:
            raise UserError("-o takes one format: give it once for each file, as in -o FILE.json -o FILE.html")
        destinations = [
            destination
            for text in out
            for destination in _destinations(text, formats, known, folders, endings, len(out) == 1, besides)
        ]
    for destination in destinations:
        _require(destination, folders)
    return Wanted(destinations)


def _formats(text: str | None, known: Collection[str], besides: str) -> list[str]:
    """The formats in `F,...`."""
    formats = [name.strip() for name in text.split(",")] if text is not None else []
    for name in formats:
        if name not in known:
            raise UserError(f"unknown format {name!r}; known: {', '.join(known)}{besides}")
    return formats


def _destinations(
    text: str,
    formats: list[str],
    known: Sequence[str],
    folders: Collection[str],
    endings: Mapping[str, str],
    is_only_one: bool,
    besides: str,
) -> list[Destination]:
    if text == STDOUT:
        return [Destination(name, None) for name in formats or known[:1]]
    told = _told(text, known, folders, endings)
    name = formats[0] if is_only_one and formats else told
    if name is None and len(formats) == 1:
        (name,) = formats
    if name is None:
        if ending := Path(text.removesuffix(".gz")).suffix:
            raise UserError(f"{text}: {ending} tells no format here: add --format {', '.join(known)}{besides}")
        name = known[0]
    return [Destination(name, Path(on_this_machine(text) if name in folders else text))]


def _told(
    text: str, known: Sequence[str], folders: Collection[str] = (), endings: Mapping[str, str] = {}
) -> str | None:
    """The format of the command that the ending of the name stands for."""
    if folders and (text.endswith("/") or os.path.isdir(text)):
        return next(iter(folders))
    name = text.lower().removesuffix(".gz")
    *_, own, ending = ["", "", *Path(name).suffixes]
    told = own[1:] if own[1:] in known and own[1:] not in _ENDINGS.values() else {**_ENDINGS, **endings}.get(ending)
    return told if told in known and told not in folders else None


def tells_format(text: str, known: Sequence[str]) -> bool:
    """Whether the ending of a file's name tells one of these formats."""
    return _told(text, known) is not None


def _require(destination: Destination, folders: Collection[str]) -> None:
    if destination.format in folders:
        if destination.path is None:
            raise UserError(f"{destination.format} is several files here: say into which folder, with -o DIR")
        make_folder(destination.path)
    else:
        require_destination(destination.path)


def make_folder(path: Path) -> None:
    """Makes the folder if it is missing. Raises UserError where it cannot be made."""
    with refusing(f"{path}: cannot be made"):
        path.mkdir(parents=True, exist_ok=True)


def require_destination(path: Path | None) -> None:
    """Raises UserError where a file cannot be written, before hours of work rather than after."""
    if path is None:
        return
    if os.path.isdir(path):
        raise UserError(f"{path}: cannot be written: it is a folder")
    if not os.path.isdir(path.absolute().parent):
        raise UserError(f"{path}: cannot be written: there is no folder {path.parent}")


def write_pieces(path: Path, pieces: Iterable[str]) -> None:
    """Replaces the file, whole or not at all; compressed if its name ends with `.gz`.

    A symbolic link that the user named stays one: the file that it leads to is replaced. Some targets cannot be
    replaced and are written to: a terminal, a pipe, a device, `/dev/stdout` wherever it leads, a file in a folder that
    takes no new ones. Raises UserError where it cannot be written.
    """
    import gzip

    from ddlprof.base.files import replacing

    opened = gzip.open if path.suffix == ".gz" else open
    with (
        refusing(f"{path}: cannot be written"),
        nullcontext(path) if _only_written_to(path) else replacing(path.resolve()) as target,
        opened(target, "wt", encoding="utf-8", errors="replace") as file,  # names may hold undecodable bytes
    ):
        file.writelines(pieces)


def _only_written_to(path: Path) -> bool:
    if not path.exists():
        return False
    stands_for_another = path.parts[:2] in (("/", "dev"), ("/", "proc"))
    return stands_for_another or not path.is_file() or not os.access(path.resolve().parent, os.W_OK)
