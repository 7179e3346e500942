"""The directory of a local tree: sockets, certificates, a lock."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shlex
import shutil
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from broker import atomic
from broker.errors import ConfigError
from broker.obstacles import obstacle
from broker.trust import folder_objection

_LOCK: Final = "lock"
_ENVIRONMENT: Final = "local-env"
_BASHRC: Final = "local-bashrc"
_LOOK_S: Final = 0.1
_PATH: Final = """\
case ":$PATH:" in
    *:{0}:*) ;;
    *) [ -n "${{VIRTUAL_ENV-}}" ] && PATH="$PATH":{0} || PATH={0}:"$PATH"; export PATH ;;
esac
"""
_OURS: Final = ("local-", "tree-", "rank-")
"""How the names begin of what an instance makes here, beside the lock."""


class Rundir:
    """The directory of a local tree: sockets, certificates, a lock; private, and gone after ``remove``.

    Args:
        path: where; None makes a new one below ``$TMPDIR``.
        guests: others may reach the sockets in it (mode 0711), as the instance lets them in; one that was there
            before keeps its mode.
        own: it is for nothing else: nobody else may enter it, what an instance that was killed has left in it is
            removed, and so is the directory at the end, even if it was there before.
        wait_s: how long the instance that has it may take to end; 0: no time.

    Attributes:
        path: of the directory.

    Raises:
        ConfigError: it cannot be made, others may write to it, or a local tree runs there.
    """

    def __init__(
        self, path: str | None = None, *, guests: bool = False, own: bool = False, wait_s: float = 0.0
    ) -> None:
        self._own = own
        try:
            lock = self._take(path, wait_s)
            if self._made and guests:
                os.chmod(self.path, 0o711)  # noqa: S103 - certificates in it are 0600, sockets ask who comes
        except OSError as error:
            raise obstacle(
                f"run directory {path or tempfile.gettempdir()}: {error.strerror}", error
            ) from error
        if lock is None:
            raise ConfigError(
                f"run directory {self.path}: a local tree runs there already; end it or choose another --rundir"
            )
        self._lock: int = lock
        if own:
            self._empty()

    def _take(self, path: str | None, wait_s: float) -> int | None:
        while True:
            self._made: bool = path is None or not os.path.lexists(path)
            self.path: str = self._make(path)
            with contextlib.suppress(FileNotFoundError):  # the instance that had it has removed it
                return lock_file(Path(self.path, _LOCK), wait_s)

    def _make(self, path: str | None) -> str:
        if path is None:
            return tempfile.mkdtemp(prefix="headgate-")
        path = os.path.abspath(path)
        if self._made:
            with contextlib.suppress(FileExistsError):  # by another instance, at this very moment
                os.mkdir(path, 0o700)
        seen = os.lstat(path)
        if folder_objection(path) or seen.st_uid != os.getuid() or (self._own and seen.st_mode & 0o077):
            may = "enter" if self._own else "write to"
            raise ConfigError(
                f"run directory {path}: expected a directory of ours that nobody else may {may}"
            )
        return path

    def write_environment(self, variables: Mapping[str, str], directory: str) -> str:
        """Write a file that sets ``variables`` in the shell that reads it; returns its path.

        Args:
            variables: name -> value.
            directory: of ``headgate`` and its Python; it comes first in ``$PATH``, last in an environment of Python's.

        Raises:
            ConfigError: it cannot be written.
        """
        lines = [f"export {name}={shlex.quote(value)}\n" for name, value in variables.items()]
        if directory:
            lines.append(_PATH.format(shlex.quote(directory)))
        return self._write(_ENVIRONMENT, "".join(lines))

    def write_bashrc(self, environment: str) -> str:
        """Write what an interactive bash reads: the user's ``.bashrc``, then ``environment``, which wins."""
        text = f"[ -f ~/.bashrc ] && . ~/.bashrc\n. {shlex.quote(environment)}\n"
        return self._write(_BASHRC, text)

    def _write(self, name: str, text: str) -> str:
        path = os.path.join(self.path, name)
        try:
            atomic.write(path, text.encode())
        except OSError as error:
            raise obstacle(f"{path}: {error.strerror}", error) from error
        return path

    def remove(self) -> None:
        """Remove what the instance made; the directory, too, unless it was there before."""
        if self._made or self._own:
            shutil.rmtree(self.path, ignore_errors=True)
        else:
            self._empty(_OURS)
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(self.path, _LOCK))
        os.close(self._lock)

    def _empty(self, names: tuple[str, ...] = ("",)) -> None:
        """Remove what is in it, but the lock, and has a name that begins as one of ``names``."""
        for entry in Path(self.path).iterdir():
            if entry.name != _LOCK and entry.name.startswith(names):
                with contextlib.suppress(OSError):
                    shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()


def lock_file(path: Path, wait_s: float) -> int | None:
    """A lock on the file at this path, which is made; None when somebody still has it after ``wait_s``.

    Whoever has it may remove the file, and the folder it is in, before it lets go.

    Raises:
        OSError: the operating system says no.
    """
    until = time.monotonic() + wait_s
    while True:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(lock), path.stat()):
                return lock
        except (BlockingIOError, FileNotFoundError):
            pass
        os.close(lock)
        if time.monotonic() >= until:
            return None
        time.sleep(_LOOK_S)
