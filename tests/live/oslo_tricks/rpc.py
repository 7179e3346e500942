"""Calls, casts and fan-outs: addresses, contents, many at once."""

import datetime as dt
import json
import time
import uuid
from contextlib import ExitStack

import oslo_messaging

from tests.live.oslo_tricks.stage import (
    PATIENCE_S,
    URLS,
    Endpoint,
    OwnError,
    client,
    in_threads,
    new,
    raised,
    same_for_a_while,
    server,
    transport,
    until,
    until_they_are,
)

TRICKS = []


def trick(function):
    TRICKS.append(function)
    return function


# ---------------------------------------------------------------- addresses


@trick
def exchanges_are_apart():
    """The same topic and server name in two exchanges."""
    topic = new("topic")
    with server(topic, "s", "a") as a, server(topic, "s", "b") as b, transport() as mine:
        for number in range(6):
            client(mine, topic, exchange="a").cast({}, "note", n=number)
            client(mine, topic, exchange="a", server="s").call({}, "note", n=number)
        client(mine, topic, exchange="b").call({}, "note", n="b")
        until(lambda: len(a.seen) == 12)
        assert same_for_a_while(lambda: (len(a.seen), b.seen)) == (12, ["b"])


@trick
def fanouts_stay_in_their_exchange():
    topic = new("topic")
    with server(topic, "s", "a") as a, server(topic, "s", "b") as b, transport() as mine:
        for number in range(5):
            client(mine, topic, exchange="a", fanout=True).cast({}, "note", n=number)
        until(lambda: len(a.seen) == 5)
        assert same_for_a_while(lambda: (sorted(a.seen), b.seen)) == ([0, 1, 2, 3, 4], [])


@trick
def topics_that_begin_alike():
    short = new("t")
    long = short + "x"
    with server(short, "s") as one, server(long, "s") as two, transport() as mine:
        for topic in (short, long, long):
            client(mine, topic, fanout=True).cast({}, "note", n=topic)
        client(mine, short).call({}, "note", n="call")
        until(lambda: len(one.seen) == len(two.seen) == 2)
        assert same_for_a_while(lambda: (sorted(one.seen), two.seen)) == (
            sorted([short, "call"]),
            [long, long],
        )


@trick
def virtual_hosts_are_apart():
    topic = new("topic")

    def at(url, host):
        head, _, query = url.partition("?")
        return f"{head if head.endswith('//') else head + '/'}/{host}?{query}" if "redis" not in head else url

    there, here = at(URLS["servers"], "blue"), at(URLS["clients"], "blue")
    with server(topic, "s", url=there) as blue, server(topic, "s") as plain:
        with transport(here) as mine:
            assert client(mine, topic).call({}, "note", n=1) == "s"
        with transport() as mine:
            client(mine, topic, fanout=True).cast({}, "note", n=2)
            until(lambda: plain.seen == [2])
        assert same_for_a_while(lambda: (blue.seen, plain.seen)) == ([1], [2])


@trick
def server_names_are_opaque():
    """As cinder's, which name their backend behind an @."""
    topic = new("volume")
    names = ["host", "host@lvm", "host@ceph", "host@ceph#pool", "höst.example.org", "a b"]
    with transport() as mine, ExitStack() as stack:
        ends = [stack.enter_context(server(topic, name)) for name in names]
        for name in names:
            assert client(mine, topic, server=name).call({}, "note", n=name) == name
        assert [each.seen for each in ends] == [[name] for name in names]


@trick
def nobody_at_a_known_topic():
    topic = new("topic")
    with server(topic, "here") as here, transport() as mine:
        _, seconds = raised(
            oslo_messaging.MessagingTimeout,
            client(mine, topic, timeout=0.7, server="away").call,
            {},
            "note",
            n=1,
        )
        assert 0.69 < seconds < 5, seconds
        assert same_for_a_while(lambda: here.seen) == []


@trick
def casts_to_nobody_return():
    with transport() as mine:
        client(mine, new("warm")).cast({}, "note", n=0)  # the first message waits for the directory
        began = time.monotonic()
        for _ in range(10):
            client(mine, new("nobody")).cast({}, "note", n=1)
            client(mine, new("nobody"), fanout=True).cast({}, "note", n=1)
        assert time.monotonic() - began < 5


