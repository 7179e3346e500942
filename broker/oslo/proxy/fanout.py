"""The FANOUT pipeline of a node: XSUB towards clients (TCP 9502 and IPC), XPUB towards servers (IPC).

Seed 003, "PUB/SUB for FANOUT CAST": a client publishes once to each node that has the topic, the node publishes once to
its servers, however many they are. A server registers by subscribing; the first subscription to a filter goes upstream
to the clients and becomes a record of the directory, the last one's end takes both back.

A message is ``[filter][envelope][body]`` on both sides. Its number (``word``) counts the messages of its filter from 1
since the proxy's start: a server that does not read loses messages, alone, and sees by the numbers how many.
"""

# compiled: mypyc

from __future__ import annotations

import contextlib
from typing import Any, Final

import zmq

from broker.identity import Credentials
from broker.name_stats import NameStats
from broker.oslo.frames import (
    FANOUT_LETTER,
    HEAD_BYTES,
    MAGIC,
    VERSION,
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
from broker.oslo.proxy.pipeline import PipelineRoom
from broker.oslo.proxy.publishers import LocalPublisher, Subscriber
from broker.oslo.proxy.registration import CannotOpen, RegistrationSocket, ServerLink
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


class FanoutProxy(PipelineRoom):
    """One node's pipeline of fan-outs; arguments and attributes as ``PipelineRoom``'s."""

    def __init__(self, reactor: Reactor, config: NodeConfig, acl: AccessControl) -> None:
        super().__init__(reactor, config, acl, Pipeline.FANOUT, zmq.XSUB)
        self._records: dict[bytes, Record] = {}
        self._stats: dict[bytes, NameStats] = {}
        self._numbers: dict[bytes, int] = {}
        self._passed: set[tuple[Credentials, bytes, bytes]] = set()

    def _open(self, undo: contextlib.ExitStack) -> RegistrationSocket:
        self._publisher = LocalPublisher(
            self._reactor,
            self._config,
            self._acl,
            self.counters,
            allows=self._allows,
            first=self._first,
            last=self._last,
            answer=self._answer,
            changed=self.on_change,
            journal=self._journal,
        )
        undo.callback(self._publisher.close)
        return RegistrationSocket(
            self._reactor, self._config, Pipeline.FANOUT, self._acl, self.counters, self
        )

    def open_listener(self, link: ServerLink, opening: Opening) -> Opened:
        """Raises ``CannotOpen``."""
        raise CannotOpen(
            Reason.MALFORMED, "saw OPEN, expected a subscription: that is how fan-outs are listened to"
        )

    def close_listener(self, link: ServerLink, listener: str) -> None:
        """Never called: nothing is opened here."""

    def _registered(self) -> dict[int, int]:
        return self._publisher.registered()

    def renew(self, certificate: Certificate | None) -> int:
        """See ``PipelineRoom.renew``."""
        self._passed.clear()
        return super().renew(certificate)

    def _review(self) -> int:
        return self._publisher.review()

    def close(self, linger_ms: int = 0) -> None:
        """See ``PipelineRoom.close``."""
        super().close(linger_ms)
        self._publisher.close(linger_ms)

    # ------------------------------------------------------------ servers

    def _allows(self, data: bytes, subscriber: Subscriber) -> bool | None:
        address = _address(data)
        return None if address is None else self._acl.may_listen(subscriber.who, *address)

    def _first(self, data: bytes) -> None:
        address = _address(data)
        if address is not None:
            record = self._records[data] = Record(*address)
            self._stats[data] = self.topics.of(*address, listened=True)
            for socket in self._frontend.sockets:
                socket.send((b"\1" + data,))
            self._announcer.add((record,))

    def _last(self, data: bytes) -> None:
        self._stats.pop(data, None)
        record = self._records.pop(data, None)
        if record is not None:
            for socket in self._frontend.sockets:
                socket.send((b"\0" + data,))
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

    def on_client_message(self, frames: list[bytes], who: Credentials, index: int) -> None:
        """A fan-out: number and publish it."""
        if len(frames) != 3:
            self.counters.count_dropped(
                "malformed", "dropped a message of %d frames, expected 3", len(frames)
            )
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
        stats = self._stats.get(data)
        if stats is None:
            self.counters.count("nobody")  # it was on its way when the last server left
            envelope = decode(head)
            self.topics.refused(envelope.exchange, envelope.topic, Reason.NO_ROUTE, who.userid)
            return
        stats.calls += 1
        number = self._numbers.get(data, 0) + 1
        self._numbers[data] = number
        self.counters.counts["published"] += 1
        self._publisher.publish((data, numbered(stamped(head, who), number), body))

    def _may_pass(self, data: bytes, head: bytes, who: Credentials) -> bool:
        try:
            envelope = decode(head)
        except Malformed as error:
            name = "unknown_version" if error.unknown_version else "malformed"
            self.counters.count_dropped(name, "dropped a message of uid %d: %s", who.userid, error)
            return False
        where = f"{envelope.exchange[:64]}/{envelope.topic[:64]}"
        if envelope.kind != Kind.FANOUT or _address(data) != (envelope.exchange, envelope.topic):
            text = "dropped a message of kind %d for %s at the filter %r, expected a fan-out of that topic"
            self.counters.count_dropped("malformed", text, envelope.kind, where, data[:64])
        elif not self._acl.may_send(who, envelope.exchange, envelope.topic):
            self.topics.refused(envelope.exchange, envelope.topic, Reason.DENIED, who.userid)
            self.counters.count_dropped(
                "denied", "dropped a message: uid %d may not send to %s", who.userid, where
            )
        else:
            return True
        return False

    # ------------------------------------------------------------ STATUS

    def _pipeline_status(self) -> dict[str, Any]:
        return {
            "exit": self._publisher.status(),
            "topics": {
                f"{record.exchange}/{record.topic}": self._publisher.heard.count(data)
                for data, record in self._records.items()
            },
        }


def _address(data: bytes) -> tuple[str, str] | None:
    """Exchange and topic of a fan-out's filter; None when it is none."""
    return read_filter(data) if data[:1] == FANOUT_LETTER else None
