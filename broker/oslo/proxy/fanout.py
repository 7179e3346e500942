"""The FANOUT pipeline of a node: XSUB towards clients (TCP 9502 and IPC), XPUB towards servers (IPC).

Seed 003, "PUB/SUB for FANOUT CAST": a client publishes once to each node that has the topic, the node publishes once to
its servers, however many they are. A server registers by subscribing; the first subscription to a filter goes upstream
to the clients and becomes a record of the directory, the last one's end takes both back.

A message is ``[filter][envelope][body]`` on both sides. Its number (``word``) counts the messages of its filter from 1
since the proxy's start: a server that does not read loses messages, alone, and sees by the numbers how many.
"""

from __future__ import annotations

import contextlib
from typing import Any, Final

import zmq

from broker.identity import Credentials
from broker.oslo.directory.announcer import Announcer
from broker.oslo.frames import (
    FANOUT_LETTER,
    HEAD_BYTES,
    MAGIC,
    VERSION,
    Envelope,
    Kind,
    Malformed,
    decode,
    numbered,
    read_filter,
    stamped,
)
from broker.oslo.names import Pipeline, Reason
from broker.oslo.node import NodeConfig
from broker.oslo.proxy.acl import AccessControl
from broker.oslo.proxy.counters import Counters
from broker.oslo.proxy.frontend import Frontend
from broker.oslo.proxy.journal import PipelineJournal, journal_of
from broker.oslo.proxy.publishers import LocalPublisher, Subscriber
from broker.oslo.proxy.recording import Recording
from broker.oslo.proxy.registration import CannotOpen, RegistrationSocket, ServerLink
from broker.oslo.proxy.rejoin import REJOINING, STOPPING, Rejoin
from broker.oslo.reactor import Reactor
from broker.oslo.records import Opened, Opening, Record, to_json
from broker.transport.curve import Certificate

NUMBERS_MAX: Final = 65_536
"""Filters whose last number is kept while nobody hears them: a server that comes back sees what it missed."""
PASSED_MAX: Final = 16_384
"""Senders and addresses that were looked at and may pass; then all are forgotten and looked at again."""
PASSED_BYTES_MAX: Final = 1024
"""Longer envelopes are looked at each time."""
_BEGIN: Final = MAGIC + bytes([VERSION, Kind.FANOUT])
_BEGIN_BYTES: Final = len(_BEGIN)


