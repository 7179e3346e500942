"""Links inside one process: the reference implementation of the contract, used by tests, simulation and embedding.

A message is handed over as the object it is (a copy per receiver, over shared bytes; what a listener publishes to
clients, itself), by ``call_soon``: never inside the sender's call. A paused reader makes the sender's outbox fill, as a
full socket would.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Callable

from broker.errors import ConfigError, LinkBroken, LinkClosed, LinkEnded, LinkError, LinkRefused
from broker.identity import PeerInfo
from broker.schemes import BUILT_IN
from broker.transport.link import Accept, Link, Listener, Options
from broker.wire.message import EVENT, Message

_WINDOW = 1024
"""Messages one side may have handed over that the other did not read yet, as a socket buffer would hold."""
_numbers = itertools.count(1)


class InprocLink(Link):
    """One end of a pair; both ends live on the same loop."""

    __slots__ = ("_inbox", "_loop", "_other", "_paused", "_scheduled", "_shares_events")

    def __init__(self, peer: PeerInfo, options: Options, *, shares_events: bool) -> None:
        super().__init__(peer, options)
        self._shares_events = shares_events
        self._loop = asyncio.get_running_loop()
        self._other: InprocLink | None = None
        self._inbox: list[Message] = []
        self._paused = True
        self._scheduled = False

    def send(self, message: Message) -> None:
        """Queue ``message`` or a copy of it; see ``Link.send``."""
        # An event for clients is everybody's, its frame with it, and nobody patches it. One for a broker is stamped
        # there, as all that is no event is patched on its way.
        if not self._shares_events or message.head[3] != EVENT:
            message = message.copy()
        outbox = self.outbox
        if outbox.queue is None and self.ended is None:
            fresh = outbox.unflushed
            if not fresh:
                self.flusher.touch(self)
            fresh.append(message)
        else:
            outbox.enqueue(message, message.size, message.type)

    def flush(self) -> None:
        """Hand over as much as the other side's window takes; queue the rest."""
        outbox, other = self.outbox, self._other
        if other is None or self.ended is not None:
            return
        room = _WINDOW - len(other._inbox)
        fresh = outbox.unflushed
        if fresh:
            outbox.unflushed = []
            other._deliver_soon(fresh[:room])
            outbox.sent += len(fresh[:room])
            outbox.progressed()
            for message in fresh[room:]:
                outbox.enqueue(message, message.size, message.type)
        elif outbox.queue and room > 0:
            taken = [outbox.dequeue() for _ in range(min(room, len(outbox.queue)))]
            outbox.sent += len(taken)
            outbox.progressed()
            other._deliver_soon(taken)
            outbox.drained()

    def pause(self) -> None:
        """Stop delivering to this side's receiver."""
        self._paused = True

    def resume(self) -> None:
        """Deliver again."""
        self._paused = False
        if self._inbox:
            self._deliver_soon([])

    def close(self, reason: str = "") -> None:
        """Flush, then end; the other side still reads what was handed over, then sees LinkEnded."""
        self.flush()
        self._end(LinkClosed(reason), LinkEnded(reason or "the other side closed the link"))

    def abort(self, error: LinkError) -> None:
        """End at once; the other side sees LinkEnded."""
        self._end(error, LinkEnded(str(error)))

    def _end(self, mine: LinkError, theirs: LinkError) -> None:
        other, self._other = self._other, None
        self.finish(mine)
        if other is not None:
            other._loop.call_soon(other._ended_by_peer, theirs)

    def _ended_by_peer(self, error: LinkError) -> None:
        self._other = None
        self._paused = False
        self._deliver()
        self.finish(error)

    def _deliver_soon(self, messages: list[Message]) -> None:
        self._inbox += messages
        if not self._scheduled and not self._paused:
            self._scheduled = True
            self._loop.call_soon(self._deliver)

    def _deliver(self) -> None:
        self._scheduled = False
        if self._paused or not self._inbox or self.ended is not None or self.receiver is None:
            return
        batch, self._inbox = self._inbox, []
        self.receiver.received(self, batch)
        other = self._other
        if other is not None and other.outbox.queue:
            other.flush()


def pair(
    left: PeerInfo, right: PeerInfo, options: Options, right_options: Options | None = None
) -> tuple[Link, Link]:
    """Two connected links, that of who has dialled first; ``left`` describes the peer that it talks to."""
    far = right_options or options
    first = InprocLink(left, options, shares_events=False)
    second = InprocLink(right, far, shares_events=not far.tree)
    first._other, second._other = second, first
    return first, second


class _Listener(Listener):
    def __init__(self, uri: str, accept: Accept, options: Options, forget: Callable[[str], object]) -> None:
        self.address = self.contact_address = uri
        self.accept, self.options, self._forget = accept, options, forget

    async def stop(self) -> None:
        self._forget(self.address)


class InprocTransport:
    """``inproc://NAME``: names are known in this process only."""

    capabilities = BUILT_IN["inproc"].capabilities

    def __init__(self) -> None:
        self._listeners: dict[str, _Listener] = {}

    async def listen(self, uri: str, accept: Accept, options: Options) -> Listener:
        """Listen at ``uri``; see ``Transport.listen``."""
        if uri in self._listeners:
            raise ConfigError(f"{uri} is in use in this process")
        listener = self._listeners[uri] = _Listener(
            uri, accept, options, lambda name: self._listeners.pop(name, None)
        )
        return listener

    async def dial(self, uri: str, options: Options) -> Link:
        """Connect to ``uri``; the listener sees this process's own uid as the peer's."""
        listener = self._listeners.get(uri)
        if listener is None:
            raise LinkBroken(f"nobody listens at {uri} in this process", 111)
        uid, gid = options.extra.get("uid", os.getuid()), os.getgid()
        peer = PeerInfo(f"{uri}#{next(_numbers)}", uid=uid, gid=gid, pid=os.getpid(), local=True)
        denied = listener.options.admit(peer)
        if denied:
            raise LinkRefused(f"{uri} refused uid {uid}", denied)
        mine, theirs = pair(PeerInfo(uri, local=True), peer, options, listener.options)
        listener.accept(theirs)
        return mine


transport = InprocTransport()
