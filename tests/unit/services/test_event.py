"""event.subscribe, unsubscribe, publish."""

import base64

import pytest

from broker.errors import ProtocolError
from broker.services.event import PAGE_BYTES, PAGE_MSGS, Event, decode_base64
from broker.wire.event_history import FrameHistory
from broker.wire.framing import Splitter
from broker.wire.message import NORESPONSE, STREAMING, event
from tests.tables import for_each
from tests.unit.services.desk import GUEST, NOBODY, OWNER, REMOTE_OWNER, Desk, text, value


def test_subscriptions_are_counted_per_client():
    me = Desk().client(GUEST)
    for _ in range(2):
        answer = me.ask("event.subscribe", {"topic": "foo"})
        assert (answer.errnum, answer.payload) == (0, None)
    assert me.port.subscriptions == {b"foo": 2}
    me.ask("event.unsubscribe", {"topic": "foo"})
    me.ask("event.unsubscribe", {"topic": "foo"})
    assert me.port.subscriptions == {}
    assert me.refused("event.unsubscribe", {"topic": "foo"}) == (2, "")


def test_the_empty_prefix_and_words_beyond_ascii_are_prefixes():
    me = Desk().client()
    me.ask("event.subscribe", {"topic": ""})
    me.ask("event.subscribe", {"topic": "é"})
    assert me.port.subscriptions == {b"": 1, "é".encode(): 1}


@for_each("topic", ["event.subscribe", "event.unsubscribe"])
def test_answered_even_when_no_response_is_wanted(topic):
    me = Desk().client()
    me.ask("event.subscribe", {"topic": "x"})
    answer = me.ask(topic, {"topic": "x"}, flags=NORESPONSE)
    assert (answer.errnum, answer.flags & NORESPONSE) == (0, 0)
    assert me.refused(topic, {}, flags=NORESPONSE) == (71, "")


@for_each("topic", ["event.subscribe", "event.unsubscribe", "service.add", "service.remove"])
def test_a_link_that_asked_for_its_text_gets_no_answer_that_it_did_not_want(topic):
    me = Desk().client()
    me.port.strict = True
    for data in ({"topic": "x", "service": "x"}, {"topic": "x", "service": "x"}, {}):
        me.silent(topic, data, flags=NORESPONSE)


@for_each("topic", ["event.subscribe", "service.add"])
def test_brokers_get_no_answer_that_they_did_not_want(topic):
    Desk().client(OWNER, kind=1).silent(topic, {"topic": "x", "service": "x"}, flags=NORESPONSE)


@for_each("data", [None, {}, {"topic": 5}, b"", b"{", b'{"topic":"\\ud800"}\0'])
def test_what_names_no_prefix_is_a_protocol_error(data):
    me = Desk().client()
    assert me.refused("event.subscribe", data) == (71, "")
    assert me.port.subscriptions == {}


@for_each("kind", ["child", "parent", "own"])
def test_only_clients_attached_here_subscribe(kind):
    desk = Desk(rank=1)
    if kind == "own":
        answers = []
        desk.run(lambda: desk.context.call("event.subscribe", b'{"topic":"x"}\0', answers.append, nodeid=1))
        ((errnum, why),) = [(answer.errnum, text(answer)) for answer in answers]
    else:
        peer = desk.parent if kind == "parent" else desk.client(REMOTE_OWNER, kind=1)
        errnum, why = peer.refused("event.subscribe", {"topic": "x"})
    assert errnum == 1
    assert "attached to this broker" in why


def test_a_role_is_needed():
    me = Desk().client(NOBODY)
    for topic in ("event.subscribe", "event.unsubscribe", "event.publish"):
        assert me.refused(topic, {"topic": "x", "flags": 0}) == (
            1,
            "Request rejected due to insufficient privilege",
        )


def test_publish_numbers_and_stamps_with_the_senders_credentials():
    desk = Desk()
    me, guest = desk.client(), desk.client(GUEST)
    assert value(me.ask("event.publish", {"topic": "a.b", "flags": 0})) == {"seq": 1}
    body = base64.b64encode(b'{"x":1}\0').decode()
    assert value(guest.ask("event.publish", {"topic": "a.c", "flags": 32, "payload": body})) == {"seq": 2}
    first, second = desk.events
    assert (first.topic, first.payload, first.userid, first.rolemask) == ("a.b", None, 0, 5)
    assert (second.topic, second.payload, second.userid, second.rolemask) == ("a.c", b'{"x":1}\0', 1234, 6)
    assert second.flags & 0x20
    assert not first.flags & 0x20


