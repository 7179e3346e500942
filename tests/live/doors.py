"""The ways into an instance, each as one user: what is sent is bytes, so that nothing of the product's client helps.

A door asks many things at once (``ask``) and gives an ``Answer`` for each, None for what is not answered. Requests
leave with whatever credentials and routes ``forged`` says: nobody's, unless a test forges some.
"""

import base64
import http.client
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, Self

import zmq
from websockets.sync.client import connect

from broker.transport.curve import Certificate
from broker.wire.decoding import from_parts
from broker.wire.framing import Splitter
from broker.wire.message import CONTROL, EVENT, NODEID_ANY, PRIVATE, REQUEST, RESPONSE, Message
from tests.fuzz import reference
from tests.fuzz.reference import Fields
from tests.live.speaker import Speaker

PATIENCE_S = 40.0
AT_ONCE = 60
"""Requests under way: below every limit of calls that a user may have open."""
DENIED_TEXTS = ("Request requires owner credentials", "Request rejected due to insufficient privilege")
TOPIC, PAYLOAD, ROUTE = 1, 2, 8


class Answer(NamedTuple):
    """A response, or what HTTP made of one."""

    errnum: int
    text: str = ""
    """Of an error; or the payload, without its NUL."""

    @property
    def denied(self) -> bool:
        """Refused for want of a role, as the broker's own services and those of its clients say it."""
        return self.errnum == 1 and self.text.startswith(DENIED_TEXTS)


class Forged(NamedTuple):
    """What a request claims of its sender."""

    userid: int = 0xFFFFFFFF
    rolemask: int = 0
    routes: tuple[bytes, ...] = ()


HONEST = Forged()


def fields(
    topic: str, tag: int, payload: bytes | None, nodeid: int, forged: Forged, flags: int = 0
) -> Fields:
    """A request, by the plain reading of RFC 3."""
    flags |= TOPIC | ROUTE | (0 if payload is None else PAYLOAD)
    words = (forged.userid, forged.rolemask, nodeid, tag)
    return Fields(forged.routes, topic.encode(), payload, REQUEST, flags, words)


def text_of(payload: bytes | None) -> str:
    return (payload or b"").removesuffix(b"\0").decode("utf-8", "replace")


class Door:
    """Base of those that have a connection with matchtags.

    Attributes:
        name, roles: for tests. nodeid: which rank is asked.
    """

    def __init__(self, name: str, roles: int, nodeid: int = NODEID_ANY) -> None:
        self.name = name
        self.roles = roles
        self.nodeid = nodeid
        self.got: dict[int, Message] = {}
        self._tag = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def ask(
        self,
        asked: Sequence[tuple[str, bytes | None, bool]],
        forged: Forged = HONEST,
        nodeid: int | None = None,
    ) -> list[Answer | None]:
        """Ask all of (topic, payload, is there an answer); those that have none are waited for by a fence behind.

        A disconnect that passes takes back what its sender has open at the service: it does not belong between others.
        """
        out: list[Answer | None] = []
        where = self.nodeid if nodeid is None else nodeid
        for start in range(0, len(asked), AT_ONCE):
            tags = []
            for topic, payload, _answered in asked[start : start + AT_ONCE]:
                self._tag += 1
                tags.append(self._tag)
                self.send(fields(topic, self._tag, payload, where, forged))
            self._tag += 1
            self.send(fields("attr.get", self._tag, b'{"name":"rank"}\0', where, HONEST))
            for tag, (topic, _, answered) in [
                *zip(tags, asked[start:], strict=False),
                (self._tag, ("fence", None, True)),
            ]:
                if answered:
                    self.wait(tag, topic)
            out += [self.answer(tag) for tag in tags]
        return out

    def one(self, topic: str, payload: bytes | None = None, forged: Forged = HONEST) -> Answer:
        """Ask one thing that is answered."""
        (found,) = self.ask([(topic, payload, True)], forged)
        assert found is not None
        return found

    def answer(self, tag: int) -> Answer | None:
        found = self.got.pop(tag, None)
        return None if found is None else Answer(found.errnum, text_of(found.payload))

    def wait(self, tag: int, topic: str) -> None:
        while tag not in self.got:
            try:
                messages = self.receive()
            except (TimeoutError, zmq.Again) as error:
                raise AssertionError(f"{self.name}: {topic} is not answered") from error
            for message in messages:
                if message.type == RESPONSE:
                    self.got[message.matchtag] = message

    def send(self, request: Fields) -> None:
        raise NotImplementedError

    def receive(self) -> list[Message]:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


