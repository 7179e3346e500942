"""Files that arguments name, on the worker's disk: each content of a URL has a path of its own.

``FOLDER/PATH OF THE URL/DIGEST/NAME``: what a running task opens by its path stays what it was when the task began,
whatever other jobs and other workers of this machine, which share the folder, fetch meanwhile. A content that nobody
has asked for in ``KEPT_S`` is removed when another content of its URL comes.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from broker.nfp.client.fetching import path_of
from broker.nfp.client.transfer import MARK_CHARS, Details

if TYPE_CHECKING:
    from broker.nfp.client.client import NfpClient

KEPT_S: Final = 7 * 86_400.0
"""Longer than a task runs that was given the path."""


async def fetch(client: NfpClient, folder: Path, url: str) -> Path:
    """Return the path, below ``folder``, of what ``url`` holds now.

    Raises:
        FetchFailed, JobTimeout: see ``NfpClient.fetch``.
    """
    names = path_of(url)
    home = folder.joinpath(*names)

    def place(details: Details) -> Path:
        return home / details.mark[:MARK_CHARS] / names[-1]

    found = await client.fetch(url, place)
    with contextlib.suppress(OSError):  # a folder that is shared by users
        os.utime(found.path)
    if not found.cached:
        await asyncio.to_thread(forget, home, found.path.parent)
    return found.path


def delete(folder: Path, pattern: str) -> dict[str, list[str]]:
    """Remove what ``pattern`` matches below ``folder``, and tell it as deployed NorFab does.

    Raises:
        ValueError: the pattern leaves the folder, or is none.
    """
    if not pattern or Path(pattern).is_absolute() or ".." in Path(pattern).parts:
        raise ValueError(f"pattern {pattern[:64]!r}: expected one of names below the folder of fetched files")
    said: dict[str, list[str]] = {"deleted": [], "errors": []}
    for path in sorted(folder.glob(pattern), key=lambda path: -len(path.parts)):
        try:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
        except OSError as error:
            said["errors"].append(f"{path}: {error.strerror}")
        else:
            said["deleted"].append(str(path))
    return said


def forget(home: Path, fresh: Path) -> None:
    """Remove the contents in ``home`` that nobody has asked for lately, but ``fresh``; a failure harms nobody."""
    oldest = time.time() - KEPT_S
    for version in home.glob("[0-9a-f]" * MARK_CHARS):
        with contextlib.suppress(OSError):
            used = max(path.stat().st_mtime for path in (version, *version.iterdir()))
            if version != fresh and used < oldest:
                shutil.rmtree(version)
