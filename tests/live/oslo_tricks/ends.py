"""Servers and transports that begin, leave, and begin again."""

import threading
import time

import oslo_messaging

from tests.live.oslo_tricks.stage import (
    PATIENCE_S,
    Endpoint,
    client,
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


@trick
def a_server_starts_again():
    """The same object, and another of the same name; between them nobody is there."""
    topic = new("topic")
    with server(topic, "s") as end, transport() as mine:
        for number in range(3):
            assert client(mine, topic).call({}, "note", n=number) == "s"
            end.server.stop()
            end.server.wait()
            raised(
                oslo_messaging.MessagingTimeout, client(mine, topic, timeout=0.3).call, {}, "note", n="away"
            )
            end.server.start()
        with server(topic, "s") as other:
            for number in range(3, 9):
                client(mine, topic, server="s").call({}, "note", n=number)
            assert sorted(end.seen + other.seen) == list(range(9))
        assert client(mine, topic, server="s").call({}, "note", n=9) == "s"
        assert sorted(end.seen)[-1] == 9


@trick
def cleanup_sends_what_was_handed_over():
    topic = new("topic")
    with server(topic, "s") as end:
        with transport() as mine:
            for number in range(200):
                client(mine, topic).cast({}, "note", n=number)
        until(lambda: len(end.seen) >= 200)
        assert same_for_a_while(lambda: sorted(end.seen)) == list(range(200))


@trick
def a_server_leaves_under_load():
    """Calls and casts while one of two servers stops: none runs twice, calls all have an answer, casts all arrive."""
    topic = new("topic")
    one, two = Endpoint("1"), Endpoint("2")
    answers = []

    def ask():
        with transport() as mine:
            for number in range(150):
                answers.append(client(mine, topic).call({}, "note", n=number))
                client(mine, topic).cast({}, "note", n=1000 + number)

    with server(topic, "1", endpoint=one):
        with server(topic, "2", endpoint=two):
            thread = threading.Thread(target=ask)
            thread.start()
            until(lambda: len(answers) > 40)
        thread.join(PATIENCE_S)
        assert len(answers) == 150
        until_they_are(lambda: sorted(one.seen + two.seen), [*range(150), *range(1000, 1150)])


@trick
def a_transport_is_used_again_after_cleanup():
    topic = new("topic")
    with server(topic, "s"), transport() as mine:
        assert client(mine, topic).call({}, "echo", value=1) == 1
        mine.cleanup()
        assert client(mine, topic).call({}, "echo", value=2) == 2


@trick
def a_listening_transport_is_cleaned_up_first():
    """Its server has not been stopped: nothing hangs."""
    with transport() as mine:
        made = oslo_messaging.get_rpc_server(
            mine, oslo_messaging.Target(topic=new("topic"), server="s"), [Endpoint("s")]
        )
        made.start()
        began = time.monotonic()
        mine.cleanup()
        made.stop()
        made.wait()
        assert time.monotonic() - began < 15