@for_each(
    "data",
    [
        None,
        {"topic": "t"},
        {"flags": 0},
        {"topic": "t", "flags": 4},
        {"topic": "t", "flags": 1},
        {"topic": "t", "flags": True},
        {"topic": "t", "flags": 0, "payload": "!!!"},
        {"topic": "t", "flags": 0, "payload": "e Hl6"},
        {"topic": "t", "flags": 0, "payload": "e"},
        {"topic": "t", "flags": 0, "payload": None},
        {"topic": "t", "flags": 0, "payload": 5},
        {"topic": "t\0u", "flags": 0},
        {"topic": "", "flags": 0},
        {"topic": "t", "flags": 0, "payload": "é"},
    ],
)
def test_a_bad_publication_publishes_nothing(data):
    desk = Desk()
    assert desk.client().refused("event.publish", data) == (71, "")
    assert desk.events == []


def test_publish_is_rank_0s():
    desk = Desk(rank=3)
    for cred in (OWNER, GUEST):
        assert desk.client(cred).refused("event.publish", {"topic": "t", "flags": 0}) == (
            71,
            "this service is only available on rank 0",
        )


def test_publishing_without_response_publishes_all_the_same():
    desk = Desk()
    desk.client().silent("event.publish", {"topic": "t", "flags": 0}, flags=NORESPONSE)
    assert len(desk.events) == 1


def test_a_streaming_subscription_request_is_answered_once():
    answer = Desk().client().ask("event.subscribe", {"topic": "t"}, flags=STREAMING)
    assert (answer.errnum, answer.flags & STREAMING) == (0, 0)


@for_each(("encoded", "data"), [("", b""), ("eHl6", b"xyz"), ("eHl", b"xy"), ("eA==", b"x"), ("eA", b"x")])
def test_base64_with_and_without_padding(encoded, data):
    assert decode_base64(encoded) == data


def test_base64_of_another_alphabet_is_refused():
    with pytest.raises(ProtocolError):
        decode_base64("_-_-")


@for_each("topic", ["nfp.job.x.closed", "oslo.notify.a.info", "heartbeat.pulse", "overlay.x", "gateway.x"])
def test_topics_that_programs_trust_are_published_by_the_owner_alone(topic):
    desk = Desk()
    errnum, why = desk.client(GUEST).refused("event.publish", {"topic": topic, "flags": 0})
    assert (errnum, "by the owner alone" in why) == (1, True)
    assert desk.client().ask("event.publish", {"topic": topic, "flags": 0}).errnum == 0
    assert (
        desk.client(GUEST).ask("event.publish", {"topic": topic.replace(".", "s.", 1), "flags": 0}).errnum
        == 0
    )


def keeping(max_bytes=1 << 20, age_s=600.0):
    """A rank 0 that keeps events."""
    desk = Desk(kinds=[Event])  # without those that publish by themselves
    history = desk.broker.router.events.history = FrameHistory(max_bytes, age_s)
    history.begin("one", 0)
    return desk, history


def numbers_of(answer):
    """The numbers of the events in an answer of ``event.since``."""
    return [message.sequence for message in Splitter().feed(base64.b64decode(answer["events"]))]


def test_what_was_published_is_had_from_a_number_on():
    desk, _ = keeping()
    me = desk.client(OWNER)
    for number in range(1, 5):
        me.ask("event.publish", {"topic": f"t.{number}", "flags": 32 * (number == 2)})
    found = value(me.ask("event.since", {"epoch": "one", "sequence": 2}))
    assert found | {"events": ""} == {
        "epoch": "one",
        "first": 1,
        "last": 4,
        "behind": 2,
        "missing": False,
        "rest": 0,
        "events": "",
    }
    assert numbers_of(found) == [3, 4]
    # private ones, too: whoever passes them on judges
    assert numbers_of(value(me.ask("event.since", {"sequence": 0}))) == [1, 2, 3, 4]
    nothing = value(me.ask("event.since", {"sequence": 4}))
    assert (nothing["missing"], nothing["events"]) == (False, "")


