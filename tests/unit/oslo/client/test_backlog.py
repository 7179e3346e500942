"""Notifications for listeners that are away, from notifier to listener: kept by the node, handed out in order."""

import pytest

from broker.oslo.node import BacklogConfig
from broker.oslo.proxy.backlog import listener_of
from tests.live.oslo_raw import PATIENCE_S, Node, until
from tests.unit.oslo.client.nodes import door_of, whole_node

KEPT = BacklogConfig(("n.*",))
PLACES = [("x", "n.info")]


def bodies(notes, number):
    found = []
    for _ in range(number):
        item = notes.get(PATIENCE_S)
        found.append(item.body)
    return found


def kept(node):
    return node.status("notify")["backlog"]["messages"]


def notify(port, *numbers):
    for number in numbers:
        port.notify("x", "n.info", b"%d" % number)


@pytest.mark.parametrize("pool", [None, "p"])
def test_the_next_listener_of_the_pool_has_it_first(run_node, open_session, pool):
    node = run_node(backlog=KEPT)
    port, other = open_session(), open_session(retry_s=0.06)
    notes = other.listen_notifications(PLACES, pool)
    notify(port, 0)
    assert bodies(notes, 1) == [b"0"]
    notes.close()
    until(lambda: node.status("notify")["listeners"] == 0)
    notify(port, 1, 2, 3)
    until(lambda: kept(node) == 3, "all of them to be kept")
    again = other.listen_notifications(PLACES, pool)
    notify(port, 4)
    assert bodies(again, 4) == [b"1", b"2", b"3", b"4"]
    assert kept(node) == 0


def test_where_nothing_was_ever_listened_to_nothing_is_kept(run_node, open_session):
    node = run_node(backlog=KEPT)
    port = open_session()
    notify(port, 1)
    until(lambda: port.status()["counts"].get("nobody"))
    assert node.status("notify")["backlog"] == {"messages": 0, "bytes": 0, "shelves": []}


@pytest.mark.patient
def test_it_survives_the_proxy(folder, rundir, open_session, stack):
    config = whole_node(folder, backlog=BacklogConfig(("n.*",), path=str(rundir / "backlog")))
    with Node(config) as node:
        port = open_session()
        port.listen_notifications(PLACES, "p").close()
        notify(port, 1, 2)
        until(lambda: kept(node) == 2)
    node = stack.enter_context(Node(config))
    stack.callback(port.close)
    assert kept(node) == 2
    until(lambda: port._client.routes.replica.pools("x", "n.info"), "the node to be known again")
    notify(port, 3)
    until(lambda: kept(node) == 3)
    assert bodies(port.listen_notifications(PLACES, "p"), 3) == [b"1", b"2", b"3"]


def test_a_listener_on_another_node_goes_before_what_a_node_keeps(rundir, folder, open_session, run_node):
    far = rundir / "far"
    far.mkdir(mode=0o700)
    here = run_node(backlog=KEPT)
    there = run_node(
        folder=far, node="far", advertise="127.0.0.1", directories=(door_of(here),), backlog=KEPT
    )
    port, elsewhere = open_session(), open_session(folder=far)
    port.listen_notifications(PLACES, "p").close()
    until(lambda: here.status("notify")["listeners"] == 0)
    notes = elsewhere.listen_notifications(PLACES, "p")

    def known():
        found = port._client.routes.replica.pools("x", "n.info").get("p", ())
        return found and listener_of("p") not in {listener for _node, listener in found}

    until(known, "the other listener")
    notify(port, *range(10))
    assert sorted(bodies(notes, 10)) == [b"%d" % number for number in range(10)]
    assert kept(here) == kept(there) == 0
