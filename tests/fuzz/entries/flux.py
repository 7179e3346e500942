"""What brokers read of each other and of clients."""

import asyncio
import itertools
import json
import re
import zlib
from collections.abc import Callable
from contextlib import suppress
from random import Random

from broker.cli.tree import expand_hosts
from broker.errors import DecodeError, ProtocolError, Untranslatable
from broker.identity import Role
from broker.node.overlay import hello
from broker.node.overlay.control import Status
from broker.node.overlay.hello import HeadgateHello, Hello, Rules
from broker.services import idset
from broker.transport.batching import is_framed
from broker.transport.link import Options
from broker.transport.zeromq import frames
from broker.transport.zeromq.codec import ZmtpCodec
from broker.transport.zeromq.connection import Connection, State
from broker.transport.zeromq.mechanisms import Null
from broker.wire import log_entry, payload, topic
from broker.wire.decoding import decode, decode_large, from_parts
from broker.wire.dialects import translate
from broker.wire.framing import Splitter
from broker.wire.message import CONTROL, REQUEST, Message, control, request, response
from tests.fuzz import reference
from tests.fuzz.entries.packing import pack, unpack
from tests.fuzz.reference import BadError
from tests.fuzz.test_framing import CAP_BYTES, DIALECTS, check_stream, corpus, fields
from tests.unit.node.overlay.downward import Parent, say
from tests.unit.services.desk import GUEST, NOBODY, OWNER, REMOTE_OWNER, Desk, assert_no_lines
from tests.unit.transport.zmtp import encoded, opened
from tests.vectors import local, malformed, tbon

SETTLED_TURNS = 4
"""Turns of the loop in which a parent has handled what a child said."""
_LARGE_RUN = re.compile(r"\d{5}")
"""A list of hosts may name millions, which is slow and no fault."""
_UUID = "9304037f-f976-439e-aebd-4a5224d6d28c"


def _dice(data: bytes) -> Random:
    return Random(zlib.crc32(data))


# ---------------------------------------------------------------- frames and parts


def framing(data: bytes) -> bool:
    """A stream cut anywhere means what the plain reading of RFC 3 says it means."""
    return check_stream(data, _dice(data)) > 0


def framing_seeds() -> list[bytes]:
    streams = [record.frame for record in local() if 0 < len(record.frame) < 400][::6]
    return [*streams, *(hostile.data for hostile in malformed() if len(hostile.data) < 400)]


def message(data: bytes) -> bool:
    """One frame's body by both decoders, and its parts as ZeroMQ delivers them: read alike, written back the same."""
    found = _decoded(lambda: decode(data, 0, len(data)))
    if len(data) >= 21:
        assert _decoded(lambda: decode_large(memoryview(data), 0, len(data))) == found
    wanted = None
    with suppress(BadError):
        wanted = reference.fields_of(reference.parts_of(data))
    assert (None if found is None else fields(found)) == wanted
    if found is None:
        return False
    framed = found.framed()
    again = decode(framed, 8, len(framed))
    assert again == found
    assert from_parts(again.parts()) == again
    return True


def _decoded(read: Callable[[], Message]) -> Message | None:
    try:
        return read()
    except DecodeError:
        return None


def dialects(data: bytes) -> bool:
    """Parts from any text of RFC 3 to any other: translated or refused, and what was written can be read."""
    parts, carried = unpack(data), False
    for source, target in itertools.product(DIALECTS, DIALECTS):
        try:
            written = translate(parts, source, target)
        except (DecodeError, Untranslatable):
            continue
        carried = True
        assert target.encode(target.decode(written)) == written
    return carried


def dialects_seeds() -> list[bytes]:
    every = [record.parts for record in tbon()[::2]]
    return [pack(part or b"" for part in parts) for parts in every]


def batch(data: bytes) -> bool:
    """ZeroMQ messages of one part: pieces of a stream of frames, or not."""
    pieces = unpack(data)
    client, server = opened("null")
    codec = ZmtpCodec(server, Options(extra={"batch": True}), CAP_BYTES)
    splitter, out, expected = Splitter(CAP_BYTES), list[Message](), list[Message]()
    for piece in pieces:
        if not splitter.pending_bytes and not is_framed(piece):
            return False
        expected += splitter.feed(piece)
        out += codec.feed(encoded(client, [piece]))
        assert (codec.failure is None) is (splitter.failure is None)
        assert out == expected
        if codec.failure is not None:
            return False
    return bool(out)


def zmtp(data: bytes) -> bool:
    """A stranger's connection means the same wherever it is cut, and holds no more than came."""
    parent = {b"Socket-Type": b"ROUTER"}

    def heard(pieces: list[bytes]) -> tuple[object, ...]:
        server, out = Connection(Null(parent, as_server=True)), []
        for piece in pieces:
            out += server.feed(piece)
            assert server.pending_bytes <= len(data)
            if server.state is State.ASKED and server.failure is None:
                server.grant()
                server.limit(CAP_BYTES)
                out += server.feed(b"")
        assert server.failure is None or isinstance(server.failure, ProtocolError)
        return out, server.state, str(server.failure), server.identity, server.take_owed()

    whole = heard([data])
    dice, pieces, at = _dice(data), [], 0
    while at < len(data):
        size = dice.randint(1, 40)
        pieces.append(data[at : at + size])
        at += size
    assert heard(pieces) == whole
    return whole[1] is State.OPEN and whole[2] == "None"


