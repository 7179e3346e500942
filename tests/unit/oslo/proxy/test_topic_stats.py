"""Messages of a proxy by topic: what came, what was refused and why; bounded, whatever clients make up."""

import errno

import pytest

from broker.name_stats import OTHER
from broker.oslo.names import Reason
from broker.oslo.node import Rule
from broker.oslo.proxy import call
from broker.oslo.proxy.pipeline import TOPICS_MAX, UNPROVEN_MAX, TopicStats
from tests.live.oslo_raw import until


def figures(node, room, topic="x/t"):
    return node.status(room)["figures"].get(topic, {"calls": 0, "open": 0, "errors": {}})


def test_calls_are_counted_and_open_until_their_reply(node):
    server, client = node.server(), node.client()
    server.open("t")
    client.call("t", ttl_ms=60_000)
    got = server.get()
    assert [figures(node, "call")[each] for each in ("calls", "open", "errors")] == [1, 1, {}]
    server.reply(got, b"pong")
    client.get()
    assert [figures(node, "call")[each] for each in ("calls", "open", "errors")] == [1, 0, {}]


def test_a_call_to_nobody_is_an_error_of_its_topic(node):
    client = node.client()
    client.call("t")
    assert client.get().reason == Reason.NO_ROUTE
    told = figures(node, "call")
    assert (told["calls"], told["errors"]) == (1, {str(errno.EHOSTUNREACH): 1})
    assert told["last_error"]["text"] == "nobody listens there"
    assert told["last_error"]["userid"] != 0xFFFFFFFF


@pytest.mark.patient
def test_a_call_that_is_not_answered_in_time_is_an_error(run_node, monkeypatch):
    monkeypatch.setattr(call, "SWEEP_S", 0.05)
    node = run_node()
    server, client = node.server(), node.client()
    server.open("t")
    client.call("t", ttl_ms=1)
    server.get()
    until(lambda: figures(node, "call")["errors"] == {str(errno.ETIMEDOUT): 1})
    assert figures(node, "call")["open"] == 0


def test_casts_are_counted_and_so_is_what_nobody_takes(node):
    server, client = node.server("cast"), node.client("cast")
    server.open("t")
    client.cast("t")
    server.get()
    client.cast("nobody")
    until(lambda: figures(node, "cast", "x/nobody")["errors"] == {str(errno.EHOSTUNREACH): 1})
    assert (figures(node, "cast")["calls"], figures(node, "cast")["errors"]) == (1, {})


def test_who_may_not_send_is_an_error(run_node):
    node = run_node(rules=(Rule(topics=("t",), action="send", allow=False),))
    client = node.client()
    client.call("t")
    assert client.get().reason == Reason.DENIED
    assert figures(node, "call")["errors"] == {str(errno.EPERM): 1}


def test_names_that_clients_make_up_take_little_room():
    topics = TopicStats(lambda: 1.0)
    for number in range(4 * UNPROVEN_MAX):
        topics.of("x", f"no{number}", listened=False).calls += 1
    assert len(topics.status()) == UNPROVEN_MAX + 1
    topics.of("x", "late", listened=False).calls += 1
    topics.of("x", "late", listened=True).calls += 1
    assert topics.status()["x/late"]["calls"] == 1
    for number in range(2 * TOPICS_MAX):
        topics.of("x", f"t{number}", listened=True).calls += 1
    topics.of("x", "a\nb", listened=True).calls += 1
    told = topics.status()
    assert len(told) <= TOPICS_MAX + 1
    assert sum(each["calls"] for each in told.values()) == 4 * UNPROVEN_MAX + 2 + 2 * TOPICS_MAX + 1
    assert "x/a\nb" not in told
    assert told[OTHER]["calls"] > TOPICS_MAX


def test_a_topic_that_somebody_comes_to_listen_to_has_figures_of_its_own(node):
    client = node.client()
    for number in range(UNPROVEN_MAX):
        client.call(f"no{number}")
        client.get()
    client.call("t")
    client.get()
    assert "x/t" not in node.status("call")["figures"]
    server = node.server()
    server.open("t")
    client.call("t")
    server.get()
    assert figures(node, "call")["calls"] == 1
