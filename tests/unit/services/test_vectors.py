"""What deployed services answered, ours answer: type, topic, errnum, flags, routes, text and JSON keys.

Each is asked of the rank that answered it.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any, NamedTuple

from broker.identity import Credentials
from broker.wire.framing import Splitter
from broker.wire.message import (
    NODEID_ANY,
    NORESPONSE,
    REQUEST,
    RESPONSE,
    ROUTE,
    STREAMING,
    UPSTREAM,
    USER1,
    Message,
    request,
)
from broker.wire.payload import encode_json, is_json_object
from broker.wire.topic import service_of
from tests.tables import for_each
from tests.unit.services.desk import GUEST, OWNER, Client, Desk, value
from tests.vectors import excluded, local

NAMES = {service.name for service in Desk().services}
LINE = b"<56>1 2026-11-20T15:02:31.861284Z 0 broker 16254 - - insmod config"
AS_USER, AS_ADMIN = Credentials(1234, 2), Credentials(0, 8)

PING = {"seq": 1}
LONG_PING = {"seq": 0, "time.tv_sec": 975, "time.tv_nsec": 448477453, "pad": "p" * 240}
EVENT = {"topic": "ev.a", "flags": 0}
SERVICE = {"service": "mysvc"}
UNSEEN: dict[tuple[str, str], tuple[Any, dict[str, Any]]] = {
    ("ping-broker", "broker.ping"): (LONG_PING, {}),
    ("ping-pad240", "broker.ping"): (LONG_PING, {}),
    ("ping-badmethod", "attr.ping"): (LONG_PING, {}),
    ("getattr-bad", "attr.get"): ({"name": "nope"}, {}),
    ("setattr-new", "attr.set"): ({"name": "nope", "value": "1"}, {}),
    ("uptime", "groups.get"): ({"name": "broker.online"}, {}),
    ("dmesg", "log.dmesg"): ({"follow": False, "nobacklog": False}, {"flags": STREAMING}),
    ("overlay-status", "overlay.health"): (None, {}),
    ("overlay-wait", "overlay.health"): (None, {"flags": STREAMING, "rank": 1}),
    ("module-stats-broker", "broker.stats-get"): (None, {}),
    ("event-sub", "event.unsubscribe"): ({"topic": "subscribed"}, {}),
    ("exec", "rexec.exec"): ({}, {"flags": STREAMING}),
    ("exec-all", "rexec.exec"): ({}, {"flags": STREAMING}),
    ("exec-noent", "rexec.exec"): ({}, {"flags": STREAMING}),
    ("resource-drain", "resource.undrain"): ({"targets": "2"}, {}),
    ("proxy", "attr.get"): ({"name": "rank"}, {"below": True}),
    ("raw-nomethod-r3", "broker.nosuch"): (PING, {"rank": 3}),
    ("raw-routes-nul", "broker.ping"): (PING, {"below": True}),
    ("raw-json-missing", "attr.get"): ({}, {}),
    ("raw-cred-owner-as-user", "broker.ping"): (PING, {"cred": AS_USER}),
    ("raw-cred-uid-only", "broker.ping"): (PING, {"cred": Credentials(1234, 5)}),
    ("raw-cred-local8", "broker.ping"): (PING, {"cred": AS_ADMIN}),
    ("raw-extrapart", "broker.ping"): ({}, {}),
    ("raw-part256", "broker.ping"): ({"p": "x" * 248}, {}),
    ("raw-evpub", "event.publish"): (EVENT, {}),
    ("raw-evpub-priv", "event.subscribe"): ({"topic": "ev"}, {}),
    ("svc-add-exist", "service.add"): ({"service": "taken"}, {}),
    ("svc-add-bad", "service.add"): ({}, {}),
    ("svc-add-guestdeny", "service.add"): (SERVICE, {"cred": GUEST}),
    ("svc-addremove", "service.remove"): ({"service": "taken"}, {}),
    ("guest-setattr", "attr.set"): ({"name": "log-stderr-level", "value": "3"}, {"cred": GUEST}),
    ("guest-dmesg", "log.dmesg"): ({}, {"cred": GUEST, "flags": STREAMING}),
    ("guest-exec", "rexec.exec"): ({}, {"cred": GUEST, "flags": STREAMING}),
}
"""Requests that the captures leave out, for the responses they hold: (case, topic) -> payload, and how to send it."""


class Dialogue(NamedTuple):
    case: str
    topic: str
    matchtag: int
    requests: list[Message]
    responses: list[Message]


def dialogues() -> list[Dialogue]:
    """What was said to and by services of ours, gathered by case, topic and matchtag."""
    found: dict[tuple[str, str, int], Dialogue] = defaultdict(lambda: Dialogue("", "", 0, [], []))
    for record in local():
        (message,) = Splitter().feed(record.frame)
        topic = message.topic or ""
        sent = record.direction.startswith("client")
        if service_of(topic) not in NAMES or message.type != (REQUEST if sent else RESPONSE):
            continue
        key = (record.case, topic, message.matchtag)
        found[key] = found[key]._replace(case=record.case, topic=topic, matchtag=message.matchtag)
        (found[key].requests if sent else found[key].responses).append(message)
    return list(found.values())


def answered_by_router(message: Message) -> bool:
    far = message.nodeid not in (0, 1, 2, 3, NODEID_ANY)
    return far or bool(message.flags & UPSTREAM and message.nodeid == 0)


def unseen(dialogue: Dialogue) -> tuple[Message, int]:
    """The request a captured response must have answered, and the rank it went to."""
    usual = (PING, {}) if dialogue.topic == "broker.ping" else None
    data, how = UNSEEN.get((dialogue.case, dialogue.topic)) or usual
    routes = dialogue.responses[0].routes
    cred = how.get("cred", OWNER)
    message = request(
        dialogue.topic,
        None if data is None else encode_json(data),
        matchtag=dialogue.matchtag,
        flags=how.get("flags", 0) | dialogue.responses[0].flags & USER1,
        userid=cred.userid,
        rolemask=int(cred.rolemask),
    )
    assert bool(routes) == how.get("below", False), f"{dialogue.case}: routes {routes}"
    for route in reversed(routes):
        message.push_route(route)
    return message, how.get("rank", 0)


def ask(message: Message, rank: int) -> tuple[Client, list[Message]]:
    """Have a client of ``rank`` send ``message``, to a broker in the state the captures were made in."""
    desk = Desk(rank)
    me = desk.client()
    desk.context.config = {"access": {"allow-guest-user": True}}
    me.ask("log.append", LINE)
    me.ask("event.subscribe", {"topic": "subscribed"})
    me.ask("service.add", {"service": "taken"})
    me.say(message.copy())
    answers = me.take(message.matchtag)
    assert desk.answers == []
    return me, answers


def shape(data: Any) -> Any:
    """The keys of an object, all the way down; of a list that of its first element."""
    if isinstance(data, dict):
        return {key: shape(item) for key, item in data.items()}
    return [shape(data[0])] if isinstance(data, list) and data else type(data).__name__ == "list"


def summary(message: Message) -> dict[str, Any]:
    payload = message.payload
    return {
        "type": message.type,
        "topic": message.topic,
        "errnum": message.errnum,
        "flags": message.flags | ROUTE,
        "matchtag": message.matchtag,
        "routes": message.routes,
        "keys": shape(value(message)) if payload and is_json_object(payload) else None,
        "text": payload if payload and not is_json_object(payload) else None,
    }


ANSWERED = [dialogue for dialogue in dialogues() if dialogue.responses]
ASKED = [dialogue for dialogue in dialogues() if dialogue.requests and not dialogue.responses]


@for_each("dialogue", ANSWERED, ids=lambda each: f"{each.case}-{each.topic}-{each.matchtag}")
def test_answers_are_the_captured_ones(dialogue: Dialogue) -> None:
    if dialogue.requests and answered_by_router(dialogue.requests[0]):
        assert dialogue.responses[0].errnum == 113
        return
    if dialogue.requests:
        message = dialogue.requests[0]
        rank = message.nodeid if message.nodeid != NODEID_ANY else 0
    else:
        message, rank = unseen(dialogue)
    _, answers = ask(message, rank)
    ours, captured = ([summary(each) for each in side] for side in (answers, dialogue.responses))
    if ("flux-local.jsonl", dialogue.case) in excluded("services") and differs(dialogue):
        assert ours != captured
    else:
        assert ours == captured


def differs(dialogue: Dialogue) -> bool:
    """Within an excluded case the dialogues that its reason is about."""
    return dialogue.topic not in ("attr.get", "groups.get")


@for_each("dialogue", ASKED, ids=lambda each: f"{each.case}-{each.topic}-{each.matchtag}")
def test_every_request_is_answered_unless_it_wants_nothing(dialogue: Dialogue) -> None:
    for message in dialogue.requests:
        me, answers = ask(message, message.nodeid if message.nodeid != NODEID_ANY else 0)
        if message.flags & UPSTREAM:  # the parent's to answer
            assert message.topic in [asked.topic for asked in me.desk.parent.requests]
            continue
        silent = message.flags & NORESPONSE and message.topic != "event.subscribe"
        silent = silent or message.topic == "overlay.trace"  # nothing passes
        assert [answer.errnum == 5 for answer in answers] == ([] if silent else [False])


def test_every_exclusion_is_about_a_case_of_ours() -> None:
    assert {case for _, case in excluded("services")} <= {dialogue.case for dialogue in ANSWERED}


def test_ping_shows_the_captured_credentials() -> None:
    shown = {
        dialogue.case: value(dialogue.responses[0])
        for dialogue in ANSWERED
        if dialogue.case in ("raw-cred-owner-as-user", "raw-cred-uid-only")
    }
    for case, data in shown.items():
        message, rank = unseen(next(dialogue for dialogue in ANSWERED if dialogue.case == case))
        _, (answer,) = ask(message, rank)
        assert {key: value(answer)[key] for key in ("userid", "rolemask", "rank")} == {
            key: data[key] for key in ("userid", "rolemask", "rank")
        }