@trick
def mandatory_messages():
    options = oslo_messaging.TransportOptions(at_least_once=True)
    topic = new("topic")
    with server(topic, "here") as here, transport() as mine:
        client(mine, topic, transport_options=options).cast({}, "note", n=1)
        assert client(mine, topic, transport_options=options).call({}, "note", n=2) == "here"
        until(lambda: sorted(here.seen) == [1, 2])
        for address in ({"topic": new("nobody")}, {"topic": topic, "server": "away"}):
            nobody = client(mine, transport_options=options, timeout=60, **address)
            for send in (nobody.call, nobody.cast):
                error, seconds = raised(oslo_messaging.MessageUndeliverable, send, {}, "note", n=3)
                assert seconds < 10, seconds
                assert error.routing_key == ".".join(address.values())
        assert same_for_a_while(lambda: sorted(here.seen)) == [1, 2]


@trick
def turns_are_strict():
    """Three servers have a third each, of casts and calls together, in whatever order they came."""
    topic = new("topic")
    with (
        server(topic, "1") as one,
        server(topic, "2") as two,
        server(topic, "3") as three,
        transport() as mine,
    ):
        ends = (one, two, three)
        for name in "123":
            client(mine, topic, server=name).call({}, "note", n=-1)  # all of them are known here
        for number in range(30):
            client(mine, topic).cast({}, "note", n=number)
        until(lambda: sum(len(each.seen) for each in ends) == 33)
        assert [len(each.seen) for each in ends] == [11, 11, 11]
        answers = [client(mine, topic).call({}, "note", n=number) for number in range(30)]
        assert [answers.count(name) for name in "123"] == [10, 10, 10]
        assert len(set(answers[:3])) == 3
        assert answers == answers[:3] * 10


# ---------------------------------------------------------------- contents


@trick
def types_become_those_of_json():
    topic = new("topic")
    name = uuid.uuid4()
    sent = {
        "tuple": (1, 2),
        "key": {1: 2},
        "date": dt.datetime(2020, 1, 1),  # noqa: DTZ001 - as services send it
        "bytes": b"abc",
        "uuid": name,
        "set": {1},
        "text": "żółć \u0000 😀",
    }
    with server(topic, "s"), transport() as mine:
        assert client(mine, topic).call({}, "echo", value=sent) == {
            "tuple": [1, 2],
            "key": {"1": 2},
            "date": "2020-01-01T00:00:00.000000",
            "bytes": "abc",
            "uuid": str(name),
            "set": [1],
            "text": "żółć \u0000 😀",
        }
        for value in (None, 0, False, "", [], {}, 1.5, 2**70, -1):
            found = client(mine, topic).call({}, "echo", value=value)
            assert (type(found), found) == (type(value), value)


@trick
def contexts_arrive_as_they_were():
    topic = new("topic")
    ctxt = {"user": "ada", "roles": ["a", "b"], "nested": {"ü": None}}
    before = json.dumps(ctxt)
    with server(topic, "s") as end, transport() as mine:
        client(mine, topic).call(ctxt, "note", n=1)
        client(mine, topic, fanout=True).cast(ctxt, "note", n=2)
        until(lambda: len(end.contexts) == 2)
        assert end.contexts == [ctxt, ctxt]
        assert json.dumps(ctxt) == before


@trick
def exceptions_of_allowed_modules():
    topic = new("topic")
    with server(topic, "s"):
        with transport(allowed_remote_exmods=[OwnError.__module__]) as mine:
            error, _ = raised(OwnError, client(mine, topic).call, {}, "fail", how="own")
            assert "as asked" in str(error)
        with transport() as mine:
            remote, _ = raised(oslo_messaging.RemoteError, client(mine, topic).call, {}, "fail", how="own")
            assert remote.exc_type == "OwnError"
            raised(KeyError, client(mine, topic).call, {}, "fail", how="key")


@trick
def two_mebibytes():
    topic = new("topic")
    text = "0123456789abcdef" * (2 << 16)
    with server(topic, "s") as end, transport() as mine:
        assert client(mine, topic).call({}, "echo", value=text) == text
        client(mine, topic).cast({}, "note", n=text)
        client(mine, topic, fanout=True).cast({}, "note", n=text)
        until(lambda: end.seen == [text, text])


# ---------------------------------------------------------------- many at once, and in order


