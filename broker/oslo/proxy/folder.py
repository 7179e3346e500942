"""The folder of a node's sockets: who may use it is who may use the node; one proxy for each room.

libzmq takes an ``ipc://`` path over from whoever listens there, without a word: a lock for each room keeps a second
proxy from doing that.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Iterable
from typing import Final

from broker.endpoints import SHORTER_HELPS
from broker.errors import ConfigError
from broker.obstacles import obstacle
from broker.oslo.names import DIRECTORY_SOCKET
from broker.oslo.reactor.binding import group_id

PATH_BYTES_MAX: Final = 107 - len(f"/{DIRECTORY_SOCKET}")
"""Of the folder, so that the longest name in it fits a UNIX socket address."""
_NOT_OURS: Final = stat.S_IWGRP | stat.S_IRWXO


class NodeFolder:
    """One node's folder, as long as this process runs rooms there.

    Args:
        path: where; made when it is missing, with its parents.
        group: that may use it, too; "" nobody but us.
    """

    def __init__(self, path: str, group: str = "") -> None:
        self.path = path
        self._group = group
        self._locks: dict[str, int] = {}

    def open(self, rooms: Iterable[str]) -> None:
        """Make or check it, and take what ``rooms`` need for ourselves.

        Raises:
            ConfigError: the path is too long; the folder is another user's, or open to others; another proxy has one of
                the rooms; or the system refuses something.
        """
        try:
            self._make()
            for room in sorted(rooms):
                self._lock(room)
        except BaseException as error:
            self.close()
            if isinstance(error, OSError):
                text = f"ipc_dir {self.path}: cannot be made or used: {error.strerror}"
                raise obstacle(text, error) from error
            raise

    def close(self) -> None:
        """Let another proxy have the rooms. Harmless twice."""
        for descriptor in self._locks.values():
            os.close(descriptor)
        self._locks.clear()

    def _make(self) -> None:
        if len(os.fsencode(self.path)) > PATH_BYTES_MAX:
            raise ConfigError(f"ipc_dir {self.path!r}: longer than {PATH_BYTES_MAX} bytes; {SHORTER_HELPS}")
        if not os.path.isabs(self.path):
            raise ConfigError(f"ipc_dir {self.path!r}: expected an absolute path")
        os.makedirs(os.path.dirname(self.path), 0o755, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.mkdir(self.path, 0o700)
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        folder = os.open(self.path, flags)
        try:
            self._check(os.fstat(folder))
            if self._group:
                os.fchown(folder, -1, group_id(self._group))
            os.fchmod(folder, 0o750 if self._group else 0o700)
        finally:
            os.close(folder)

    def _check(self, found: os.stat_result) -> None:
        if found.st_uid != os.geteuid():
            raise ConfigError(
                f"ipc_dir {self.path}: saw the folder of uid {found.st_uid}, expected ours, uid {os.geteuid()}",
                errno.EPERM,
            )
        if found.st_mode & _NOT_OURS:
            mode = stat.S_IMODE(found.st_mode)
            raise ConfigError(
                f"ipc_dir {self.path}: saw mode {mode:04o}, which lets others in, expected 0700 or 0750",
                errno.EPERM,
            )

    def _lock(self, room: str) -> None:
        path = os.path.join(self.path, f"{room}.lock")
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        self._locks[room] = descriptor
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 20, 0).decode("ascii", "replace").strip() or "unknown"
            raise obstacle(
                f"{self.path}: another proxy (pid {holder}) runs {room} here; one is enough for a node",
                errno.EADDRINUSE,
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, b"%d\n" % os.getpid(), 0)
