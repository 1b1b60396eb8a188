"""The case studies are made anew from the commands in their pages."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from scripts.docs import cases

PAGE = """# A case

```
$ echo one > file
old
$ cat file
old
older
```

```
no command
```

```
$ cat file
```
"""


def test_blocks_get_what_their_commands_say(tmp_path: Path) -> None:
    page = cases.renewed(PAGE, tmp_path)
    assert page == PAGE.replace("old\n$", "$").replace("old\nolder\n", "one\n").replace(
        "file\n```\n", "file\none\n```\n"
    )
    assert cases.renewed(page, tmp_path) == page


def test_a_command_that_fails_or_tells_where_it_ran_writes_no_page(tmp_path: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError):
        cases.renewed("```\n$ false\n```\n", tmp_path)
    with pytest.raises(ValueError, match="where it ran"):
        cases.renewed("```\n$ pwd\n```\n", tmp_path)


@pytest.mark.parametrize("path", sorted(cases.PAGES.glob("*.md")), ids=lambda path: str(path.stem))
def test_every_case_shows_what_its_commands_said(path: Path) -> None:
    page = path.read_text(encoding="utf-8")
    assert "\n$ ddlprof run " in page
    assert "\nStep " in page