class UnixDoor(Door):
    """A stream socket; ``uid`` is whom the kernel says it is (root only)."""

    def __init__(self, name: str, roles: int, uri: str, uid: int | None = None, **more: int) -> None:
        super().__init__(name, roles, **more)
        self._speaker = Speaker(uri, uid)

    def send(self, request: Fields) -> None:
        self._speaker.send(reference.write(request))

    def receive(self) -> list[Message]:
        self._speaker.receive(PATIENCE_S)
        seen, self._speaker.seen = self._speaker.seen, []
        return seen

    def close(self) -> None:
        self._speaker.close()


class CurveDoor(Door):
    """A DEALER with a key that the broker knows."""

    def __init__(
        self, name: str, roles: int, uri: str, server_key: str, key: Certificate, **more: int
    ) -> None:
        super().__init__(name, roles, **more)
        self._context = zmq.Context()
        self.sock = dealer(self._context, uri, server_key, key)

    def send(self, request: Fields) -> None:
        self.sock.send_multipart(reference.write_parts(request))

    def receive(self) -> list[Message]:
        return [from_parts(self.sock.recv_multipart())]

    def close(self) -> None:
        self.sock.close(0)
        self._context.term()


def dealer(
    context: zmq.Context, uri: str, server_key: str | None, key: Certificate | None
) -> zmq.Socket[bytes]:
    """A DEALER; without keys it speaks plaintext."""
    sock = context.socket(zmq.DEALER)
    sock.set(zmq.LINGER, 0)
    sock.set(zmq.RCVTIMEO, int(PATIENCE_S * 1000))
    sock.set(zmq.SNDTIMEO, int(PATIENCE_S * 1000))
    sock.set(zmq.RECONNECT_IVL, 50)
    if server_key is not None and key is not None:
        sock.set(zmq.CURVE_SERVERKEY, server_key.encode())
        sock.set(zmq.CURVE_PUBLICKEY, key.public_key.encode())
        sock.set(zmq.CURVE_SECRETKEY, (key.secret_key or "").encode())
    sock.connect(uri)
    return sock


class BinaryDoor(Door):
    """A WebSocket of `flux.v1`."""

    def __init__(self, name: str, roles: int, ws: str, headers: dict[str, str], **more: int) -> None:
        super().__init__(name, roles, **more)
        self._splitter = Splitter()
        self._open = connect(ws, subprotocols=["flux.v1"], additional_headers=headers, proxy=None)
        self._socket = self._open.__enter__()

    def send(self, request: Fields) -> None:
        self._socket.send(reference.write(request))

    def receive(self) -> list[Message]:
        said = self._socket.recv(timeout=PATIENCE_S)
        return self._splitter.feed(said) if isinstance(said, bytes) else []

    def close(self) -> None:
        self._open.__exit__(None, None, None)


class JsonDoor(Door):
    """A WebSocket of `flux.v1.json`."""

    def __init__(self, name: str, roles: int, ws: str, headers: dict[str, str], **more: int) -> None:
        super().__init__(name, roles, **more)
        self._open = connect(ws, subprotocols=["flux.v1.json"], additional_headers=headers, proxy=None)
        self._socket = self._open.__enter__()

    def send(self, request: Fields) -> None:
        self._socket.send(json.dumps(view(request)))

    def receive(self) -> list[Message]:
        found = json.loads(self._socket.recv(timeout=PATIENCE_S))
        return [
            _as_message(one)
            for one in (found if isinstance(found, list) else [found])
            if one["type"] in _KINDS.values()
        ]

    def close(self) -> None:
        self._open.__exit__(None, None, None)


