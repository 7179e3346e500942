"""What the brokers of NFP and oslo.messaging read of their peers."""

from contextlib import suppress

import msgspec

from broker.errors import RpcError
from broker.identity import Credentials, Role
from broker.nesting import decoder
from broker.nfp import bodies, targets, urls
from broker.nfp.service import payloads as nfp_payloads
from broker.oslo import frames
from broker.oslo.directory import wire
from broker.oslo.directory.state import Replica
from broker.oslo.records import Opened, Opening
from broker.oslo.service import topics as bridge
from tests.fuzz import test_nfp_frames
from tests.fuzz.entries.packing import pack, unpack
from tests.live import oslo_fuzz
from tests.vectors import nfp

# ---------------------------------------------------------------- NFP


def nfp_frames(data: bytes) -> bool:
    """A multipart of NFP in either dialect: refused by its class, or written back the same, and its bodies read."""
    return test_nfp_frames.check(unpack(data)) == "read"


def nfp_frames_seeds() -> list[bytes]:
    return [pack(record.frames) for record in nfp() if sum(map(len, record.frames)) < 600][::4]


def nfp_texts(data: bytes) -> bool:
    """URLs of files and targets of jobs: no URL leads out of its root, and both are read again as they are written."""
    text = data.decode("utf-8", "surrogateescape")
    target = targets.parse(text)
    if target is not None:
        for array in (False, True):
            again = targets.parse(targets.render(target, array=array))
            assert again is not None
            assert again.names == target.names
            assert again.kind == target.kind or (len(target.names) == 1 and again.kind == "name")
    try:
        names = urls.names_of(text)
    except urls.Unsafe:
        return target is not None
    assert ".." not in names
    assert not any("/" in name or "\\" in name or "\0" in name or name in ("", ".") for name in names)
    assert urls.names_of(urls.url_of(names)) == names
    return True


def nfp_texts_seeds() -> list[bytes]:
    return [
        b"nf://a/b/c.txt", b"nf://a//./b", b"nf://../../etc/passwd", b"nf://a\\..\\b", b"nf://%2e%2e/x", b"nf:///etc/passwd",
        b"all", b"any", b'["w1","w2"]', b"w1,w2", b'["a ","b"]', b'["[a"," b","any"]',
    ]  # fmt: skip


def nfp_topics_and_bodies(data: bytes) -> bool:
    """A request to `nfp.*` on the Flux broker: topic, NUL, payload; and the payload as a body of NFP."""
    topic, _, payload = data.partition(b"\0")
    bodies.read_head(payload)
    bodies.read_request(payload)
    bodies.event_kind(payload)
    bodies.says_failed(payload)
    try:
        what = nfp_payloads.read_job(topic.decode("utf-8", "replace"), payload or None)
    except RpcError:
        return False
    assert what.service
    assert what.task
    return True


def nfp_topics_and_bodies_seeds() -> list[bytes]:
    return [
        b'nfp.run\0{"service":"lab","task":"ping","args":[1],"target":"all","timeout":5}\0',
        b'nfp.lab.ping\0{"kwargs":{"n":2},"target":["lab-1"]}\0',
        b'nfp.jobs.list\0{"state":"open","limit":10}\0',
        b'nfp.a.b.c\0{"uuid":"5eed","cancel_with_caller":true}\0',
    ]


# ---------------------------------------------------------------- oslo.messaging


def oslo_frames(data: bytes) -> bool:
    """Envelopes and filters: read, or refused as malformed; what is read is written back the same."""
    read = 0
    for frame in unpack(data):
        frames.read_filter(frame)
        with suppress(frames.Malformed):
            seen = frames.decode(frame)
            read += 1
            assert frames.decode(_encoded(seen)) == seen
            stamped = frames.decode(frames.stamped(frame, Credentials(7, Role.USER)))
            assert (stamped.userid, stamped.rolemask) == (7, int(Role.USER))
            assert frames.decode(frames.numbered(frame, 1 << 40)).id == seen.id
    return read > 0


def _encoded(seen: frames.Envelope) -> bytes:
    return frames.encode(
        seen.kind, seen.exchange, seen.topic, seen.server, seen.listeners, flags=seen.flags, reason=seen.reason,
        ttl_ms=seen.ttl_ms, word=seen.word, userid=seen.userid, rolemask=seen.rolemask, id=seen.id,
    )  # fmt: skip