@trick
def calls_of_many_threads():
    """32 threads, 20 calls each, one transport; every one has its own answer."""
    topic = new("topic")
    wrong = []

    def ask(mine, number):
        for each in range(20):
            found = client(mine, topic).call({}, "echo", value=[number, each])
            if found != [number, each]:
                wrong.append(found)
        done.append(number)

    done = []
    with server(topic, "1"), server(topic, "2"), transport() as mine:
        in_threads(32, lambda number: ask(mine, number))
    assert (sorted(done), wrong) == (list(range(32)), [])


@trick
def casts_keep_their_order():
    topic = new("topic")
    with server(topic, "s", pool_size=1) as end, transport() as mine:
        for number in range(300):
            client(mine, topic).cast({}, "note", n=number)
        until(lambda: len(end.seen) == 300)
        assert same_for_a_while(lambda: end.seen) == list(range(300))


@trick
def fanouts_keep_their_order_and_come_once():
    topic = new("topic")
    with (
        server(topic, "1", pool_size=1) as one,
        server(topic, "2", pool_size=1) as two,
        server(topic, "3", url=URLS["clients"], pool_size=1) as three,
        transport() as mine,
    ):
        for number in range(100):
            client(mine, topic, fanout=True).cast({}, "note", n=number)
        for end in (one, two, three):
            until_they_are(lambda end=end: end.seen, list(range(100)))


@trick
def a_request_that_is_too_large_is_a_send_error():
    """Calls, casts and fan-outs alike, in every version: the one exception that applications know for it."""
    topic = new("topic")
    with server(topic, "s") as end, transport(URLS["clients"] + "&rpc_zmq_message_max=70000") as mine:
        for send in (
            client(mine, topic).call,
            client(mine, topic).cast,
            client(mine, topic, fanout=True).cast,
        ):
            error, took = raised(oslo_messaging.ClientSendError, send, {}, "note", n="x" * 80_000)
            assert "expected 70000 at most" in str(error), error
            assert took < PATIENCE_S / 2
        assert client(mine, topic).call({}, "note", n=1) == "s"
        assert end.seen == [1]


@trick
def a_large_message_among_small_ones():
    """What bounds the memory for large messages must not cost small ones."""
    topic = new("topic")
    large = "x" * (2 << 20)
    sent = [*range(300), large, *range(300, 500)]
    with server(topic, "1", pool_size=1) as one, server(topic, "2", pool_size=1) as two, transport() as mine:
        for n in sent:
            client(mine, topic, fanout=True).cast({}, "note", n=n)
        for end in (one, two):
            until_they_are(
                lambda end=end: [n if n != large else "large" for n in end.seen],
                [*range(300), "large", *range(300, 500)],
            )
        for n in sent:
            client(mine, topic, server="1").cast({}, "note", n=n)
        until_they_are(lambda: len(one.seen), 2 * len(sent))
        assert one.seen == sent * 2


@trick
def timeouts_are_fractions_and_late_replies_are_nobodys():
    topic = new("topic")
    with server(topic, "s") as end, transport() as mine:
        _, seconds = raised(
            oslo_messaging.MessagingTimeout,
            client(mine, topic, timeout=0.35).call,
            {},
            "slow",
            seconds=0.8,
            n=1,
        )
        assert 0.34 < seconds < 0.79, seconds
        assert [client(mine, topic).call({}, "echo", value=n) for n in range(5)] == list(range(5))
        time.sleep(0.6)  # the reply has come
        assert [client(mine, topic).call({}, "slow", seconds=0.01, n=n) for n in (7, 8)] == [7, 8]
        assert end.seen == [1, 7, 8]


@trick
def monitored_calls():
    topic = new("topic")
    with server(topic, "s"), transport() as mine:
        assert client(mine, topic, timeout=60, call_monitor_timeout=2).call({}, "slow", seconds=3.2, n=5) == 5
        # no heartbeats without anybody who works on it
        _, seconds = raised(
            oslo_messaging.MessagingTimeout,
            client(mine, new("nobody"), timeout=60, call_monitor_timeout=1).call,
            {},
            "slow",
        )
        assert seconds < 10, seconds


@trick
def servers_that_call_servers():
    """An endpoint that calls back, through the transport it listens on."""
    outer, inner = new("outer"), new("inner")

    class Asking(Endpoint):
        def ask(self, ctxt, n):
            return [self.name, client(self.server.transport, inner).call(ctxt, "note", n=n)]

    with server(inner, "in"), server(outer, "out", endpoint=Asking("out")), transport() as mine:
        assert [client(mine, outer).call({}, "ask", n=n) for n in range(5)] == [["out", "in"]] * 5
