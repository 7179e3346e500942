"""Who comes in, as whom, and what they may do there (pure; RFC 12).

A local peer is who the kernel says (``Peer-Address`` ends in ``:uid:gid:pid``): our own user and root are owners, all
others users; LOCAL marks both. A peer from the network is who its CURVE key says, never LOCAL: keys that are listed,
our own, which nodes may share, and that of our directories. Others are refused unless ``unlisted`` lets them in.
"""

from __future__ import annotations

import itertools
import os
from fnmatch import fnmatchcase
from functools import lru_cache, partial
from typing import Any, Final

from broker.identity import NOBODY, Credentials, Role
from broker.oslo.node import NodeConfig, Rule, credentials

DECISIONS_MAX: Final = 16_384
"""Decisions that are remembered."""
_ENTITLED: Final = int(Role.USER | Role.OWNER)
_REMOTE: Final = 0xFFFFFFFF & ~int(Role.LOCAL)
_OURS: Final = int(Role.OWNER | Role.USER | Role.LOCAL)
_OTHERS: Final = int(Role.USER | Role.LOCAL)
_NO_ROLE: Final = Credentials(rolemask=int(Role.NONE))


class AccessControl:
    """The rules of one node. Also the ZAP judge of its TCP sockets (``broker.oslo.reactor.binding.ZapPolicy``).

    Args:
        config: keys, rules.
        uid: whose proxy this is; None: this process's.
        shared_uid: uid that stands for several users of other namespaces (the overflow uid); refused, as nobody's is
            (65534). None: none.

    Attributes:
        denied: connections from the network that were refused.
        may_send: whether somebody may send to an exchange and topic, that of a notification with its priority at the
            end.
        settings: what STATUS tells of when they were read (``reload``); {} nothing.
    """

    def __init__(self, config: NodeConfig, uid: int | None = None, shared_uid: int | None = None) -> None:
        self.denied = 0
        self.settings: dict[str, Any] = {}
        self._uid = os.geteuid() if uid is None else uid
        self._shared_uid = shared_uid
        self._curve = bool(config.curve_cert)
        self._numbers = itertools.count(1)
        self.may_send = lru_cache(DECISIONS_MAX)(partial(self._decide, "send"))
        self.change(config)

    def change(self, config: NodeConfig) -> None:
        """Go by the keys and rules of ``config`` from now on; whoever remembers decisions has to forget them."""
        self._rules = config.rules
        self._unlisted = Credentials(rolemask=config.unlisted_mask & _REMOTE)
        self._keys = {each.key: Credentials(each.userid, each.rolemask & _REMOTE) for each in config.keys}
        self.let_in(config.directory_key)
        self.may_send.cache_clear()

    def let_in(self, key: str) -> None:
        """A node's key, of ours or of our directories: a user's, unless it is listed as something else."""
        if key:
            self._keys.setdefault(key, Credentials(rolemask=int(Role.USER)))

    # ------------------------------------------------------------ who

    def by_ipc(self, peer_address: str) -> Credentials | None:
        """Who a local peer is; None: the kernel does not say, or says a uid that several users share."""
        uid = credentials(peer_address)[0]
        if uid is None:
            return None
        if uid in (self._uid, 0):
            return Credentials(uid, _OURS)
        return None if uid in (NOBODY, self._shared_uid) else Credentials(uid, _OTHERS)

    def by_key(self, tag: str) -> Credentials | None:
        """Who a peer from the network is, by the user id that ``judge`` gave its connection; None: nobody."""
        number, _, key = tag.partition(" ")
        if not number or (self._curve and not key):
            return None
        who = self._keys.get(key, self._unlisted) if key else self._unlisted
        return who if who.rolemask else None

    def by_connection(self, tag: str) -> Credentials | None:
        """As ``by_key``, of a connection that ``judge`` has let in: where its key may not enter any more, somebody
        without any role, to whom everything is denied.
        """
        return self.by_key(tag) or (_NO_ROLE if tag else None)

    def judge(self, address: str, key: str) -> str | None:
        """The user id of a connection that may enter, None for one that may not (ZeroMQ RFC 27)."""
        tag = f"{next(self._numbers)} {key}"
        if self.by_key(tag) is None:
            self.denied += 1
            return None
        return tag

    # ------------------------------------------------------------ what

    def may_listen(self, who: Credentials, exchange: str, topic: str) -> bool:
        """Whether ``who`` may listen there; asked once for each listener, and so not remembered."""
        return self._decide("listen", who, exchange, topic)

    def _decide(self, action: str, who: Credentials, exchange: str, topic: str) -> bool:
        for rule in self._rules:
            if _fits(rule, action, who, exchange, topic):
                return rule.allow
        return bool(who.rolemask & _ENTITLED)


def _fits(rule: Rule, action: str, who: Credentials, exchange: str, topic: str) -> bool:
    return (
        rule.action in (action, "*")
        and bool(who.rolemask & rule.roles)
        and (not rule.users or who.userid in rule.users)
        and any(fnmatchcase(exchange, glob) for glob in rule.exchanges)
        and any(fnmatchcase(topic, glob) for glob in rule.topics)
    )
