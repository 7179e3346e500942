"""The stamp of each message as it enters (RFC 12, "Credential Assignment", "The Local Role").

A stamp is the eight bytes userid + rolemask of PROTO. All messages of one peer are stamped by one policy; equal input
gives equal output, so callers may remember results.
"""

# compiled: mypyc

from __future__ import annotations

from struct import Struct
from typing import Final

from broker.identity import USERID_UNKNOWN, Credentials, Role

_CRED = Struct(">II")
NOT_LOCAL: Final = 0xFFFFFFFF & ~int(Role.LOCAL)


class StampPolicy:
    """How messages of one peer are stamped.

    Args:
        cred: the peer's own credentials, without LOCAL.
        pass_through: True for the owner: a valid stamp is kept, a missing half is filled in.
        local: the peer is on this machine; LOCAL is added where the stamp is set, never to one passed through. A peer
            that is not local cannot speak for one that is: a LOCAL that it claims is cleared.
        tree_hop: the peer is a broker of this instance: its stamps are trusted and lose LOCAL.
    """

    __slots__ = ("cred", "local", "pass_through", "tree_hop")

    def __init__(self, cred: Credentials, *, pass_through: bool, local: bool, tree_hop: bool = False) -> None:
        self.cred: Credentials = cred
        self.pass_through: bool = pass_through
        self.local: bool = local
        self.tree_hop: bool = tree_hop

    @classmethod
    def tree(cls, owner: int) -> StampPolicy:
        """The policy for a broker of this instance."""
        return cls(Credentials(owner, Role.OWNER), pass_through=True, local=False, tree_hop=True)

    def stamp(self, received: bytes) -> bytes:
        """Stamped credentials for ``received`` (8 bytes each: big-endian userid, rolemask).

        >>> StampPolicy(Credentials(1000, 2), pass_through=False, local=True).stamp(bytes(8)).hex()
        '000003e800000006'
        """
        userid, rolemask = _CRED.unpack(received)
        if self.tree_hop:
            return _CRED.pack(userid, rolemask & NOT_LOCAL)
        own = int(self.cred.rolemask) | (Role.LOCAL if self.local else 0)
        if not self.pass_through:
            return _CRED.pack(self.cred.userid, own)
        if userid == USERID_UNKNOWN:
            userid = self.cred.userid
        if rolemask and not self.local:
            return _CRED.pack(userid, rolemask & NOT_LOCAL)
        return _CRED.pack(userid, rolemask or own)
