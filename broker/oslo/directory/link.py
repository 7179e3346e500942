"""The ends of a directory's lines: who reads (``DirectoryLink``, ``Reader``), and who announces (``Announcer``).

Used in applications, too: nothing is logged but through the reactor, and nothing waits.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

from broker.oslo.directory.connection import (
    PULSE_S,
    ConnectionHooks,
    DirectoryConnection,
    Done,
    StateAnnouncer,
)
from broker.oslo.directory.replica import Replica
from broker.oslo.directory.wire import DirectoryKind, DirectoryMessage, Hello, Welcome, canonical, fits_record
from broker.oslo.names import DIRECTORY_SOCKET
from broker.oslo.node import NodeConfig
from broker.oslo.reactor.loop import Reactor, Timer
from broker.oslo.reactor.tuning import Tuning
from broker.oslo.records import Change, Offer, Place, Record, State, chars_of, fits_state

LOOK_S: Final = 1.0
LEAVE_MS: Final = 200
"""LEAVE has so long to reach the directory in the same machine."""

__all__ = ["Announcer", "DirectoryLink", "Reader"]


class DirectoryLink:
    """Feeds a replica from one directory, and announces states to it (none, unless told so).

    Args:
        reactor: whose thread; open.
        endpoint: ``tcp://host:port`` or ``ipc://path``; the name of the source in ``replica``.
        replica: what is fed.
        tuning: keep-alive and CURVE, with the directory's key.
        want: ask for states; False only announces.
        node: our own name, for the directory's log.
        keep: says of which places claims are taken; None: of all.
        known: is told who the directory is; False ends the link (it is ourselves).
        pulse_s: between two BEATs.

    Attributes:
        counts: what happened how often; ``resyncs``: all was asked for again because something did not fit.
        speaker: what is announced.
    """

    def __init__(
        self,
        reactor: Reactor,
        endpoint: str,
        replica: Replica,
        *,
        tuning: Tuning,
        want: bool = True,
        node: str = "",
        keep: Callable[[Place], bool] | None = None,
        known: Callable[[Welcome], bool] | None = None,
        pulse_s: float = PULSE_S,
    ) -> None:
        self.endpoint = endpoint
        self.speaker = StateAnnouncer()
        self._reactor = reactor
        self._replica = replica
        self._keep = keep
        self._known = known
        hooks = ConnectionHooks(self._welcomed, self._heard, self._lost, self.speaker.beats)
        hello = Hello(want, node)
        self._line = DirectoryConnection(
            reactor, endpoint, hooks, tuning=tuning, hello=hello, pulse_s=pulse_s
        )
        self.speaker.line = self._line
        self.counts = self._line.counts
        self.counts["resyncs"] = 0

    @property
    def alive(self) -> bool:
        """True while the directory answers."""
        return self._line.alive

    @property
    def closed(self) -> bool:
        """True after ``close``, and when it led to ourselves."""
        return self._line.closed

    @property
    def welcome(self) -> Welcome | None:
        """What the directory said of itself; None: it does not answer."""
        return self._line.welcome

    def request_status(self, done: Done) -> None:
        """Ask for its counters; see ``connection.DirectoryConnection.request_status``."""
        self._line.request_status(done)

    def status(self) -> dict[str, Any]:
        """For status."""
        return {"endpoint": self.endpoint, "alive": self.alive, "closed": self.closed, **self.counts}

    def close(self, linger_ms: int = 0) -> None:
        """End it; what it told the replica stays. Harmless twice."""
        self._line.close(linger_ms)
        self._replica.source_lost(self.endpoint, self._reactor.now())

    def _welcomed(self, welcome: Welcome) -> bool:
        if self._known is not None and not self._known(welcome):
            self._replica.forget(self.endpoint)
            return False
        self._replica.feed(
            self.endpoint, DirectoryMessage(DirectoryKind.WELCOME, welcome), self._reactor.now()
        )
        self.speaker.welcomed()
        return True

    def _heard(self, message: DirectoryMessage) -> None:
        if message.kind is DirectoryKind.RESEND:
            self.speaker.resend(message.body)
            return
        if self._keep is not None:
            message = kept(message, self._keep)
        if not self._replica.feed(self.endpoint, message, self._reactor.now()):
            self.counts["resyncs"] += 1
            self._line.greet()

    def _lost(self) -> None:
        self._replica.source_lost(self.endpoint, self._reactor.now())


def kept(message: DirectoryMessage, keep: Callable[[Place], bool]) -> DirectoryMessage:
    """``message`` without what it says of places that ``keep`` denies."""
    body = message.body
    if message.kind is DirectoryKind.STATES:
        states = tuple(state for state in body.states if keep(state.place))
        return message._replace(body=type(body)(states, body.complete))
    if message.kind is DirectoryKind.GONE:
        return message._replace(body=tuple(gone for gone in body if keep(gone.place)))
    if message.kind is DirectoryKind.CHANGED and not keep(body.place):
        return DirectoryMessage(DirectoryKind.GONE, ())
    return message


class Announcer:
    """Tells the directory of this node what one pipeline offers, as long as it is not closed.

    The directory may come later, or again: it is told everything whenever it does not know us.

    Args:
        reactor: whose thread; open.
        config: of the node.
        pipeline: whose state it is.
        endpoint: where other nodes connect; "" nowhere.
        key: Z85 public key there; "" plaintext.
        incarnation: of the pipeline; 0: now.

    Attributes:
        counts: what happened how often; ``unfit``: records that cannot be announced.
    """

    def __init__(
        self,
        reactor: Reactor,
        config: NodeConfig,
        pipeline: str,
        endpoint: str,
        key: str,
        *,
        incarnation: int = 0,
    ) -> None:
        state = State(config.node, str(pipeline), incarnation or time.time_ns(), 1, endpoint, key)
        self._offer = Offer(state)
        self._reactor = reactor
        self._speaker = StateAnnouncer()
        self._coming: dict[Record, None] = {}
        self._going: dict[Record, None] = {}
        self._due = self._promised = self._full = False
        self._left = False
        hooks = ConnectionHooks(self._welcomed, self._heard, _ignore, self._speaker.beats)
        self._line = DirectoryConnection(
            reactor,
            config.path(DIRECTORY_SOCKET),
            hooks,
            tuning=Tuning(),
            hello=Hello(False, config.node),
            pulse_s=config.beat_s,
        )
        self._speaker.line = self._line
        self.counts = self._line.counts
        self.counts["unfit"] = 0
        self._speaker.put(self._offer)

    @property
    def incarnation(self) -> int:
        """Of the pipeline."""
        return self._offer.incarnation

    @property
    def state(self) -> State:
        """All that is announced, as it is now."""
        return self._offer.state()

    @property
    def alive(self) -> bool:
        """True while the directory answers."""
        return self._line.alive

    def add(self, records: Iterable[Record]) -> None:
        """The pipeline offers these, too; what comes and goes within one turn of the reactor is told at once."""
        pipeline = self._offer.pipeline
        for record in records:
            record = canonical(pipeline, record)
            if record in self._going:
                del self._going[record]
            elif record in self._offer.records:
                continue
            elif fits_record(pipeline, record):
                self._coming[record] = None
            else:
                self.counts["unfit"] += 1
        self._soon()

    def remove(self, records: Iterable[Record]) -> None:
        """The pipeline does not offer these any more."""
        for record in records:
            record = canonical(self._offer.pipeline, record)
            if record in self._coming:
                del self._coming[record]
            elif record in self._offer.records:
                self._going[record] = None
        self._soon()

    def promise(self) -> int:
        """The version of the state by which all that came or went until now is told, even if it changes nothing."""
        if self._due:
            self._promised = True
        return self._offer.version + (1 if self._due else 0)

    def leave(self) -> None:
        """The pipeline ends: the directory tells everybody."""
        if not self._left:
            self._left = True
            self._speaker.remove(self._offer.place)

    def status(self) -> dict[str, Any]:
        """For status."""
        return {
            "alive": self.alive,
            "version": self._offer.version,
            "records": len(self._offer.records),
            **self.counts,
        }

    def close(self) -> None:
        """End it; without ``leave`` the lease has to end first. Harmless twice."""
        self._left = True
        self._line.close(LEAVE_MS)

    def _soon(self) -> None:
        if not self._due:
            self._due = True
            self._reactor.call_soon(self._flush)

    def _flush(self) -> None:
        self._due = False
        if self._left:
            return
        offer, since = self._offer, self._offer.version
        removed, added = tuple(self._going), []
        self._going.clear()
        for record in removed:
            offer.remove(record)
        # what finds no room stays, in its order: each look costs what is told by it, and the first that is not
        for record in self._coming:
            if not fits_state(len(offer.records) + 1, offer.chars + chars_of(record)):
                break
            offer.add(record)
            added.append(record)
        for record in added:
            del self._coming[record]
        self._mind_the_rest()
        promised, self._promised = self._promised, False
        if not (added or removed or promised):
            return
        offer.version = since + 1
        change = Change(*offer.place, offer.incarnation, since, offer.version, tuple(added), removed)
        # a change that is most of it: all of it is shorter
        self._speaker.put(offer, change if len(added) + len(removed) <= len(offer.records) else None)

    def _mind_the_rest(self) -> None:
        full, self._full = self._full, bool(self._coming)
        if self._full and not full:
            self.counts["unfit"] += 1
            self._reactor.say(
                logging.ERROR,
                "%s: %d listeners are too many for one node's directory; %d of them wait for others to end",
                (self._offer.pipeline, len(self._offer.records) + len(self._coming), len(self._coming)),
            )

    def _welcomed(self, _welcome: Welcome) -> bool:
        self._speaker.welcomed()
        return True

    def _heard(self, message: DirectoryMessage) -> None:
        if message.kind is DirectoryKind.RESEND:
            self._speaker.resend(message.body)


def _ignore() -> None:
    """An announcer has nothing to forget when its directory is silent."""


class Reader:
    """What an application's process reads: the directory of its node, or else those of ``directories``.

    Args:
        reactor: whose thread; open.
        replica: what is fed.
        ipc_dir: folder of the node's proxy.
        directories: ``tcp://host:port``, asked while the local directory is not there; () none.
        tuning: keep-alive and CURVE of those.
        node: our own name, for their logs.
        trusted: whether the folder may be used now; asked before it is.
        look_s: between two looks for the socket of the local directory.

    Attributes:
        links: by endpoint, once they are opened.
    """

    def __init__(
        self,
        reactor: Reactor,
        replica: Replica,
        *,
        ipc_dir: str,
        directories: tuple[str, ...] = (),
        tuning: Tuning | None = None,
        node: str = "",
        trusted: Callable[[], bool] | None = None,
        look_s: float = LOOK_S,
    ) -> None:
        self.links: dict[str, DirectoryLink] = {}
        self._reactor = reactor
        self._replica = replica
        self._path = os.path.join(ipc_dir, DIRECTORY_SOCKET)
        self._local = f"ipc://{self._path}"
        self._trusted = trusted
        self._look_s = look_s
        self._directories = directories
        self._tuning = Tuning() if tuning is None else tuning
        self._node = node
        self._timer: Timer | None = None
        self._look()

    @property
    def alive(self) -> bool:
        """True while some directory answers."""
        return any(link.alive for link in self.links.values())

    def status(self) -> dict[str, Any]:
        """For status."""
        return {"links": [link.status() for link in self.links.values()], **self._replica.status()}

    def close(self) -> None:
        """End all links; what they told stays. Harmless twice."""
        if self._timer is not None:
            self._timer.cancel()
        for link in self.links.values():
            link.close()

    def _look(self) -> None:
        self._timer = self._reactor.call_later(self._look_s, self._look)
        self._replica.tick(self._reactor.now())
        local = self.links.get(self._local)
        if local is None and os.path.exists(self._path) and (self._trusted is None or self._trusted()):
            # it knows the node's own servers, and all that its uplinks and Redis tell it: whoever answered before
            self._open(self._local)
        elif (local is None or not local.alive) and not (self.alive and self._replica.synced):
            for endpoint in self._directories:
                if endpoint not in self.links:
                    self._open(endpoint)

    def _open(self, endpoint: str) -> None:
        self.links[endpoint] = DirectoryLink(
            self._reactor, endpoint, self._replica, tuning=self._tuning, node=self._node
        )
