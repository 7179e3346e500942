"""``strict_rfc3``, live: bytes as the text of RFC 3 has them, beside clients of the deployed form."""

import contextlib
import errno
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from broker.wire.message import EVENT, REQUEST, RESPONSE, event, request, response
from tests.live.brokers import one_broker
from tests.live.listeners import one_place
from tests.live.speaker import PATIENCE_S, Speaker, is_request, provide, subscribe

pytestmark = pytest.mark.story

MAGIC = bytes.fromhex("ffee0012")
PROTO = struct.Struct(">BBBBIIII")
TOPIC, PAYLOAD, ROUTE = 1, 2, 8
SUBSCRIBE = [b"", b"event.subscribe\0", b'{"topic":"news"}\0']
ADD = [b"", b"service.add\0", b'{"service":"strict"}\0']


def proto(kind: int, flags: int, word: int, tag: int, userid: int = 0xFFFFFFFF) -> bytes:
    return PROTO.pack(0x8E, 1, kind, flags, userid, 0, word, tag)


def asking(parts: list[bytes], tag: int) -> list[bytes]:
    """A request of delimiter, topic and perhaps a payload."""
    flags = ROUTE | TOPIC | (PAYLOAD if len(parts) == 3 else 0)
    return [*parts, proto(REQUEST, flags, 0xFFFFFFFF, tag)]


def framed(parts: list[bytes]) -> bytes:
    """RFC 3, "Message Framing and Security": a size of 255 or more is 0xFF and four bytes."""
    body = b"".join(
        (bytes((len(part),)) if len(part) < 255 else b"\xff" + len(part).to_bytes(4, "big")) + part
        for part in parts
    )
    return MAGIC + len(body).to_bytes(4, "big") + body