def zmtp_seeds() -> list[bytes]:
    ready = frames.command(
        b"\x05READY" + frames.pack_metadata({b"Socket-Type": b"DEALER", b"Identity": b"child"})
    )
    begun = frames.greeting(b"NULL", as_server=False) + ready
    hello = request("hello", b"{}\0").parts()
    message = b"".join(
        frames.head_of(len(part), frames.MORE if at < len(hello) - 1 else 0) + part
        for at, part in enumerate(hello)
    )
    return [
        begun,
        begun + message,
        begun + frames.command(b"\x04PING\x00\x0aabc") + message * 3,
        begun + frames.head_of(300) + bytes(300) + frames.head_of(0, frames.COMMAND),
        begun + frames.head_of(1 << 40),
        frames.greeting(b"NULL", as_server=False) + frames.command(frames.error(b"400")),
        frames.greeting(b"CURVE", as_server=True),
    ]


def batch_seeds() -> list[bytes]:
    frames = [record.frame for record in local() if 0 < len(record.frame) < 200]
    whole = [pack([b"".join(frames[at : at + 3])]) for at in range(0, 30, 3)]
    cut = [
        pack([b"".join(frames[at : at + 3])[:99], b"".join(frames[at : at + 3])[99:]])
        for at in range(0, 9, 3)
    ]
    return [*whole, *cut, pack([control(0).proto])]


# ---------------------------------------------------------------- the tree


def greeting(data: bytes) -> bool:
    """The payload of a hello and of its answer."""
    told = None
    with suppress(ProtocolError):
        told = hello.read_request(request(hello.TOPIC, data))
    with suppress(ProtocolError):
        hello.read_answer(response(request(hello.TOPIC), data))
    if told is None:
        return False
    rules = Rules(0, (1, 2), 0x5800, {0: "node0", 1: "node1"})
    for rolemask, key_rank in itertools.product((0, int(Role.OWNER), int(Role.USER)), (None, 1, 2)):
        refusal = hello.judge(told, rolemask, key_rank, rules)
        assert refusal is not None or (rolemask & Role.OWNER and told.rank in (1, 2))
        assert refusal is not None or key_rank in (None, told.rank)
    return hello.read_request(hello.encode(told)) == told


def greeting_seeds() -> list[bytes]:
    some = [
        Hello(1, 0x5800, _UUID, Status.FULL),
        Hello(2, 0x5800, _UUID, Status.PARTIAL, "node1", HeadgateHello(True, True, _UUID)),
        Hello(-1, 0, _UUID, Status.DEGRADED, "n" * 80),
    ]
    return [*(hello.encode(one).payload or b"" for one in some), b'{"uuid":"' + _UUID.encode() + b'"}\0']


def overlay(data: bytes) -> bool:
    """What a child says to its parent over a link of its own; the first byte is the rank of its key, 0 for none.

    Whatever it is, the parent still knows its other children, and a broker that says hello by the book gets in.
    """
    return _loop.run(_children(data[:1], data[1:]))


async def _children(lead: bytes, data: bytes) -> bool:
    rank = int.from_bytes(lead, "big") % 3 or None
    splitter = Splitter(CAP_BYTES)
    said = splitter.feed(data)
    async with Parent() as parent:
        sibling = await parent.join(Hello(2, 0x5800, "7a4a2881-56bc-4dd8-923f-04bd8b6352b4", Status.FULL))
        child = parent.connect(rank=rank)
        for one in said:
            say(child, one)
        for _ in range(SETTLED_TURNS):
            await asyncio.sleep(0)
        admitted = parent.health(1)["status"] != "offline"
        assert not (admitted and rank == 2), "a key of rank 2 became rank 1"
        if sibling.ended is None:
            assert parent.health(2)["status"] == "full" or _speaks_for(said, 2), "a sibling changed"
    return admitted


def _speaks_for(said: list[Message], rank: int) -> bool:
    """Whether a hello of ``rank`` is among the messages: with a shared key that is allowed, and replaces the former."""
    for one in said:
        with suppress(ProtocolError):
            if hello.is_hello(one) and hello.read_request(one).rank == rank:
                return True
    return False


def overlay_seeds() -> list[bytes]:
    first = hello.encode(Hello(1, 0x5800, _UUID, Status.FULL)).framed()
    rest = [
        control(0),
        control(1, 2),
        control(1, 6),
        control(2),
        request("overlay.goodbye", rolemask=1, matchtag=3),
    ]
    events = b"".join(record.frame for record in local()[:40] if 0 < len(record.frame) < 200)
    return [
        b"\1" + first,
        b"\0" + first + b"".join(one.framed() for one in rest),
        b"\2" + first,
        b"\1" + first + events,
        b"\0" + rest[0].framed() + first + first,
    ]


