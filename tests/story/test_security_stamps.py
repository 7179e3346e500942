"""What guests write into their messages about themselves: stamps, routes, answers and events that are not theirs.

Over every way in, at rank 0 and at rank 1 with the tree in between. The witness is an owner's service at rank 0: it
sees what a provider sees. What no guest can reach over the web at all is in ``test_gateway_identity``.
"""

import base64
import contextlib
import json
from collections.abc import Iterator

import pytest

from broker.wire.decoding import from_parts
from broker.wire.message import CONTROL, EVENT, PRIVATE, Message, request, response
from broker.wire.payload import decode_json
from tests.fuzz import reference
from tests.fuzz.reference import Fields
from tests.live.brokers import eventually
from tests.live.doors import Answer, Door, Forged, HttpDoor, fields
from tests.live.speaker import Closed, Speaker, is_request, provide, subscribe
from tests.live.stage import (
    ADMIN,
    ADMIN_UID,
    BY_GATEWAY,
    LOCAL,
    OWNER,
    USER,
    WAYS,
    Stage,
    tried,
    userid_of,
)
from tests.tables import for_each

pytestmark = pytest.mark.story

LINKS = [way for way in WAYS if way != "http"]
GUESTS = ["user", "admin"]
ROLES_SEEN = {
    "unix": {"user": USER | LOCAL, "admin": USER | ADMIN | LOCAL},
    "unix-below": {"user": USER, "admin": USER | ADMIN},
    "curve": {"user": USER, "admin": USER | ADMIN},
    "curve-below": {"user": USER, "admin": USER | ADMIN},
    "web": {"user": USER, "admin": USER | ADMIN},
}
"""Way -> role -> the bits that a provider at rank 0 sees: LOCAL is of the same kernel and ends at the first hop."""
CLAIMS = [
    Forged(0, OWNER),
    Forged(0xFFFFFFFF, 0),
    Forged(0xFFFFFFFF, OWNER | LOCAL),
    Forged(0, 0xFFFFFFFF),
    Forged(0xFFFFFFFE, 0),
    Forged(0, LOCAL),
    Forged(1001, OWNER),
]
VICTIM = b"11111111-2222-3333-4444-555555555555"


@pytest.fixture
def witness(stage) -> Iterator[Speaker]:
    """An owner at rank 0 who provides `witness`."""
    with Speaker(stage.tree.ranks[0].uri) as speaker:
        provide(speaker, "witness")
        yield speaker


def true_stamp(way: str, role: str) -> tuple[int, int]:
    seen = ROLES_SEEN["web" if way in BY_GATEWAY else way][role]
    return userid_of(way, role), seen


def asked_for(witness: Speaker, topic: str) -> Message:
    """The next request for ``topic``; notices that earlier callers are gone are passed over."""
    return witness.take(lambda one: is_request(one) and one.topic == topic)


def ends(uri: str) -> list[dict]:
    """The links of a broker, as its owner sees them."""
    with Speaker(uri) as owner:
        answer = owner.ask(request("broker.stats-get", b'{"detail":true}\0', matchtag=1))
        return decode_json(answer.payload)["peers"]


def uuid_of(uri: str, speaker: Speaker) -> bytes:
    """The id of a link, which is the hop that the broker pushes for it; a ping tells how it begins."""
    answer = speaker.ask(request("broker.ping", b'{"seq":1}\0', matchtag=0x1D))
    begin = decode_json(answer.payload)["route"].partition("!")[0]
    (found,) = (link["uuid"] for link in ends(uri) if link["uuid"].startswith(begin))
    return found.encode()


def drops(uri: str) -> dict[str, int]:
    with Speaker(uri) as owner:
        answer = owner.ask(request("broker.stats-get", b'{"detail":true}\0', matchtag=1))
        return decode_json(answer.payload)["drops"]


# ---------------------------------------------------------------- requests


@for_each("way, role", lambda: tried(GUESTS, LINKS))
def test_a_claimed_stamp_is_overwritten(stage, witness, way, role):
    with stage.door(way, role) as door:
        for number, claim in enumerate(CLAIMS, 1):
            door.send(fields(f"witness.claim-{number}", number, b"{}\0", 0, claim))
            seen = asked_for(witness, f"witness.claim-{number}")
            assert (seen.userid, seen.rolemask) == true_stamp(way, role), (claim, seen)
            witness.tell(response(seen, b"{}\0"))
            door.wait(number, "witness")
            assert door.answer(number) == Answer(0, "{}")


