"""Who may ask a directory over TCP, and who may announce to it (seed 003, "Security impact").

Asking is for every key that may use the node at all. Announcing is for keys that are listed, and for our own: proxies
may share a certificate. Without CURVE nobody can be told from anybody, and all TCP peers are one owner; a directory
then listens on loopback, or the operator has said ``insecure``.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Final

from broker.oslo.node import NodeConfig

PLAIN_OWNER: Final = "tcp"
"""All TCP peers of a directory without CURVE."""


class Admission:
    """Judges the connections to a directory's port (``broker.transport.zeromq.zap.Judge``).

    Args:
        config: keys and what others may do.
        own_key: Z85 public key of this node; "" without CURVE.

    Attributes:
        denied: connections that were refused.
        shut: True once nobody is to get in any more.
    """

    def __init__(self, config: NodeConfig, own_key: str) -> None:
        self.denied = 0
        self.shut = False
        self._curve = bool(own_key)
        self._unlisted = bool(config.unlisted)
        self._listed = {each.key: bool(each.rolemask) for each in config.keys}
        if own_key:
            self._listed.setdefault(own_key, True)
        self._numbers = itertools.count(1)

    def judge(self, address: str, key: str) -> str | None:
        """The user id of a connection that may enter, None for one that may not; ``key``: "" without CURVE."""
        enters = self._listed.get(key, self._unlisted) if key or not self._curve else False
        if not enters:
            self.denied += 1
            return None
        return f"{next(self._numbers)} {key}"

    def hold(self, key: str, resume: Callable[[], None]) -> bool:
        """Judge at once."""
        return False

    def owner(self, user_id: str) -> str:
        """Who announces over the connection with ``user_id``; "" nobody who may."""
        number, _, key = user_id.partition(" ")
        if not number:
            return ""
        if not self._curve:
            return PLAIN_OWNER
        return key if self._listed.get(key, False) else ""
