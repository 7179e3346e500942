"""Listeners and senders of notifications, as raw sockets."""

import msgspec
import zmq

from broker.oslo.frames import Kind, decode, encode, new_id, notify_filter
from broker.oslo.records import Opened
from tests.unit.oslo.proxy.publishing import Rig

EXCHANGE = "openstack"
TOPIC = "events.info"
FILTER = notify_filter(EXCHANGE, TOPIC)
A, B, C = ("a" * 24, "b" * 24, "c" * 24)
Peer = zmq.Socket[bytes]


class Listener:
    """A DEALER, as an application's process has it."""

    def __init__(
        self, rig: Rig, listener: str, pool: str | None = None, credit: int = 100, *topics: str
    ) -> None:
        self.rig = rig
        self.id = listener
        self.registration = rig.peer(zmq.DEALER, "notify.ctl")
        names = [(EXCHANGE, topic) for topic in topics or (TOPIC,)]
        head, body = rig.open(self.registration, listener, names, pool, credit)
        assert head.kind == Kind.OPENED, body
        self.opened = msgspec.json.decode(body, type=Opened)

    def next(self) -> str:
        while True:
            self.head, *rest = self.rig.receive(self.registration, f"a notification for {self.id[:1]}")
            if decode(self.head).kind != Kind.PULSE:
                break
        listener, body = rest
        assert (decode(self.head).kind, listener.decode()) == (Kind.NOTIFY, self.id)
        return body.decode()

    def say(self, kind: int, *rest: bytes, word: int = 0) -> None:
        self.registration.send_multipart([encode(kind, listeners=(self.id,), word=word, id=new_id()), *rest])

    def close(self) -> None:
        self.say(Kind.CLOSE, b"")
        while decode(self.rig.receive(self.registration)[0]).kind != Kind.CLOSED:
            pass


def client(rig: Rig, where: str = "notify.in", topics: int = 1) -> Peer:
    sock = rig.peer(zmq.XPUB, where)
    for _ in range(topics):
        assert rig.receive(sock)[0][:2] == b"\1N"
    return sock


def note(*chosen: str, topic: str = TOPIC, kind: int = Kind.NOTIFY, number: bytes | None = None) -> bytes:
    return encode(kind, EXCHANGE, topic, "", chosen, id=number or new_id())


def publish(sock: Peer, body: str, *chosen: str, topic: str = TOPIC) -> None:
    sock.send_multipart([notify_filter(EXCHANGE, topic), note(*chosen, topic=topic), body.encode()])
