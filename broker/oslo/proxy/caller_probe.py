"""Whether the clients of calls are still there while their calls last; servers that answered one that is gone are told.

A reply that finds nobody is what rabbit calls undeliverable (its ``direct_mandatory_flag``): the server did the work,
and its caller does not know. It learns that at its control socket: REFUSED NO_CALLER with the call's id, and a text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from broker.oslo.frames import ID_BYTES, Kind, encode, refusal
from broker.oslo.names import Reason
from broker.oslo.proxy.pending import PendingReplies
from broker.oslo.proxy.registration import ServerLink
from broker.oslo.reactor import Reactor, Socket
from broker.oslo.reactor.counters import Counters
from broker.oslo.reactor.router import RouterSocket
from broker.oslo.reactor.socket import Frames

# times are read where they are used, not folded by the compiler: tests shorten them
PROBE_S: float = 10.0
"""Between two looks whether clients are still there whose calls last: the entries of those that are gone are free for
others. They are sent a PULSE, of which they take no notice."""
LASTING_S: Final = 120.0
"""What has longer to go than this lasts; entries of other calls end soon enough by themselves."""
FRESH_S: float = 5.0
"""For so long after its start a proxy tells no server that its reply finds nobody: it knows no call of before, and who
still waits for one asks again."""
GONE: Final = b"its caller is gone, or takes nothing"
GAVE_UP: Final = b"its caller is gone, or has given up"
_PULSE: Final = (encode(Kind.PULSE), b"")


class CallerProbe:
    """Probes the callers of one pipeline of calls, and tells servers whose replies find nobody.

    Args:
        reactor: whose.
        sockets: of clients, by the first byte of their route.
        pending: their calls.
        counters: where calls are counted whose clients are gone (``abandoned``).
        send: to a server.
    """

    def __init__(
        self,
        reactor: Reactor,
        sockets: Sequence[Socket],
        pending: PendingReplies,
        counters: Counters,
        send: Callable[[ServerLink, Frames], object],
    ) -> None:
        self._reactor = reactor
        self._sockets = sockets
        self._pending = pending
        self._counters = counters
        self._send = send
        self._probed_s = self._begun_s = reactor.now()
        for index, socket in enumerate(sockets):
            assert isinstance(socket, RouterSocket)
            socket.lost = partial(self._gone, bytes([index]))

    def _gone(self, index: bytes, rid: bytes, _waited: list[Frames]) -> None:
        """The client ``rid`` is gone: its calls are forgotten."""
        forgotten = self._pending.forget_client(index + rid)
        if forgotten:
            self._counters.count("abandoned", forgotten)

    def look(self, now_s: float) -> None:
        """Send a PULSE to each client whose calls last: the socket calls ``_gone`` where nobody is there."""
        if now_s < self._probed_s + PROBE_S:
            return
        self._probed_s = now_s
        for route in self._pending.lasting(now_s + LASTING_S):
            socket = self._sockets[route[0]]
            assert isinstance(socket, RouterSocket)
            if not socket.waiting_for(route[1:]):
                socket.send([route[1:], *_PULSE])

    def tell(self, link: ServerLink, key: bytes, text: bytes) -> None:
        """The reply of ``link`` to the call ``key`` finds nobody."""
        if self._reactor.now() >= self._begun_s + FRESH_S:
            self._send(link, (refusal(key[-ID_BYTES:], Reason.NO_CALLER), text))
