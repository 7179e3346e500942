"""overlay.trace and module.trace: what a tracer asks for, what it is told, and what is left of it."""

import pytest

from broker.errors import ProtocolError
from broker.routing.port import Port
from broker.services import tracers
from broker.services.context import TracedMessage
from broker.services.module import Module
from broker.services.overlay import Overlay
from broker.wire.message import (
    CONTROL,
    EVENT,
    HANDLED,
    NODEID_ANY,
    REQUEST,
    RESPONSE,
    STREAMING,
    control,
    event,
    request,
    response,
)
from tests.tables import for_each
from tests.unit.services.desk import GUEST, OWNER, REMOTE_OWNER, Desk

ALL = {"typemask": 15, "topic_glob": "*", "nodeid": -1}
EACH = {"typemask": 15, "topic_glob": "*", "names": []}
CLIENT = Port(0, "c", print, OWNER, name="somebody")
CHILD, OTHER, PARENT = (
    Port(kind, uuid, print, REMOTE_OWNER, rank=rank)
    for kind, uuid, rank in ((1, "d", 2), (1, "e", 1), (2, "p", 0))
)
ASK = request("broker.ping", b'{"seq":1}\0')


def pass_by(desk, message, prefix="rx", sender=CHILD, where="links"):
    watcher = desk.context.tracing.watchers[where]
    desk.run(watcher, TracedMessage(prefix, sender, message, 1795193573.5, 12.25))


def told(stream, *keys):
    return [tuple(record[key] for key in keys) for record in stream.news()]


def test_a_record_has_the_keys_of_the_deployed_one_and_a_second_time():
    desk = Desk()
    stream = desk.client().stream("overlay.trace", ALL)
    pass_by(desk, ASK)
    (record,) = stream.news()
    assert list(record.items()) == [
        ("timestamp", 1795193573.5),
        ("prefix", "rx"),
        ("rank", 2),
        ("name", None),
        ("type", REQUEST),
        ("topic", "broker.ping"),
        ("payload_size", 10),
        ("payload", None),
        ("errnum", 0),
        ("errstr", ""),
        ("monotonic", 12.25),
    ]


def test_full_shows_json_and_the_text_of_an_error():
    desk = Desk()
    short = desk.client().stream("overlay.trace", ALL)
    full = desk.client().stream("overlay.trace", ALL | {"full": True})
    large = request("a.b", b'{"pad":"' + b"x" * tracers.FULL_MAX_BYTES + b'"}\0')
    failed = response(ASK, b"no such thing\0", errnum=2)
    for message in (ASK, request("a.b", b"\xff\xfe"), request("a.b"), large, failed):
        pass_by(desk, message)
    keys = ("payload_size", "payload", "errnum", "errstr")
    assert told(full, *keys) == [
        (10, {"seq": 1}, 0, ""),
        (2, None, 0, ""),
        (0, None, 0, ""),
        (tracers.FULL_MAX_BYTES + 11, None, 0, ""),
        (0, None, 2, "no such thing"),
    ]
    assert {record[1:] for record in told(short, *keys)} == {(None, 0, ""), (None, 2, "")}


def test_calls_shows_what_pairs_an_answer_with_its_request_and_whose_it_was():
    desk = Desk()
    stream = desk.client().stream("overlay.trace", ALL | {"calls": True})
    asked = request("a.b", b'{"secret":1}\0', matchtag=7, flags=STREAMING, userid=1001)
    for message in (asked, response(asked, b"no such thing\0", errnum=2)):
        pass_by(desk, message)
    keys = ("payload", "errstr", "matchtag", "userid")
    first, second = told(stream, *keys, "flags")
    assert first[:4] == (None, "", 7, 1001)
    assert second[:2] == (None, "no such thing")
    assert first[4] & second[4] & STREAMING


def test_json_as_deep_as_may_be_is_shown_by_its_size():
    desk = Desk()
    stream = desk.client().stream("overlay.trace", ALL | {"full": True})
    depth = next(n for n in range(1, 5000) if not tracers.is_json_object(deep(n + 1)))
    for levels in (depth, depth - 1):
        pass_by(desk, request("a.b", deep(levels)))
    assert [record["payload"] is None for record in stream.news()] == [True, False]


def deep(levels):
    return b'{"a":' * levels + b"1" + b"}" * levels + b"\0"


@for_each(
    ("wanted", "seen"),
    [
        ({}, ["broker.ping", "broker.ping", "news.x", "heartbeat 0"]),
        ({"typemask": 0}, ["broker.ping", "broker.ping", "news.x", "heartbeat 0"]),
        ({"typemask": RESPONSE | CONTROL}, ["broker.ping", "heartbeat 0"]),
        ({"topic_glob": ""}, ["broker.ping", "broker.ping", "news.x", "heartbeat 0"]),
        ({"topic_glob": "broker.*"}, ["broker.ping", "broker.ping"]),
        ({"topic_glob": "n?ws.[xy]", "typemask": EVENT}, ["news.x"]),
        ({"topic_glob": "broker.pin"}, []),
        ({"topic_glob": "broker.ping", "typemask": REQUEST}, ["broker.ping"]),
        ({"nodeid": 2}, ["broker.ping", "broker.ping", "news.x", "heartbeat 0"]),
        ({"nodeid": 1}, []),
    ],
)
def test_filters(wanted, seen):
    desk = Desk()
    stream = desk.client().stream("overlay.trace", ALL | wanted)
    for message in (ASK, response(ASK), event("news.x"), control(0)):
        pass_by(desk, message)
    assert [record["topic"] for record in stream.news()] == seen


