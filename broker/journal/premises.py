"""What must be there before a writer works: directory, lock, libraries, segments of a version that it knows.

The writer would find out itself, but only in its own log; here a wrong setting is refused while its author looks on.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import stat
import time
import zlib
from importlib.util import find_spec
from typing import Final

from broker import home
from broker.errors import ConfigError
from broker.extras import lacking
from broker.journal.layout import HEADER_BYTES, SEGMENT_HEADER, SEGMENT_MAGIC, SUFFIX, VERSION
from broker.journal.options import JournalOptions
from broker.obstacles import obstacle

LIBRARIES: Final = {"none": ("numpy",), "zstd": ("numpy", "zstandard"), "lz4": ("numpy", "lz4")}
"""What the writer imports, by codec."""
LOOK_S: Final = 0.02
_NUMBER: Final = re.compile(rf"-\d{{20}}{re.escape(SUFFIX)}")


def take(options: JournalOptions, patience_s: float = 0.0) -> Lock:
    """Make the directory (mode 0700), see whether a writer can work there, and take its lock, which the writer is to
    inherit: nobody comes in between.

    Args:
        options: of the writer.
        patience_s: how long a former writer may take to leave; that of a broker which was killed writes what it still
            has. 0 does not wait.

    Raises:
        ConfigError: a library is missing, the directory cannot be made or written, or is not ours alone, another writer
            of this name is at work in it, or it holds segments of a version that is not known here.
    """
    for library in LIBRARIES[options.codec]:
        if find_spec(library) is None:
            raise ConfigError(f"journal: {lacking(library)}")
    with contextlib.ExitStack() as undo:
        lock = undo.enter_context(contextlib.closing(Lock(options, patience_s)))
        try:
            check_version(options.directory, options.writer)
        except OSError as error:
            text = f"journal: {error.filename or options.directory}: {error.strerror}"
            raise obstacle(text, error, absent=True) from error
        undo.pop_all()
    return lock


class Lock:
    """The lock of a writer's name in its directory, which is made (mode 0700) when it is missing.

    Args:
        options: of the writer.
        patience_s: how long a former one may take to leave.
        held: the lock file, locked already by who started us; -1: it is to be locked.

    Attributes:
        fd: the lock file, open for reading and writing.

    Raises:
        ConfigError: the directory cannot be made or written, or is not ours alone; or another writer of this name is at
            work and does not leave in time.
    """

    def __init__(self, options: JournalOptions, patience_s: float = 0.0, held: int = -1) -> None:
        directory = options.directory
        self.fd = held
        if held >= 0:
            return
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            home.make(directory)
            _check_owner(directory)
            self.fd = os.open(lock_path(options), flags, 0o600)
        except OSError as error:
            text = f"journal directory {directory}: {error.strerror}"
            raise obstacle(text, error, absent=True) from error
        if not _free(self.fd, time.monotonic() + patience_s):
            self.close()
            text = f"journal directory {directory}: another writer named {options.writer} is at work there"
            raise obstacle(text, errno.EBUSY)

    def close(self) -> None:
        """Release the lock, unless a process that inherited it still holds it."""
        os.close(self.fd)


def _check_owner(directory: str) -> None:
    """Check that the directory is ours alone: payloads and credentials go there, and its segments are trusted.

    Raises:
        ConfigError: it is somebody else's, or everybody may write there. OSError: it may not be looked at.
    """
    about = os.stat(directory)
    if about.st_uid != os.geteuid():
        text = f"journal directory {directory}: it belongs to uid {about.st_uid}, expected {os.geteuid()}"
        raise ConfigError(text, errno.EPERM)
    if about.st_mode & stat.S_IWOTH:
        mode = stat.S_IMODE(about.st_mode)
        text = f"journal directory {directory}: mode {mode:04o} lets everybody write there, expected 0700"
        raise ConfigError(text, errno.EPERM)


def check_version(directory: str, writer: str) -> None:
    """Check that this program knows the version of a writer's newest segment.

    Raises:
        ConfigError: a program of another version wrote it: to go on behind it, or to mend it, would spoil it.
        OSError: the directory or the segment cannot be read.
    """
    with os.scandir(directory) as entries:
        own = [
            entry.name
            for entry in entries
            if entry.name.startswith(writer)
            and _NUMBER.fullmatch(entry.name[len(writer) :])
            and entry.is_file(follow_symlinks=False)
        ]
    if not own:
        return
    path = os.path.join(directory, max(own))
    with open(path, "rb") as file:
        head = file.read(HEADER_BYTES)
    if len(head) < HEADER_BYTES:
        return
    magic, version, *_, crc = SEGMENT_HEADER.unpack(head)
    if magic == SEGMENT_MAGIC and crc == zlib.crc32(head[:-4]) and version != VERSION:
        text = f"{path}: segment of version {version}, this writer knows {VERSION}: use another directory"
        raise ConfigError(text, errno.ENOTSUP)


def _free(lock: int, deadline: float) -> bool:
    """Take the lock; False when another process still holds it at the deadline."""
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(LOOK_S)
        else:
            return True


def lock_path(options: JournalOptions) -> str:
    """The file that a writer of this name locks as long as it lives."""
    return os.path.join(options.directory, f".{options.writer}.lock")
