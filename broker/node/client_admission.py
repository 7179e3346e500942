"""The clients' door: the listeners of one broker, and what a new link passes there: its peer is identified, the access
rules are checked, credentials are set, its port is made.
"""

from __future__ import annotations

import errno
import logging
import os
import pwd
import uuid
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

from broker.errors import ConfigError, LinkBroken
from broker.identity import PeerInfo
from broker.ingress.admission import Access, Admission, admit
from broker.obstacles import obstacle
from broker.routing.port import CLIENT, Port
from broker.schemes import capabilities_of
from broker.transport.link import Accept, Link, Listener, Options
from broker.transport.registry import listen
from broker.trust import overflow_uid

if TYPE_CHECKING:
    from broker.node.broker import Broker
    from broker.settings import Settings

log = logging.getLogger("headgate")


class ClientAdmission:
    """Admits clients: UNIX peers by uid, clients of other transports by key, in-process ones by what their dialer says.

    Args:
        broker: where admitted links are attached. access: the rules.
        guest_max_bytes, owner_max_bytes: largest frame of either.
        user_bytes: what may wait for all links of one user who is not the owner; 0: no such limit.
        cmb1: the listener speaks an older dialect. strict: it does what its text says, also where deployed software
            does otherwise.
        refused: told of each peer that was turned away: peer, errno, reason.

    Attributes:
        open: False once the broker leaves: nobody is let in.
    """

    def __init__(
        self,
        broker: Broker,
        access: Access,
        guest_max_bytes: int,
        owner_max_bytes: int,
        *,
        user_bytes: int = 0,
        cmb1: bool = False,
        strict: bool = False,
        refused: Callable[[PeerInfo, int, str], object] = lambda _peer, _errnum, _reason: None,
    ) -> None:
        self._broker = broker
        self._access = access
        self._guest_max_bytes = guest_max_bytes
        self._owner_max_bytes = owner_max_bytes
        self._user_bytes = user_bytes
        self._cmb1 = cmb1
        self._strict = strict
        self.open = True
        self._refused = refused

    def change(self, access: Access, guest_max_bytes: int, user_bytes: int = 0) -> None:
        """Judge by other rules from now on; links that exist stay as they are."""
        self._access = access
        self._guest_max_bytes = guest_max_bytes
        self._user_bytes = user_bytes

    def admit(self, peer: PeerInfo) -> int:
        """The errno a connecting peer is told, 0 to come in; a refusal is one log line."""
        if not self.open:
            return errno.ECONNREFUSED  # shutting down
        if peer.rank is not None:
            return self._refuse(peer, errno.EPERM, "a broker of the tree does not come in by a client's door")
        admission = self._decide(peer)
        if admission.errnum:
            return self._refuse(peer, admission.errnum, admission.reason)
        reason = self._broker.router.users.refusal(admission.policy.cred)
        return self._refuse(peer, errno.EAGAIN, reason) if reason else 0

    def _refuse(self, peer: PeerInfo, errnum: int, reason: str) -> int:
        log.warning("refused %s (pid %s): %s", peer.address, peer.pid, reason)
        self._refused(peer, errnum, reason)
        return errnum

    def max_bytes(self, peer: PeerInfo) -> int:
        """Largest frame ``peer`` may send."""
        return self._owner_max_bytes if self._decide(peer).policy.cred.owner else self._guest_max_bytes

    def is_owner(self, peer: PeerInfo) -> bool:
        """Whether ``peer`` is let in as the owner."""
        admission = self._decide(peer)
        return not admission.errnum and admission.policy.cred.owner

    def accept(self, link: Link) -> None:
        """Give an admitted link its port and let it speak.

        A CURVE client is a link from its first message on: others of the same user may have come since its admission.
        """
        admission = self._decide(link.peer)
        policy = admission.policy
        # between the handshake and now other links of this user may have come, or the broker begun to leave
        if errnum := self.admit(link.peer):
            link.abort(LinkBroken(f"{link.peer.address} may not have a further link now", errnum))
            return
        port = Port(
            CLIENT,
            str(uuid.uuid4()),
            link.send,
            policy.cred,
            name=link.peer.address,
            policy=policy,
            link=link,
        )
        if not policy.cred.owner:
            link.outbox.charge_to(policy.cred.userid, self._user_bytes)
        port.cmb1 = self._cmb1
        port.strict = self._strict
        self._broker.router.counters.connects += 1
        self._broker.attach(port)

    def _decide(self, peer: PeerInfo) -> Admission:
        return admit(peer, self._access)


