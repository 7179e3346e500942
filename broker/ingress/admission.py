"""A peer at connect: refused, or admitted with credentials (RFC 12, "Guest Authentication", "Credential Assignment").

Pure: user database look-ups are handed in, so that the rules can be read and tested without one.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import NamedTuple

from broker.identity import NOBODY, USERID_UNKNOWN, Credentials, PeerInfo, Role
from broker.ingress.stamping import StampPolicy


@dataclass(frozen=True, slots=True)
class Access:
    """The rules for connecting (flux-core's ``[access]`` table, and two rules of ours).

    Attributes:
        owner: uid the broker runs as; it owns the instance.
        allow_guest: guests may connect; off refuses them with EPERM.
        allow_root_owner: root connects as the owner; off makes root a guest.
        admin_uids: guests that carry the ADMIN role.
        admin_gids: groups whose members carry it.
        overflow_uid: uid that stands for several principals in this user namespace; None where the map is full.
        allow_overflow: admit that uid, and nobody's, all the same; both are stamped as nobody's, who owns nothing.
        groups_of: uid -> its group ids.
    """

    owner: int
    allow_guest: bool = False
    allow_root_owner: bool = False
    admin_uids: Collection[int] = ()
    admin_gids: Collection[int] = ()
    overflow_uid: int | None = None
    allow_overflow: bool = False
    groups_of: Callable[[int], Collection[int]] = field(default=lambda _uid: ())


class Admission(NamedTuple):
    """The outcome for one peer."""

    errnum: int
    """0 admitted; otherwise what the peer is told (EPERM 1)."""
    policy: StampPolicy
    reason: str = ""
    """For the log line of a refusal."""


def admit(peer: PeerInfo, access: Access) -> Admission:
    """Decide about ``peer``; never raises."""
    if peer.rank is not None:
        return Admission(0, StampPolicy.tree(access.owner))
    if peer.user is not None:  # a key of ``[[clients]]``: its entry says who that is
        owner = peer.user.owner
        return Admission(0, StampPolicy(peer.user, pass_through=owner, local=False))
    if peer.uid is None:
        return _refused(access, f"{peer.address} has no identity")
    # where the overflow uid is the owner's own, nobody can be told from the owner: nobody is
    owner = peer.uid == access.owner and peer.uid != access.overflow_uid
    if owner or (peer.uid == 0 and access.allow_root_owner):
        owner_cred = Credentials(access.owner, Role.OWNER)
        # root is stamped as the owner, but only the owner's own uid may bring stamps of its own
        return Admission(0, StampPolicy(owner_cred, pass_through=peer.uid == access.owner, local=peer.local))
    return _guest(peer, peer.uid, access)


def _guest(peer: PeerInfo, uid: int, access: Access) -> Admission:
    # RFC 12: that userid in a stamp means "not set", so nobody may have it
    if uid == USERID_UNKNOWN:
        return _refused(access, f"{peer.address} has no userid")
    if not access.allow_guest:
        return _refused(access, f"uid {uid} is a guest and guests are not allowed")
    if uid in (NOBODY, access.overflow_uid):
        if not access.allow_overflow:
            unmapped = "every user this user namespace does not map"
            whom = unmapped if uid == access.overflow_uid else "nobody, whom several programs run as"
            return _refused(access, f"uid {uid} stands for {whom}")
        return Admission(0, StampPolicy(Credentials(NOBODY, Role.USER), pass_through=False, local=peer.local))
    roles = Role.USER | (Role.ADMIN if _admin(uid, access) else Role.NONE)
    return Admission(0, StampPolicy(Credentials(uid, roles), pass_through=False, local=peer.local))


def _admin(uid: int, access: Access) -> bool:
    if uid in access.admin_uids:
        return True
    # the user database may be remote: it is asked only when somebody's groups matter
    return bool(access.admin_gids) and not set(access.groups_of(uid)).isdisjoint(access.admin_gids)


def _refused(access: Access, reason: str) -> Admission:
    return Admission(
        errno.EPERM, StampPolicy(Credentials(access.owner, 0), pass_through=False, local=False), reason
    )
