"""The half of a dialogue that the capture left out.

The capture keeps one message of each kind, so many cases show a request without its response or the other way
round. The missing half stands here; ``make interop`` holds the same dialogues with a real flux-core, so
that nothing in these tables is only our opinion.
"""

from typing import Any, NamedTuple

from broker.wire.message import (
    CONTROL,
    EVENT,
    NODEID_ANY,
    NORESPONSE,
    PAYLOAD,
    REQUEST,
    RESPONSE,
    ROUTE,
    TOPIC,
)
from broker.wire.parts import encode_part

FRAME_MAGIC = bytes.fromhex("1200eeff")
UNKNOWN = 0xFFFFFFFF


class Said(NamedTuple):
    """A request that the capture shows only the response to."""

    payload: dict[str, Any] | bytes | None = None
    nodeid: int = NODEID_ANY
    userid: int = UNKNOWN
    rolemask: int = 0
    routes: tuple[bytes, ...] = ()
    raw: bytes | None = None
    """The whole frame, where its form is the point."""
    before: bytes = b""
    """Frames in front of it."""


class Heard(NamedTuple):
    """A response that the capture shows only the request of."""

    errnum: int = 0
    payload: dict[str, Any] | str | None = None
    """A JSON object (its keys count, see comparison), a text, or none."""
    rolemask: int = 5
    userid: int = 0


def raw(
    parts: list[bytes],
    flags: int,
    kind: int = REQUEST,
    aux: tuple[int, int] = (NODEID_ANY, 1),
    cred: tuple[int, int] = (UNKNOWN, 0),
) -> bytes:
    """A frame of any parts and flags, consistent or not."""
    proto = bytes((0x8E, 1, kind, flags)) + b"".join(word.to_bytes(4, "big") for word in (*cred, *aux))
    body = b"".join(encode_part(part) for part in (*parts, proto))
    return FRAME_MAGIC + len(body).to_bytes(4, "big") + body


PING = b"broker.ping"
SEQ = b'{"seq":1}\0'
CONNECTOR = {"rolemask": 1, "userid": UNKNOWN}
"""Credentials of what the connector itself answers."""
PONG = {"seq": 0, "time.tv_sec": 0, "time.tv_nsec": 0, "pad": "", "route": "", "userid": 0, "rolemask": 5}
RAW_PONG = {"seq": 1, "route": "", "userid": 0, "rolemask": 5, "rank": 0}
LONG_TOPIC = "No service matching {} is registered"

OUT_OF_SCOPE = (
    "content", "cron", "heaptrace", "job-info", "job-list", "job-manager", "kvs", "kvs-watch", "module", "overlay",
    "resource", "rexec",
)  # fmt: skip
"""Services whose requests a dialogue may leave unknown: Headgate does not have them, or not that method."""

