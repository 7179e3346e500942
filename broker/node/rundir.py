"""The directory of a broker's sockets."""

from __future__ import annotations

import errno
import logging
import os
import stat

from broker.errors import ConfigError
from broker.obstacles import obstacle

log = logging.getLogger("headgate")


def make_rundir(path: str, *, guests: bool = False) -> None:
    """Make the directory for sockets, private to us, or (``guests``) such that others reach the sockets in it but
    cannot list it; one that exists stays as it is.

    Raises:
        ConfigError: it cannot be made, is no directory, belongs to somebody else, or we may not write there.
    """
    try:
        try:
            os.makedirs(path, mode=0o700)
            os.chmod(path, 0o711 if guests else 0o700)  # whatever the umask
        except FileExistsError:
            pass  # another broker of this host may have made it this very moment
        seen = os.stat(path)
    except OSError as error:
        raise obstacle(f"broker.rundir {path}: {error.strerror}", error) from error
    if not stat.S_ISDIR(seen.st_mode) or seen.st_uid != os.getuid():
        raise ConfigError(
            f"broker.rundir {path}: expected a directory of uid {os.getuid()}, it is uid {seen.st_uid}'s"
        )
    if not os.access(path, os.W_OK | os.X_OK):
        raise ConfigError(f"broker.rundir {path}: no permission to make sockets there", errno.EACCES)
    if guests and not seen.st_mode & stat.S_IXOTH:
        log.warning(
            "access.allow_guest_user is set, but others cannot enter %s (mode %04o)",
            path,
            seen.st_mode & 0o7777,
        )
