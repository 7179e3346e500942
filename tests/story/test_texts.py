"""Each line of the table in ``broker/PROTOCOL.md``, live: a client of the default form beside one of ``strict_rfc3``.

Both write the deployed bytes, which either listener reads; what is tested here is what the broker does. Bytes are the
matter of ``test_strict_rfc3``, the older texts that of ``test_older_dialects``.
"""

import asyncio
import base64
import errno
import itertools

import pytest

import broker.client
from broker.errors import ConfigError, RpcError
from broker.identity import Role
from broker.settings import loads
from broker.wire.message import (
    DELIMITER,
    NODEID_UPSTREAM,
    NORESPONSE,
    ROUTE,
    STREAMING,
    TOPIC,
    UPSTREAM,
    event,
    request,
    response,
)
from broker.wire.parts import encode_part
from broker.wire.payload import decode_json, encode_json
from tests.live.brokers import one_broker
from tests.live.listeners import tree_of_places
from tests.live.speaker import Speaker, is_request, provide, subscribe
from tests.tables import for_each

pytestmark = pytest.mark.story

_numbers = itertools.count(1)
FORMS = ("default", "strict")
both = for_each("form", FORMS)


@pytest.fixture(scope="module")
def uris(module_rundir):
    extra = f'[[listen]]\nuri = "local://{module_rundir}/strict"\nstrict_rfc3 = true\n'
    with one_broker(module_rundir, extra) as running:
        yield {"default": running.uri, "strict": f"local://{module_rundir}/strict"}


@pytest.fixture
def clients(uris):
    with Speaker(uris["default"]) as default, Speaker(uris["strict"]) as strict:
        yield {"default": default, "strict": strict}


def fresh() -> str:
    """The name of a service that nobody had before: the broker may not have seen yet that its provider is gone."""
    return f"service{next(_numbers)}"


def text_of(answer):
    return answer.payload and answer.payload.removesuffix(b"\0").decode()


# -- where requests go -----------------------------------------------------------------------------


@for_each(("form", "errnum"), [("default", errno.EHOSTUNREACH), ("strict", errno.ENOSYS)])
def test_upstream_of_the_root(clients, form, errnum):
    client = clients[form]
    answer = client.ask(request("broker.ping", nodeid=0, flags=UPSTREAM, matchtag=1))
    assert (answer.errnum, answer.flags & UPSTREAM) == (errnum, UPSTREAM)
    assert text_of(answer) == (
        None if errnum == errno.EHOSTUNREACH else "No service matching broker.ping is registered"
    )


@for_each("asker", FORMS)
@for_each("provider", FORMS)
def test_a_topic_that_is_a_services_name(clients, uris, asker, provider):
    name = fresh()
    provide(clients[provider], name)
    with Speaker(uris[asker]) as asking:
        asking.tell(request(name, b"p", matchtag=4))
        if asker == provider == "default":
            answer = asking.next()
            assert (answer.errnum, answer.payload) == (errno.ENOSYS, None)
            return
        asked = clients[provider].take(is_request)
        assert (asked.topic, asked.payload) == (name, b"p")
        clients[provider].tell(response(asked, b"q"))
        answer = asking.next()
        assert (answer.errnum, answer.topic, answer.payload) == (0, name, b"q")
    notice = clients[provider].take(is_request)
    assert (notice.topic, notice.flags & NORESPONSE) == (f"{name}.disconnect", NORESPONSE)


@both
def test_the_name_of_a_built_in_service(clients, form):
    client = clients[form]
    answer = client.ask(request("broker", matchtag=4))
    assert (answer.errnum, text_of(answer)) == (errno.ENOSYS, "Unknown service method 'broker'")


@both
def test_not_implemented_is_38(clients, form):
    client = clients[form]
    for topic in ("no.such", "broker.no-such"):
        assert client.ask(request(topic, matchtag=1)).errnum == errno.ENOSYS == 38


@both
def test_requests_about_the_own_link(clients, form):
    """Whatever nodeid says: a rank could not know the link."""
    client = clients[form]
    provided = encode_json({"service": "far", "topic": "far"})
    for topic in ("event.subscribe", "event.unsubscribe", "service.add", "service.remove"):
        for nodeid in (0, 99):
            assert client.ask(request(topic, provided, nodeid=nodeid, matchtag=1)).errnum in (0, 2, 17)


# -- answers ---------------------------------------------------------------------------------------