def test_http_has_no_place_for_a_stamp(stage):
    """Headers that other gateways believe are not read; the query takes what it knows and nothing else."""
    with stage.door("http", "user") as door:
        for claim in CLAIMS:
            said = json.loads(door.one("broker.ping", b'{"seq":1}\0', claim).text)
            assert (said["userid"], said["rolemask"]) == true_stamp("http", "user")
        assert isinstance(door, HttpDoor)
        assert door.one("attr.set?userid=0&rolemask=1", b'{"name":"test.x","value":"1"}\0').errnum != 0


@for_each("way, role", lambda: tried(["user"], LINKS))
def test_routes_that_a_guest_invents_lead_nowhere_but_back(stage, witness, way, role):
    """A guest names another client's id, the brokers' and rubbish as its route; the answer is its own all the same."""
    uri = stage.tree.ranks[0].uri
    with Speaker(uri) as victim:
        mine = uuid_of(uri, victim)
        others = [link["uuid"].encode() for link in ends(uri)]
        with stage.door(way, role) as door:
            for number, route in enumerate([*others, VICTIM, b"x" * 200, b"\xfe\xff"], 1):
                door.send(
                    fields("witness.routed", number, b"{}\0", 0, Forged(0, OWNER, (route, VICTIM, route)))
                )
                seen = asked_for(witness, "witness.routed")
                assert (seen.userid, seen.rolemask) == true_stamp(way, role)
                hops = [bytes(hop) for hop in seen.routes]
                assert hops[0] != mine, "the nearest hop is the broker's own word"
                assert (route in hops[1:]) is (way not in BY_GATEWAY), (
                    "a gateway replaces them, a broker keeps them below"
                )
                witness.tell(response(seen, b"{}\0"))
                door.wait(number, "witness")
                assert door.answer(number) == Answer(0, "{}")
        assert victim.ping() == 0
        assert victim.seen == [], "a victim got what was not for it"


def test_more_hops_than_allowed_are_refused(stage):
    with stage.door("unix", "user") as door:
        forged = Forged(0, OWNER, (VICTIM,) * 17)
        door.send(fields("attr.get", 1, b'{"name":"rank"}\0', 0, forged))
        door.send(fields("attr.get", 2, b'{"name":"rank"}\0', 0, Forged()))
        door.wait(2, "attr.get")
        answer = door.answer(1)
        assert answer is None or answer.errnum != 0


# ---------------------------------------------------------------- responses


@for_each("way, role", lambda: tried(["user"], ["unix", "unix-below", "curve", "curve-below"]))
def test_nobody_answers_what_it_was_not_asked(stage, witness, way, role):
    """A guest writes the response to a call of the owner, with the very routes that the provider saw."""
    with Speaker(stage.tree.ranks[0].uri) as caller, stage.door(way, role) as thief:
        caller.tell(request("witness.secret", b"{}\0", matchtag=77))
        seen = asked_for(witness, "witness.secret")
        stacks = [[bytes(hop) for hop in seen.routes], [], [caller_uuid(stage)]]
        before = sum(drops(stage.tree.ranks[way.endswith("below")].uri).values())
        for routes in stacks:
            words = (0, OWNER, 0, 77)
            thief.send(Fields(tuple(routes), b"witness.secret", b'{"forged":true}\0', 2, 0x0B, words))
        assert thief.one("attr.get", b'{"name":"rank"}\0').errnum == 0
        assert caller.ping() == 0
        assert caller.seen == []
        witness.tell(response(seen, b'{"forged":false}\0'))
        answer = caller.take(lambda one: one.matchtag == 77)
        assert answer.payload == b'{"forged":false}\0'
        assert sum(drops(stage.tree.ranks[way.endswith("below")].uri).values()) > before, (
            "dropped, and counted"
        )


def caller_uuid(stage: Stage) -> bytes:
    return ends(stage.tree.ranks[0].uri)[0]["uuid"].encode()


# ---------------------------------------------------------------- events


