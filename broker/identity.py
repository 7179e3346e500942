"""The identity of the peer at the other end of a link (RFC 12), as plain values that every room may use."""

from __future__ import annotations

from enum import IntFlag
from struct import Struct
from typing import NamedTuple

USERID_UNKNOWN = 0xFFFFFFFF
"""Userid of a message nobody has stamped yet (RFC 3, ``userid-unknown``)."""

NOBODY = 65534
"""Userid of whoever has none of their own: several people are it, and so nothing belongs to it: no job, no result, no
service, no private event. Only who bears the role owner besides has all of that."""

_CRED = Struct(">II")


class Role(IntFlag):
    """Bits of a rolemask (RFC 12, "Credential"); ADMIN is newer than the seed texts."""

    NONE = 0
    OWNER = 1
    USER = 2
    LOCAL = 4
    ADMIN = 8
    ALL = 0xFFFFFFFF


class Credentials(NamedTuple):
    """The (userid, rolemask) pair of a message; ``(0xffffffff, 0)`` is the invalid, unstamped one."""

    userid: int = USERID_UNKNOWN
    rolemask: int = 0

    def encode(self) -> bytes:
        """The eight bytes at offset 4 of PROTO: two big-endian u32."""
        return _CRED.pack(self.userid, self.rolemask)

    @property
    def owner(self) -> bool:
        """True when the OWNER bit is set."""
        return bool(self.rolemask & Role.OWNER)


class PeerKey(NamedTuple):
    """What a key stands for: a broker of the tree."""

    rank: int | None = None
    """Its rank; None when brokers share a key, as in deployed Flux: hello says which one it is."""


class ClientKey(NamedTuple):
    """What a key stands for: a client."""

    user: Credentials
    """What its messages are stamped with."""


Key = PeerKey | ClientKey


class PeerInfo(NamedTuple):
    """What the transport knows about the peer of a link before any message came."""

    address: str
    """URI-like name for logs, e.g. ``local:///run/headgate/local-0#fd12``."""
    uid: int | None = None
    """Peer uid from SO_PEERCRED; None off UNIX sockets."""
    gid: int | None = None
    """Peer gid from SO_PEERCRED; None off UNIX sockets."""
    pid: int | None = None
    """Peer pid, for log lines only: it may be reused."""
    key: str | None = None
    """The key that the handshake proved, as ``Options.keys`` has it (CURVE: Z85); None where none was."""
    user: Credentials | None = None
    """Credentials a listener has already established (a CURVE client whose key is known)."""
    rank: int | None = None
    """Tree peer: the rank bound to its key; None for clients. It makes its bearer a trusted broker."""
    local: bool = False
    """True when the peer runs on this host's kernel (LOCAL role may be assigned)."""
