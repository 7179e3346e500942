"""Control objects: every field of what a client sends is checked, and no secret gets into an error text."""

import json

import pytest

from broker.errors import DecodeError
from gateway import notices
from gateway.closes import MEANINGS, SLOW
from gateway.codecs import control
from tests.tables import for_each

RESUME = {"type": "resume", "token": "r", "epoch": "e", "sequence": 7, "subscriptions": ["job.", ""]}


@for_each(
    "obj",
    [{"type": "auth", "token": "t"}, {"type": "refresh", "token": "t"}, {"type": "ping"}, RESUME],
    ids=lambda obj: obj["type"],
)
def test_what_clients_say(obj):
    assert control.decode(json.dumps(obj).encode()) == obj


@for_each(
    ("text", "said"),
    [
        ("", "truncated"),
        ("[]", "object"),
        ("{}", "type"),
        ('{"type":"welcome"}', "welcome"),
        ('{"type":"auth"}', "token"),
        ('{"type":"auth","token":1}', r"\$.token"),
        ('{"type":"auth","token":"x","user":"root"}', "user"),
        ('{"type":"ping","at":1}', "at"),
        (json.dumps(RESUME | {"sequence": -1}), r"\$.sequence"),
        (json.dumps(RESUME | {"sequence": 2**32}), r"\$.sequence"),
        (json.dumps(RESUME | {"subscriptions": "job."}), r"\$.subscriptions"),
        (json.dumps(RESUME | {"subscriptions": [1]}), r"\$.subscriptions\[0\]"),
        (json.dumps(RESUME | {"epoch": None}), r"\$.epoch"),
        ("[" * 100_000, "not a control object"),
    ],
)
def test_what_clients_must_not_say(text, said):
    with pytest.raises(DecodeError, match=said):
        control.decode(text.encode())


def test_bytes_that_are_no_text():
    with pytest.raises(DecodeError):
        control.decode(b'{"type":"auth","token":"\xff"}')


def test_no_secret_in_the_error_text():
    with pytest.raises(DecodeError) as caught:
        control.decode(b'{"type":"auth","token":"s3cret","more":1}')
    assert "s3cret" not in str(caught.value)


def test_the_error_object_says_what_the_close_code_means():
    assert notices.error(SLOW, "17 events wait") == {
        "type": "error",
        "code": 4002,
        "name": "slow",
        "text": "17 events wait",
        "reconnect": True,
    }
    assert notices.error(SLOW)["text"] == MEANINGS[SLOW].text


def test_the_gap_object():
    assert notices.gap(3, 10, 12) == {"type": "gap", "lost": 3, "from": 10, "to": 12}


def test_encoding():
    assert json.loads(notices.encode({"type": "welcome", "roles": ["user"], "expires": None}))["roles"] == [
        "user"
    ]
