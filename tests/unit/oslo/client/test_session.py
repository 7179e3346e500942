"""Calls, casts, fan-outs and notifications through a real node."""

import threading
import time
from collections import Counter

import pytest

from broker.oslo.client import listeners
from broker.oslo.client.session import ClientSession
from broker.oslo.contract import Address, CallTimeout, Closed, Undelivered, Unroutable
from broker.oslo.names import Pipeline
from tests.live.oslo_raw import PATIENCE_S, until
from tests.unit.oslo.client.nodes import settings_at

WHERE = Address("x", "t")


class Serving:
    """A listener whose calls are answered by a thread; casts are kept."""

    def __init__(self, port, address, reply=None):
        self.inbox = port.listen(address)
        self.got = []
        self._reply = reply or (lambda item: b"%s:%s" % (address.server.encode(), item.body))
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self):
        while (item := self.inbox.get(None)) is not None:
            self.got.append(item)
            if item.wants_reply:
                item.reply(self._reply(item))

    def end(self):
        self.inbox.close()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()


@pytest.fixture
def serve(stack):
    def make(port, address, reply=None):
        serving = Serving(port, address, reply)
        stack.callback(serving.end)
        return serving

    return make


def test_a_call_is_answered(node, open_session, serve):
    port = open_session()
    serve(port, Address("x", "t", "one"))
    assert port.call(WHERE, b"ping", timeout_s=PATIENCE_S) == b"one:ping"
    assert port.call(Address("x", "t", "one"), b"", timeout_s=None) == b"one:"


def test_servers_take_strict_turns_over_calls_and_casts(node, open_session, serve):
    port = open_session()
    servers = [serve(port, Address("x", "t", name)) for name in ("a", "b@2", "c")]
    for _ in range(2):
        asked = [port.call(WHERE, b"", timeout_s=PATIENCE_S) for _ in range(3)]
        assert sorted(asked) == [b"a:", b"b@2:", b"c:"]
    for _ in range(4):
        port.cast(WHERE, b"cast")
        port.call(WHERE, b"call", timeout_s=PATIENCE_S)
    until(lambda: sum(len(each.got) for each in servers) >= 14, "all of them")
    counts = [len(each.got) for each in servers]
    assert sum(counts) == 14
    assert max(counts) - min(counts) <= 1


def test_an_addressed_server_alone_is_asked(node, open_session, serve):
    port = open_session()
    first, second = serve(port, Address("x", "t", "h@1")), serve(port, Address("x", "t", "h"))
    for _ in range(5):
        assert port.call(Address("x", "t", "h@1"), b"", timeout_s=PATIENCE_S) == b"h@1:"
    assert (len(first.got), len(second.got)) == (5, 0)


def test_exchanges_do_not_know_each_other(node, open_session, serve):
    port = open_session()
    one, other = serve(port, Address("x", "t", "s")), serve(port, Address("y", "t", "s"))
    longer = serve(port, Address("x", "t.t", "s"))
    port.fanout(WHERE, b"fan")
    port.cast(Address("x", "t", "s"), b"cast")
    port.call(WHERE, b"call", timeout_s=PATIENCE_S)
    until(lambda: len(one.got) == 3, "three")
    assert (other.got, longer.got) == ([], [])


def test_nobody_listens(node, open_session):
    port = open_session()
    with pytest.raises(Unroutable, match=r"^x/t: nobody listens there$"):
        port.call(WHERE, b"", timeout_s=PATIENCE_S, mandatory=True)
    begin = time.monotonic()
    with pytest.raises(CallTimeout, match=r"^x/t: no answer within 0.2 s: nobody listens there$"):
        port.call(WHERE, b"", timeout_s=0.2)
    assert time.monotonic() - begin >= 0.2
    with pytest.raises(Unroutable, match="nobody listens"):
        port.cast(WHERE, b"", mandatory=True)
    port.cast(WHERE, b"")
    port.fanout(WHERE, b"")
    port.notify("x", "t.info", b"")
    until(lambda: port.status()["counts"].get("nobody") == 3, "three that were dropped")


