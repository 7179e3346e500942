"""The directory of a test instance: sockets, certificates, a lock."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from pathlib import Path
from typing import Final

from broker.errors import ConfigError

_LOCK: Final = "lock"
_PREFIX: Final = "headgate-"
_MADE: Final = b"made for a test instance, removed with it\n"
"""What the lock says in a directory that has no life beyond its instance."""
_OURS: Final = (_LOCK, "local-", "tree-", "rank-")
"""How the names begin of what an instance makes here."""


class Rundir:
    """The directory of a test instance: sockets, certificates, a lock; private, and gone after ``remove``.

    An instance that was killed cannot remove its own, with keys in it: the next one of this user does.

    Args:
        path: where; None makes a new one below ``$TMPDIR``.
        guests: others may reach the sockets in it (mode 0711), as the instance lets them in; one that was there
            before keeps its mode.

    Raises:
        ConfigError: it cannot be made, others may write to it, or a test instance runs there.
    """

    def __init__(self, path: str | None = None, *, guests: bool = False) -> None:
        self._made: bool = path is None or not os.path.lexists(path)
        try:
            sweep()
            self.path: str = self._make(path)
            self._lock: int = self._take()
            if path is None:
                self._name()
            if self._made and guests:
                os.chmod(self.path, 0o711)  # noqa: S103 - certificates in it are 0600, sockets ask who comes
        except OSError as error:
            raise ConfigError(
                f"run directory {path or tempfile.gettempdir()}: {error.strerror}", error.errno
            ) from error

    def _make(self, path: str | None) -> str:
        if path is None:
            return tempfile.mkdtemp(prefix=f".{_PREFIX}")
        path = os.path.abspath(path)
        if self._made:
            os.mkdir(path, 0o700)
        seen = os.stat(path)
        if not stat.S_ISDIR(seen.st_mode) or seen.st_uid != os.getuid() or seen.st_mode & 0o022:
            raise ConfigError(
                f"run directory {path}: expected a directory of ours that nobody else may write to"
            )
        return path

    def _name(self) -> None:
        """Give a new directory its name, now that it is locked: before, a ``sweep`` could take it for a dead one's."""
        os.write(self._lock, _MADE)
        folder, name = os.path.split(self.path)
        final = os.path.join(folder, name.removeprefix("."))
        os.rename(self.path, final)
        self.path = final

    def _take(self) -> int:
        lock = os.open(os.path.join(self.path, _LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise ConfigError(
                f"run directory {self.path}: a test instance runs there already; end it or choose another --rundir"
            ) from None
        return lock

    def remove(self) -> None:
        """Remove what the instance made; the directory, too, unless it was there before."""
        if self._made:
            shutil.rmtree(self.path, ignore_errors=True)
        else:
            for entry in Path(self.path).iterdir():
                if entry.name.startswith(_OURS):
                    with contextlib.suppress(OSError):
                        entry.unlink()
        os.close(self._lock)


def sweep() -> None:
    """Remove directories below ``$TMPDIR`` that instances of this user made and left behind because they were killed.

    One whose lock is held is in use, also by a rank that is still leaving; one without our word in its lock, or of
    somebody else, is not ours to remove.
    """
    with contextlib.suppress(OSError), os.scandir(tempfile.gettempdir()) as entries:
        for entry in entries:
            if entry.name.startswith(_PREFIX) and entry.is_dir(follow_symlinks=False):
                with contextlib.suppress(OSError):
                    _sweep_one(entry)


def _sweep_one(entry: os.DirEntry[str]) -> None:
    if entry.stat(follow_symlinks=False).st_uid != os.getuid():
        return
    lock = os.open(os.path.join(entry.path, _LOCK), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.read(lock, len(_MADE) + 1) == _MADE:
            shutil.rmtree(entry.path, ignore_errors=True)
    finally:
        os.close(lock)
