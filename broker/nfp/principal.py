"""Who a peer is: what its CURVE key, web session or UNIX socket proved (NFP, "Security", is TBD in the text)."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from broker.identity import NOBODY, USERID_UNKNOWN, Role


class Standing(StrEnum):
    """What somebody may do in general; rules of access refine it."""

    OWNER = "owner"
    """Everything, every job of everybody, restart and shutdown."""
    USER = "user"
    """Jobs of their own."""
    GUEST = "guest"
    """As a user where a rule allows it; sees no inventory data."""


class Principal(NamedTuple):
    """``holder`` is what jobs and results belong to: ``uid:1000``, ``key:Z85...`` or, without CURVE, ``peer:NAME``.

    What is held as ``uid:65534`` belongs to nobody: several people have that userid (``broker.identity.NOBODY``).
    """

    holder: str
    standing: Standing = Standing.USER
    userid: int = USERID_UNKNOWN
    key: str = ""
    """Z85, "" without CURVE."""
    name: str = ""
    """As the list of keys calls it, for people."""

    @property
    def owner(self) -> bool:
        """True for owners."""
        return self.standing is Standing.OWNER

    @property
    def nobody(self) -> bool:
        """True for who shares a userid with others: nothing is theirs but what they wait for. An owner never is, whose
        process may run as nobody.
        """
        return self.userid == NOBODY and not self.owner

    def holds(self, holder: str) -> bool:
        """True when this is whose job it is."""
        return self.holder == holder and not self.nobody

    def may_see(self, holder: str) -> bool:
        """True when this is whose job it is, or an owner."""
        return self.standing is Standing.OWNER or self.holds(holder)


def told_userid(userid: int) -> int | None:
    """As people and dashboards are told it: None where it is not known, since a key belongs to none."""
    return None if userid == USERID_UNKNOWN else userid


def recipient(userid: int) -> int | None:
    """Who besides owners is told of a job that was submitted with this userid; None: nobody else."""
    return None if userid in (USERID_UNKNOWN, NOBODY) else userid


def of_flux(userid: int, rolemask: int) -> Principal:
    """Who a stamped Flux message is from (RFC 12): OWNER is an owner, USER and ADMIN are users, the rest guests."""
    if rolemask & Role.OWNER:
        standing = Standing.OWNER
    elif rolemask & (Role.USER | Role.ADMIN):
        standing = Standing.USER
    else:
        standing = Standing.GUEST
    return Principal(f"uid:{userid}", standing, userid)