@for_each("way, role", lambda: tried(GUESTS, LINKS))
def test_an_event_carries_the_true_sender_and_the_number_of_rank_0(stage, way, role):
    """Published as an event and by ``event.publish``, with a forged stamp and number; private ones stay private."""
    topic = f"forged.{way.replace('.', '-')}.{role}"
    with (
        Speaker(stage.tree.ranks[0].uri) as owner,
        stage.door("unix", "admin") as other,
        stage.door(way, role) as door,
    ):
        subscribe(owner, topic)
        assert other.one("event.subscribe", json.dumps({"topic": topic}).encode() + b"\0").errnum == 0
        for flags in (0x0B, 0x0B | PRIVATE):
            words = (0, OWNER | LOCAL, 0xFFFFFFF0, 0)
            door.send(Fields((VICTIM,), topic.encode(), b"{}\0", EVENT, flags, words))
        asked = {"topic": topic, "flags": PRIVATE, "userid": 0, "payload": base64.b64encode(b"{}\0").decode()}
        answer = door.one("event.publish", json.dumps(asked).encode() + b"\0")
        assert answer.errnum == 0
        eventually(lambda: owner.ping() or len(owner.seen), 3)
        last = 0
        for one in owner.seen:
            userid, roles = true_stamp(way, role)
            assert (one.topic, one.userid, one.rolemask & ~LOCAL) == (topic, userid, roles & ~LOCAL)
            assert last < one.sequence < 0xFFFFFFF0
            last = one.sequence
        same_user = userid_of(way, role) == ADMIN_UID
        assert len(private_heard(other, topic)) == (2 if same_user else 0)


def private_heard(door: Door, topic: str) -> list[Message]:
    """Private events that this guest was given, up to now."""
    tag = 900_000
    door.send(fields("attr.get", tag, b'{"name":"rank"}\0', 0, Forged()))
    heard: list[Message] = []
    while tag not in door.got:
        for one in door.receive():
            if one.type == EVENT and one.topic == topic and one.flags & PRIVATE:
                heard.append(one)
            elif one.type != EVENT:
                door.got[one.matchtag] = one
    door.got.pop(tag)
    return heard


@for_each("way, role", lambda: tried(["user"], LINKS))
@for_each("prefix", ["", "owner.", "owner.only"])
def test_private_events_of_the_owner_reach_no_guest(stage, way, role, prefix):
    with contextlib.ExitStack() as stack:
        owner = stack.enter_context(Speaker(stage.tree.ranks[0].uri))
        guest = stack.enter_context(stage.door(way, role))
        assert guest.one("event.subscribe", json.dumps({"topic": prefix}).encode() + b"\0").errnum == 0
        owner.tell(event_of("owner.only", PRIVATE), event_of("owner.only.open", 0))
        assert owner.ping() == 0
        heard = topics_heard(guest, "owner.only.open")
        assert "owner.only.open" in heard
        assert "owner.only" not in heard


def event_of(topic: str, flags: int) -> Message:
    return from_parts(
        reference.write_parts(Fields((), topic.encode(), b"{}\0", EVENT, 0x0B | flags, (0xFFFFFFFF, 0, 0, 0)))
    )


def topics_heard(door: Door, last: str) -> list[str]:
    """Topics of events up to ``last``."""
    heard: list[str] = []
    while last not in heard:
        heard += [one.topic or "" for one in door.receive() if one.type == EVENT]
    return heard


# ---------------------------------------------------------------- what is between brokers only


def may_say_goodbye(way: str, role: str) -> bool:
    """An owner at rank 1 may send it away as well as `overlay.disconnect-subtree` does."""
    return role == "owner" and way.endswith("below")


@for_each("way, role", lambda: [who for who in tried(["owner", *GUESTS]) if not may_say_goodbye(*who)])
def test_no_client_speaks_for_a_broker(stage, way, role):
    """Hello and goodbye, said by a client of any role: a rank does not come or go by what its guests say."""
    hello = b'{"rank":1,"version":22528,"uuid":"9304037f-f976-439e-aebd-4a5224d6d28c","status":1}\0'
    with stage.door("unix", "owner") as owner, stage.door(way, role) as door:
        before = owner.one("overlay.health", None).text
        for topic, payload in (("overlay.hello", hello), ("overlay.goodbye", b"{}\0")):
            answer = door.one(topic, payload)
            assert answer.errnum in (1, 38), (topic, answer)
        after = json.loads(owner.one("overlay.health", None).text)
        assert after["children"][0]["status"] == json.loads(before)["children"][0]["status"] == "full"


@for_each("way, role", lambda: tried(["user"], LINKS))
def test_control_messages_of_clients_mean_nothing(stage, way, role):
    """The words that end a child's link or change its status; and types that do not exist."""
    with stage.door("unix", "owner") as owner, stage.door(way, role) as door:
        with contextlib.suppress(Closed, OSError):
            for kind in (0, 1, 2, 3, 0xFFFFFFFF):
                for status in (0, 1, 4, 6):
                    door.send(Fields((), None, None, CONTROL, 0x08, (0, OWNER, kind, status)))
        assert door.one("attr.get", b'{"name":"rank"}\0').errnum == 0, (
            "it is no reason to be thrown out, either"
        )
        said = json.loads(owner.one("overlay.health", None).text)
        assert said["status"] == "full"
        assert owner.one("attr.get", b'{"name":"rank"}\0').text
