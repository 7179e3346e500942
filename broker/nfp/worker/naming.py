"""What a worker is called when nobody gave it a name: the same each time, and different from its neighbours.

``SERVICE-HOST``, or ``SERVICE-HOST-2`` and so on for further ones that share the folder. A worker that is started again
so has its store and its key, and its broker knows it. ``peers/NAME.lock`` is locked while NAME is in use here.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from broker.errors import ConfigError
from broker.nfp.names import NAME_BYTES_MAX
from broker.nfp.peer.keys import peer_file
from broker.nfp.store.database import Lock
from broker.obstacles import obstacle

log = logging.getLogger("headgate")
NEIGHBOURS_MAX: Final = 1000
"""Workers of one service in one folder; a machine has not room for as many processes."""
_ENDING_BYTES: Final = 12
"""Room for a number behind the name."""


def usual_name(service: str) -> str:
    """``SERVICE-HOST``, cut to what a name may be with a number behind it."""
    whole = f"{service}-{socket.gethostname()}".encode()
    return whole[: NAME_BYTES_MAX - _ENDING_BYTES].decode(errors="ignore")


class Naming:
    """The name of one worker, ``given`` or to be found; it is kept for itself from ``take`` to ``release``.

    Attributes:
        first: what it will be called when nobody else is; "" with a given name.
    """

    def __init__(self, service: str, given: str) -> None:
        self.first = "" if given else usual_name(service)
        self._found = self.first
        self._lock: Lock | None = None

    def take(self, folder: Path, name: str, *, must: bool) -> str:
        """The name to be used.

        Args:
            folder: of keys and stores.
            name: what it is called now; it stays when it was given.
            must: raise when the folder cannot be written, else ``SERVICE-HOST-PID`` is as good.

        Raises:
            ConfigError: the folder cannot be used, or all names are taken.
        """
        if self._lock is not None:
            return name
        if name != self._found:
            if (
                must
            ):  # else nothing is left there: whether a given name is in use its store and the broker tell
                self._hold(folder, name)
            return name
        try:
            self._found = next(each for each in self._candidates() if self._hold(folder, each))
        except StopIteration:
            raise ConfigError(
                f"{folder}: {NEIGHBOURS_MAX} workers are called {self.first}; give a name"
            ) from None
        except ConfigError:
            if must:
                raise
            self._found = f"{self.first}-{os.getpid()}"
        return self._found

    def _candidates(self) -> Iterator[str]:
        yield self._found
        yield self.first
        for number in range(2, NEIGHBOURS_MAX + 1):
            yield f"{self.first}-{number}"

    def _hold(self, folder: Path, name: str) -> bool:
        path = peer_file(folder, name, "")
        try:
            self._lock = Lock(path, "name")
        except ConfigError:
            return False
        except OSError as error:
            raise obstacle(f"{path}.lock: {error.strerror}", error) from error
        return True

    def release(self) -> None:
        """Others may have it now. Harmless twice."""
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.release()
