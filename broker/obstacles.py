"""What stands in the way of a start: whether it may pass by itself, or a person has to change something.

The one place that decides. An address that is not there yet, a port in use, a name that nobody can resolve now, a full
disk, a file that is yet to be mounted: ``NotReady``, exit code 75. Everything else is ``ConfigError``, exit code 78.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import socket
import stat
import sys
from typing import Final

from broker.errors import ConfigError, NotReady
from broker.sockets import peer_credentials, tcp_listeners

PASSING: Final = frozenset(
    {
        errno.EADDRINUSE,
        errno.EADDRNOTAVAIL,
        errno.EAGAIN,
        errno.EBUSY,
        errno.EDQUOT,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
        errno.EMFILE,
        errno.ENETDOWN,
        errno.ENETUNREACH,
        errno.ENFILE,
        errno.ENOBUFS,
        errno.ENODEV,
        errno.ENOMEM,
        errno.ENOSPC,
        errno.ESTALE,
        errno.ETIMEDOUT,
    }
)
"""What the system says of things that come and go without anybody's doing."""
_OF_SQLITE: Final = {"SQLITE_FULL": errno.ENOSPC, "SQLITE_BUSY": errno.EAGAIN, "SQLITE_LOCKED": errno.EAGAIN}


def obstacle(
    text: str, error: Exception | int, *, absent: bool = False, port: int = 0, path: str = ""
) -> ConfigError:
    """What to raise for ``error``, which the system gave when a setting was used.

    Args:
        text: names the setting and what was said.
        error: an ``OSError``, an error of ZeroMQ or SQLite, or an error number.
        absent: a file that is not there may come, as a mount or a secret does.
        port: of TCP, that was to be listened at: if it is in use, ``text`` gets by whom.
        path: the same of a UNIX socket.
    """
    number = error if isinstance(error, int) else _number(error)
    if number == errno.EADDRINUSE and (holder := _listener(port) if port else _owner(path) if path else ""):
        text = f"{text}, by {holder}"
    if path and number == errno.EADDRINUSE and not _is_socket(path):
        return ConfigError(text, number)
    passes = isinstance(error, socket.gaierror) or number in PASSING or (absent and number == errno.ENOENT)
    kind = NotReady if passes else ConfigError
    # numbers of getaddrinfo are no error numbers
    return kind(text, errno.EHOSTUNREACH if isinstance(error, socket.gaierror) else number)


def _number(error: Exception) -> int | None:
    tls = sys.modules.get("ssl")  # whoever loaded no TLS has no error of it
    if tls is not None and isinstance(error, tls.SSLError):
        return None  # its numbers are OpenSSL's
    told = getattr(error, "sqlite_errorname", "")
    number: int | None = next(
        (number for name, number in _OF_SQLITE.items() if told.startswith(name)),
        getattr(error, "errno", None),
    )
    return number


def _is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(os.stat(path).st_mode)
    except OSError:
        return True  # it has gone meanwhile


def _owner(path: str) -> str:
    """The process that listens at a UNIX socket; "" when the kernel does not tell."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.setblocking(False)
        sock.connect(path)
        return _process(peer_credentials(sock)[0])
    return ""


def _listener(port: int) -> str:
    """Which process of ours listens at a TCP port; "" when it is another user's."""
    sockets = {f"socket:[{inode}]" for _address, inode in tcp_listeners(port)}
    for pid in filter(str.isdecimal, os.listdir("/proc") if sockets else ()):
        with contextlib.suppress(OSError):
            for fd in os.listdir(f"/proc/{pid}/fd"):
                if os.readlink(f"/proc/{pid}/fd/{fd}") in sockets:
                    return _process(int(pid))
    return ""


def _process(pid: int) -> str:
    if pid == os.getpid():
        return "this very process"
    name = ""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as comm:
        name = re.sub(r"[^\x21-\x7e]", "?", comm.read().rstrip("\n"))
    return f"{name} (process {pid})" if name else f"process {pid}"