@for_each(
    "position",
    [
        {"epoch": "another", "sequence": 2},
        {"epoch": "one", "sequence": 0},
        {"epoch": "one", "sequence": 99},
        {"epoch": "", "sequence": 8},
    ],
)
def test_what_may_be_missing_is_told_and_what_is_there_comes(position):
    desk, history = keeping(max_bytes=1000)
    me = desk.client(OWNER)
    for _ in range(9):
        me.ask("event.publish", {"topic": "t", "flags": 0})
    before = history.before
    assert 0 < before < 8
    found = value(me.ask("event.since", position))
    assert (found["missing"], found["first"], found["behind"]) == (True, before + 1, before)
    assert numbers_of(found) == list(range(before + 1, 10))


def test_pages_are_bounded_and_what_is_larger_comes_in_pieces():
    desk, _ = keeping(max_bytes=4 << 20)
    me = desk.client(OWNER)
    for size in (100_000, 100_000, 100_000, 700_000, 0):
        payload = base64.b64encode(b"x" * size).decode()
        me.ask("event.publish", {"topic": "t", "flags": 0, "payload": payload})
    asked, data, pages = {"epoch": "one", "sequence": 0}, b"", []
    while asked["sequence"] < 5:
        found = value(me.ask("event.since", asked))
        data += base64.b64decode(found["events"])
        assert len(found["events"]) <= PAGE_BYTES * 4 / 3 + 4
        if found["rest"]:
            pages.append(found["rest"])
            asked = {**asked, "offset": len(data)}
        else:
            pages.append([message.sequence for message in Splitter().feed(data)])
            asked, data = {"epoch": "one", "sequence": pages[-1][-1]}, b""
    whole = pages[2] + PAGE_BYTES
    assert pages == [[1, 2], [3], whole - PAGE_BYTES, whole - 2 * PAGE_BYTES, [4, 5]]
    # of what is kept no more nothing is left out
    again = value(me.ask("event.since", {"epoch": "another", "sequence": 3, "offset": 1000}))
    assert (again["missing"], again["behind"], numbers_of(again)) == (True, 0, [1, 2])


def test_pages_are_bounded_in_events():
    desk, _ = keeping()
    me = desk.client(OWNER)
    for _ in range(PAGE_MSGS + 1):
        desk.run(desk.context.publish, event("t"))
    assert numbers_of(value(me.ask("event.since", {"sequence": 0})))[-1] == PAGE_MSGS


def test_the_last_seconds():
    desk, history = keeping()
    me = desk.client(OWNER)
    for number in range(1, 4):
        me.ask("event.publish", {"topic": f"t.{number}", "flags": 0})
        history.mark(desk.loop.time())
        desk.advance(10)
    assert numbers_of(value(me.ask("event.since", {"age_s": 25}))) == [2, 3]
    assert numbers_of(value(me.ask("event.since", {"age_s": 1e9}))) == [1, 2, 3]
    assert numbers_of(value(me.ask("event.since", {"age_s": 0.0}))) == []


def test_of_the_last_seconds_it_is_told_when_some_are_kept_no_more():
    desk, history = keeping(age_s=15.0)
    me = desk.client(OWNER)
    for number in range(1, 4):
        me.ask("event.publish", {"topic": f"t.{number}", "flags": 0})
        history.mark(desk.loop.time())
        desk.advance(10)
    history.mark(desk.loop.time())
    found = {age_s: value(me.ask("event.since", {"age_s": age_s})) for age_s in (15, 25, 1e9)}
    assert {age_s: answer["missing"] for age_s, answer in found.items()} == {15: False, 25: True, 1e9: True}
    assert [numbers_of(answer) for answer in found.values()] == [[3], [3], [3]]


def test_who_keeps_none_says_so():
    errnum, why = Desk().client(OWNER).refused("event.since", {"sequence": 0})
    assert (errnum, "events.history_bytes" in why) == (38, True)
    assert Desk(rank=1).client(OWNER).refused("event.since", {"sequence": 0})[0] == 71


@for_each(
    "data",
    [
        None,
        {},
        {"sequence": "5"},
        {"sequence": True},
        {"age_s": "1"},
        {"sequence": 1, "epoch": 5},
        {"sequence": 0, "offset": -1},
        {"sequence": 0, "offset": 1},
    ],
)
def test_what_names_no_position_is_a_protocol_error(data):
    desk, _ = keeping()
    assert desk.client(OWNER).refused("event.since", data)[0] == 71
