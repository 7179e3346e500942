"""Peers of the two CMB1 texts, live: CURVE DEALERs that know nothing of Flux v1, beside clients that do."""

import contextlib
import errno
import json
import os
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from broker.transport import curve
from broker.wire import message as v1
from broker.wire.message import event, request, response
from broker.wire.payload import decode_json, encode_json
from tests.conftest import short_directory
from tests.live import cmb1
from tests.live.brokers import eventually
from tests.live.cmb1 import FIRST, REVISED, TEXTS, Peer, Seen, Text
from tests.live.listeners import Place, logged, one_place, tree_of_places
from tests.live.speaker import Speaker, is_request, provide, subscribe
from tests.tables import for_each

pytestmark = pytest.mark.story

OWNER_ROLE = 1
USER1 = 0x80
texts = for_each("text", TEXTS, ids=[text.name for text in TEXTS])


@pytest.fixture(scope="module")
def places():
    """A broker for each text, started when it is first asked for."""
    started = {}
    with contextlib.ExitStack() as stack:

        def of(text: Text) -> Place:
            if text.name not in started:
                rundir = stack.enter_context(short_directory())
                started[text.name] = stack.enter_context(one_place(rundir, f'dialect = "{text.name}"'))
            return started[text.name]

        yield of


class Talk(NamedTuple):
    """A broker whose only clients are a peer of a text and one of Flux v1, and whose log begins with them."""

    place: Place
    peer: Peer
    modern: Speaker


@pytest.fixture
def talk(places):
    @contextlib.contextmanager
    def of(text: Text) -> Iterator[Talk]:
        place = places(text)
        with Speaker(place.broker.uri) as modern:
            eventually(lambda: len(figures(modern)["peers"]), 1)
            os.truncate(place.broker.log, 0)
            with peer_at(place, text) as peer:
                yield Talk(place, peer, modern)

    return of


def peer_at(place: Place, text: Text) -> Peer:
    client = place.client
    return Peer(text, place.uri, place.server_key, client.public_key, client.secret_key or "")


def figures(modern: Speaker) -> dict:
    return decode_json(
        modern.ask(request("broker.stats-get", encode_json({"detail": True}), matchtag=9)).payload
    )


def untranslatable(modern: Speaker) -> int:
    return sum(link["untranslatable"] for link in figures(modern)["peers"])


# -- calls -----------------------------------------------------------------------------------------


@texts
def test_ping(talk, text):
    with talk(text) as (_place, peer, _modern):
        seen = peer.ask(b"broker.ping", {"seq": 1}, tag=0x01020304)
        assert seen.flags == cmb1.TOPIC | cmb1.ROUTE | text.json_flags
        assert (seen.routing, seen.words[0]) == ([b""], 0)
        assert seen.payload is not None
        assert seen.payload.endswith(b"}" + text.json_end)
        assert (seen.json["seq"], seen.json["userid"], seen.json["rolemask"]) == (1, 1000, OWNER_ROLE)


@texts
def test_the_delimiter_is_optional(talk, text):
    with talk(text) as (_place, peer, _modern):
        peer.request(b"broker.ping", {}, delimiter=False)
        assert peer.receive().words == (0, 1)


@texts
def test_unknown_service(talk, text):
    with talk(text) as (_place, peer, _modern):
        seen = peer.ask(b"no.such")
        assert seen.words[0] == errno.ENOSYS
        assert seen.payload == b"No service matching no.such is registered\0"


@texts
def test_rank_that_does_not_exist(talk, text):
    with talk(text) as (_place, peer, _modern):
        assert peer.ask(b"broker.ping", {}, nodeid=7).words[0] == errno.EHOSTUNREACH


@texts
def test_a_wrong_key_is_not_heard(talk, text):
    with talk(text) as (place, _peer, _modern):
        stranger = curve.generate()
        with Peer(text, place.uri, place.server_key, stranger.public_key, stranger.secret_key or "") as peer:
            peer.request(b"broker.ping", {})
            logged(place.broker, f"unknown CURVE key {stranger.public_key}")
            assert not peer.sock.poll(0)


# -- events ----------------------------------------------------------------------------------------


