"""Who may ask a directory, and who may announce what to it (zmq-patterns-usage, "Security impact").

Over TCP, asking is for every key that may use the node at all: those that are listed, and others only where
``unlisted`` lets them in. Announcing is for keys that are listed as owners, those of other nodes, for our own, since
proxies may share a certificate, and for that of the directories we believe. Without CURVE nobody can be told from
anybody, and all TCP peers are one owner, who cannot speak for the directory's own node; a directory then listens on
loopback, or the operator has said ``insecure``.

Over the socket in the node's folder, asking is for everybody who may open it. Announcing is for the node's own
pipelines, which run as our user or as root, and for this node alone: what comes that way is told to other directories
as our own word.
"""

from __future__ import annotations

import itertools
import os
from typing import Final, Protocol

from broker.identity import Role
from broker.oslo.directory.registry import LOCAL_OWNER
from broker.oslo.directory.wire import DirectoryKind, DirectoryMessage
from broker.oslo.node import NodeConfig
from broker.oslo.origin import credentials

PLAIN_OWNER: Final = "tcp"
"""All TCP peers of a directory without CURVE."""


class Announcers(Protocol):
    """The rule of one socket for ANNOUNCE, BEAT, LEAVE and AWAY."""

    def owner(self, origin: str) -> str:
        """Who announces over the connection with that property; "" nobody who may."""

    def enters(self, origin: str) -> bool:
        """Whether that connection may (still) ask."""

    def objection(self, origin: str, message: DirectoryMessage) -> str:
        """Why ``message`` of that connection is not taken; "" it is."""


def nodes_of(message: DirectoryMessage) -> frozenset[str]:
    """Whom an announcement is about."""
    return frozenset(
        each.node for each in (message.body if message.kind is DirectoryKind.BEAT else (message.body,))
    )


class LocalAdmission:
    """The rule of the socket in the node's folder; an origin is a ``Peer-Address``, by the word of the kernel.

    Args:
        node: our own.
        uid: whose directory this is; None: this process's.
    """

    def __init__(self, node: str, uid: int | None = None) -> None:
        self._node = node
        self._ours = frozenset((0, os.geteuid() if uid is None else uid))

    def owner(self, origin: str) -> str:
        """See ``Announcers``."""
        return LOCAL_OWNER if credentials(origin)[0] in self._ours else ""

    def enters(self, origin: str) -> bool:
        """See ``Announcers``."""
        return True

    def objection(self, origin: str, message: DirectoryMessage) -> str:
        """See ``Announcers``."""
        uid, _gid, pid = credentials(origin)
        if uid not in self._ours:
            return f"uid {uid} (pid {pid}) may not announce, only this directory's own user and root"
        strange = nodes_of(message) - {self._node}
        if strange:
            return f"saw {min(strange)[:64]!r}, expected {self._node!r}: other nodes are announced over TCP"
        return ""


class Admission:
    """Judges the connections to a directory's port (``broker.oslo.reactor.binding.ZapPolicy``), and is its rule.

    Args:
        config: keys and what others may do.
        own_key: Z85 public key of this node; "" without CURVE.

    Attributes:
        denied: connections that were refused.
    """

    def __init__(self, config: NodeConfig, own_key: str) -> None:
        self.denied = 0
        self._curve = bool(own_key)
        self._node = config.node
        self._numbers = itertools.count(1)
        self.change(config, own_key)

    def change(self, config: NodeConfig, own_key: str) -> None:
        """Go by the keys of ``config`` and our ``own_key`` from now on, for connections that exist, too."""
        self._unlisted = bool(config.unlisted_mask)
        self._listed = {each.key: bool(each.rolemask) for each in config.keys}
        self._announcers = {each.key for each in config.keys if each.rolemask & Role.OWNER}
        if own_key:
            self._listed.setdefault(own_key, True)
            self._announcers.add(own_key)
        if config.directory_key and config.directory_key not in self._listed:
            self._listed[config.directory_key] = True
            self._announcers.add(config.directory_key)

    def judge(self, address: str, key: str) -> str | None:
        """The user id of a connection that may enter, None for one that may not; ``key``: "" without CURVE."""
        user_id = f"{next(self._numbers)} {key}"
        if not self.enters(user_id):
            self.denied += 1
            return None
        return user_id

    def enters(self, user_id: str) -> bool:
        """See ``Announcers``."""
        key = user_id.partition(" ")[2]
        return self._listed.get(key, self._unlisted) if key or not self._curve else False

    def owner(self, user_id: str) -> str:
        """See ``Announcers``."""
        number, _, key = user_id.partition(" ")
        if not number:
            return ""
        if not self._curve:
            return PLAIN_OWNER
        return key if key in self._announcers else ""

    def objection(self, user_id: str, message: DirectoryMessage) -> str:
        """See ``Announcers``."""
        if not self.owner(user_id):
            return "this key may not announce: keys of nodes are listed as owners"
        if not self._curve and self._node in nodes_of(message):
            return (
                f"{self._node!r} is this directory's own node, which nobody announces over TCP without CURVE"
            )
        return ""