def test_a_call_waits_for_a_server_to_come(node, open_session, serve):
    port = open_session()
    answers = []
    thread = threading.Thread(target=lambda: answers.append(port.call(WHERE, b"", timeout_s=PATIENCE_S)))
    thread.start()
    until(lambda: port.status().get("pending") == 1, "the call")
    serve(port, Address("x", "t", "late"))
    thread.join(PATIENCE_S)
    assert answers == [b"late:"]


def test_a_mandatory_cast_returns_when_a_server_has_it(node, open_session, serve):
    port = open_session()
    one = serve(port, Address("x", "t", "s"))
    port.cast(WHERE, b"sure", mandatory=True)
    until(lambda: one.got, "the cast")
    assert (one.got[0].body, one.got[0].wants_reply) == (b"sure", False)
    assert node.status("call")["counts"]["taken"] == 1


def test_casts_keep_their_order_and_none_is_lost(node, open_session, serve):
    port = open_session()
    one = serve(port, Address("x", "t", "s"))
    for number in range(3_000):
        port.cast(WHERE, b"%d" % number)
    until(lambda: len(one.got) == 3_000, "3000 casts")
    assert [int(item.body) for item in one.got] == list(range(3_000))


def test_a_fanout_reaches_every_server_once(node, open_session, serve):
    port = open_session()
    servers = [serve(port, Address("x", "t", f"s{n}")) for n in range(5)]
    for number in range(50):
        port.fanout(WHERE, b"%d" % number)
    until(lambda: all(len(each.got) == 50 for each in servers), "50 at each")
    for each in servers:
        assert [int(item.body) for item in each.got] == list(range(50))
    assert node.status("fanout")["counts"]["published"] == 50


def test_a_notification_reaches_one_listener_of_each_pool(node, open_session):
    port = open_session()
    topics = [("x", "n.info"), ("x", "n.error")]
    pool = [port.listen_notifications(topics, None) for _ in range(2)]
    other = port.listen_notifications(topics, "p")
    for number in range(600):  # more than twice the window of credit
        port.notify("x", "n.info", b"%d" % number)
    shared = [drained(each, 300) for each in pool]
    assert sorted(shared[0] + shared[1]) == list(range(600))
    assert shared[0] == sorted(shared[0])
    assert drained(other, 600) == list(range(600))


def drained(inbox, n):
    got = []
    while len(got) < n:
        item = inbox.get(PATIENCE_S)
        assert item is not None, f"{len(got)} of {n}"
        got.append(int(item.body))
    assert inbox.get(0.0) is None
    return got


def test_a_notification_that_is_given_back_comes_again(node, open_session):
    port = open_session()
    inbox = port.listen_notifications([("x", "n.info")], None)
    port.notify("x", "n.info", b"one")
    first = inbox.get(PATIENCE_S)
    first.requeue()
    first.requeue()
    again = inbox.get(PATIENCE_S)
    assert (again.body, again.address) == (b"one", Address("x", "n.info"))
    assert inbox.get(0.1) is None


def test_what_is_given_back_again_and_again_comes_after_a_pause_each_time(node, open_session):
    port, rounds = open_session(), 3
    inbox = port.listen_notifications([("x", "n.info")], None)
    port.notify("x", "n.info", b"one")
    item, begin = inbox.get(PATIENCE_S), time.monotonic()
    for _ in range(rounds):
        item.requeue()
        item = inbox.get(PATIENCE_S)
    assert time.monotonic() - begin >= rounds * listeners.REQUEUE_S


def test_what_waits_to_be_given_back_leaves_at_once_when_its_listener_ends(node, open_session, monkeypatch):
    monkeypatch.setattr(listeners, "REQUEUE_S", 1000.0)
    port, other = open_session(), open_session()
    inbox = port.listen_notifications([("x", "n.info")], None)
    port.notify("x", "n.info", b"one")
    first = inbox.get(PATIENCE_S)
    second = other.listen_notifications([("x", "n.info")], None)
    first.requeue()
    inbox.close()
    again = second.get(PATIENCE_S)
    assert (again.body, again.address) == (b"one", Address("x", "n.info"))


