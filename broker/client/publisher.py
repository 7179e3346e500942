"""Events through a link that may be away, or behind: they are published or dropped, and nobody waits."""

from __future__ import annotations

import hashlib
from typing import Any, Final
from urllib.parse import quote

from broker.client.handle import Handle
from broker.wire.message import event
from broker.wire.payload import encode_json

WORD_CHARS_MAX: Final = 128
"""The longest name that stands in a topic as it is."""


def word_of(name: str) -> str:
    """One word of a topic that stands for ``name``: what a word cannot have is percent-encoded, and a word that would
    be longer than ``WORD_CHARS_MAX`` is a digest.

    >>> word_of("a.b c"), len(word_of("x" * 200))
    ('a%2Eb%20c', 64)
    """
    word = quote(name, safe="").replace(".", "%2E")
    return word if len(word) <= WORD_CHARS_MAX else hashlib.sha256(name.encode()).hexdigest()


class Publisher:
    """Publishes what it can; each event says in ``lost`` how many were dropped before it.

    Attributes:
        handle: the link, None while there is none: events are then dropped, like those of a choked one.
        sent, dropped: counts.
    """

    def __init__(self) -> None:
        self.handle: Handle | None = None
        self.sent = 0
        self.dropped = 0
        self._untold = 0

    def has_room(self) -> bool:
        """Whether an event would leave now; False counts it as dropped."""
        handle = self.handle
        if handle is not None and handle.ended is None and not handle.link.outbox.choked:
            return True
        self.dropped += 1
        self._untold += 1
        return False

    def miss(self, events: int) -> None:
        """So many never came here, or cannot be told: the next event says so."""
        self._untold += events

    def publish(self, topic: str, content: dict[str, Any], **stamp: int) -> None:
        """Send an event; only where there is room. ``stamp``: its flags, userid and rolemask.

        Raises:
            ProtocolError: ``content`` cannot be written as JSON.
        """
        assert self.handle is not None
        if self._untold:
            content["lost"] = self._untold
        self.handle.send(event(topic, encode_json(content), **stamp))
        self._untold = 0
        self.sent += 1