def oslo_frames_seeds() -> list[bytes]:
    rooms = ("call", "cast", "fanout", "notify", "notify.ctl", "fanout.pub")
    return [pack(frames_) for room in rooms for frames_ in oslo_fuzz.CORPUS[room]]


def directory(data: bytes) -> bool:
    """Messages to and from a directory service, two frames each: what is taken is written back the same.

    A reader of the directory is fed with them, and knows nobody who was not told.
    """
    taken, parts, replica = False, unpack(data), Replica()
    replica.feed("a", wire.DirectoryMessage(wire.DirectoryKind.WELCOME, wire.Welcome("node", 5, 5.0)), 0.0)
    for at in range(0, len(parts), 2):
        for expected in (wire.TO_DIRECTORY, wire.FROM_DIRECTORY):
            with suppress(wire.Malformed):
                seen = wire.decode(parts[at : at + 2], expected)
                assert wire.decode(wire.encode(seen.kind, seen.body), expected) == seen
                taken = True
                if expected is wire.FROM_DIRECTORY:
                    replica.feed("a", seen, float(at))
    replica.tick(1e6)
    replica.forget("a")
    assert replica.states() == ()
    for kind in (Opening, Opened):
        with suppress(msgspec.MsgspecError, UnicodeDecodeError):
            decoder(kind)(data)
    return taken


def directory_seeds() -> list[bytes]:
    told = [*oslo_fuzz.CORPUS["directory"], *oslo_fuzz.FROM_PROXY["directory"]]
    return [pack(one) for one in told] + [pack(frame for one in told for frame in one)]


def oslo_topics(data: bytes) -> bool:
    """A request to `oslo.*` on the Flux broker: topic, NUL, payload; and the payload as a server's reply."""
    topic, _, payload = data.partition(b"\0")
    with suppress(RpcError):
        bridge.result_of(payload)
    try:
        what = bridge.asked(topic.decode("utf-8", "replace"), payload or None)
    except RpcError:
        return False
    body = msgspec.json.decode(bridge.body_of(what, Credentials(7, Role.USER)))
    assert body["ctxt"][bridge.RESERVED] == {"userid": 7, "rolemask": int(Role.USER)}
    return True


def oslo_topics_seeds() -> list[bytes]:
    return [
        b'oslo.send\0{"exchange":"x","topic":"t","method":"m","args":{"a":1}}\0',
        b'oslo.nova.compute.ping\0{"mode":"cast","ctxt":{"headgate":{"userid":0}}}\0',
        b'oslo.x.t.m\0{"timeout":1.5,"server":"s","namespace":"n","version":"1.0"}\0',
        b'oslo.x.t.m\0{"result":{"a":1}}',
        b'oslo.x.t.m\0{"failure":"{\\"class\\":\\"ValueError\\",\\"message\\":\\"no\\"}"}',
    ]


def oslo_bodies(data: bytes) -> bool:
    """Bodies as the driver of oslo.messaging reads them; what a server raised becomes no class that was not allowed."""
    from broker.oslo.driver import serialization

    with suppress(serialization.Unreadable, serialization.common.UnsupportedRpcEnvelopeVersion):
        serialization.read_request(data)
        return True
    kind: type | None = None
    try:
        serialization.read_reply(data, [])
    except Exception as raised:
        kind = type(raised)
    if kind is serialization.Unreadable:
        return False
    assert kind is None or kind.__module__ in ("builtins", "oslo_messaging.rpc.client"), kind
    return True


def oslo_bodies_seeds() -> list[bytes]:
    failure = '{"class":"ValueError","module":"builtins","message":"no","tb":[],"args":["no"],"kwargs":{}}'
    return [
        b'{"ctxt":{},"message":{"method":"m","args":{"a":1}}}',
        b'{"ctxt":{},"message":{"oslo.version":"2.0","oslo.message":"{\\"method\\":\\"m\\"}"}}',
        b'{"result":[1,2]}',
        msgspec.json.encode({"failure": failure}),
        msgspec.json.encode({"failure": failure.replace("builtins", "os").replace("ValueError", "system")}),
    ]