SAID: dict[tuple[str, str], Said] = {
    ("ping-badmethod", "attr.ping"): Said({"seq": 0}),
    ("getattr-bad", "attr.get"): Said({"name": "nosuchattr"}),
    ("setattr-new", "attr.set"): Said({"name": "newattr", "value": "1"}),
    ("uptime", "groups.get"): Said({"name": "broker.online"}, 0),
    ("dmesg", "log.dmesg"): Said(
        {"follow": False, "nobacklog": False},
        before=raw(
            [b"", b"log.append", b"<14>1 2026-11-20T15:02:31.861284Z 0 me - - - hello"],
            TOPIC | PAYLOAD | ROUTE | NORESPONSE,
            aux=(NODEID_ANY, 0),
        ),
    ),
    ("overlay-status", "overlay.health"): Said(None, 0),
    ("overlay-wait", "overlay.health"): Said(None, 1),
    ("module-stats-broker", "broker.stats-get"): Said(),
    ("module-stats-bad", "nosuch.stats-get"): Said(),
    ("heaptrace", "heaptrace.stop"): Said(),
    ("event-sub", "event.unsubscribe"): Said({"topic": "foo"}),
    ("terminus-list", "0-terminus.list"): Said({}),
    ("proxy", "attr.get"): Said(
        {"name": "rank"}, userid=0, rolemask=0, routes=(b"27b05e60-fcc6-4e57-aabb-16bdf99d43fc",)
    ),
    ("raw-noroute", "broker.ping"): Said(raw=raw([PING, SEQ], TOPIC | PAYLOAD)),
    ("raw-routes-nul", "broker.ping"): Said(
        raw=raw([b"aaaaaaaa\0", b"", PING, SEQ], TOPIC | PAYLOAD | ROUTE)
    ),
    ("raw-extrapart", "broker.ping"): Said(raw=raw([b"", PING, b"{}\0", b"extra"], TOPIC | PAYLOAD | ROUTE)),
    ("raw-cred-owner-as-user", "broker.ping"): Said({"seq": 1}, userid=1234, rolemask=2),
    ("raw-cred-uid-only", "broker.ping"): Said({"seq": 1}, userid=1234),
    ("raw-cred-local8", "broker.ping"): Said({"seq": 1}, rolemask=8),
    ("raw-control-then-ping", "broker.ping"): Said({"seq": 1}, before=raw([], 0, CONTROL, (1, 2))),
    ("raw-response-unsol", "broker.ping"): Said(
        {"seq": 1},
        before=raw([b"nobody", b"", b"some.topic"], TOPIC | ROUTE, RESPONSE, (0, 1)),
    ),
    ("raw-response-noroute", "broker.ping"): Said(
        {"seq": 1}, before=raw([b"", b"some.topic"], TOPIC | ROUTE, RESPONSE, (0, 4242))
    ),
    ("raw-notopicflag", "broker.ping"): Said({"seq": 1}, before=raw([b""], ROUTE)),
    ("raw-protoonly", "broker.ping"): Said({"seq": 1}, before=raw([], 0)),
    ("raw-nosvc-rank1", "nosuch.foo"): Said({"seq": 1}, 1),
    ("raw-nomethod-r3", "broker.nosuch"): Said({"seq": 1}, 3),
    ("raw-topic-dot", "."): Said({"seq": 1}),
    ("raw-json-missing", "attr.get"): Said({"nome": "size"}),
    ("raw-evpub", "event.publish"): Said({"topic": "ev.a", "flags": 0, "payload": "eHl6"}, 0),
    ("raw-evpub-priv", "event.subscribe"): Said({"topic": "ev"}),
    ("svc-add-exist", "service.add"): Said({"service": "attr"}),
    ("svc-add-bad", "service.add"): Said({"nome": 1}),
    ("svc-add-guestdeny", "service.add"): Said({"service": "guestsvc"}),
    ("guest-setattr", "attr.set"): Said({"name": "log-level", "value": "7"}),
    ("guest-dmesg", "log.dmesg"): Said({"follow": False, "nobacklog": False}),
    ("guest-exec", "rexec.exec"): Said({"cmd": {}, "flags": 0}),
    ("guest-kvs-get", "kvs.lookup"): Said({"key": "a", "namespace": "primary", "flags": 0}),
    ("guest-badsvc", "nosuch.ping"): Said({"seq": 0}),
}
"""(case, topic) -> the request; a missing ``broker.ping`` says what its pong repeats."""

