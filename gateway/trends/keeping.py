"""The rings of ten seconds in a file, so that charts outlive a restart; replaced in one step, lost where it is broken.

The file is MessagePack: ``{"version", "marks": [[time, text]], "tracks": {name: [first step, values]}}``, mode 0600.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

import msgspec

from broker import atomic
from gateway.trends.rings import COARSE, NAMES_MAX, Mark, Rings

log = logging.getLogger("headgate")

VERSION: Final = 1
FILE: Final = "trends.bin"
FILE_BYTES: Final = NAMES_MAX * (COARSE * 5 + 1024)
"""Largest file that is read."""


class _Document(msgspec.Struct):
    version: int
    marks: list[tuple[float, str]]
    tracks: dict[str, tuple[int, bytes]]


def encode(rings: Rings) -> bytes:
    """What ``rings`` hold, as the file has it."""
    marks = [(mark.time, mark.text) for mark in rings.marks]
    tracks = {name: track.coarse.kept() for name, track in rings.tracks.items()}
    return msgspec.msgpack.encode(_Document(VERSION, marks, tracks))


def write(data: bytes, path: Path) -> bool:
    """Put ``data`` in the place of the file; False, and a line in the log, where that cannot be."""
    try:
        atomic.write(path, data)
    except OSError as error:
        log.error("%s: the figures of the charts cannot be kept: %s", path, error.strerror)
        return False
    return True


def load(rings: Rings, path: Path) -> None:
    """Take up what was saved; nothing where there is none, or it is broken."""
    try:
        with open(path, "rb") as file:
            data = file.read(FILE_BYTES + 1)
        document = msgspec.msgpack.decode(data, type=_Document)
    except FileNotFoundError:
        return
    except (OSError, msgspec.DecodeError) as error:
        log.warning("%s: the figures of the charts cannot be read, and begin anew: %s", path, error)
        return
    if document.version != VERSION:
        return
    rings.marks.extend(Mark(time, text) for time, text in document.marks)
    for name, (first, values) in list(document.tracks.items())[:NAMES_MAX]:
        track = rings.begin(name)
        track.coarse.restore(first, values)
