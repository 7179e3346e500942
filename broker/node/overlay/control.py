"""Control messages between a child and its parent; they are never routed (RFC 3, "Control message type").

Those about events, between Headgate brokers, stand in ``routing.flow``.
"""

from __future__ import annotations

from typing import Final

from broker.wire.message import Message, control

HEARTBEAT: Final = 0
"""Still here: to the parent, and to a Headgate child, after silence; the status word is 0. Deployed parents send none,
and deployed children would log one as unknown."""
STATUS: Final = 1
"""Child to parent: the status word is that of its subtree."""
DISCONNECT: Final = 2
"""Parent to child: leave now. The status word is 0."""


def heartbeat() -> Message:
    """To a neighbour: still here."""
    return control(HEARTBEAT)


def status(number: int) -> Message:
    """Child to parent: the status of the subtree is now ``number``."""
    return control(STATUS, number)


def disconnect() -> Message:
    """Parent to child: leave now."""
    return control(DISCONNECT)
