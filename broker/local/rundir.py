"""The directory of a local tree: sockets, certificates, a lock."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shlex
import shutil
import tempfile
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

    Raises:
        ConfigError: it cannot be made, others may write to it, or a local tree runs there.
    """

    def __init__(self, path: str | None = None, *, guests: bool = False) -> None:
        self._made: bool = path is None or not os.path.lexists(path)
        try:
            self.path: str = self._make(path)
            if self._made and guests:
                os.chmod(self.path, 0o711)  # noqa: S103 - certificates in it are 0600, sockets ask who comes
            self._lock: int = self._take()
        except OSError as error:
            raise obstacle(
                f"run directory {path or tempfile.gettempdir()}: {error.strerror}", error
            ) from error

    def _make(self, path: str | None) -> str:
        if path is None:
            return tempfile.mkdtemp(prefix="headgate-")
        path = os.path.abspath(path)
        if self._made:
            os.mkdir(path, 0o700)
        if folder_objection(path) or os.lstat(path).st_uid != os.getuid():
            raise ConfigError(
                f"run directory {path}: expected a directory of ours that nobody else may write to"
            )
        return path

    def _take(self) -> int:
        lock = os.open(os.path.join(self.path, _LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise ConfigError(
                f"run directory {self.path}: a local tree runs there already; end it or choose another --rundir"
            ) from None
        return lock

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
        if self._made:
            shutil.rmtree(self.path, ignore_errors=True)
        else:
            for entry in Path(self.path).iterdir():
                if entry.name == _LOCK or entry.name.startswith(_OURS):
                    with contextlib.suppress(OSError):
                        entry.unlink()
        os.close(self._lock)
