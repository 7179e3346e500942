"""Which sealed segments of a writer go: the oldest, by bytes and by age."""

from __future__ import annotations

import logging
import os
import re
from typing import Final, NamedTuple

from broker.journal.layout import SUFFIX

log = logging.getLogger("headgate")

SHARE: Final = 10
"""All writers of a folder keep one part in so many of its file system, where nothing else is said,"""
SHARE_BYTES: Final = 4 << 30
"""and no more than this."""
_NUMBER: Final = re.compile(rf"-(\d{{20}}){re.escape(SUFFIX)}$")


class Kept(NamedTuple):
    """A segment as its directory shows it."""

    path: str
    first_seq: int
    size: int
    written_s: float
    """When it was written to last, seconds since 1970."""


def kept(directory: str, writer: str) -> list[Kept]:
    """The segments of one writer, oldest first.

    Raises:
        OSError: the directory cannot be read.
    """
    found = []
    with os.scandir(directory) as entries:
        for entry in entries:
            match = _NUMBER.fullmatch(entry.name.removeprefix(writer))
            if match is None or not entry.name.startswith(writer):
                continue
            if not entry.is_file(follow_symlinks=False):
                continue  # no segment, whatever its name says
            try:
                status = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue  # somebody deleted it in between
            found.append(Kept(entry.path, int(match[1]), status.st_size, status.st_mtime))
    return sorted(found, key=lambda each: each.first_seq)


def fair_share(directory: str, writer: str) -> int:
    """Bytes that one writer keeps where no setting says it: an equal part for each that has segments in the folder.

    Raises:
        OSError: the directory cannot be read.
    """
    names = {name[: match.start()] for name in os.listdir(directory) if (match := _NUMBER.search(name))}
    system = os.statvfs(directory)
    return min(system.f_frsize * system.f_blocks // SHARE, SHARE_BYTES) // len(names | {writer})


def surplus(segments: list[Kept], open_path: str, keep_bytes: int, keep_s: float, now_s: float) -> list[Kept]:
    """Those that go, oldest first; never the open one.

    Args:
        segments: all of a writer, oldest first.
        open_path: the one that is written to; "" for none.
        keep_bytes: what all of them together may take; 0 for any.
        keep_s: how old a sealed one may become, counted from its last block; 0 for any.
        now_s: seconds since 1970.
    """
    total = sum(each.size for each in segments)
    gone = []
    for each in segments:
        if each.path == open_path:
            continue
        if (keep_bytes and total > keep_bytes) or (keep_s and now_s - each.written_s >= keep_s):
            gone.append(each)
            total -= each.size
    return gone


def sweep(
    directory: str, writer: str, open_path: str, *, keep_bytes: int, keep_s: float, now_s: float
) -> tuple[int, list[str]]:
    """Delete what is surplus.

    Returns:
        bytes that are left, and the paths that are gone. What cannot be deleted stays, with a word in the log.

    Raises:
        OSError: the directory cannot be read.
    """
    segments = kept(directory, writer)
    left = sum(each.size for each in segments)
    gone = []
    for each in surplus(segments, open_path, keep_bytes, keep_s, now_s):
        try:
            os.unlink(each.path)
        except FileNotFoundError:
            pass
        except OSError as error:
            log.warning("journal: %s cannot be deleted: %s", each.path, error.strerror)
            continue
        left -= each.size
        gone.append(each.path)
    return left, gone