def test_many_threads_call_at_once(node, open_session, serve):
    port = open_session()
    serve(port, Address("x", "t", "s"), lambda item: item.body)
    wrong = []

    def ask(thread):
        for number in range(20):
            body = b"%d/%d" % (thread, number)
            if port.call(WHERE, body, timeout_s=PATIENCE_S) != body:
                wrong.append(body)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * PATIENCE_S)
    assert not wrong
    assert port.status()["counts"]["answered"] == 320


def test_large_bodies_arrive_whole(node, open_session, serve):
    port = open_session()
    serve(port, Address("x", "t", "s"), lambda item: item.body[::-1])
    body = bytes(range(256)) * 8192
    assert port.call(WHERE, body, timeout_s=PATIENCE_S) == body[::-1]


def test_start_call_tells_its_end_once(node, open_session, serve):
    port = open_session()
    serve(port, Address("x", "t", "s"))
    answers = []
    port.start_call(WHERE, b"a", answers.append, timeout_s=PATIENCE_S)
    port.start_call(Address("x", "no"), b"b", answers.append, timeout_s=0.05)
    until(lambda: len(answers) == 2, "two answers")
    assert b"s:a" in answers
    assert [isinstance(each, CallTimeout) for each in answers].count(True) == 1


@pytest.mark.patient
def test_a_monitored_call_lives_by_its_heartbeats(node, open_session, stack):
    port = open_session()
    inbox = port.listen(Address("x", "t", "s"))
    answers = []
    thread = threading.Thread(
        target=lambda: answers.append(port.call(WHERE, b"", timeout_s=PATIENCE_S, monitor_s=2.0))
    )
    thread.start()
    item = inbox.get(PATIENCE_S)
    assert item.monitor_s == 2.0
    for _ in range(5):
        time.sleep(0.5)
        item.beat()
    item.reply(b"done")
    thread.join(PATIENCE_S)
    assert answers == [b"done"]
    with pytest.raises(
        CallTimeout, match=r"no heartbeat for 0.2 s: 1 server listens there; the proxy"
    ) as raised:
        port.call(WHERE, b"", timeout_s=PATIENCE_S, monitor_s=0.2)
    assert raised.value.monitor


def test_a_server_that_does_not_answer_is_told_of(node, open_session):
    port = open_session()
    inbox = port.listen(Address("x", "t", "s"))
    text = r"^x/t: no answer within 0.5 s: 1 server listens there; the proxy of node 127.0.0.1 \(ipc://.*call.in\) was"
    items = []
    thread = threading.Thread(target=lambda: items.append(inbox.get(PATIENCE_S)))
    thread.start()
    with pytest.raises(CallTimeout, match=text) as raised:
        port.call(WHERE, b"", timeout_s=0.5)
    assert not raised.value.monitor
    thread.join(PATIENCE_S)
    items[0].reply(b"too late")
    until(
        lambda: port.status()["counts"].get("late") or node.status("call")["counts"].get("late_replies"),
        "the late one",
    )
    assert port.status()["pending"] == 0


@pytest.mark.patient
def test_a_reply_that_finds_nobody_is_a_line_in_the_servers_log(run_node, open_session, monkeypatch, caplog):
    monkeypatch.setattr("broker.oslo.proxy.call.FRESH_S", 0.0)
    monkeypatch.setattr("broker.oslo.proxy.call.SWEEP_S", 0.02)
    node = run_node()
    server, caller = open_session(), open_session(retry_s=0.06)
    inbox = server.listen(Address("x", "t", "s"))
    items = []
    thread = threading.Thread(target=lambda: items.append(inbox.get(PATIENCE_S)))
    thread.start()
    with pytest.raises(CallTimeout):
        caller.call(WHERE, b"", timeout_s=0.3)
    thread.join(PATIENCE_S)
    node.counted("call", "expired")
    items[0].reply(b"too late")
    until(lambda: server.status()["counts"].get("replies_undeliverable") == 1, "the word of the proxy")
    until(
        lambda: "to x/t could not be delivered: its caller is gone, or has given up" in caplog.text,
        "the line",
    )