class _Loop:
    """One event loop for all inputs, made when the first one needs it."""

    def __init__(self) -> None:
        self._runner: asyncio.Runner | None = None

    def run(self, work):
        if self._runner is None:
            self._runner = asyncio.Runner()
        return self._runner.run(work)

    def close(self) -> None:
        if self._runner is not None:
            self._runner.close()
            self._runner = None


_loop = _Loop()
close = _loop.close


# ---------------------------------------------------------------- payloads and services


def payloads(data: bytes) -> bool:
    """A payload by every norm of RFC 3."""
    payload.any_text(data)
    if payload.is_json_object(data):
        assert isinstance(json.loads(data[:-1]), dict)
    try:
        found = payload.decode_json(data)
    except ProtocolError:
        return False
    assert payload.decode_json(payload.encode_json(found)) == found
    return True


def payloads_seeds() -> list[bytes]:
    found = {record_payload for record in local() if (record_payload := _payload_of(record.frame))}
    return [*sorted(found, key=len)[:40], b"text\0", b"\xff\0", b'{"a":1e300}\0', b'{"a":"\\ud800"}\0']


def _payload_of(frame: bytes) -> bytes | None:
    for one in Splitter().feed(frame):
        return one.payload
    return None


def texts(data: bytes) -> bool:
    """Topics, sets of ranks, lists of hosts, log lines: small languages inside payloads."""
    text = data.decode("utf-8", "surrogateescape")
    assert topic.service_of(data) == topic.service_of(text).encode("utf-8", "surrogateescape")
    assert topic.path_of(topic.replace_last_word(data, b"x")) == topic.path_of(data)
    log_entry.parse(data)
    if not _LARGE_RUN.search(text):
        expand_hosts(text)
    with suppress(ProtocolError):
        topic.check_service(text)
        assert text
        assert "." not in text
    try:
        ids = idset.decode(text, 1 << 16)
    except ProtocolError:
        return False
    assert idset.decode(idset.encode(ids), 1 << 16) == ids
    return True


def texts_seeds() -> list[bytes]:
    line = b"<27>1 2026-01-01T00:00:00.000000Z 0 broker 77 - - text"
    return [
        b"0-3,7",
        b"[0,2-5]",
        b"",
        b"attr.get",
        b"kvs-watch.lookup",
        line,
        b"node[08-10,12],login",
        b"65535",
    ]


def services(data: bytes) -> bool:
    """A request for a built-in service: answered as it should be, never with a failure of ours.

    The first byte chooses who asks, and the rank of the broker.
    """
    lead, rest = (data[0] if data else 0), data[1:]
    try:
        said = from_parts(unpack(rest))
    except DecodeError:
        return False
    if said.type != REQUEST:
        return False
    cred = (OWNER, REMOTE_OWNER, GUEST, NOBODY)[lead % 4]
    desk = Desk(rank=(0, 1, 3)[lead // 4 % 3])
    me = desk.client(cred)
    said.set_credentials(cred.userid, int(cred.rolemask))
    with assert_no_lines():
        me.say(said)
    assert 5 not in [answer.errnum for answer in desk.answers]
    desk.advance(10)
    return any(answer.errnum == 0 for answer in desk.answers)


def services_seeds() -> list[bytes]:
    asked = [
        ("attr.get", b'{"name":"rank"}\0'), ("groups.get", b'{"name":"broker.online"}\0'), ("broker.ping", b"{}\0"),
        ("groups.update", b'{"update":{"g":[{"ranks":"0-2","set":true}]}}\0'), ("overlay.topology", b'{"rank":0}\0'),
        ("event.publish", b'{"topic":"a.b","flags":32,"payload":"eAA="}\0'), ("service.add", b'{"service":"1234-x"}\0'),
        ("log.append", b"<27>1 2026-01-01T00:00:00Z 1 app 7 - - text"), ("state-machine.monitor", b'{"final":5}\0'),
        ("log.dmesg", b'{"follow":true,"nobacklog":false}\0'), ("overlay.disconnect-subtree", b'{"rank":1}\0'),
        ("rexec.exec", b'{"cmd":{}}\0'), ("module.remove", b'{"name":"attr"}\0'), ("attr.cancel", b'{"matchtag":1}\0'),
        ("service.providers", b'{"service":"calc","rank":2}\0'), ("service.providers", None),
        ("service.announce", b'{"services":{"calc":[1,3]},"left_out":0}\0'),
    ]  # fmt: skip
    out = []
    for number, (name, body) in enumerate(asked):
        for flags in (0, 0x40):
            parts = request(name, body, matchtag=number + 1, flags=flags).parts()
            out.append(bytes((number % 12,)) + pack(map(bytes, parts)))
    return out


def bodies_seeds() -> list[bytes]:
    """Bodies of frames, as ``message`` takes them."""
    return [*corpus()[::3], control(1, 3).framed()[8:], b"\x14\x8e\x01" + bytes((CONTROL,)) + bytes(17)]
