"""The directory of a broker's sockets."""

from __future__ import annotations

import errno
import logging
import os
import stat

from broker.errors import ConfigError
from broker.obstacles import obstacle
from broker.trust import folder_objection

log = logging.getLogger("headgate")

_MODES = {False: 0o700, True: 0o711}
"""Of the directory, by whether guests are let in."""


def make_rundir(path: str, *, guests: bool = False) -> bool:
    """Make the directory for sockets, private to us, or (``guests``) such that others reach the sockets in it but
    cannot list it; one that exists stays as it is. Returns whether it was made here.

    Raises:
        ConfigError: it cannot be made, is no directory or a link to one, belongs to somebody else, others may write
            there, or we may not.
    """
    made = False
    try:
        try:
            os.makedirs(path, mode=0o700)
            os.chmod(path, _MODES[guests])  # whatever the umask
            made = True
        except FileExistsError:
            pass  # another broker of this host may have made it this very moment
        seen = os.lstat(path)
    except OSError as error:
        raise obstacle(f"broker.rundir {path}: {error.strerror}", error) from error
    if text := folder_objection(path):
        raise ConfigError(f"broker.rundir {text}")
    # the owner of the folder could put another socket in the place of ours
    if seen.st_uid != os.getuid():
        raise ConfigError(
            f"broker.rundir {path}: expected a directory of uid {os.getuid()}, it is uid {seen.st_uid}'s"
        )
    if not os.access(path, os.W_OK | os.X_OK):
        raise ConfigError(f"broker.rundir {path}: no permission to make sockets there", errno.EACCES)
    if guests:
        _check_enterable(path, seen.st_mode)
    return made


def open_rundir(path: str, *, made: bool, guests: bool) -> None:
    """``guests`` has changed: a directory that was ``made`` here is opened or closed as at the start; of another one
    it is said where guests cannot enter it.
    """
    try:
        if made:
            os.chmod(path, _MODES[guests])
        mode = os.stat(path).st_mode
    except OSError as error:
        log.error("broker.rundir %s: access.allow_guest_user cannot be followed: %s", path, error.strerror)
        return
    if guests:
        _check_enterable(path, mode)


def _check_enterable(path: str, mode: int) -> None:
    if not mode & stat.S_IXOTH:
        log.warning(
            "access.allow_guest_user is set, but others cannot enter %s (mode %04o): it was there before us; make it "
            "0711 (chmod, or RuntimeDirectoryMode of the unit)",
            path,
            mode & 0o7777,
        )
