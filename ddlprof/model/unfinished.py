"""What a rank says whose helper thread did not end with the script: `rank-R.unfinished.json` beside its other files.

These are that thread's, which may go on at any time, so nobody else writes to them.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from ddlprof.base.files import replace_whole
from ddlprof.base.reading import decode, parse_json
from ddlprof.model.records import End

UNFINISHED_SUFFIX = ".unfinished.json"
MAX_UNFINISHED_BYTES = 1 << 16


@dataclass(frozen=True)
class Unfinished:
    """How the rank ended, as in `End`, and what is missing of its records."""

    status: str
    exit_code: int
    time_ns: int
    message: str

    @property
    def end(self) -> End:
        """The record that the rank's file lacks."""
        return End(self.status, self.exit_code, self.time_ns)

    def write(self, folder: Path, rank: int) -> None:
        """Writes the file. Raises OSError where that fails."""
        text = json.dumps(asdict(self), ensure_ascii=False, allow_nan=False) + "\n"
        replace_whole(folder / f"rank-{rank}{UNFINISHED_SUFFIX}", text)


def decode_unfinished(content: bytes) -> Unfinished:
    """What is in a file. Raises ReadingError."""
    return decode(Unfinished, parse_json(content))
