"""Refusals of web users, as they are told to the broker's journal: only where there is one, and not too many."""

import errno

from broker.identity import Role
from broker.wire.payload import decode_json
from gateway.administration.denials import REPORTS_PER_S, TOPIC, Denials
from gateway.sessions.counters import Counters


class Upstream:
    def __init__(self, journals=True):
        self.journals = journals
        self.sent = []

    def tell(self, topic, payload):
        assert topic == TOPIC
        self.sent.append(decode_json(payload))


class Sessions:
    def __init__(self):
        self.counters = Counters()
        self.now = 0.0

    def clock(self):
        return self.now

    def wall(self):
        return self.now


class Session:
    id = "0a0b0c0d"
    address = "192.0.2.7"
    roles = int(Role.USER)
    denied_msgs = 0

    class principal:  # noqa: N801 - stands for an attribute
        name = "ada"
        userid = 1001


def test_what_is_told():
    upstream = Upstream()
    denials = Denials(Sessions(), upstream)
    denials.add(Session, "publish", "secret.event", "no", claimed=77)
    denials.add(Session, "call", "secret.thing", "no")
    assert upstream.sent[0] == {
        "topic": "secret.event",
        "errno": errno.EPERM,
        "userid": 1001,
        "rolemask": int(Role.USER),
        "claimed": 77,
        "session": "0a0b0c0d",
        "address": "192.0.2.7",
        "transport": "websocket",
        "type": "event",
    }
    assert (upstream.sent[1]["type"], upstream.sent[1]["claimed"]) == ("request", 0xFFFFFFFF)


def test_a_broker_without_a_journal_is_told_nothing():
    upstream = Upstream(journals=False)
    denials = Denials(Sessions(), upstream)
    denials.add(Session, "call", "secret.thing", "no")
    assert (upstream.sent, denials.reported, denials.left_out) == ([], 0, 0)


def test_a_flood_is_cut_and_what_was_left_out_is_told_once():
    sessions, upstream = Sessions(), Upstream()
    denials = Denials(sessions, upstream)
    for _ in range(REPORTS_PER_S + 50):
        denials.add(Session, "call", "guess", "no")
    told = len(upstream.sent)
    assert denials.reported == told <= REPORTS_PER_S
    assert denials.left_out == REPORTS_PER_S + 50 - told
    sessions.now = 10.0
    for _ in range(2):
        denials.add(Session, "call", "guess", "no")
    assert [said.get("left_out", 0) for said in upstream.sent[told:]] == [denials.left_out, 0]
    assert all("left_out" not in said for said in upstream.sent[:told])
