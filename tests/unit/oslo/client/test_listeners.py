"""Listeners and inboxes: proxies that restart, servers that do, limits, order, what is lost and counted."""

import threading
import time

import pytest

from broker.identity import Role
from broker.oslo.client import inbox as inbox_file
from broker.oslo.client import inbox as inboxes
from broker.oslo.contract import Address, Refused
from broker.oslo.frames import Kind
from broker.oslo.node import Rule
from tests.live.oslo_raw import PATIENCE_S, Node, until
from tests.unit.oslo.client.nodes import whole_node

WHERE = Address("x", "t")
SERVER = Address("x", "t", "s")


def test_listening_is_in_force_everywhere_when_listen_returns(node, open_session):
    port = open_session()
    inbox = port.listen(SERVER)
    port.cast(WHERE, b"cast")
    port.fanout(WHERE, b"fan")
    assert {inbox.get(PATIENCE_S).body, inbox.get(PATIENCE_S).body} == {b"cast", b"fan"}
    assert node.status("call")["listeners"] == node.status("cast")["listeners"] == 1
    assert node.status("fanout")["topics"] == {"x/t": 1}


def test_pipelines_that_are_not_run_are_not_waited_for(run_node, open_session):
    run_node(run=frozenset({"directory", "call"}))
    port = open_session(ready_s=PATIENCE_S)
    begin = time.monotonic()
    inbox = port.listen(SERVER)
    assert time.monotonic() - begin < PATIENCE_S / 2
    port.cast(WHERE, b"by the pipeline of calls")
    assert inbox.get(PATIENCE_S).body == b"by the pipeline of calls"


def test_without_a_proxy_it_warns_and_goes_on_trying(folder, open_session, stack, caplog):
    port = open_session(ready_s=0.1)
    inbox = port.listen(SERVER)
    assert "listening at x/t: not confirmed within 0.1 s by the proxy of this node" in caplog.text
    stack.enter_context(Node(whole_node(folder)))
    stack.callback(port.close)  # before the node, or it waits for its answer
    other = open_session(ready_s=PATIENCE_S)
    answers = []
    thread = threading.Thread(target=lambda: answers.append(other.call(WHERE, b"", timeout_s=PATIENCE_S)))
    thread.start()
    inbox.get(PATIENCE_S).reply(b"here")
    thread.join(PATIENCE_S)
    assert answers == [b"here"]


def test_after_a_restart_of_the_proxy_everything_is_registered_again(folder, open_session, stack):
    with Node(whole_node(folder)):
        port = open_session()
        inbox = port.listen(SERVER)
        notes = port.listen_notifications([("x", "n.info")], "p")
        port.notify("x", "n.info", b"before")
        assert notes.get(PATIENCE_S).body == b"before"
    again = stack.enter_context(Node(whole_node(folder)))
    stack.callback(port.close)  # before the node, or it waits for its answer
    until(lambda: again.status("call")["listeners"] == again.status("cast")["listeners"] == 1, "the server")
    until(lambda: again.status("notify")["listeners"] == 1 and again.status("fanout")["topics"], "the others")
    assert port.status()["counts"]["opened_again"] >= 1
    until(lambda: len(port._client.routes.replica.servers("x", "t")) == 1, "the directory")
    answers = []
    thread = threading.Thread(target=lambda: answers.append(port.call(WHERE, b"", timeout_s=PATIENCE_S)))
    thread.start()
    inbox.get(PATIENCE_S).reply(b"still here")
    thread.join(PATIENCE_S)
    assert answers == [b"still here"]

    def comes(send, body, inbox):
        """It does so as soon as the connections are there again."""

        def came():
            send()
            item = inbox.get(0.2)
            return item is not None and item.body == body

        until(came, "a message")

    comes(lambda: port.cast(WHERE, b"cast"), b"cast", inbox)
    comes(lambda: port.fanout(WHERE, b"fan"), b"fan", inbox)
    comes(lambda: port.notify("x", "n.info", b"after"), b"after", notes)


def test_a_server_may_come_back_at_once_under_the_same_name(node, open_session):
    server, client = open_session(), open_session(linger_s=1.9)  # other settings: a station of its own
    for turn in range(5):
        inbox = server.listen(SERVER)
        answers = []
        thread = threading.Thread(
            target=lambda answers=answers: answers.append(client.call(SERVER, b"", timeout_s=PATIENCE_S))
        )
        thread.start()
        inbox.get(PATIENCE_S).reply(b"%d" % turn)
        thread.join(PATIENCE_S)
        assert answers == [b"%d" % turn]
        inbox.close()
    assert node.status("call")["listeners"] == 0


@pytest.mark.parametrize("room", ["call", "cast"])
def test_what_was_sent_to_a_frozen_process_and_given_up_is_not_taken_when_it_goes_on(
    node, open_session, room
):
    port = open_session()
    inbox = port.listen(SERVER)
    client, goes_on = node.client(room), threading.Event()
    port._client.post(goes_on.wait, PATIENCE_S)
    client.send(Kind.CALL if room == "call" else Kind.CAST, "t", b"stale", ttl_ms=200)
    client.send(Kind.CALL if room == "call" else Kind.CAST, "t", b"fresh", ttl_ms=60_000)
    until(lambda: sum(each["in"] for each in node.status(room)["entries"]) == 2, "both at the proxy")
    over_s = time.monotonic() + 0.25
    until(lambda: time.monotonic() > over_s, "the first one to be over")
    goes_on.set()
    assert inbox.get(PATIENCE_S).body == b"fresh"
    until(lambda: port.status()["counts"].get("expired") == 1, "the other one to be counted")


