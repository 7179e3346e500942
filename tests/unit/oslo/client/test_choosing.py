"""Which server a call goes to, and when another one may have it: nodes are played by the test."""

import threading
import time

import pytest

from broker.awake import LATE_S
from broker.oslo.client.links import DOWN_S
from broker.oslo.contract import Address, CallTimeout, Refused, Undelivered, Unroutable
from broker.oslo.frames import Flag, Kind, encode
from broker.oslo.names import Reason
from tests.live.oslo_raw import PATIENCE_S, until
from tests.unit.oslo.client.nodes import DIRECTORY_ONLY, Played, door_of, server

WHERE = Address("x", "t")


@pytest.fixture
def directory(run_node):
    return run_node(run=DIRECTORY_ONLY)


@pytest.fixture
def play(directory, stack):
    return lambda name, **more: stack.enter_context(Played(door_of(directory), name, **more))


class Asking:
    """A call in a thread of its own."""

    def __init__(self, ask):
        self._ask = ask
        self.outcome = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self):
        try:
            self.outcome = self._ask()
        except Exception as error:
            self.outcome = error

    def end(self):
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        return self.outcome


def known(port, n, topic="t"):
    """The port knows so many servers."""

    def there():
        port.status()
        return len(port._client.routes.replica.servers("x", topic)) == n

    port._use()
    until(there, f"{n} servers")


def test_what_the_envelope_says(play, open_session):
    node = play("n1")
    node.announce(server("l1", name="s@1"))
    port = open_session()
    asking = Asking(lambda: port.call(Address("x", "t", "s@1"), b"body", timeout_s=5.0, monitor_s=1.5))
    asked = node.get()
    _rid, envelope, body = asked
    assert (envelope.exchange, envelope.topic, envelope.server, envelope.listeners) == (
        "x",
        "t",
        "s@1",
        ("l1",),
    )
    assert (envelope.kind, envelope.flags, envelope.word, body) == (Kind.CALL, 0, 1500, b"body")
    assert 3000 < envelope.ttl_ms <= 5000
    node.answer(asked, Kind.REPLY, b"answer")
    assert asking.end() == b"answer"


@pytest.mark.parametrize("reason", [Reason.NO_ROUTE, Reason.BUSY, Reason.LEAVING])
def test_refused_by_one_it_goes_to_the_next(play, open_session, reason):
    first, second = play("n1"), play("n2")
    first.announce(server("l1"))
    second.announce(server("l2"))
    port = open_session()
    known(port, 2)
    asking = Asking(lambda: port.call(WHERE, b"", timeout_s=PATIENCE_S))
    first.answer(first.get(), Kind.REFUSED, b"", reason)
    second.answer(second.get(), Kind.REPLY, b"from the second")
    assert asking.end() == b"from the second"
    assert port.status()["counts"]["chosen_again"] == 1


def test_refused_by_all_it_is_tried_again_after_a_pause(play, open_session):
    node = play("n1")
    node.announce(server("l1"), server("l2"))
    port = open_session()
    known(port, 2)
    asking = Asking(lambda: port.call(WHERE, b"", timeout_s=PATIENCE_S))
    asked = []
    for _ in range(5):
        one = node.get()
        asked.append(one[1].listener)
        node.answer(one, Kind.REFUSED, b"", Reason.BUSY)
    node.answer(node.get(), Kind.REPLY, b"at last")
    assert asking.end() == b"at last"
    assert {*asked[:2]} == {*asked[2:4]} == {"l1", "l2"}


def test_refused_by_all_until_the_end(play, open_session):
    node = play("n1")
    node.announce(server("l1"))
    port = open_session()
    asking = Asking(lambda: port.call(WHERE, b"", timeout_s=0.5))
    node.answer(node.get(), Kind.REFUSED, b"", Reason.BUSY)
    error = asking.end()
    assert isinstance(error, CallTimeout)
    assert "1 server listens there" in str(error)


def test_mandatory_and_refused_by_all(play, open_session):
    node = play("n1")
    node.announce(server("l1"), server("l2"))
    port = open_session()
    known(port, 2)
    asking = Asking(lambda: port.call(WHERE, b"", timeout_s=PATIENCE_S, mandatory=True))
    for _ in range(2):
        asked = node.get()
        assert asked[1].flags == Flag.MANDATORY
        node.answer(asked, Kind.REFUSED, b"", Reason.NO_ROUTE)
    assert isinstance(asking.end(), Unroutable)


