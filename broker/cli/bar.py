"""Progress of long work on a terminal, on stderr; nothing elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Update = Callable[[int, int], None]
"""Done, and in all."""


@contextmanager
def shown(what: str, *, in_bytes: bool = True) -> Iterator[Update | None]:
    """A bar named ``what`` for the time of a block; None where nobody would see it."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TransferSpeedColumn,
    )

    name = TextColumn("{task.description}", markup=False)
    columns = (
        (name, BarColumn(), DownloadColumn(), TransferSpeedColumn())
        if in_bytes
        else (name, BarColumn(), MofNCompleteColumn())
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        line = progress.add_task(what, total=None)
        yield lambda done, whole: progress.update(line, completed=done, total=whole)
