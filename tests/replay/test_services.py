"""The captured dialogues with a provider, held with live connections; ``interop``: with a real flux-core."""

import time

import pytest

from broker.errors import DecodeError
from broker.wire.decoding import decode
from broker.wire.message import REQUEST, STREAMING, Message, request, response
from broker.wire.payload import encode_json
from tests.live.speaker import Speaker, answers, provide
from tests.replay.comparison import credentials, payload
from tests.vectors import Captured, local

BROKERS = ["headgate", pytest.param("flux_core", marks=pytest.mark.interop)]
EHOSTUNREACH = 113
ENODATA = 61
ENOSYS = 38


@pytest.fixture(params=BROKERS)
def uri(request):
    return request.getfixturevalue(request.param)


def records(case: str) -> list[Captured]:
    return [record for record in local() if record.case == case]


def delivered(provider: Speaker, record: Captured) -> Message:
    """What the provider gets must be what it got from the deployed broker, its route stack apart."""
    seen = provider.next()
    expected = record.decoded
    assert (seen.type, seen.topic, seen.nodeid, seen.matchtag) == (
        REQUEST,
        expected["topic"],
        expected["nodeid"],
        expected["matchtag"],
    )
    assert hex(seen.flags) == hex(expected["flags"])
    assert (seen.userid, seen.rolemask) in credentials(expected)
    assert len(seen.routes) >= 1
    payload(seen.payload, expected)
    return seen


def say_back(provider: Speaker, to: Message, record: Captured) -> None:
    """The captured response, under the route stack that was delivered here."""
    try:
        captured = decode(record.frame, 8, len(record.frame))
    except DecodeError as error:
        raise AssertionError(record.place) from error
    provider.tell(Message(to.front, captured.topic_part, captured.payload_part, captured.head, captured.tag))


def heard(caller: Speaker, asked: Message, errnum: int, record: Captured | None = None) -> Message:
    seen = caller.take(lambda message: answers(message, asked))
    assert seen.errnum == errnum
    assert seen.routes == []
    if record is not None:
        assert hex(seen.flags) == hex(record.decoded["flags"])
        payload(seen.payload, record.decoded)
    return seen


def test_two_clients(uri):
    lines = iter(records("svc-two"))
    with Speaker(uri) as provider, Speaker(uri) as caller:
        provide(provider, "duo")

        plain = request("duo.echo", encode_json({"x": 1}), matchtag=5)
        caller.tell(plain)
        say_back(provider, delivered(provider, next(lines)), next(lines))
        assert heard(caller, plain, 0).payload == b'{"y": 2}\0'

        stream = say(caller, next(lines))
        asked = delivered(provider, next(lines))
        assert asked.flags & STREAMING
        provider.tell(response(asked, encode_json({"i": 0})))
        heard(caller, stream, 0, next(lines))
        say_back(provider, asked, next(lines))
        heard(caller, stream, ENODATA)

        failing = say(caller, next(lines))
        provider.tell(response(delivered(provider, next(lines)), b"my error text\0", errnum=22))
        heard(caller, failing, 22, next(lines))

        hanging = say(caller, next(lines))
        assert provider.next().topic == hanging.topic
        caller.close()
        notices = [delivered_in_any_order(provider), delivered_in_any_order(provider)]
        expected = [next(lines), next(lines)]
        assert sorted(notices) == sorted(notice_of(record) for record in expected)
        provider_dies(uri, provider, next(lines), records("svc-provider-dies")[0])


def say(caller: Speaker, record: Captured) -> Message:
    caller.send(record.frame)
    return decode(record.frame, 8, len(record.frame))


def delivered_in_any_order(provider: Speaker) -> tuple[str, int, int, int]:
    seen = provider.next()
    return seen.topic or "", seen.flags, seen.nodeid, seen.matchtag


def notice_of(record: Captured) -> tuple[str, int, int, int]:
    seen = record.decoded
    return seen["topic"], seen["flags"], seen["nodeid"], seen["matchtag"]


def provider_dies(uri: str, provider: Speaker, hanging: Captured, after: Captured) -> None:
    with Speaker(uri) as caller:
        asked = request("duo.hang2", encode_json({}), matchtag=10)
        caller.tell(asked)
        delivered(provider, hanging)
        assert provider.seen == []
        provider.close()
        if "flux" not in uri:  # a deployed broker leaves the caller waiting
            heard(caller, asked, EHOSTUNREACH)
        gone = refused(caller, after)
        assert gone.errnum == ENOSYS
        if "flux" not in uri:  # a deployed broker that is still taking leave of the provider sends no text
            assert gone.payload == b"No service matching duo.after is registered\0"


def refused(caller: Speaker, record: Captured) -> Message:
    """A deployed broker may notice the provider's end after our next request: that one it forgets."""
    for _ in range(20):
        asked = say(caller, record)
        try:
            return caller.take(lambda message, asked=asked: answers(message, asked), 0.5)
        except TimeoutError:
            time.sleep(0.1)
    raise AssertionError("no answer")


def test_a_client_calls_itself(uri):
    (captured,) = records("svc-self")
    with Speaker(uri) as both:
        provide(both, "selfsvc")
        asked = say(both, captured)
        got = both.take(lambda message: message.type == REQUEST)
        assert (got.topic, got.matchtag, got.payload) == ("selfsvc.hello", 7, b'{"a": 1}\0')
        both.tell(response(got, encode_json({"b": 2})))
        assert heard(both, asked, 0).payload == b'{"b":2}\0'


def test_a_topic_without_method_reaches_no_provider(uri):
    asked, answer = records("svc-self-badmethod-noname")
    with Speaker(uri) as both:
        provide(both, "selfsvc")
        heard(both, say(both, asked), ENOSYS, answer)
        assert both.ping() == 0
        assert both.seen == []


def test_a_service_comes_and_goes(uri):
    (answer,) = records("svc-addremove")
    with Speaker(uri) as provider:
        provide(provider, "mysvc2")
        asked = request("service.remove", encode_json({"service": "mysvc2"}), matchtag=2)
        provider.tell(asked)
        heard(provider, asked, 0, answer)
        assert provider.ask(request("mysvc2.x", matchtag=3)).errnum == ENOSYS
