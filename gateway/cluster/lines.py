"""The lines of a log file, also as it grows."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

LOOK_S: Final = 0.2
"""How often it is looked for more."""
TAIL_BYTES: Final = 4096


def lines_of(path: Path, more: Callable[[], bool]) -> Iterator[str]:
    """The lines of ``path``, without line ends; an unfinished last line at the end, too. None without such a file.

    Args:
        path: of the file.
        more: asked at the end of the file: whether to wait for more of it.
    """
    try:
        file = open(path, encoding="utf-8", errors="replace")  # noqa: SIM115 - closed below, by the generator
    except FileNotFoundError:
        return
    with file:
        part = ""
        while True:
            part += file.readline()
            if part.endswith("\n"):
                yield part[:-1]
                part = ""
            elif more():
                time.sleep(LOOK_S)
            else:
                break
        if part:
            yield part


def last_of(path: Path) -> str:
    """The last line that is not empty; "" without one."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL_BYTES))
            lines = file.read().decode(errors="replace").split("\n")
    except OSError:
        return ""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")
