"""What was captured, in turns: what a client says and what it must hear before it goes on."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import groupby
from typing import Any

from broker.wire.message import NORESPONSE, PAYLOAD, ROUTE, event, request
from broker.wire.payload import encode_json
from tests.replay import comparison
from tests.replay.other_side import GUEST_CASES, HEARD, OUT_OF_SCOPE, PUBLISHED, SAID, SUBSCRIBED, Heard, Said
from tests.vectors import Captured, local

SCRIPTED = ("svc-addremove", "svc-self", "svc-self-badmethod-noname", "svc-two", "svc-provider-dies")
"""Dialogues with a provider: ``test_services`` holds them."""


@dataclass
class Turn:
    """Bytes to send, and what must be heard, in order, before the next turn."""

    say: bytes
    hear: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class Dialogue:
    case: str
    guest: bool
    turns: list[Turn]


@cache
def dialogues() -> dict[str, Dialogue]:
    """Case -> dialogue, for all cases that one client holds."""
    return {
        case: Dialogue(
            case, case.startswith("guest-") or case in GUEST_CASES, list(turns(case, list(records)))
        )
        for case, records in groupby(local(), key=lambda record: record.case)
        if case not in SCRIPTED
    }


def turns(case: str, records: list[Captured]) -> Iterator[Turn]:
    """The turns of one case; requests first come, first answered."""
    yield from subscriptions(case, records)
    answers = [record for record in records if is_answer(record)]
    for record in records:
        seen = record.decoded
        if record.direction == "client->broker" and seen["type"] == "request":
            own = [answer for answer in answers if key(answer) == key(record)]
            answers = [answer for answer in answers if key(answer) != key(record)]
            yield Turn(record.frame, [answer.decoded for answer in own] or list(left_out(case, seen)))
        elif record in answers:
            own = [answer for answer in answers if key(answer) == key(record)]
            answers = [answer for answer in answers if key(answer) != key(record)]
            yield Turn(said(case, seen), [answer.decoded for answer in own])
        elif seen["type"] == "event":
            yield from event_turns(case, record, records)
        elif record.direction == "client->broker":
            yield Turn(record.frame)


def is_answer(record: Captured) -> bool:
    return record.direction == "broker->client" and record.decoded["type"] == "response"


def key(record: Captured) -> tuple[str, int]:
    return record.decoded["topic"], record.decoded["matchtag"]


def left_out(case: str, asked: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The answer to a request whose answer was not captured; none to a request that wants none."""
    if not asked["flags"] & NORESPONSE:
        topic = asked["topic"].rstrip("\0")
        answer = HEARD.get((case, topic), Heard())
        assert (case, topic) in HEARD or out_of_scope(topic), f"{case}: how is {topic} answered?"
        yield comparison.heard(topic, asked["matchtag"], asked["flags"], answer)


def said(case: str, answer: dict[str, Any]) -> bytes:
    """The frame of a request of which only the answer was captured."""
    words = SAID.get((case, answer["topic"])) or ping(answer)
    if words.raw is not None:
        return words.raw
    data = encode_json(words.payload) if isinstance(words.payload, dict) else words.payload
    message = request(
        answer["topic"],
        data,
        nodeid=words.nodeid,
        matchtag=answer["matchtag"],
        flags=answer["flags"] & ~(PAYLOAD | ROUTE),
        userid=words.userid,
        rolemask=words.rolemask,
    )
    for hop in reversed(words.routes):
        message.push_route(hop)
    return words.before + message.framed()


def ping(answer: dict[str, Any]) -> Said:
    """A pong repeats what the ping said, and adds four keys."""
    own = {"route", "userid", "rolemask", "rank"}
    if out_of_scope(answer["topic"]):
        return Said()
    assert answer["topic"].endswith(".ping"), f"other_side does not say what {answer['topic']} asked"
    return Said({name: value for name, value in answer["payload_json"].items() if name not in own})


def event_turns(case: str, record: Captured, records: list[Captured]) -> Iterator[Turn]:
    """An event that was published, or one that was delivered and whose publication was not captured."""
    seen = record.decoded
    others = [one for one in records if one.decoded["type"] == "event" and one.direction != record.direction]
    twin = next((one for one in others if one.decoded["topic"] == seen["topic"]), None)
    if record.direction == "client->broker":
        yield Turn(record.frame, [delivered(case, record) if twin is None else twin.decoded])
    elif twin is None and any(one.decoded["topic"] == "event.publish" for one in records):
        return  # the request published it
    elif twin is None and seen["topic"] == "heartbeat.pulse":
        yield Turn(b"", [seen])
    elif twin is None:
        message = event(seen["topic"], payload_of(seen), flags=seen["flags"] & ~(ROUTE | PAYLOAD))
        yield Turn(PUBLISHED.get(case) or message.framed(), [seen])


def out_of_scope(topic: str) -> bool:
    return topic.partition(".")[0] in OUT_OF_SCOPE or "shell" in topic


def payload_of(decoded: dict[str, Any]) -> bytes | None:
    if "payload_json" in decoded:
        return encode_json(decoded["payload_json"])
    return bytes.fromhex(decoded["payload_hex"]) if "payload_hex" in decoded else None


def delivered(case: str, record: Captured) -> dict[str, Any]:
    """How a published event comes back: stamped, and with a delimiter."""
    seen = dict(record.decoded)
    seen["flags"] |= ROUTE
    seen["userid"], seen["rolemask"] = (65534, 6) if case.startswith("guest-") else (0, 5)
    return seen


def subscriptions(case: str, records: list[Captured]) -> Iterator[Turn]:
    """What a case of events subscribes to, unless the capture shows it."""
    topics = sorted({one.decoded["topic"] for one in records if one.decoded["type"] == "event"})
    shown = any(one.decoded["topic"] == "event.subscribe" for one in records)
    for number, prefix in enumerate(SUBSCRIBED.get(case, () if shown else topics)):
        message = request("event.subscribe", encode_json({"topic": prefix}), matchtag=0xE00 + number)
        yield Turn(message.framed(), [subscribed(message.matchtag)])


def subscribed(matchtag: int) -> dict[str, Any]:
    return {
        "type": "response", "topic": "event.subscribe", "errnum": 0, "matchtag": matchtag, "flags": 9,
        "userid": 0xFFFFFFFF, "rolemask": 1, "routes": [],
    }  # fmt: skip
