"""The pipeline of casts: PULL from clients, ROUTER to servers (zmq-patterns-usage, "PUSH/PULL for direct CAST").

::

    client PUSH    [envelope][body]     entry PULL     who: stamped; where: the client's choice, or whose turn it is
    proxy          [envelope][body]     cast.ctl       to the listener's process, within its ``credit``

Nobody is answered. What does not fit into the queue of a listener that does not move goes to another one of the topic,
or is dropped and counted; so is what nobody listens to.
"""

# compiled: mypyc

from __future__ import annotations

import contextlib
from typing import Final

import zmq

from broker.identity import Credentials
from broker.oslo.frames import HEAD_BYTES, Kind, Malformed, dated, decode, overdue
from broker.oslo.names import Pipeline, Reason
from broker.oslo.proxy.direct import BEGIN, FLAGS_AT, REPEATED, DirectRoom, stamped_for
from broker.oslo.proxy.listeners import Listener, Listeners, WaitingMessage
from broker.oslo.proxy.registration import ServerLink
from broker.oslo.reactor.socket import Frames, Outcome

_CAST: Final = int(Kind.CAST)
_TTL_AT: Final = 8
_TTL_END: Final = 12
_NO_TTL: Final = bytes(4)
_LOST: Final = {
    "full": "the queues of the servers at %.64s/%.64s are full",
    "no_route": "nobody listens at %.64s/%.64s",
    "repeat_lost": "a server at %.64s/%.64s that may have had a cast is gone, or has no room for it",
}
"""What is said of a cast that gets to nobody, by the name it is counted under."""
_TO_SERVER: Final = 3
"""Frames of a cast on its way to a server's process: the router's id, envelope, body."""


class CastProxy(DirectRoom):
    """One node's pipeline of casts; arguments and attributes as ``PipelineRoom``'s."""

    pipeline = Pipeline.CAST
    kind = zmq.PULL
    to_server = _TO_SERVER

    def _open(self, undo: contextlib.ExitStack) -> None:
        self._delivered = 0
        limits = (self._config.queue_msgs, self._config.queue_bytes)
        self._register(undo, Listeners(limits, self._send, self._expires))

    # ------------------------------------------------------------ messages

    def on_client_message(self, frames: list[bytes], who: Credentials, index: int) -> None:
        """A cast: give it to a server."""
        if len(frames) != 2:
            self._bad("malformed", who, f"saw {len(frames)} frames, expected envelope and body")
            return
        head, body = frames
        route_to = self._known.get((who, head[HEAD_BYTES:]))
        if route_to is None or head[:4] != BEGIN:
            try:
                route_to = self._routes.meet(who, head)
            except Malformed as error:
                self._malformed(error, f"uid {who.userid}")
                return
        if head[4] != _CAST:
            self._bad("unexpected", who, f"saw a message of kind {head[4]}, expected CAST")
            return
        route_to.stats.calls += 1
        names = route_to.names
        if not route_to.allowed:
            text = "uid %d may not send to %.64s/%.64s"
            self.topics.ended(route_to.stats, Reason.DENIED, who.userid)
            self.counters.count_dropped("denied", text, who.userid, *names[:2])
            return
        local = self._listener_for(route_to, head)
        if local is None:
            self._lose(names, head, who.userid, full=False)
            return
        ttl = head[_TTL_AT:_TTL_END]
        head = stamped_for(head, route_to, local)
        if ttl != _NO_TTL:
            now_s = self._reactor.now()
            head = dated(head, now_s + int.from_bytes(ttl) / 1000, now_s)
        cast = WaitingMessage(head, body, len(head) + len(body))
        if not self.listeners.offer(local, cast):
            self._elsewhere(local, names, cast, who.userid)
        elif self.listeners.asking:
            self._pause()

    def _send(self, listener: Listener, cast: WaitingMessage) -> int:
        outcome = self.servers.send((listener.owner.rid, cast.head, cast.body), credited=True)
        self._delivered += outcome > Outcome.FULL
        return outcome

    def _expires(self, cast: WaitingMessage) -> bool:
        """Whether its sender has given up; then it is counted."""
        if not overdue(cast.head, self._reactor.now()):
            return False
        self.counters.count("expired")
        envelope = decode(cast.head)
        self.topics.failed(envelope.exchange, envelope.topic, Reason.EXPIRED, envelope.userid)
        return True

    def _elsewhere(
        self, tried: Listener | None, names: tuple[str, str, str], cast: WaitingMessage, userid: int
    ) -> None:
        """Another listener of the address may have what its own has no room for, or is no more there to take."""
        here = tried is not None
        for local, head in self._others(tried, names, cast.head):
            here = True
            if self.listeners.offer(local, WaitingMessage(head, cast.body, len(head) + len(cast.body))):
                self.counters.count("chosen_again")
                self._pause()
                return
        self._lose(names, cast.head, userid, full=here)

    def _lose(self, names: tuple[str, str, str], head: bytes, userid: int, *, full: bool) -> None:
        """A cast that was counted gets to nobody; ``full``: somebody is there."""
        self.topics.failed(names[0], names[1], Reason.BUSY if full else Reason.NO_ROUTE, userid)
        name = "repeat_lost" if head[FLAGS_AT] & REPEATED else "full" if full else "no_route"
        self.counters.count_dropped(name, _LOST[name], *names[:2])

    def _end_listener(self, link: ServerLink, ended: Listener) -> None:
        super()._end_listener(link, ended)
        for cast in ended.queue:
            self._move(cast)

    def _redeliver(self, frames: Frames) -> None:
        if frames[1][4] == _CAST:
            self._delivered -= 1
            self._move(WaitingMessage(frames[1], frames[2], len(frames[1]) + len(frames[2])))

    def _move(self, cast: WaitingMessage) -> None:
        """What was for a listener that has ended."""
        if not self._expires(cast):
            envelope = decode(cast.head)
            names = (envelope.exchange, envelope.topic, envelope.server)
            self._elsewhere(None, names, cast, envelope.userid)

    # ------------------------------------------------------------ state and end

    def _counted(self) -> dict[str, int]:
        return {**self.counters.status(), "delivered": self._delivered}
