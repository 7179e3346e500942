"""Refusals of web users, as they are told to the broker's journal: only where there is one, and not too many."""

import errno

from broker.identity import Role
from broker.wire.payload import decode_json
from gateway.sessions.reports import REPORTS_PER_S, TOPIC, Reports


class Upstream:
    def __init__(self, journals):
        self.journals = journals
        self.sent = []

    def tell(self, topic, payload):
        assert topic == TOPIC
        self.sent.append(decode_json(payload))


class Hub:
    def __init__(self, journals=True):
        self.upstream = Upstream(journals)
        self.now = 0.0

    def clock(self):
        return self.now


class Session:
    id = "0a0b0c0d"
    address = "192.0.2.7"
    roles = int(Role.USER)

    class principal:  # noqa: N801 - stands for an attribute
        userid = 1001


def test_what_is_told():
    hub = Hub()
    Reports(hub).denied(Session, "publish", "secret.event", claimed=77)
    Reports(hub).denied(Session, "call", "secret.thing")
    assert hub.upstream.sent[0] == {
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
    assert (hub.upstream.sent[1]["type"], hub.upstream.sent[1]["claimed"]) == ("request", 0xFFFFFFFF)


def test_a_broker_without_a_journal_is_told_nothing():
    hub = Hub(journals=False)
    reports = Reports(hub)
    reports.denied(Session, "call", "secret.thing")
    assert (hub.upstream.sent, reports.told, reports.left_out) == ([], 0, 0)


def test_a_flood_is_cut_and_what_was_left_out_is_told_once():
    hub = Hub()
    reports = Reports(hub)
    for _ in range(REPORTS_PER_S + 50):
        reports.denied(Session, "call", "guess")
    told = len(hub.upstream.sent)
    assert reports.told == told <= REPORTS_PER_S
    assert reports.left_out == REPORTS_PER_S + 50 - told
    hub.now = 10.0
    for _ in range(2):
        reports.denied(Session, "call", "guess")
    assert [said.get("left_out", 0) for said in hub.upstream.sent[told:]] == [reports.left_out, 0]
    assert all("left_out" not in said for said in hub.upstream.sent[:told])