QUIET = [
    ("event.subscribe", {"topic": "q"}, True),
    ("event.unsubscribe", {"topic": "q"}, True),
    ("event.unsubscribe", {"topic": "never"}, True),
    ("event.subscribe", {}, True),
    ("service.add", {"service": "quiet"}, False),
    ("service.add", {"service": "quiet"}, True),
    ("service.add", {"service": "a.b"}, False),
    ("service.remove", {"service": "quiet"}, False),
    ("service.remove", {"service": "quiet"}, True),
    ("service.add", {}, True),
    ("no.such", {}, False),
    ("broker.ping", {}, False),
    ("broker.ping", {"seq": 1}, False),
]
"""Topic, payload, whether a deployed broker answers it although the flag forbids that."""


@both
def test_noresponse(clients, form):
    client = clients[form]
    for tag, (topic, data, _answered) in enumerate(QUIET, 1):
        client.tell(request(topic, encode_json(data), flags=NORESPONSE, matchtag=tag))
    assert client.ping() == 0
    answered = [tag for tag, row in enumerate(QUIET, 1) if row[2]] if form == "default" else []
    assert [message.matchtag for message in client.seen] == answered


@both
def test_noresponse_beside_streaming(clients, form):
    client = clients[form]
    client.tell(request("log.dmesg", encode_json({"follow": True}), flags=NORESPONSE | STREAMING, matchtag=1))
    assert client.ping() == 0
    assert client.seen == []


@both
def test_a_response_has_the_topic_of_its_request(clients, form):
    name = fresh()
    provide(clients["default"], name)
    clients[form].tell(request(f"{name}.run", matchtag=4))
    asked = clients["default"].take(is_request)
    asked.topic_part = encode_part(b"another.topic")
    clients["default"].tell(response(asked, b"q"))
    assert clients[form].next().topic == f"{name}.run"


# -- fields and parts ------------------------------------------------------------------------------


@both
def test_the_pseudo_rank_upstream(clients, form):
    """No client of ours sends it (``tests/unit/client/test_calls.py``); others may."""
    client = clients[form]
    asked = request("broker.ping", encode_json({}), matchtag=1)
    asked.set_aux1(NODEID_UPSTREAM)
    assert client.ask(asked).errnum == errno.EHOSTUNREACH


@both
@for_each("payload", [b"[1]\0", b"1\0", b'"a"\0', b"{}", b"{", b"", None])
def test_json_that_is_no_object(clients, form, payload):
    client = clients[form]
    assert client.ask(request("broker.ping", payload, matchtag=1)).errnum == errno.EPROTO


@both
def test_payloads_are_looked_at_by_services_alone(clients, form):
    name = fresh()
    provide(clients[form], name)
    for tag, payload in enumerate((b"[1]\0", b"{", b""), 1):
        clients["default"].tell(request(f"{name}.run", payload, matchtag=tag))
        assert clients[form].take(is_request).payload == payload


@both
def test_the_alphabet_of_topics(clients, form):
    """Letters, digits and periods, say the first two texts; none but a NUL ends one."""
    name = fresh()
    provide(clients[form], f"{name}-é%/")
    clients["default"].tell(request(f"{name}-é%/.run", matchtag=1))
    assert clients[form].take(is_request).topic == f"{name}-é%/.run"
    assert clients[form].ask(request("state-machine.get", matchtag=2)).errnum == 0


@both
def test_route_ids_are_opaque(clients, form):
    name = fresh()
    provide(clients["default"], name)
    asked = request(f"{name}.run", matchtag=4)
    for hop in (b"\xff\xfe", b"no uuid", b"x" * 254):
        asked.push_route(hop)
    clients[form].tell(asked)
    clients["default"].tell(response(clients["default"].take(is_request)))
    assert clients[form].next().routes == [b"x" * 254, b"no uuid", b"\xff\xfe"]


@both
def test_a_request_without_delimiter(clients, form):
    client = clients[form]
    asked = request("broker.ping", encode_json({}), matchtag=1)
    asked.front = b""
    asked.set_flags(asked.flags & ~ROUTE)
    answer = client.ask(asked)
    assert (answer.errnum, answer.front, answer.flags & ROUTE) == (0, DELIMITER, ROUTE)


@both
def test_routes_without_delimiter_end_the_link(clients, form):
    client = clients[form]
    asked = request("broker.ping", matchtag=1)
    asked.front = encode_part(b"a hop")
    client.tell(asked)
    assert client.ended()