HEARD: dict[tuple[str, str], Heard] = {
    ("ping-rank1", "broker.ping"): Heard(0, PONG | {"rank": 1, "rolemask": 1}, 1),
    ("ping-rank3", "broker.ping"): Heard(0, PONG | {"rank": 3, "rolemask": 1}, 1),
    ("ping-badsvc", "nosuchsvc.ping"): Heard(38, "No service matching nosuchsvc.ping is registered"),
    ("ping-connlocal", "connector-local.ping"): Heard(0, PONG | {"rank": 0}),
    ("lsattr", "attr.list"): Heard(0, {"names": []}),
    ("uptime", "state-machine.get"): Heard(0, {"state": "run", "duration": 0.0}),
    ("uptime", "attr.get"): Heard(0, {"value": "", "flags": 1}),
    ("uptime", "resource.status"): Heard(0, {"drain": {}}),
    ("uptime", "job-manager.queue-list"): Heard(0, {"queues": []}),
    ("overlay-status", "overlay.topology"): Heard(
        0,
        {
            "rank": 0,
            "size": 4,
            "children": [
                {"rank": 1, "size": 2, "children": [{"rank": 3, "size": 1, "children": []}]},
                {"rank": 2, "size": 1, "children": []},
            ],
        },
    ),
    ("overlay-errors", "overlay.health"): Heard(
        0, {"rank": 2, "status": "full", "duration": 0.0, "children": []}, 1
    ),
    ("event-sub", "event.subscribe"): Heard(**CONNECTOR),
    ("event-pub-sync", "event.publish"): Heard(0, {"seq": 0}),
    ("raw-route-empty", "broker.ping"): Heard(0, RAW_PONG),
    ("raw-topic-nul", "broker.ping"): Heard(0, RAW_PONG),
    ("raw-user1", "broker.ping"): Heard(0, RAW_PONG),
    ("raw-upstream1", "broker.ping"): Heard(0, RAW_PONG),
    ("raw-nodeid0", "broker.ping"): Heard(0, RAW_PONG),
    ("raw-nosvc-rank3", "nosuch.foo"): Heard(38, "No service matching nosuch.foo is registered", 1),
    ("raw-svc-only", "broker"): Heard(38, "Unknown service method 'broker'"),
    ("raw-nopayload", "broker.ping"): Heard(71),
    ("raw-json-array", "broker.ping"): Heard(12),
    ("raw-json-bad", "broker.ping"): Heard(71),
    ("raw-json-wrongtype", "attr.get"): Heard(71),
    ("raw-json-utf8", "broker.ping"): Heard(
        0, {"s": "ƒ€", "route": "", "userid": 0, "rolemask": 5, "rank": 0}
    ),
    ("raw-json-nul-inside", "attr.get"): Heard(0, {"value": "4", "flags": 1}),
    ("raw-cred-attrset-user", "attr.set"): Heard(1, "Request requires owner credentials"),
    ("raw-cred-attrget-user", "attr.get"): Heard(0, {"value": "4", "flags": 1}),
    ("raw-cred-role-only", "broker.ping"): Heard(0, RAW_PONG | {"rolemask": 2}),
    ("raw-part254", "broker.ping"): Heard(0, {"p": "", "route": "", "userid": 0, "rolemask": 5, "rank": 0}),
    ("raw-topic255", "t" * 255): Heard(38, LONG_TOPIC.format("t" * 255)),
    ("raw-topic300", "s" * 290 + ".foo"): Heard(38, LONG_TOPIC.format("s" * 290 + ".foo")),
    ("raw-topic40", "service_name_longer_than_buffer.method"): Heard(
        38, LONG_TOPIC.format("service_name_longer_than_buffer.method")
    ),
    ("raw-unsub-unknown", "event.unsubscribe"): Heard(2, **CONNECTOR),
    ("raw-evpub-badflags", "event.publish"): Heard(71),
    ("raw-evpub-rank1", "event.publish"): Heard(71, "this service is only available on rank 0", 1),
    ("raw-event-seqset", "event.subscribe"): Heard(**CONNECTOR),
    ("svc-remove-unknown", "service.remove"): Heard(2, **CONNECTOR),
    ("svc-provider-dies", "duo.after"): Heard(38, LONG_TOPIC.format("duo.after")),
    ("module-stats-overlay", "overlay.stats-get"): Heard(
        0,
        {
            "parent-count": 0,
            "parent-rpc": 0,
            "child-count": 2,
            "child-connected": 2,
            "child-rpc": 0,
            "interthread": {"sendq": 0, "recvq": 0},
        },
    ),
}
"""(case, topic) -> the response."""

PUBLISHED: dict[str, bytes] = {
    "raw-event-routes": raw([b"r1", b"r2", b"", b"ev.y", b"raw"], TOPIC | PAYLOAD | ROUTE, EVENT, (0, 0)),
    "raw-event-cred": raw([b"ev.c"], TOPIC, EVENT, (0, 0), (1234, 2)),
}
"""Case -> the frame of an event that the capture shows only the delivery of; others follow from the delivery."""

SUBSCRIBED: dict[str, tuple[str, ...]] = {"raw-event-dupsub": ("ev", "ev.q"), "event-sub-all": ("",)}
"""Case -> prefixes, where they are the point; others subscribe to the topics of the case."""

GUEST_CASES = ("svc-add-guestdeny",)
"""Cases of uid 65534 besides those whose name says so."""