@texts
def test_events(talk, text):
    with talk(text) as (_place, peer, modern):
        peer.must(b"event.subscribe", {"topic": "news"})
        modern.tell(event("old", b"x"), event("news.json", encode_json({"n": 1})), event("news.raw", b"x"))
        as_json, raw = peer.receive(), peer.receive()
        assert (as_json.kind, as_json.routing, as_json.topic) == (cmb1.EVENT, [], b"news.json")
        assert as_json.flags == cmb1.TOPIC | text.json_flags
        assert as_json.payload == b'{"n":1}' + text.json_end
        assert (raw.flags, raw.payload) == (cmb1.TOPIC | cmb1.PAYLOAD, b"x")
        assert raw.words == (as_json.words[0] + 1, 0)
        peer.must(b"event.unsubscribe", {"topic": "news"})
        modern.tell(event("news.late"))
        peer.must(b"broker.ping", {})


@texts
def test_what_a_peer_publishes_reaches_others(talk, text):
    with talk(text) as (_place, peer, modern):
        subscribe(modern, "from.")
        peer.must(b"event.publish", {"topic": "from.peer", "flags": 0, "payload": "aGkA"})
        peer.send(
            b"from.itself",
            b'{"n":2}' + text.json_end,
            cmb1.PROTO.pack(0x8E, 1, cmb1.EVENT, cmb1.TOPIC | text.json_flags, cmb1.USERID_UNKNOWN, 0, 0, 0),
        )
        first, second = modern.next(), modern.next()
        assert (first.topic, first.payload, first.userid) == ("from.peer", b"hi\0", 1000)
        assert (second.topic, second.payload, second.userid) == ("from.itself", b'{"n":2}\0', 1000)


# -- keepalives ------------------------------------------------------------------------------------


@pytest.mark.patient
@texts
def test_keepalives_go_both_ways(talk, text):
    with talk(text) as (_place, peer, modern):
        before = figures(modern)["rx"]["control"]
        peer.keepalive()
        for _ in range(2):
            assert peer.sock.recv_multipart() == [cmb1.ALIVE]
        peer.keepalive()
        peer.must(b"broker.ping", {})
        seen = figures(modern)
        assert seen["rx"]["control"] == before + 2
        assert not any("control" in reason for reason in seen["drops"])


@texts
def test_a_keepalive_with_an_errnum_is_counted_and_costs_nothing(talk, text):
    with talk(text) as (place, peer, modern):
        peer.send(cmb1.PROTO.pack(0x8E, 1, cmb1.KEEPALIVE, 0, cmb1.USERID_UNKNOWN, 0, errno.EIO, 0))
        peer.must(b"broker.ping", {})
        assert untranslatable(modern) == 1
        assert sum("keepalive errnum 5" in line for line in place.broker.lines()) == 1


# -- services --------------------------------------------------------------------------------------


@texts
def test_a_service(talk, text):
    with talk(text) as (_place, peer, modern):
        peer.must(b"service.add", {"service": "echo"})
        asked = request("echo.run", encode_json({"n": 1}), matchtag=77)
        asked.push_route(b"a hop of its own")
        modern.tell(asked)
        seen = peer.receive()
        assert (seen.kind, seen.topic, seen.words) == (cmb1.REQUEST, b"echo.run", (cmb1.ANY, 77))
        assert seen.flags == cmb1.TOPIC | cmb1.ROUTE | text.json_flags
        assert seen.payload == b'{"n":1}' + text.json_end
        assert len(seen.routing) == 3
        assert seen.routing[1:] == [b"a hop of its own", b""]
        peer.respond(seen, b"anything")
        answer = modern.next()
        assert (answer.errnum, answer.payload, answer.matchtag) == (0, b"anything", 77)
        assert answer.routes == [b"a hop of its own"]


@texts
def test_an_identity_of_any_octets_finds_its_way_back(talk, text):
    """ZeroMQ makes up identities with NUL in them; one more hop behind the peer, as a proxy would add it."""
    with talk(text) as (_place, peer, _modern):
        identity = b"\0\x01%\xff\0"
        flags = cmb1.TOPIC | cmb1.ROUTE
        peer.send(
            identity,
            b"",
            b"no.such",
            cmb1.PROTO.pack(0x8E, 1, cmb1.REQUEST, flags, 0xFFFFFFFF, 0, cmb1.ANY, 5),
        )
        assert peer.receive().routing == [identity, b""]


