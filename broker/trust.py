"""The process at the other end of a local socket: one answer for all that dial one.

A user that may write into the folder of a socket may put another socket there, reads what is sent, and is believed. So
it has to be a folder, no link to one, that is ours or root's and that nobody else may write to. That of a service's
user counts where root or we made it for that user, in a folder that nobody else may write to (``/run/headgate``), and
that of whom ``$HEADGATE_TRUSTED_USERS`` names. Then the kernel says who listens (SO_PEERCRED): we, root, or the
folder's user.

In a user namespace other people's uids all look like one (65534): it is trusted only where it is named.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
from typing import Final

from broker.identity import NOBODY
from broker.sockets import peer_credentials, unix_address

TRUSTED_USERS: Final = "HEADGATE_TRUSTED_USERS"
"""Environment: names or uids of users, with commas between, whose local sockets are spoken to as well."""
_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH


def folder_objection(folder: str) -> str:
    """Why the sockets in ``folder`` must not be used; "" nothing speaks against it, or it is not there."""
    folder = os.path.abspath(folder)  # behind a slash at its end a link would be followed
    try:
        found = os.lstat(folder)
    except OSError:
        return ""
    return _objection(folder, found)


def _objection(folder: str, found: os.stat_result) -> str:
    if stat.S_ISLNK(found.st_mode):
        return f"{folder}: saw a symbolic link, expected the folder itself: whose it is might change"
    if not stat.S_ISDIR(found.st_mode):
        return f"{folder}: expected a folder"
    if found.st_mode & _OTHERS_WRITE:
        mode = stat.S_IMODE(found.st_mode)
        # also for a group of one: who is in it now, and later, is not told by the folder
        remedies = f"chmod go-w {folder}, or umask 022 for whoever makes it"
        return (
            f"{folder}: saw mode {mode:04o}, which lets others put sockets there, expected 0700: {remedies}"
        )
    if found.st_uid in _trusted():
        return ""
    if found.st_uid == NOBODY:
        whose = f"saw the folder of uid {NOBODY}, which may be anybody's"
        return f"{folder}: {whose}, expected one of {_expected(NOBODY)}"
    if not is_kept(os.path.dirname(folder)):
        whose = f"saw the folder of uid {found.st_uid}, which not only root or we can have put there"
        return f"{folder}: {whose}, expected one of {_expected(found.st_uid)}"
    return ""


def socket_objection(path: str) -> str:
    """Why the socket at ``path`` must not be dialled, by the folder that it is in; "" nothing speaks against it.

    An abstract one (``@NAME``) is in none: who listens is looked at once connected.
    """
    return "" if path.startswith("@") else folder_objection(os.path.dirname(os.path.abspath(path)))


def peer_objection(sock: socket.socket, path: str) -> str:
    """Why the process that listens at ``path``, to which ``sock`` has connected, must not be spoken to; "" nothing.

    An abstract socket (``@NAME``) is in no folder that could say whose sockets may be there.
    """
    uid = peer_uid(sock)
    if uid in _trusted():
        return ""
    # looked at anew: where others may make folders, it need not be the one that was looked at before
    folder = os.path.dirname(os.path.abspath(path))
    try:
        found = None if path.startswith("@") else os.lstat(folder)
    except OSError:
        found = None
    if found is not None and found.st_uid == uid != NOBODY and not _objection(folder, found):
        return ""
    return f"{path}: saw a process of uid {uid} at the other end, expected one of {_expected(uid)}"


def connect(sock: socket.socket, path: str) -> None:
    """Connect to a socket that may be trusted.

    Raises:
        Untrusted: it may not. OSError: as of ``socket.connect``.
    """
    if text := socket_objection(path):
        raise Untrusted(text)
    sock.connect(unix_address(path))
    if text := peer_objection(sock, path):
        raise Untrusted(text)


class Untrusted(PermissionError):
    """A local socket was made by a user that we do not trust; the text says why."""

    def __init__(self, text: str) -> None:
        super().__init__(errno.EACCES, text)


def peer_uid(sock: socket.socket) -> int:
    """The user whose process listens, or has connected, at the other end of a UNIX socket."""
    return peer_credentials(sock)[1]


def _trusted() -> frozenset[int]:
    named = {uid for name in os.environ.get(TRUSTED_USERS, "").split(",") for uid in _uids(name.strip())}
    return frozenset({0, os.geteuid(), *named})


def _uids(name: str) -> tuple[int, ...]:
    if name.isascii() and name.isdigit():
        return (int(name),)
    import pwd  # late: few name somebody

    try:
        return (pwd.getpwnam(name).pw_uid,) if name else ()
    except KeyError:
        return ()


def is_kept(folder: str) -> bool:
    """Whether only root or we may make folders in ``folder``."""
    try:
        found = os.stat(folder)
    except OSError:
        return False
    return found.st_uid in (0, os.geteuid()) and not found.st_mode & _OTHERS_WRITE


def overflow_uid() -> int | None:
    """The uid every unmapped user appears as, where ``/proc/self/uid_map`` is not the full identity map.

    None where each uid stands for one principal.
    """
    try:
        with open("/proc/self/uid_map", encoding="ascii") as mapping:
            entries = [tuple(map(int, line.split())) for line in mapping]
        if entries == [(0, 0, 4294967295)]:
            return None
        with open("/proc/sys/kernel/overflowuid", encoding="ascii") as overflow:
            return int(overflow.read())
    except (OSError, ValueError):
        return None


def _expected(uid: int) -> str:
    return (
        f"our uid {os.geteuid()} or of root; {TRUSTED_USERS}={uid} in the environment trusts that user, too"
    )