_KINDS = {REQUEST: "request", RESPONSE: "response", EVENT: "event", CONTROL: "control"}
_WORDS = {
    REQUEST: ("nodeid", "matchtag"),
    RESPONSE: ("errnum", "matchtag"),
    EVENT: ("sequence", ""),
    CONTROL: ("kind", "status"),
}
_FLAGS = {0x04: "noresponse", 0x10: "upstream", PRIVATE: "private", 0x40: "streaming"}


def view(said: Fields) -> dict[str, object]:
    """A message as `flux.v1.json` has it."""
    userid, rolemask, *words = said.words
    out: dict[str, object] = {
        "type": _KINDS[said.kind],
        "userid": userid,
        "rolemask": rolemask,
        "routes": [route.hex() for route in said.routes],
        "flags": [name for bit, name in _FLAGS.items() if said.flags & bit],
    }
    out |= {name: word for name, word in zip(_WORDS[said.kind], words, strict=True) if name}
    if said.topic is not None:
        out["topic"] = said.topic.decode()
    if said.payload is not None:
        out["data"] = base64.b64encode(said.payload).decode()
    return out


def _as_message(said: dict[str, object]) -> Message:
    kind = next(kind for kind, name in _KINDS.items() if name == said["type"])
    if "payload" in said:
        payload: bytes | None = json.dumps(said["payload"], separators=(",", ":")).encode()
    elif "data" in said:
        payload = base64.b64decode(str(said["data"]))
    else:
        payload = str(said.get("text", said.get("error", ""))).encode()
    flags = TOPIC | PAYLOAD | ROUTE | (PRIVATE if "private" in (said.get("flags") or ()) else 0)
    names = (*("userid", "rolemask"), *_WORDS[kind])
    words = tuple(int(str(said.get(name, 0))) for name in names)
    return from_parts(
        reference.write_parts(Fields((), str(said["topic"]).encode(), payload, kind, flags, words))
    )


class HttpDoor(Door):
    """`POST /v1/rpc/TOPIC`; it has no place for a stamp, so what is forged goes into headers."""

    def __init__(self, name: str, roles: int, url: str, headers: dict[str, str], **more: int) -> None:
        super().__init__(name, roles, **more)
        self._connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=PATIENCE_S)
        self._headers = headers

    def ask(
        self,
        asked: Sequence[tuple[str, bytes | None, bool]],
        forged: Forged = HONEST,
        nodeid: int | None = None,
    ) -> list[Answer | None]:
        return [
            self._ask(topic, payload, forged, self.nodeid if nodeid is None else nodeid)
            for topic, payload, _ in asked
        ]

    def _ask(self, topic: str, payload: bytes | None, forged: Forged, nodeid: int) -> Answer | None:
        query = "" if nodeid == NODEID_ANY else f"?nodeid={nodeid}"
        headers = {**self._headers, "Content-Type": "application/octet-stream"}
        if forged is not HONEST:
            headers |= {
                "X-Userid": str(forged.userid),
                "X-Rolemask": str(forged.rolemask),
                "X-Forwarded-User": "ada",
            }
        self._connection.request("POST", f"/v1/rpc/{topic}{query}", payload, headers)
        answer = self._connection.getresponse()
        body = answer.read()
        if answer.status == 202:
            return None
        if answer.status < 300:
            return Answer(0, text_of(body))
        problem = json.loads(body)
        return Answer(problem.get("errno", answer.status), problem.get("text", ""))

    def close(self) -> None:
        self._connection.close()


@contextmanager
def dealing(
    uri: str, server_key: str | None = None, key: Certificate | None = None
) -> Iterator[zmq.Socket[bytes]]:
    """A DEALER for a moment."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    sock = dealer(context, uri, server_key, key)
    try:
        yield sock
    finally:
        sock.close(0)
        context.term()
