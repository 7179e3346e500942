"""The FANOUT pipeline of a node: XSUB towards clients (TCP 9502 and IPC), XPUB towards servers (IPC).

Seed 003, "PUB/SUB for FANOUT CAST": a client publishes once to each node that has the topic, the node publishes once to
its servers, however many they are. A server registers by subscribing; the first subscription to a filter goes upstream
to the clients and becomes a record of the directory, the last one's end takes both back.

::

    client XPUB    [filter][envelope][body]      XSUB: the entry
    proxy          [filter][envelope][body]      XPUB: the exit, a file of the node

A message's number (``word``) counts those of its filter from 1 since the proxy's start: a server that does not read
loses messages, alone, and sees by the numbers how many.

Who connects to the exit is asked for by ZAP, so that every connection has a name of its own, and what it subscribes to
is granted or not, one by one (``ZMQ_XPUB_MANUAL``). A subscriber that also subscribes to ``?`` and a token of 16 bytes
is answered on it, ``[?token][OPENED][JSON Opened]``, when all it subscribed to before is in force.

Not blocking (no ``ZMQ_XPUB_NODROP``): with it, one subscriber that does not read would stop what is published for all
others. Without it, libzmq drops what is for that one alone, once ``SNDHWM`` messages wait for it, and the subscriber
notices that by the numbers of messages. libzmq counts messages, not bytes, and the limit cannot be changed later: doing
so while a peer leaves ends the process with a segmentation fault (libzmq 4.3.5 tells the limit to the other end of the
connection, which may be deleted by then). Several subscribers that do not read share what waits for them: libzmq keeps
one copy of a message.

So large messages may take more than the bytes that are asked for: subscribers that read nothing are cut off
(``subscribers``).

libzmq tells whose subscription it reports in a list beside the messages, which a peer that sends something else than
subscriptions throws out of step until everything has been read. Subscriptions read in between are not granted; whoever
is not answered within its patience connects anew.
"""

# compiled: mypyc

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from typing import Any, Final, NamedTuple

import zmq

from broker.identity import Credentials
from broker.name_stats import NameStats
from broker.oslo.frames import (
    FANOUT_LETTER,
    HANDSHAKE_LETTER,
    ID_BYTES,
    Envelope,
    Kind,
    encode,
    numbered,
    read_filter,
    stamped,
)
from broker.oslo.names import NAME_BYTES_MAX, Pipeline, Reason, exit_file
from broker.oslo.node import NodeConfig, credentials
from broker.oslo.proxy.acl import AccessControl
from broker.oslo.proxy.frontend import status_of
from broker.oslo.proxy.journal import Recording
from broker.oslo.proxy.pipeline import PipelineRoom
from broker.oslo.proxy.registration import CannotOpen, ServerLink
from broker.oslo.proxy.restart_gate import runs
from broker.oslo.proxy.subscribers import TYPICAL_BYTES, GrantedSubscriptions, SlowConsumers
from broker.oslo.reactor import Reactor, Socket
from broker.oslo.reactor.binding import bind_local, guard, remove_socket
from broker.oslo.reactor.socket import Frames
from broker.oslo.reactor.tuning import PUBLISH_MSGS, tune_local
from broker.oslo.records import Opened, Opening, Record, to_json

NUMBERS_MAX: Final = 65_536
"""Filters whose last number is kept while nobody hears them: a server that comes back sees what it missed."""
FILTER_BYTES_MAX: Final = 2 * (NAME_BYTES_MAX + 1) + 1
TOKEN_BYTES: Final = len(HANDSHAKE_LETTER) + ID_BYTES
FEWEST_MSGS: Final = 64
"""What may wait for one subscriber in any case: a healthy one is this far behind, now and then."""
_EVENTS: Final = int(zmq.EVENTS)
_POLLIN: Final = int(zmq.POLLIN)


class SubscriberAccess:
    """Judges who connects, see ``broker.oslo.reactor.binding.ZapPolicy``: everybody the access control knows.

    The name of a connection is unique: a number, and the address that libzmq gives a local peer.

    Attributes:
        denied: connections refused.
    """

    def __init__(self, acl: AccessControl) -> None:
        self.denied = 0
        self._acl = acl
        self._numbers = itertools.count(1)

    def judge(self, address: str, key: str) -> str | None:
        """The name of a connection, None for one that may not enter."""
        if self._acl.by_ipc(address) is None:
            self.denied += 1
            return None
        return f"{next(self._numbers)} {address}"


class HeardTopic(NamedTuple):
    """What somebody here hears: what the directory is told of it, and where its messages are counted."""

    record: Record
    stats: NameStats


