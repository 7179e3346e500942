"""What is known of each address that clients send to, so that it is read and judged once (pure).

A client repeats the same few addresses. Their bytes, with who sends, are the key of what was found out: the names, the
doorman's decision, the listener that was chosen, and the credentials as the envelope has them.
"""

from __future__ import annotations

from typing import Final, Generic

from broker.identity import Credentials
from broker.oslo.frames import HEAD_BYTES, MAGIC, VERSION, Malformed, decode
from broker.oslo.proxy.doorman import Doorman
from broker.oslo.proxy.local import Exit, Local, Locals

# read where it is used, not folded by the compiler: tests change it
WAYS_MAX: int = 16_384
"""Addresses that are remembered; then all are forgotten and found again."""
TAIL_BYTES_MAX: Final = 1100
"""Longest address that is remembered: exchange, topic, server and one listener."""
TRIES_MAX: Final = 8
"""Listeners of a topic that one message is tried on when their queues are full."""
BEGIN: Final = MAGIC + bytes([VERSION])
STAMP_AT: Final = 16
STAMP_END: Final = 24
ID_AT: Final = 24


class Way(Generic[Exit]):
    """One address, as one user sends to it.

    Attributes:
        stamp: userid and rolemask as the envelope has them.
        allowed: the doorman's decision.
        chosen: the listener that the client has chosen; "" none.
        local: that one, when it is here, fits, and is the only one named: the envelope then needs no other address.
    """

    __slots__ = ("allowed", "chosen", "exchange", "local", "server", "stamp", "topic")

    def __init__(self, who: Credentials, names: tuple[str, str, str], chosen: str, allowed: bool) -> None:
        self.stamp = who.encode()
        self.allowed = allowed
        self.exchange, self.topic, self.server = names
        self.chosen = chosen
        self.local: Local[Exit] | None = None


class Ways(Generic[Exit]):
    """The ways of one pipeline.

    Attributes:
        known: by (who, bytes of the address); the hot path looks here directly.
    """

    def __init__(self, doorman: Doorman, locals_: Locals[Exit]) -> None:
        self.known: dict[tuple[Credentials, bytes], Way[Exit]] = {}
        self._doorman = doorman
        self._locals = locals_

    def meet(self, who: Credentials, head: bytes) -> Way[Exit]:
        """Read, judge and remember the address of the envelope ``head``.

        Raises:
            Malformed: it is no envelope, or has no topic.
        """
        envelope = decode(head)
        if not envelope.topic:
            raise Malformed("saw an envelope without topic, expected where it is to go")
        allowed = self._doorman.may_send(who, envelope.exchange, envelope.topic)
        names = (envelope.exchange, envelope.topic, envelope.server)
        way: Way[Exit] = Way(who, names, envelope.listener if len(envelope.listeners) == 1 else "", allowed)
        tail = head[HEAD_BYTES:]
        if len(tail) <= TAIL_BYTES_MAX:
            if len(self.known) >= WAYS_MAX:
                self.known.clear()
            self.known[(who, tail)] = way
        return way

    def choose(self, way: Way[Exit]) -> Local[Exit] | None:
        """Who is to have a message that goes this way: the chosen one, else whose turn it is; None: nobody."""
        if way.chosen:
            local = self._locals.fitting(way.exchange, way.topic, way.server, way.chosen)
            if local is not None:
                way.local = local
                return local
        way.local = None
        return self._locals.turn(way.exchange, way.topic, way.server)


def stamped_for(head: bytes, way: Way[Exit], local: Local[Exit]) -> bytes:
    """The envelope ``head`` with the sender's credentials, and the listener that shall have it."""
    if local is way.local:
        return head[:STAMP_AT] + way.stamp + head[STAMP_END:]
    tail = local.tail_for(way.server) if way.server else local.tail
    return head[:STAMP_AT] + way.stamp + head[STAMP_END:HEAD_BYTES] + tail