@texts
def test_a_provider_skips_itself(talk, text):
    """CMB1, "Default Request Routing" 1: "... and the sender is not the same comms module"."""
    with talk(text) as (_place, peer, _modern):
        peer.must(b"service.add", {"service": "echo"})
        seen = peer.ask(b"echo.run", {})
        assert seen.words[0] == errno.ENOSYS, "the root has nobody above it"
        peer.request(b"echo.run", nodeid=0, tag=8)
        assert peer.receive().kind == cmb1.REQUEST, "addressed by rank it reaches itself"


@texts
def test_upstream_of_the_root_is_not_implemented(talk, text):
    """ "... as if it were addressed to FLUX_NODEID_ANY, except that the message SHALL NOT be delivered on the sending
    node": nothing is above the root.
    """
    with talk(text) as (_place, peer, _modern):
        seen = peer.ask(b"broker.ping", {}, nodeid=0, flags=cmb1.UPSTREAM)
        assert seen.words[0] == errno.ENOSYS
        assert seen.payload == b"No service matching broker.ping is registered\0"


@texts
def test_a_topic_that_is_a_services_name(talk, text):
    """ "If topic string begins with a word matching a local comms module ... SHALL be routed to the comms module"."""
    with talk(text) as (_place, peer, modern):
        provide(modern, "bare")
        peer.request(b"bare", {}, tag=5)
        asked = modern.take(is_request)
        assert asked.topic == "bare"
        modern.tell(response(asked))
        assert peer.receive().words == (0, 5)


def test_the_revision_suppresses_responses(places):
    """ "... the broker or other responding entity SHALL NOT send a response message"."""
    with peer_at(places(REVISED), REVISED) as peer:
        for topic in (
            b"event.subscribe",
            b"event.unsubscribe",
            b"event.unsubscribe",
            b"service.add",
            b"no.such",
        ):
            peer.request(topic, {"topic": "x"}, flags=cmb1.NORESPONSE)
        peer.must(b"broker.ping", {})


@texts
def test_topics_beyond_the_alphabet_of_the_grammar(talk, text):
    with talk(text) as (_place, peer, _modern):
        peer.must(b"state-machine.get", {})


def test_a_provider_of_v1_does_not_skip_itself(rundir):
    """Flux v1 has the upstream flag for that."""
    with one_place(rundir, "") as place, Speaker(place.broker.uri) as modern:
        provide(modern, "echo")
        modern.tell(request("echo.run", matchtag=3))
        assert is_request(modern.next())


@texts
def test_a_provider_reaches_the_same_service_above_it(text):
    with (
        short_directory() as rundir,
        tree_of_places(rundir, 2, f'dialect = "{text.name}"') as (root, leaf),
        Speaker(root.broker.uri) as above,
        peer_at(leaf, text) as peer,
    ):
        provide(above, "echo")
        peer.must(b"service.add", {"service": "echo"})
        peer.request(b"echo.run", {"n": 1}, tag=5)
        asked = above.take(is_request)
        assert (asked.topic, asked.payload) == ("echo.run", encode_json({"n": 1}))
        above.tell(response(asked, encode_json({"n": 2})))
        answer = peer.receive()
        assert (answer.kind, answer.words, answer.json) == (cmb1.RESPONSE, (0, 5), {"n": 2})


# -- what cannot be carried ------------------------------------------------------------------------

BITS = [
    (FIRST, v1.STREAMING, "STREAMING"),
    (FIRST, USER1, "USER1"),
    (REVISED, USER1, "USER1"),
]


@for_each(("text", "bit", "name"), BITS, ids=[f"{t.name}-{name}" for t, _, name in BITS])
def test_a_request_the_provider_could_not_read_is_answered(talk, text, bit, name):
    with talk(text) as (place, peer, modern):
        peer.must(b"service.add", {"service": "echo"})
        answer = modern.ask(request("echo.run", flags=bit, matchtag=4))
        assert answer.errnum == errno.EOPNOTSUPP
        assert (answer.payload or b"").startswith(f"{text.name} cannot carry flag {name}: ".encode())
        logged(place.broker, f"cannot carry flag {name}")
        modern.tell(request("echo.run", matchtag=5))
        assert peer.receive().words == (cmb1.ANY, 5), "the provider saw nothing of it, and lives"


@for_each("text", [REVISED], ids=["cmb1rev"])
def test_the_revision_streams(talk, text):
    with talk(text) as (_place, peer, modern):
        peer.must(b"service.add", {"service": "echo"})
        modern.tell(request("echo.run", flags=v1.STREAMING, matchtag=4))
        seen = peer.receive()
        assert seen.flags & cmb1.STREAMING
        peer.respond(seen, b"1")
        peer.respond(seen, b"2")
        assert [modern.next().payload for _ in range(2)] == [b"1", b"2"]