def test_what_nobody_waits_for_any_more_is_not_worked_on(node, open_session):
    port = open_session()
    inbox = port.listen(Address("x", "t", "s"))
    with pytest.raises(CallTimeout):
        port.call(WHERE, b"", timeout_s=0.5)
    item = until(lambda: inbox._items and inbox._items[0], "the call")
    until(lambda: time.monotonic() > item.due_s, "its end, as its server sees it")
    assert inbox.get(0.05) is None
    assert port.status()["counts"]["expired"] == 1


def test_without_a_directory_it_is_said_so(open_session, folder):
    port = open_session(ready_s=0.1)
    text = r"nothing is known of .*: no answer from the proxy of this node \(.* is missing\) within 0.1 s"
    for send in (
        lambda: port.fanout(WHERE, b""),
        lambda: port.notify("x", "t.info", b""),
        lambda: port.cast(WHERE, b"", retry=0),
        lambda: port.cast(WHERE, b"", retry=2),
    ):
        with pytest.raises(Undelivered, match=text):
            send()
    with pytest.raises(
        CallTimeout, match="not known whether anybody listens there, no answer from the proxy"
    ):
        port.call(WHERE, b"", timeout_s=0.05)
    with pytest.raises(Undelivered, match="not known whether anybody listens"):
        port.call(WHERE, b"", timeout_s=PATIENCE_S, mandatory=True)


def test_directories_over_tcp_do_where_there_is_no_proxy(node, folder, rundir, stack, serve, open_session):
    serve(open_session(), Address("x", "t", "s"))
    directory = f"tcp://127.0.0.1:{node.proxy.directory.endpoint.rpartition(':')[2]}"
    far = ClientSession(settings_at(rundir / "none", directories=(directory,)))
    stack.callback(far.close)
    assert far.call(WHERE, b"", timeout_s=PATIENCE_S) == b"s:"
    far.cast(WHERE, b"")
    far.fanout(WHERE, b"")
    links = far.status()["links"]
    for pipeline in (Pipeline.CALL, Pipeline.CAST, Pipeline.FANOUT):
        assert links[pipeline]["127.0.0.1"]["endpoint"].startswith("tcp://127.0.0.1:")


def test_names_that_cannot_be_sent(open_session):
    port = open_session()
    with pytest.raises(ValueError, match="NUL"):
        port.call(Address("x", "t\0"), b"", timeout_s=1)
    with pytest.raises(ValueError, match="expected 255"):
        port.cast(Address("x" * 256, "t"), b"")
    with pytest.raises(ValueError, match="no topic"):
        port.listen(Address("x", "", "s"))
    with pytest.raises(ValueError, match="no topic"):
        port.listen_notifications([], None)
    assert port.status() == {}


def test_who_waits_is_told_when_the_port_is_closed(node, open_session):
    port = open_session()
    ended = []

    def ask():
        try:
            port.call(WHERE, b"", timeout_s=None)
        except Closed as error:
            ended.append(str(error))

    thread = threading.Thread(target=ask)
    thread.start()
    until(lambda: port.status().get("pending"), "the call")
    inbox = port.listen(Address("x", "other", "s"))
    port.close()
    thread.join(PATIENCE_S)
    assert ended == ["x/t: the session was closed before it was sent"]
    assert inbox.get(None) is None
    port.close()
    with pytest.raises(Closed):
        port.cast(WHERE, b"")


def test_userid_and_role_are_the_proxys_word(node, open_session, serve):
    import os

    port = open_session()
    one = serve(port, Address("x", "t", "s"))
    port.call(WHERE, b"", timeout_s=PATIENCE_S)
    port.cast(WHERE, b"")
    port.fanout(WHERE, b"")
    until(lambda: len(one.got) == 3, "three")
    assert Counter(item.userid for item in one.got) == {os.getuid(): 3}
    assert all(item.rolemask for item in one.got)
