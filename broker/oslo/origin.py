"""What libzmq says of the process at the other end of an ipc connection (pure)."""

from __future__ import annotations


def credentials(address: str) -> tuple[int | None, int | None, int | None]:
    """uid, gid and pid (SO_PEERCRED) that end an ipc peer's address: ``localhost:UID:GID:PID``; Nones without.

    The address is the property ``Peer-Address`` of each of its messages and what a ZAP handler is told.

    >>> credentials("localhost:1000:100:4711")
    (1000, 100, 4711)
    """
    fields = address.rsplit(":", 3)[1:]
    if len(fields) != 3 or not all(field.isascii() and field.isdigit() for field in fields):
        return None, None, None
    uid, gid, pid = map(int, fields)
    return uid, gid, pid