def test_control_messages_are_named():
    desk = Desk()
    stream = desk.client().stream("overlay.trace", ALL)
    for kind in (1, 2, HANDLED, 77):
        pass_by(desk, control(kind, 5))
    assert told(stream, "topic") == [("status 5",), ("disconnect 5",), ("handled 5",), ("unknown 5",)]


def test_an_event_for_all_children_is_told_once_to_whoever_looks_at_any():
    desk = Desk()
    streams = [desk.client().stream("overlay.trace", ALL | {"nodeid": rank}) for rank in (-1, 1)]
    first, second = event("a", sequence=1), event("b", sequence=2)
    for message in (first, second):
        pass_by(desk, message, "rx", PARENT)
        for child in (CHILD, OTHER):
            pass_by(desk, message, "tx", child)
    pass_by(desk, event("c"), "tx", PARENT)
    sent = [("tx", -1, "a"), ("tx", -1, "b")]
    assert told(streams[1], "prefix", "rank", "topic") == sent
    assert told(streams[0], "prefix", "rank", "topic") == [
        ("rx", 0, "a"), sent[0], ("rx", 0, "b"), sent[1], ("tx", 0, "c"),
    ]  # fmt: skip


def test_links_of_clients_are_shown_to_who_asks_for_them():
    desk = Desk()
    plain = desk.client().stream("overlay.trace", ALL)
    assert desk.context.tracing.watches_clients is False
    me = desk.client()
    more = me.stream("overlay.trace", ALL | {"clients": True})
    assert desk.context.tracing.watches_clients is True
    pass_by(desk, ASK, "rx", CLIENT)
    assert told(more, "rank", "name") == [(-1, CLIENT.name)]
    assert plain.news() == []
    me.silent("overlay.disconnect")
    assert desk.context.tracing.watches_clients is False


def test_nobody_looks_on_when_the_last_has_gone():
    desk = Desk()
    watchers = desk.context.tracing.watchers
    assert watchers == {"links": None, "services": None}
    for topic, wanted, where in (("overlay", ALL, "links"), ("module", EACH, "services")):
        me, other = desk.client(), desk.client()
        mine, theirs = (each.stream(f"{topic}.trace", wanted) for each in (me, other))
        assert watchers[where] is not None
        me.silent(f"{topic}.cancel", {"matchtag": mine.tag})
        assert mine.news() == [61]
        assert watchers[where] is not None
        other.silent(f"{topic}.disconnect")
        assert theirs.news() == []
        assert watchers == {"links": None, "services": None}


def test_what_brings_records_is_not_told():
    desk = Desk()
    links = desk.client().stream("overlay.trace", ALL)
    services = desk.client().stream("module.trace", EACH)
    asked = [request(f"{name}.trace", flags=STREAMING) for name in ("overlay", "module")]
    for message in (*asked, *map(response, asked)):
        pass_by(desk, message)
        pass_by(desk, message, where="services")
    assert told(links, "topic", "type") == told(services, "topic", "type") == [("overlay.trace", REQUEST)]


def test_a_tracer_that_is_behind_misses_records_and_is_told_how_many():
    desk = Desk()
    me = desk.client()
    stream = me.stream("overlay.trace", ALL)
    me.port.busy = True
    for _ in range(5):
        pass_by(desk, ASK)
    assert stream.news() == []
    me.port.busy = False
    pass_by(desk, ASK)
    pass_by(desk, ASK)
    assert [record.get("dropped") for record in stream.news()] == [5, None]


def test_who_may_trace_and_what_must_be_said():
    desk = Desk()
    me = desk.client()
    for topic, wanted in (("overlay.trace", ALL), ("module.trace", EACH)):
        assert me.refused(topic, wanted) == (71, ""), "not a stream"
        assert desk.client(GUEST).refused(topic, wanted, flags=STREAMING)[0] == 1
        for key in wanted:
            short = {name: value for name, value in wanted.items() if name != key}
            assert me.refused(topic, short, flags=STREAMING) == (71, "")
            assert me.refused(topic, wanted | {key: None}, flags=STREAMING) == (71, "")
        assert me.refused(topic, wanted | {"topic_glob": "x" * 2000}, flags=STREAMING) == (71, "")
    assert desk.context.tracing.watchers == {"links": None, "services": None}


def test_there_are_not_more_tracers_than_may_be(monkeypatch):
    monkeypatch.setattr(tracers, "TRACERS_MAX", 2)
    me = Desk().client()
    streams = [me.stream("overlay.trace", ALL) for _ in range(3)]
    assert [stream.news() for stream in streams] == [[], [], [11]]


def test_module_trace_names_the_service():
    desk = Desk()
    every = desk.client().stream("module.trace", EACH)
    some = desk.client().stream("module.trace", EACH | {"names": ["attr", "broker", 7], "full": True})
    for topic in ("attr.get", "log.append", "own.call", "job-manager.x"):
        pass_by(desk, request(topic, b'{"a":1}\0', nodeid=NODEID_ANY), where="services")
    assert told(every, "name", "topic", "rank") == [
        ("attr", "attr.get", -1),
        ("log", "log.append", -1),
        ("broker", "own.call", -1),
        ("job-manager", "job-manager.x", -1),
    ]
    assert told(some, "name", "payload") == [("attr", {"a": 1}), ("broker", {"a": 1})]


def test_a_glob_is_bounded():
    with pytest.raises(ProtocolError, match="longer than 1024"):
        tracers.matcher("a" * 1025)


def test_both_services_have_the_method():
    desk = Desk()
    assert {"trace"} <= desk.service(Overlay).methods().keys() & desk.service(Module).methods().keys()
