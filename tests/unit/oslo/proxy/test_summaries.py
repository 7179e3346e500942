"""What a record says of one message: names that stand in bodies, and nothing else of them."""

import json

from broker.oslo.frames import Flag, Kind, decode, encode
from broker.oslo.proxy.journal import BODY_BYTES_MAX, facts_of, named, topic_of, who
from tests.tables import for_each


def body(**message):
    return json.dumps({"ctxt": {"token": "secret"}, "message": message}).encode()


def test_names_in_bodies():
    assert named(body(method="boot", namespace="n", args={"secret": 1})) == {
        "method": "boot",
        "namespace": "n",
    }
    inner = json.dumps({"event_type": "e", "publisher_id": "p", "message_id": "m", "payload": "secret"})
    packed = body(**{"oslo.version": "2.0", "oslo.message": inner})
    assert named(packed) == {"event_type": "e", "publisher_id": "p", "message_id": "m"}


@for_each(
    "odd",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b"{}",
        b'{"message": 1}',
        b'{"message": {"method": {"a": "secret"}}}',
        b'{"message": {"oslo.message": "{"}}',
        b'{"message": {"oslo.message": "[]"}}',
        b"[" * 10_000,
        b'{"message": {"method": "m"}}' + b" " * BODY_BYTES_MAX,
    ],
)
def test_whatever_a_body_is_nobody_minds(odd):
    assert named(odd) == {}


def test_a_long_name_is_cut():
    assert named(body(method="m" * 1000)) == {"method": "m" * 255}


def test_the_topic_of_each_kind():
    call = facts_of("call", decode(encode(Kind.CALL, "nova", "compute", "a1", ttl_ms=5)), body(method="boot"))
    assert topic_of(call) == "oslo.nova.compute.boot"
    assert (call["what"], call["server"], call["ttl_ms"]) == ("request", "a1", 5)
    due = decode(encode(Kind.CALL, "nova", "compute", flags=Flag.DUE, ttl_ms=5))
    assert "ttl_ms" not in facts_of("call", due, b"")  # a deadline, of another clock
    notice = facts_of(
        "notify", decode(encode(Kind.NOTIFY, "nova", "notifications.error")), body(event_type="e")
    )
    assert topic_of(notice) == "oslo.nova.notifications.error.e"
    assert (notice["topic"], notice["priority"]) == ("notifications", "error")
    assert topic_of({"pipeline": "call", "what": "-"}) == "oslo.-.-.-"


def test_an_unknown_user_has_no_uid():
    assert who(0xFFFFFFFF, 2) == {"rolemask": 2}
    assert who(1000, 2) == {"uid": 1000, "rolemask": 2}