def test_a_denial_is_final(play, open_session):
    node = play("n1")
    node.announce(server("l1"), server("l2"))
    port = open_session()
    asking = Asking(lambda: port.call(WHERE, b"", timeout_s=PATIENCE_S))
    node.answer(node.get(), Kind.REFUSED, b"uid 7 may not send to x/t", Reason.DENIED)
    error = asking.end()
    assert isinstance(error, Refused)
    assert error.reason is Reason.DENIED
    assert str(error) == "x/t: node n1 refused it: uid 7 may not send to x/t"
    assert node.silent()


def test_what_a_node_has_is_never_sent_again(play, open_session):
    """It took the call and says nothing: the call ends with its time, whoever else is there."""
    first, second = play("n1"), play("n2")
    first.announce(server("l1"))
    port = open_session()
    known(port, 1)
    asking = Asking(lambda: port.call(WHERE, b"", timeout_s=0.5))
    first.get()
    second.announce(server("l2"))
    first.leave()
    error = asking.end()
    assert isinstance(error, CallTimeout)
    assert second.silent(0.05)


@pytest.mark.patient
def test_a_node_that_is_not_there_is_passed_over_until_it_is(play, open_session):
    away, there = play("n1", bind=False), play("n2")
    away.announce(server("l1"))
    there.announce(server("l2"))
    port = open_session()
    known(port, 2)
    for _ in range(2):
        asking = Asking(lambda: port.call(WHERE, b"", timeout_s=PATIENCE_S))
        there.answer(there.get(), Kind.REPLY, b"2")
        assert asking.end() == b"2"
    assert port.status()["links"]["call"]["n1"]["down"]
    took = []
    for _ in range(3):  # the quickest counts: a machine may stand still for a moment
        begin = time.monotonic()
        for _ in range(4):
            asking = Asking(lambda: port.call(WHERE, b"", timeout_s=PATIENCE_S))
            there.answer(there.get(), Kind.REPLY, b"2")
            asking.end()
        took.append(time.monotonic() - begin)
    assert min(took) < 1.0  # nobody waits for it any more
    away.sock.bind(away.endpoint)
    until(lambda: not port.status()["links"]["call"]["n1"]["down"], "the node that has come")
    asking = [Asking(lambda: port.call(WHERE, b"", timeout_s=PATIENCE_S)) for _ in range(2)]
    away.answer(away.get(), Kind.REPLY, b"1")
    there.answer(there.get(), Kind.REPLY, b"2")
    assert {each.end() for each in asking} == {b"1", b"2"}


@pytest.mark.patient
def test_a_client_that_was_stopped_passes_over_nobody_for_it(play, open_session):
    """The node comes at the same moment as it: a machine stood still."""
    first, second = play("n1", bind=False), play("n2")
    first.announce(server("l1"))
    port = open_session()
    known(port, 1)
    asking = Asking(lambda: port.call(WHERE, b"", timeout_s=PATIENCE_S))
    until(lambda: (link := port._client.calls.known("n1")) and link.waiting, "a call that waits")
    second.announce(server("l2"))
    known(port, 2)
    stopped = threading.Event()
    port._client.post(lambda: (time.sleep(DOWN_S + 2 * LATE_S), stopped.set()))
    stopped.wait()
    first.sock.bind(first.endpoint)
    first.answer(first.get(), Kind.REPLY, b"1")
    assert asking.end() == b"1"
    assert second.silent()


@pytest.mark.patient
def test_a_caller_that_was_stopped_waits_for_heartbeats_anew(play, open_session):
    node = play("n1")
    node.announce(server("l1"))
    port = open_session()
    known(port, 1)
    asking = Asking(lambda: port.call(WHERE, b"", timeout_s=PATIENCE_S, monitor_s=LATE_S))
    got = node.get()
    stopped = threading.Event()
    port._client.post(lambda: (time.sleep(3 * LATE_S), stopped.set()))
    stopped.wait()
    node.answer(got, Kind.REPLY, b"1")
    assert asking.end() == b"1"