class Strict:
    """A UNIX client made of a socket and the text's frames."""

    def __init__(self, path: Path) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(PATIENCE_S)
        self.sock.connect(str(path))
        assert self.read(1) == b"\0"

    def read(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            more = self.sock.recv(count - len(data))
            assert more, "the broker closed the connection"
            data += more
        return data

    def send(self, *parts: bytes) -> None:
        self.sock.sendall(framed(list(parts)))

    def receive(self) -> list[bytes]:
        """The parts of one frame, whose magic order must be the text's."""
        assert self.read(4) == MAGIC
        body = self.read(int.from_bytes(self.read(4), "big"))
        parts = []
        while body:
            size, start = body[0], 1
            if size == 255:
                size, start = int.from_bytes(body[1:5], "big"), 5
            parts.append(body[start : start + size])
            body = body[start + size :]
        return parts

    def ask(self, parts: list[bytes], tag: int = 1) -> list[bytes]:
        self.send(*asking(parts, tag))
        return self.receive()


@pytest.fixture(scope="module")
def broker(module_rundir):
    extra = f'[[listen]]\nuri = "local://{module_rundir}/strict"\nstrict_rfc3 = true\n'
    with one_broker(module_rundir, extra) as running:
        yield running


@pytest.fixture
def strict(broker, module_rundir):
    client = Strict(module_rundir / "strict")
    with client.sock:
        yield client


@pytest.fixture
def modern(broker):
    with Speaker(broker.uri) as client:
        yield client


# -- UNIX sockets ----------------------------------------------------------------------------------


def test_topics_end_with_nul(strict):
    delimiter, topic, payload, last = strict.ask([b"", b"no.such\0"], tag=7)
    assert (delimiter, topic) == (b"", b"no.such\0")
    assert payload == b"No service matching no.such is registered\0"
    assert PROTO.unpack(last)[2:4] == (RESPONSE, TOPIC | PAYLOAD | ROUTE)
    assert PROTO.unpack(last)[6:] == (errno.ENOSYS, 7)


def test_the_first_answer_has_the_order_of_the_text_whatever_the_question_had(strict):
    strict.sock.sendall(request("no.such", matchtag=1).framed())
    assert strict.receive()[1] == b"no.such\0"


def test_long_topics_and_payloads(strict):
    topic = b"no." + b"x" * 300
    delimiter, seen, payload, _proto = strict.ask([b"", topic + b"\0", b"{}\0"])
    assert (delimiter, seen) == (b"", topic + b"\0")
    assert payload.startswith(b"No service matching no.xxx")


def test_events_have_no_delimiter(strict, modern):
    assert PROTO.unpack(strict.ask(SUBSCRIBE)[-1])[6] == 0
    modern.tell(event("news.one", b"x"), event("news.two"))
    topic, payload, last = strict.receive()
    assert (topic, payload) == (b"news.one\0", b"x")
    assert PROTO.unpack(last)[2:4] == (EVENT, TOPIC | PAYLOAD)
    topic, last = strict.receive()
    assert topic == b"news.two\0"
    assert PROTO.unpack(last)[2:4] == (EVENT, TOPIC)
    assert PROTO.unpack(last)[7] == 0


def test_events_without_delimiter_are_read(strict, modern):
    subscribe(modern, "from.")
    strict.send(b"from.strict\0", b"x", proto(EVENT, TOPIC | PAYLOAD, 0, 0))
    seen = modern.next()
    assert (seen.topic, seen.payload) == ("from.strict", b"x")


def test_routes_end_with_nul(strict, modern):
    assert PROTO.unpack(strict.ask(ADD)[-1])[6] == 0
    asked = request("strict.run", b"p", matchtag=3)
    asked.push_route(b"behind")
    modern.tell(asked)
    hop, behind, delimiter, topic, payload, last = strict.receive()
    assert (len(hop), hop[-1:], behind) == (37, b"\0", b"behind\0")
    assert (delimiter, topic, payload) == (b"", b"strict.run\0", b"p")
    strict.send(hop, behind, b"", topic, b"q", proto(RESPONSE, ROUTE | TOPIC | PAYLOAD, 0, 3))
    answer = modern.next()
    assert (answer.topic, answer.payload, answer.routes) == ("strict.run", b"q", [b"behind"])
    assert PROTO.unpack(last)[2:4] == (REQUEST, TOPIC | PAYLOAD | ROUTE)


def test_a_response_without_topic_gets_that_of_its_request(strict, modern):
    """Found here: a response without topic to a strict client ended the link of the provider that sent it."""
    provide(modern, "modern")
    for tag in (1, 2):
        strict.send(*asking([b"", b"modern.run\0"], tag))
    first, second = modern.take(is_request), modern.take(is_request)
    answer = response(first)
    answer.topic_part = b""
    answer.set_flags(answer.flags & ~TOPIC)
    modern.tell(answer, response(second))
    for tag in (1, 2):
        delimiter, topic, last = strict.receive()
        assert (delimiter, topic, PROTO.unpack(last)[7]) == (b"", b"modern.run\0", tag)
    assert modern.ping() == 0


# -- ZeroMQ ----------------------------------------------------------------------------------------


@contextlib.contextmanager
def dealer(rundir: Path) -> Iterator[tuple[zmq.Socket, Speaker]]:
    with (
        one_place(rundir, "strict_rfc3 = true") as place,
        Speaker(place.broker.uri) as modern,
        zmq.Context() as context,
        context.socket(zmq.DEALER) as sock,
    ):
        sock.set(zmq.LINGER, 0)
        sock.set(zmq.RCVTIMEO, int(PATIENCE_S * 1000))
        sock.set(zmq.CURVE_SERVERKEY, place.server_key.encode())
        sock.set(zmq.CURVE_PUBLICKEY, place.client.public_key.encode())
        sock.set(zmq.CURVE_SECRETKEY, (place.client.secret_key or "").encode())
        sock.connect(place.uri)
        yield sock, modern


def test_parts_of_the_text(rundir):
    with dealer(rundir) as (sock, modern):
        sock.send_multipart(asking([b"", b"no.such\0"], 7))
        delimiter, topic, _text, last = sock.recv_multipart()
        assert (delimiter, topic, PROTO.unpack(last)[6:]) == (b"", b"no.such\0", (errno.ENOSYS, 7))
        sock.send_multipart(asking(SUBSCRIBE, 1))
        assert PROTO.unpack(sock.recv_multipart()[-1])[6] == 0
        modern.tell(event("news.one", b"x"))
        topic, payload, last = sock.recv_multipart()
        assert (topic, payload) == (b"news.one\0", b"x")
        assert PROTO.unpack(last)[2:4] == (EVENT, TOPIC | PAYLOAD)
        sock.send_multipart(asking(ADD, 2))
        assert PROTO.unpack(sock.recv_multipart()[-1])[6] == 0
        modern.tell(request("strict.run", matchtag=3))
        hop, delimiter, topic, _last = sock.recv_multipart()
        assert (len(hop), hop[-1:], delimiter, topic) == (37, b"\0", b"", b"strict.run\0")
