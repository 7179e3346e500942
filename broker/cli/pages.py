"""Help pages are as wide as the terminal, and no wider than they are easy to read."""

from __future__ import annotations

import contextlib
import os
import re
import textwrap
from typing import Final

WIDTH: Final = 100
"""Columns, where the terminal has as many; and where nobody can say."""
_EXAMPLE: Final = re.compile(r"(?P<left> +\S.*?  +)(?P<right>\S.*)")
_GOES_ON: Final = re.compile(r"^(\S.*)\n(?=[a-z0-9])", re.MULTILINE)
"""The end of a line of the source that is none of a sentence: what goes on begins with a small letter or a figure."""
_BELOW: Final = " " * 6
"""In front of what does not fit beside an example."""


def width() -> int:
    """Columns of a page that is printed now."""
    # As shutil.get_terminal_size, which would bring three compressors into every broker: argparse makes a formatter,
    # and asks for its width, with each option that is added.
    said = os.environ.get("COLUMNS", "")
    columns = int(said) if said.isdecimal() else 0
    if not columns:
        with contextlib.suppress(OSError):  # no terminal, or no standard output at all
            columns = os.get_terminal_size().columns
    return min(WIDTH, columns or WIDTH)  # a terminal whose size nobody has set has 0


def fit(text: str, columns: int) -> str:
    r"""Wrap what is wider: sentences, and what is said beside an example; the example itself is there to be copied.

    >>> print(fit("Sentences are\nwrapped anew.\n  headgate x --option   what that does", 30))
    Sentences are wrapped anew.
      headgate x --option
          what that does
    """
    lines = _GOES_ON.sub(r"\1 ", text).splitlines()
    return "\n".join(line if len(line) <= columns else _wrapped(line, columns) for line in lines)


def _wrapped(line: str, columns: int) -> str:
    if not line.startswith(" "):
        return textwrap.fill(line, columns)
    parts = _EXAMPLE.fullmatch(line)
    if parts is None:
        return line
    left, right = parts["left"], parts["right"]
    if len(left) <= columns // 2:
        return textwrap.fill(right, columns, initial_indent=left, subsequent_indent=" " * len(left))
    return (
        f"{left.rstrip()}\n{textwrap.fill(right, columns, initial_indent=_BELOW, subsequent_indent=_BELOW)}"
    )