def test_out_of_reach_is_said_so_and_nothing_is_sent_later(play, open_session):
    away = play("n1", bind=False)
    away.announce(server("l1"))
    port = open_session()
    known(port, 1)
    text = r"1 server listens there; the proxy of node n1 \(tcp://127.0.0.1:\d+\) is out of reach, nothing was sent"
    with pytest.raises(CallTimeout, match=text):
        port.call(WHERE, b"", timeout_s=0.3)
    away.sock.bind(away.endpoint)
    until(lambda: port._client.calls.known("n1").waiting == 0, "an empty outbox")
    assert away.silent()


def test_only_the_node_that_was_asked_may_answer(play, open_session):
    first, second = play("n1"), play("n2")
    first.announce(server("l1", "a"))
    second.announce(server("l2", "b"))
    port = open_session()
    known(port, 1, "a")
    known(port, 1, "b")
    one = Asking(lambda: port.call(Address("x", "a"), b"", timeout_s=PATIENCE_S))
    asked = first.get()
    other = Asking(lambda: port.call(Address("x", "b"), b"", timeout_s=PATIENCE_S))
    foreign = second.get()
    second.answer((foreign[0], asked[1], b""), Kind.REPLY, b"not mine to answer")
    second.answer(foreign, Kind.REPLY, b"b")
    assert other.end() == b"b"
    second.sock.send_multipart([foreign[0], b"no envelope"])
    second.sock.send_multipart([foreign[0], encode(Kind.REPLY, id=asked[1].id), b"no bundle"])
    second.sock.send_multipart([foreign[0]])
    first.answer(asked, Kind.BEAT)
    first.answer(asked, Kind.REPLY, b"a")
    first.answer(asked, Kind.REPLY, b"again")
    assert one.end() == b"a"
    until(lambda: port.status()["counts"].get("late") == 2, "two answers that nobody waits for")
    until(lambda: port.status()["counts"].get("malformed") == 2, "two that are none")


def test_a_server_without_the_pipeline_of_casts_has_them_by_calls(play, open_session):
    node = play("n1")
    node.announce(server("l1"))
    port = open_session()
    known(port, 1)
    port.cast(WHERE, b"cast")
    asked = node.get()
    assert (asked[1].kind, asked[1].flags, asked[1].listener, asked[2]) == (
        Kind.CAST,
        Flag.CONFIRM,
        "l1",
        b"cast",
    )
    node.answer(asked, Kind.TAKEN)
    until(lambda: port.status()["pending"] == 0, "its confirmation")


def test_a_mandatory_cast_gives_up_after_its_tries(play, open_session):
    node = play("n1")
    node.announce(server("l1"))
    port = open_session()
    known(port, 1)
    asking = Asking(lambda: port.cast(WHERE, b"", mandatory=True, retry=1))
    for _ in range(2):
        node.answer(node.get(), Kind.REFUSED, b"", Reason.BUSY)
    error = asking.end()
    assert isinstance(error, Undelivered)
    assert "queue of its server is full" in str(error)


def test_a_full_queue_makes_callers_wait_as_long_as_they_said(play, open_session):
    away = play("n1", bind=False)
    away.announce(server("l1"))
    away.announce(server("l1"), pipeline="cast")
    port = open_session(outbox_msgs=10, linger_s=0.2)
    known(port, 1)
    until(
        lambda: "cast" in port._client.routes.replica.servers("x", "t")[0].pipelines, "its pipeline of casts"
    )

    def fill():
        for _ in range(1000):
            port.cast(WHERE, b"", retry=0)

    with pytest.raises(Undelivered, match=r"x/t: not handed over, its queue is full \(1 attempts\)"):
        fill()
    begin = time.monotonic()
    with pytest.raises(Undelivered, match=r"\(4 attempts\)"):
        port.cast(WHERE, b"", retry=3)
    assert time.monotonic() - begin >= 0.15
    held = port.status()["links"]["cast"]["n1"]["waiting"]
    assert 10 <= held <= 10 + 128
    port.close()


def test_a_caller_that_fails_on_its_answer_costs_nobody_theirs(play, open_session, caplog):
    node = play("n1")
    node.announce(server("l1"))
    port = open_session()
    answers = []

    def fail(_answer):
        raise RuntimeError("cannot take it")

    port.start_call(WHERE, b"", fail, timeout_s=0.1)
    port.start_call(WHERE, b"", answers.append, timeout_s=0.1)
    until(lambda: answers, "the other answer")
    assert isinstance(answers[0], CallTimeout)
    until(lambda: "x/t: whoever called cannot take the answer" in caplog.text, "the line")