def test_stop_takes_nothing_more_in_and_drains_what_is_here(node, open_session, monkeypatch):
    monkeypatch.setattr(inbox_file, "STOP_S", PATIENCE_S)
    port = open_session()
    inbox = port.listen(SERVER)
    items = []
    for number in range(3):
        port.start_call(WHERE, b"%d" % number, items.append, timeout_s=PATIENCE_S)
    until(lambda: len(inbox._items) == 3, "three calls")
    begin = time.monotonic()
    inbox.stop()
    assert time.monotonic() - begin < PATIENCE_S / 2  # it was told of its end
    until(lambda: node.status("call")["listeners"] == 0, "its end at the proxy")
    drained = []
    while (item := inbox.get(None)) is not None:
        drained.append(item)
    assert [item.body for item in drained] == [b"0", b"1", b"2"]
    inbox.close()
    for item in drained:
        item.reply(item.body)
    until(lambda: len(items) == 3, "their answers")
    assert items == [b"0", b"1", b"2"]


def test_who_waits_for_a_message_is_sent_home(node, open_session):
    port = open_session()
    inbox = port.listen(SERVER)
    got = []
    threads = [threading.Thread(target=lambda: got.append(inbox.get(None))) for _ in range(3)]
    for thread in threads:
        thread.start()
    until(lambda: len(inbox._waiters) == 3, "three who wait")
    inbox.stop()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert got == [None] * 3
    inbox.stop()
    inbox.close()
    inbox.close()


def test_what_was_not_read_is_dropped_and_counted(node, open_session):
    port = open_session()
    inbox = port.listen(SERVER)
    for _ in range(3):
        port.cast(WHERE, b"")
    until(lambda: len(inbox._items) == 3, "three casts")
    inbox.close()
    assert inbox.get(None) is None
    assert port.status()["counts"]["dropped"] == 3


def test_a_full_inbox_leaves_requests_at_the_proxy_and_none_is_lost(node, open_session):
    port = open_session(inbox_msgs=10)
    inbox = port.listen(SERVER)
    answers = []
    for number in range(100):
        port.cast(WHERE, b"%d" % number)
        port.start_call(WHERE, b"call", answers.append, timeout_s=PATIENCE_S)
    until(lambda: inbox.full, "a full inbox")
    assert len(inbox._items) <= 10 + 10, "its credit for calls, and that for casts"
    casts = []
    for _ in range(200):
        item = inbox.get(PATIENCE_S)
        assert item is not None
        if item.wants_reply:
            item.reply(b"")
        else:
            casts.append(int(item.body))
    assert casts == list(range(100))
    until(lambda: len(answers) == 100, "all answers")


def test_the_proxy_is_told_of_what_was_taken(node, open_session):
    """Little of it at the next look: who is silent looks frozen from there, and nobody waits for what is frozen."""
    inbox = open_session(inbox_msgs=2000).listen(SERVER)
    client = node.client("cast")
    for _ in range(inboxes.CREDIT + 1):
        client.cast("t")

    def member():
        return node.status("cast")["members"][0]

    until(lambda: member()["waiting"] == 1, "credit that is used up")
    assert member()["unconfirmed"] == inboxes.CREDIT
    assert inbox.get(PATIENCE_S) is not None
    until(lambda: member()["waiting"] == 0, "the word of it")


def test_fanouts_that_find_the_inbox_full_are_dropped_and_counted(node, open_session):
    port = open_session(inbox_msgs=10)
    inbox = port.listen(SERVER)
    for _ in range(25):
        port.fanout(WHERE, b"")
    until(lambda: port.status()["counts"].get("dropped") == 15, "15 that had no room")
    assert len([inbox.get(0) for _ in range(10)]) == 10
    assert inbox.get(0.05) is None
    assert "gaps" not in port.status()["counts"]


def test_missing_fanouts_are_seen_by_their_numbers(node, open_session):
    port = open_session()
    inbox = port.listen(SERVER)
    port.fanout(WHERE, b"")
    assert inbox.get(PATIENCE_S)

    def lose():
        numbers = node.proxy.pipelines["fanout"]._numbers
        for data in numbers:
            numbers[data] += 7

    node.within(lose)
    port.fanout(WHERE, b"")
    assert inbox.get(PATIENCE_S)
    assert port.status()["counts"]["gaps"] == 7


def test_who_may_not_listen_is_told_so(run_node, open_session):
    run_node(rules=(Rule(topics=("secret",), action="listen", roles=int(Role.ADMIN), allow=True),
                    Rule(topics=("secret",), action="listen", allow=False)))  # fmt: skip
    port = open_session()
    with pytest.raises(Refused, match=r"x/secret: uid .* may not listen at x/secret"):
        port.listen(Address("x", "secret", "s"))
    with pytest.raises(Refused, match="may not listen"):
        port.listen_notifications([("x", "secret")], None)
    assert port.status()["listeners"] == 0


def test_listeners_of_one_process_share_its_sockets(node, open_session):
    port = open_session()
    inboxes = [port.listen(Address("x", f"t{number}", "s")) for number in range(20)]
    assert (node.status("call")["links"], node.status("cast")["links"]) == (1, 1)
    for number, inbox in enumerate(inboxes):
        port.cast(Address("x", f"t{number}"), b"%d" % number)
        assert inbox.get(PATIENCE_S).body == b"%d" % number