@both
def test_a_message_without_topic_is_counted(clients, form):
    client = clients[form]
    before = drops(client)
    for message in (request("broker.ping", matchtag=1), event("x")):
        message.topic_part = b""
        message.set_flags(message.flags & ~TOPIC)
        client.tell(message)
    after = drops(client)
    assert [
        after[name] - before.get(name, 0) for name in ("request without topic", "event without topic")
    ] == [1, 1]


def drops(client):
    return decode_json(
        client.ask(request("broker.stats-get", encode_json({"detail": True}), matchtag=9)).payload
    )["drops"]


# -- caps ------------------------------------------------------------------------------------------


@both
def test_topics_have_one_cap(clients, form):
    subscribe(clients["default"], "t")
    fit, unfit = "t" * 1024, "t" * 1025
    answers = [clients[form].ask(request(topic, matchtag=1)) for topic in (fit, unfit)]
    assert [answer.errnum for answer in answers] == [errno.ENOSYS, errno.EPROTO]
    clients[form].tell(event(unfit), event(fit))
    published = [
        clients[form].ask(request("event.publish", encode_json({"topic": topic, "flags": 0}), matchtag=2))
        for topic in (unfit, fit)
    ]
    assert [(answer.errnum, answer.errnum and text_of(answer)) for answer in published] == [
        (errno.EPROTO, "topic above 1024 bytes"),
        (0, 0),
    ]
    assert [clients["default"].next().topic for _ in range(2)] == [fit, fit]


@both
def test_routes_have_one_cap(clients, form):
    client = clients[form]
    asked = request("broker.ping", encode_json({}), matchtag=1)
    asked.front = encode_part(b"h") * 16 + DELIMITER
    assert client.ask(asked).errnum == 0
    asked = request("broker.ping", encode_json({}), matchtag=2)
    asked.front = encode_part(b"h") * 17 + DELIMITER
    answer = client.ask(asked)
    assert (answer.errnum, len(answer.routes)) == (errno.EPROTO, 17)


def test_events_of_guests_have_a_cap(rundir):
    """A gateway, an owner's link, publishes for guests."""
    with (
        one_broker(rundir, "[limits]\nguest_event_bytes = 1024\n") as running,
        Speaker(running.uri) as client,
    ):
        answers = {}
        for rolemask in (Role.USER, Role.OWNER):
            for size in (1024, 1025):
                told = {"topic": "t", "flags": 0, "payload": base64.b64encode(bytes(size)).decode()}
                asked = request(
                    "event.publish", encode_json(told), matchtag=1, userid=4711, rolemask=rolemask
                )
                answer = client.ask(asked)
                answers[rolemask, size] = answer.errnum and (answer.errnum, text_of(answer))
        too_large = (errno.EMSGSIZE, "an event of 1025 bytes: limits.guest_event_bytes are 1024")
        assert list(answers.values()) == [0, too_large, 0, 0]


def test_caps_are_settings(rundir):
    with (
        one_broker(rundir, "[limits]\ntopic_max_bytes = 300\nroutes_max = 1\n") as running,
        Speaker(running.uri) as client,
    ):
        errnums = [client.ask(request("t" * size, matchtag=size)).errnum for size in (300, 301)]
        assert errnums == [errno.ENOSYS, errno.EPROTO]
        for hops, errnum in ((1, 0), (2, errno.EPROTO)):
            asked = request("broker.ping", encode_json({}), matchtag=hops)
            asked.front = encode_part(b"h" * 36) * hops + DELIMITER
            assert client.ask(asked).errnum == errnum


# -- the tree --------------------------------------------------------------------------------------


@for_each("line", ['dialect = "cmb1rev"', "strict_rfc3 = true"])
@for_each("section", ["[tree]", '[[hosts]]\nrank = 0\naddress = "ipc:///tmp/x"'])
def test_tree_links_have_one_form(section, line):
    with pytest.raises(ConfigError, match=line.partition(" ")[0]):
        loads(f"{section}\n{line}\n")


def test_upstream_is_any_but_for_the_sender(rundir):
    """Rank 1 serves it too, and is passed over; at the root nothing matches."""

    async def check(place):
        async with broker.client.connect(place.uri, options=place.options(strict_rfc3=True)) as h:
            answer = await h.rpc("broker.ping", {}, upstream=True)
            assert answer.json()["rank"] == 0
            with pytest.raises(RpcError) as refused:
                await h.rpc("no.such", upstream=True)
            assert refused.value.errno == errno.ENOSYS

    with tree_of_places(rundir, 2, "strict_rfc3 = true") as (_root, leaf):
        asyncio.run(check(leaf))