class FanoutProxy:
    """The pipeline; nothing is opened before ``open``.

    Args:
        reactor: whose thread.
        config: of the node.
        acl: who may send and listen where.

    Attributes:
        recording: where messages are recorded, from ``open`` on; None nowhere.
    """

    def __init__(self, reactor: Reactor, config: NodeConfig, acl: AccessControl) -> None:
        self.counters = Counters(reactor, Pipeline.FANOUT)
        self._reactor = reactor
        self._config = config
        self._acl = acl
        self._records: dict[bytes, Record] = {}
        self._numbers: dict[bytes, int] = {}
        self._passed: set[tuple[Credentials, bytes, bytes]] = set()
        self._returns = True
        self.recording: Recording | None = None
        self._journal: PipelineJournal | None = None

    # ------------------------------------------------------------ life

    def open(self) -> None:
        """Bind everything and announce that nobody is here yet.

        Raises:
            ConfigError: a port or file is in use, or a port would be open to other machines in plaintext.
        """
        reactor, config, acl, counters = self._reactor, self._config, self._acl, self.counters
        journal = self._journal = journal_of(self.recording, Pipeline.FANOUT, config, self.counters)
        came = self._came
        if journal is not None:
            came = journal.frontend(1, came)
        with contextlib.ExitStack() as undo:
            self._frontend = Frontend(reactor, config, Pipeline.FANOUT, zmq.XSUB, acl, came, counters)
            undo.callback(self._frontend.close)
            self._publisher = LocalPublisher(
                reactor,
                config,
                acl,
                counters,
                allows=self._allows,
                first=self._first,
                last=self._last,
                answer=self._answer,
            )
            undo.callback(self._publisher.close)
            self._registration = RegistrationSocket(
                reactor,
                config,
                Pipeline.FANOUT,
                acl,
                counters,
                opened=_not_opened,
                closed=_not_closed,
                other=self._unexpected,
                status=self.status,
            )
            undo.callback(self._registration.close)
            frontend = self._frontend
            self._announcer = Announcer(
                reactor, config, Pipeline.FANOUT, frontend.endpoint, frontend.key, held=True
            )
            self._rejoin = Rejoin(
                reactor, config.ipc_dir, Pipeline.FANOUT, self._publisher.registered, self._rejoined
            )
            self._publisher.changed = self._rejoin.changed
            frontend.pause(REJOINING, on=True)
            self._rejoin.begin()
            undo.pop_all()

    def _rejoined(self) -> None:
        """The local servers have subscribed again, if there were any: clients may come."""
        self._announcer.begin()
        self._frontend.pause(REJOINING, on=False)

    @property
    def waiting(self) -> int:
        """Messages that wait to be sent."""
        return self._registration.pipe.waiting

    def renew(self, certificate: Certificate | None) -> int:
        """See ``reload.Renewable``."""
        self._passed.clear()
        try:
            self._frontend.renew(certificate)
        finally:
            self._announcer.change_key(self._frontend.key)
        return self._publisher.review()

    def stop(self, reason: str, *, returns: bool) -> None:
        """See ``process.ProxyRoom``; what still comes is published."""
        self._frontend.pause(STOPPING, on=returns)
        self._returns = returns
        if returns:
            self._announcer.away()
            return
        self._registration.farewell(reason)
        self._announcer.leave()

    def close(self, linger_ms: int = 0) -> None:
        """Close everything; libzmq goes on handing over for ``linger_ms``. Harmless twice."""
        self._rejoin.close(forget=not self._returns)
        self._announcer.close()
        self._frontend.close()
        self._publisher.close(linger_ms)
        self._registration.close(linger_ms)

    # ------------------------------------------------------------ servers

    def _allows(self, data: bytes, subscriber: Subscriber) -> bool | None:
        address = _address(data)
        return None if address is None else self._acl.may_listen(subscriber.who, *address)

    def _first(self, data: bytes) -> None:
        address = _address(data)
        if address is not None:
            record = self._records[data] = Record(*address)
            if self._journal is not None:
                self._journal.heard(data, *address)
            for pipe in self._frontend.pipes:
                pipe.send((b"\1" + data,))
            self._announcer.add((record,))

    def _last(self, data: bytes) -> None:
        record = self._records.pop(data, None)
        if record is not None:
            if self._journal is not None:
                self._journal.unheard(data, record.exchange, record.topic)
            for pipe in self._frontend.pipes:
                pipe.send((b"\0" + data,))
            self._announcer.remove((record,))
            if len(self._numbers) > NUMBERS_MAX + len(self._records):
                self._forget_numbers()

    def _forget_numbers(self) -> None:
        unheard = [data for data in self._numbers if data not in self._records]
        for data in unheard[: len(unheard) // 2]:
            del self._numbers[data]

    def _answer(self) -> bytes:
        announcer = self._announcer
        return to_json(Opened(self._config.node, announcer.incarnation, version=announcer.promise()))

    # ------------------------------------------------------------ messages

    def _came(self, frames: list[bytes], who: Credentials, index: int) -> None:
        if len(frames) != 3:
            self.counters.dropped("malformed", "dropped a message of %d frames, expected 3", len(frames))
            return
        data, head, body = frames
        passed = (who, data, head[HEAD_BYTES:])
        if passed not in self._passed or head[:_BEGIN_BYTES] != _BEGIN:
            if not self._may_pass(data, head, who):
                return
            if len(head) <= PASSED_BYTES_MAX:
                if len(self._passed) >= PASSED_MAX:
                    self._passed.clear()
                self._passed.add(passed)
        if data not in self._records:
            self.counters.counts["nobody"] += 1  # it was on its way when the last server left
            if self._journal is not None:
                self._journal.dropped("nobody")
            return
        number = self._numbers.get(data, 0) + 1
        self._numbers[data] = number
        self.counters.counts["published"] += 1
        message = (data, numbered(stamped(head, who), number), body)
        if self._journal is not None:
            self._journal.published(message, self._publisher.heard.count(data))
        self._publisher.publish(message)

    def _may_pass(self, data: bytes, head: bytes, who: Credentials) -> bool:
        try:
            envelope = decode(head)
        except Malformed as error:
            name = "unknown_version" if error.unknown_version else "malformed"
            self.counters.dropped(name, "dropped a message of uid %d: %s", who.userid, error)
            return False
        where = f"{envelope.exchange[:64]}/{envelope.topic[:64]}"
        if envelope.kind != Kind.FANOUT or _address(data) != (envelope.exchange, envelope.topic):
            text = "dropped a message of kind %d for %s at the filter %r, expected a fan-out of that topic"
            self.counters.dropped("malformed", text, envelope.kind, where, data[:64])
        elif not self._acl.may_send(who, envelope.exchange, envelope.topic):
            self.counters.dropped("denied", "dropped a message: uid %d may not send to %s", who.userid, where)
        else:
            return True
        return False

    def _unexpected(self, link: ServerLink, envelope: Envelope, rest: list[bytes]) -> None:
        text = "dropped a message of %s: saw kind %d with %d frames"
        self.counters.dropped("unexpected", text, link, envelope.kind, len(rest))

    # ------------------------------------------------------------ STATUS

    def status(self) -> dict[str, Any]:
        """What STATUS answers; ``topics``: connections of servers by topic."""
        return {
            "pipeline": "fanout",
            "node": self._config.node,
            "incarnation": self._announcer.incarnation,
            "endpoint": self._frontend.endpoint,
            "entries": self._frontend.status(),
            "exit": self._publisher.status(),
            **self._rejoin.status(),
            **self._registration.status(),
            "topics": {
                f"{record.exchange}/{record.topic}": self._publisher.heard.count(data)
                for data, record in self._records.items()
            },
            "counts": self.counters.status(),
        }


def _address(data: bytes) -> tuple[str, str] | None:
    """Exchange and topic of a fan-out's filter; None when it is none."""
    return read_filter(data) if data[:1] == FANOUT_LETTER else None


def _not_opened(_link: ServerLink, _opening: Opening) -> Opened:
    raise CannotOpen(
        Reason.MALFORMED, "saw OPEN, expected a subscription: that is how fan-outs are listened to"
    )


def _not_closed(_link: ServerLink, _listener: str) -> None:
    """Never: nothing is opened here."""
