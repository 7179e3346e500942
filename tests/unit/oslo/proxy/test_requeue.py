"""What listeners of notifications give back: whose it is then, and where it goes."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.identity import Role
from broker.oslo.frames import HEAD_BYTES, Kind, decode, encode, new_id
from broker.oslo.names import Pipeline
from broker.oslo.node import Rule
from broker.oslo.proxy.notify import NotifyProxy
from tests.unit.oslo.proxy.notices import EXCHANGE, TOPIC, A, B, C, Listener, client, note, publish
from tests.unit.oslo.proxy.publishing import Rig


@pytest.fixture
def rig(rundir: Path) -> Iterator[Rig]:
    with Rig(NotifyProxy, Pipeline.NOTIFY, rundir) as made:
        yield made


def test_a_given_back_message_keeps_its_sender_and_comes_again_at_the_end(rig: Rig) -> None:
    one = Listener(rig, A, credit=1)
    sender = client(rig, rig.room.status()["endpoint"])
    publish(sender, "1", A)
    publish(sender, "2", A)
    assert one.next() == "1"
    forged = one.head[:16] + bytes(8) + one.head[24:]
    one.say(Kind.REQUEUE, forged, b"1")
    one.say(Kind.CREDIT, b"", word=1)
    assert one.next() == "2"
    one.say(Kind.CREDIT, b"", word=1)
    assert one.next() == "1"
    assert decode(one.head).rolemask == Role.USER  # as it came from the network, not as the listener says
    assert rig.count("requeued") == 1


def test_a_given_back_message_that_was_never_given_out_is_the_listeners_own(rig: Rig) -> None:
    one = Listener(rig, A)
    one.say(Kind.REQUEUE, note(A), b"mine")
    assert one.next() == "mine"
    assert decode(one.head).userid == os.getuid()


def with_address(head: bytes, topic: str, server: str = "") -> bytes:
    """The same envelope, of the same id and sender, with another address."""
    return head[:HEAD_BYTES] + encode(Kind.NOTIFY, EXCHANGE, topic, server, (A,))[HEAD_BYTES:]


@pytest.mark.parametrize("change", ["body", "topic", "server", "word", "id"])
def test_what_is_given_back_with_a_change_is_the_listeners_own(rig: Rig, change: str) -> None:
    one = Listener(rig, A, None, 10, TOPIC, "events.error")
    sender = client(rig, rig.room.status()["endpoint"], topics=2)
    publish(sender, "1", A)
    assert one.next() == "1"
    theirs = one.head
    assert decode(theirs).rolemask == Role.USER  # it came from the network
    head, body = {
        "body": (theirs, b"2"),
        "topic": (with_address(theirs, "events.error"), b"1"),
        "server": (with_address(theirs, TOPIC, "s"), b"1"),
        "word": (theirs[:12] + b"\1\2\3\4" + theirs[16:], b"1"),
        "id": (theirs[:24] + new_id() + theirs[40:], b"1"),
    }[change]
    one.say(Kind.REQUEUE, head, body)
    assert one.next() == body.decode()
    assert decode(one.head).userid == os.getuid()
    assert decode(one.head).rolemask & Role.LOCAL
    if change != "id":
        one.say(Kind.REQUEUE, theirs, b"1")  # there was one attempt
        assert one.next() == "1"
        assert decode(one.head).rolemask & Role.LOCAL


def test_a_sender_cannot_be_forged_past_the_rules(rundir: Path) -> None:
    rules = (Rule(action="send", roles=int(Role.LOCAL), allow=False),)
    with Rig(NotifyProxy, Pipeline.NOTIFY, rundir, rules=rules) as rig:
        one = Listener(rig, A, None, 10, TOPIC, "events.error")
        two = Listener(rig, B, "secret", 10, "secret.info")
        sender = client(rig, rig.room.status()["endpoint"], topics=3)
        publish(sender, "1", A)
        assert one.next() == "1"
        theirs = one.head
        one.say(Kind.REQUEUE, with_address(theirs, "secret.info"), b"1")
        rig.until(lambda: rig.count("requeue_unknown") == 1)
        one.say(Kind.REQUEUE, with_address(theirs, "secret.info"), b"forged")
        rig.until(lambda: rig.count("requeue_unknown") == 2)
        one.say(Kind.REQUEUE, theirs, b"1")  # as it was: that is no sending of its own
        assert one.next() == "1"
        assert decode(one.head).rolemask == Role.USER
        one.say(Kind.REQUEUE, with_address(theirs, "events.error"), b"1")
        rig.until(lambda: rig.count("denied") == 1)
        one.say(Kind.REQUEUE, theirs, b"forged")
        rig.until(lambda: rig.count("denied") == 2)
        rig.nothing_for(two.registration)
        rig.nothing_for(one.registration, 0.02)
        one.close()
        one.say(Kind.REQUEUE, with_address(theirs, "secret.info"), b"late")
        rig.until(lambda: rig.count("requeue_unknown") == 3)


def test_a_message_is_given_back_to_the_next_of_the_pool(rig: Rig) -> None:
    one, two, three = Listener(rig, A), Listener(rig, B), Listener(rig, C, "billing")
    sender = client(rig)
    publish(sender, "1", A)
    assert one.next() == "1"
    one.say(Kind.REQUEUE, one.head, b"1")
    rig.until(lambda: rig.count("requeued") == 1)
    came = rig.until(lambda: [each for each in (one, two) if each.registration.poll(0)])
    assert [each.next() for each in came] == ["1"]
    one.close()
    one.say(Kind.REQUEUE, one.head, b"late")  # its process was still working on it
    assert two.next() == "late"
    rig.nothing_for(three.registration)
    rig.nothing_for(one.registration, 0.02)