def gone(place: Place, service: str) -> None:
    """A client calls a service and leaves."""
    with Speaker(place.broker.uri) as other:
        other.tell(request(f"{service}.run", matchtag=6))
        assert other.ping() == 0


@for_each("text", [FIRST], ids=["cmb1"])
def test_the_first_text_gets_no_request_without_response(talk, text):
    """It would answer one; a disconnect notice is one."""
    with talk(text) as (place, peer, modern):
        peer.must(b"service.add", {"service": "echo"})
        modern.tell(request("echo.run", flags=v1.NORESPONSE))
        assert modern.ping() == 0
        assert untranslatable(modern) == 1
        gone(place, "echo")
        assert peer.receive().words[1] == 6
        modern.tell(request("echo.last", matchtag=7))
        assert peer.receive().topic == b"echo.last", "no disconnect notice in between"
        assert untranslatable(modern) == 2


@for_each("text", [REVISED], ids=["cmb1rev"])
def test_the_revision_gets_disconnect_notices(talk, text):
    with talk(text) as (place, peer, _modern):
        peer.must(b"service.add", {"service": "echo"})
        gone(place, "echo")
        assert peer.receive().topic == b"echo.run"
        notice = peer.receive()
        assert notice.topic == b"echo.disconnect"
        assert notice.flags & cmb1.NORESPONSE


@texts
def test_private_events(talk, text):
    """The first text cannot say that an event is private, so its peers get none."""
    with talk(text) as (_place, peer, modern):
        for topic in ("secret", "open"):
            peer.must(b"event.subscribe", {"topic": topic})
        modern.tell(event("secret", flags=v1.PRIVATE), event("open"))
        if text is REVISED:
            secret = peer.receive()
            assert (secret.topic, secret.flags) == (b"secret", cmb1.TOPIC | cmb1.PRIVATE)
        assert peer.receive().topic == b"open"
        assert untranslatable(modern) == (text is FIRST)


@texts
def test_a_response_the_caller_could_not_read_becomes_an_error_it_can(talk, text):
    with talk(text) as (_place, peer, modern):
        provide(modern, "modern")
        peer.request(b"modern.run", {}, tag=12)
        asked = modern.take(is_request)
        asked.set_flags(asked.flags | USER1)
        modern.tell(response(asked, b"result"))
        seen = peer.receive()
        assert seen.words == (errno.EOPNOTSUPP, 12)
        assert (seen.payload or b"").startswith(f"{text.name} cannot carry flag USER1".encode())


UNKNOWN = [(FIRST, cmb1.PRIVATE), (FIRST, cmb1.STREAMING), (FIRST, USER1), (REVISED, USER1)]


@for_each(("text", "bit"), UNKNOWN, ids=[f"{t.name}-{bit:#x}" for t, bit in UNKNOWN])
def test_a_flag_the_text_does_not_define_ends_the_link_with_a_reason(talk, text, bit):
    with talk(text) as (place, peer, modern):
        peer.request(b"broker.ping", {}, flags=bit)
        logged(place.broker, f"flags {bit:#04x} are not defined in {text.name}: is this the peer's dialect?")
        assert modern.ping() == 0


@texts
def test_long_and_odd_payloads(talk, text):
    """JSON is marked, everything else is bytes; what went in comes out."""
    with talk(text) as (_place, peer, modern):
        peer.must(b"service.add", {"service": "echo"})
        values = [b"", b"\0", b"text\0", b"{not json\0", b"[1]\0", b'{"a":1}', b"x" * 70_000]
        values.append(json.dumps({"long": "y" * 300}).encode() + b"\0")
        for tag, value in enumerate(values, 1):
            modern.tell(request("echo.run", value, matchtag=tag))
            seen: Seen = peer.receive()
            if text is FIRST and seen.flags & cmb1.JSON:
                assert seen.payload == value[:-1]
                parts = [*seen.routing, b"echo.run", seen.payload]
                peer.send(*parts, cmb1.PROTO.pack(0x8E, 1, cmb1.RESPONSE, seen.flags, 0xFFFFFFFF, 0, 0, tag))
            else:
                assert seen.payload == value
                peer.respond(seen, seen.payload)
            assert modern.next().payload == value