class FanoutProxy(PipelineRoom):
    """One node's pipeline of fan-outs; arguments and attributes as ``PipelineRoom``'s.

    libzmq holds ``PUBLISH_MSGS`` messages for one subscriber, or fewer: as many of ``TYPICAL_BYTES`` as a queue may
    hold bytes. A subscriber that does not read while more than these bytes are published is cut off.

    Attributes:
        heard: the subscriptions at the exit.
    """

    pipeline = Pipeline.FANOUT
    kind = zmq.XSUB

    def __init__(
        self, reactor: Reactor, config: NodeConfig, acl: AccessControl, recording: Recording | None = None
    ) -> None:
        super().__init__(reactor, config, acl, recording)
        self._topics: dict[bytes, HeardTopic] = {}
        self._numbers: dict[bytes, int] = {}
        self.heard = GrantedSubscriptions(alive)
        self._keeper = SubscriberAccess(acl)
        self._in_doubt = False

    def _open(self, undo: contextlib.ExitStack) -> None:
        reactor, config = self._reactor, self._config
        if reactor.context is None:
            raise RuntimeError("an exit is opened before its reactor was")
        sock = reactor.context.socket(zmq.XPUB)
        undo.callback(sock.close, 0)
        undo.callback(guard(reactor, sock, self._keeper))
        tune_local(sock, config.message_bytes_max, send_msgs=limit(config.queue_bytes))
        sock.set(zmq.XPUB_MANUAL, 1)
        self._path = bind_local(sock, config.path(exit_file(Pipeline.FANOUT)), config.ipc_group)
        undo.callback(remove_socket, self._path)
        self._slow_consumers = SlowConsumers(
            reactor, sock, self._path, bytes_max=config.queue_bytes, cut=self._count_cut
        )
        self._exit = Socket(reactor, sock, self._on_subscription, origin="User-Id")
        undo.callback(lambda: self._exit.close(self._linger_ms))
        undo.callback(self._slow_consumers.close)  # it watches a socket that is there
        if self._journal is not None:
            self._journal.watch(self._exit, heard=self.heard.count)
        self._bind_registration(undo)

    def open_listener(self, link: ServerLink, opening: Opening) -> None:
        """Raises ``CannotOpen``."""
        raise CannotOpen(
            Reason.MALFORMED, "saw OPEN, expected a subscription: that is how fan-outs are listened to"
        )

    def close_listener(self, link: ServerLink, listener: str) -> None:
        """Never called: nothing is opened here."""

    def _registered(self) -> dict[int, int]:
        found: Counter[int] = Counter()
        for data in self.heard.heard():
            found.update({credentials(name)[2] or 0 for name in self.heard.names(data)})
        return found

    def _review(self) -> int:
        """Cut off the processes that hear what they may not hear any more; returns how many. They connect and subscribe
        anew, and are then granted what they may hear.
        """
        denied: set[int] = set()
        for data in self.heard.heard():
            for name in self.heard.names(data):
                who = self._acl.by_ipc(name)
                if who is not None and not self._may_hear(data, who):
                    denied.add(credentials(name)[2] or 0)
        for pid in denied:
            self._slow_consumers.shut_down(pid)
        return len(denied)

    # ------------------------------------------------------------ servers

    def _on_subscription(self, frames: list[bytes], name: str) -> None:
        data = frames[0]
        if len(frames) != 1 or data[:1] not in (b"\0", b"\1"):
            self._in_doubt = True
            text = "saw %d frames of %.64s, expected a subscription"
            self.counters.count_dropped(
                "malformed_subscription", text, len(frames), name or "a peer that is gone"
            )
        elif data[:1] == b"\0":
            self._unsubscribe(data[1:], name)
        else:
            self._subscribe(data[1:], name)
        if self._in_doubt and not int(self._exit.sock.get(_EVENTS)) & _POLLIN:
            self._in_doubt = False

    def _subscribe(self, data: bytes, name: str) -> None:
        count, sock = self.counters.count_dropped, self._exit.sock
        who = self._acl.by_ipc(name)
        if who is None or self._in_doubt:
            text = "did not grant %.64r to %.64s: cannot tell whose it is"
            count("subscription_in_doubt", text, data[:64], name)
            self.heard.pass_over(data)
            return
        if data[:1] == HANDSHAKE_LETTER and len(data) == TOKEN_BYTES:
            sock.setsockopt(zmq.SUBSCRIBE, data)
            self.counters.count("handshakes")
            announcer = self._announcer  # whatever is not in force yet is when it has promised a version
            opened = Opened(self._config.node, announcer.incarnation, version=announcer.promise())
            self._publish((data, encode(Kind.OPENED), to_json(opened)))
            sock.setsockopt(zmq.UNSUBSCRIBE, data)  # answered: nothing of it stays
            return
        allowed = self._may_hear(data, who) if len(data) <= FILTER_BYTES_MAX else None
        if allowed is None:
            count("unknown_filter", "saw the filter %.64r from %.64s, which is none of ours", data[:64], name)
            return
        if not self.heard.has_room(data, who.userid):
            count("too_many_filters", "no room for the filter %.64r from %.64s", data[:64], name)
            self.heard.pass_over(data)
            return
        if allowed:
            sock.setsockopt(zmq.SUBSCRIBE, data)
        else:
            count("subscription_denied", "%.64s may not listen to %.64r", name, data[:64])
        if self.heard.add(data, name, who.userid, granted=allowed):
            self._first(data)
        self.on_change()

    def _unsubscribe(self, data: bytes, name: str) -> None:
        if name and not self._in_doubt:
            self._exit.sock.setsockopt(zmq.UNSUBSCRIBE, data)
        if self.heard.remove(data, name):
            self._last(data)
        self.on_change()

    def _may_hear(self, data: bytes, who: Credentials) -> bool | None:
        """None: that is no filter of fan-outs."""
        address = _address(data)
        return None if address is None else self._acl.may_listen(who, *address)

    def _first(self, data: bytes) -> None:
        """Somebody hears that filter from now on."""
        if self._journal is not None:
            self._journal.heard(data)
        address = _address(data)
        if address is not None:
            record = Record(*address)
            self._topics[data] = HeardTopic(record, self.topics.of(*address, listened=True))
            for socket in self._frontend.sockets:
                socket.send((b"\1" + data,))
            self._announcer.add((record,))

    def _last(self, data: bytes) -> None:
        """Nobody hears it any more."""
        if self._journal is not None:
            self._journal.unheard(data)
        topic = self._topics.pop(data, None)
        if topic is not None:
            for socket in self._frontend.sockets:
                socket.send((b"\0" + data,))
            self._announcer.remove((topic.record,))
            if len(self._numbers) > NUMBERS_MAX + len(self._topics):
                unheard = [data for data in self._numbers if data not in self._topics]
                for number in unheard[: len(unheard) // 2]:
                    del self._numbers[number]

    def _count_cut(self, pid: int) -> None:
        self.counters.count_dropped(
            "subscribers_cut", "pid %d does not read: cut off, with what waited for it", pid
        )

    # ------------------------------------------------------------ messages

    def on_client_message(self, frames: list[bytes], who: Credentials, index: int) -> None:
        """A fan-out: number and publish it."""
        if len(frames) != 3:
            self.counters.count_dropped(
                "malformed", "dropped a message of %d frames, expected 3", len(frames)
            )
            return
        data, head, body = frames
        envelope = self._decoded(head, f"uid {who.userid}")
        if envelope is None or not self._may_pass(data, envelope, who):
            return
        topic = self._topics.get(data)
        if topic is None:
            self.counters.count("nobody")  # it was on its way when the last server left
            self.topics.refused(envelope.exchange, envelope.topic, Reason.NO_ROUTE, who.userid)
            return
        topic.stats.calls += 1
        number = self._numbers.get(data, 0) + 1
        self._numbers[data] = number
        self.counters.counts["published"] += 1
        self._publish((data, numbered(stamped(head, who), number), body))

    def _publish(self, frames: Frames) -> None:
        """Send to whoever hears the first frame; never waits."""
        self._exit.send(frames)
        self._slow_consumers.published(sum(map(len, frames)))

    def _may_pass(self, data: bytes, envelope: Envelope, who: Credentials) -> bool:
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
        told = status_of("XPUB", f"ipc://{self._path}", self._exit)
        return {
            "exit": {**told, "denied": self._keeper.denied, "filters": len(self.heard)},
            "topics": {
                f"{record.exchange}/{record.topic}": self.heard.count(data)
                for data, (record, _stats) in self._topics.items()
            },
        }


def _address(data: bytes) -> tuple[str, str] | None:
    """Exchange and topic of a fan-out's filter; None when it is none."""
    return read_filter(data) if data[:1] == FANOUT_LETTER else None


def limit(send_bytes: int) -> int:
    """How many messages may wait for one subscriber, of ``send_bytes`` in all when they are of usual size."""
    return min(PUBLISH_MSGS, max(send_bytes // TYPICAL_BYTES, FEWEST_MSGS))


def alive(name: str) -> bool:
    """Whether the process at the end of the connection of that name may still be there."""
    pid = credentials(name)[2]
    return not pid or runs(pid)  # one of another namespace cannot be told