def groups_of(uid: int) -> Collection[int]:
    """The groups of a local user; none for a uid without an account."""
    try:
        account = pwd.getpwuid(uid)
    except KeyError:
        return ()
    return os.getgrouplist(account.pw_name, account.pw_gid)


def access_of(settings: Settings, owner: int) -> Access:
    """The rules of ``[access]`` for a broker that runs as uid ``owner``; asks the user database, so it may block.

    Raises:
        NotReady: a user or group has no account here yet.
    """
    section = settings.access
    return Access(
        owner=owner,
        allow_guest=section.allow_guest_user,
        allow_root_owner=section.allow_root_owner,
        admin_uids=user_ids(section.admin_users),
        admin_gids=group_ids(section.admin_groups),
        overflow_uid=overflow_uid(),
        allow_overflow=section.allow_overflow_uid,
        groups_of=groups_of,
    )


def user_ids(users: tuple[str | int, ...]) -> frozenset[int]:
    """Uids of names and uids.

    Raises:
        NotReady: a name has no account here yet.
    """
    return _numbers("admin_users", users, lambda name: pwd.getpwnam(name).pw_uid)


def group_ids(groups: tuple[str | int, ...]) -> frozenset[int]:
    """Gids of names and gids.

    Raises:
        NotReady: a name has no group here yet.
    """
    import grp

    return _numbers("admin_groups", groups, lambda name: grp.getgrnam(name).gr_gid)


def _numbers(key: str, entries: tuple[str | int, ...], look_up: Callable[[str], int]) -> frozenset[int]:
    try:
        return frozenset(entry if isinstance(entry, int) else look_up(entry) for entry in entries)
    except KeyError as error:
        # the service that knows names may start later, as sssd and LDAP do at boot: the system says the same of both
        raise obstacle(f"access.{key}: {error.args[0]}", errno.ENOENT, absent=True) from error


class Listeners:
    """All listeners for clients, in the order in which they were opened."""

    def __init__(self) -> None:
        self._open: list[Listener] = []
        self._curve: list[int] = []
        self._own: list[int] = []

    async def open(self, uri: str, accept: Accept, options: Options) -> str:
        """Listen at ``uri``; returns what a peer dials.

        Raises:
            ConfigError: as of ``Transport.listen``.
        """
        listener = await listen(uri, accept, options)
        if "curve" in options.extra:
            self._curve.append(len(self._open))
        elif capabilities_of(uri).protection == "own":
            self._own.append(len(self._open))
        self._open.append(listener)
        return listener.contact_address

    async def stop(self) -> None:
        """Accept no more; links that exist stay."""
        for listener in self._open:
            await listener.stop()

    def renew(self, extra: Mapping[str, Any]) -> list[str]:
        """Show another CURVE certificate from now on; returns a line for each listener that cannot."""
        return self._renewed(self._curve, extra)

    def renew_own(self) -> list[str]:
        """Have transports with a protection of their own read their files again; a line for each that cannot."""
        return self._renewed(self._own, {})

    def _renewed(self, indexes: list[int], extra: Mapping[str, Any]) -> list[str]:
        failed = []
        for index in indexes:
            try:
                self._open[index] = self._open[index].renew(extra)
            except ConfigError as error:
                failed.append(str(error))
        return failed
