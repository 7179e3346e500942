"""Numbers that are none, a directory that never answers, what breaks inside the thread of the sockets."""

import logging
import math
import threading
import time

import pytest

from broker.oslo.client import waiting
from broker.oslo.client.calls import PendingCall
from broker.oslo.contract import Address, CallTimeout, Closed, Undelivered
from broker.oslo.frames import new_id
from broker.oslo.node import MISSING, obstacle
from tests.live.oslo_raw import PATIENCE_S, until
from tests.unit.oslo.client.test_session import Serving

WHERE = Address("x", "t")
SERVER = Address("x", "t", "s")


@pytest.fixture
def serving(node, open_session, stack):
    serving = Serving(open_session(), SERVER)
    stack.callback(serving.end)
    return serving


def test_no_number_is_refused_where_it_is_given(serving, open_session):
    port = open_session()
    for times in ({"timeout_s": math.nan}, {"timeout_s": 1.0, "monitor_s": math.nan}):
        with pytest.raises(ValueError, match="saw nan, expected seconds"):
            port.call(WHERE, b"", **times)
        with pytest.raises(ValueError, match="saw nan"):
            port.start_call(WHERE, b"", print, **times)
    assert port.call(WHERE, b"on", timeout_s=PATIENCE_S) == b"s:on"


def test_infinite_times_are_none(serving, open_session):
    port = open_session()
    assert port.call(WHERE, b"a", timeout_s=math.inf) == b"s:a"
    assert port.call(WHERE, b"b", timeout_s=math.inf, monitor_s=math.inf) == b"s:b"
    assert port.call(WHERE, b"c", timeout_s=1e300, monitor_s=1e300) == b"s:c"


@pytest.mark.parametrize("seconds", [0, -1.0, -math.inf])
def test_no_time_at_all(serving, open_session, seconds):
    port = open_session()
    port.call(WHERE, b"", timeout_s=PATIENCE_S)
    with pytest.raises(
        CallTimeout, match="1 server listens there; the time was over before anything was sent"
    ):
        port.call(WHERE, b"", timeout_s=seconds)
    assert port.call(WHERE, b"on", timeout_s=PATIENCE_S) == b"s:on"


def test_waiters_take_any_time_but_nan():
    assert waiting.bounded(None) is waiting.bounded(math.inf) is None
    assert (waiting.bounded(-math.inf), waiting.bounded(1e300)) == (0.0, waiting.LONGEST_S)
    with pytest.raises(ValueError, match="nan"):
        waiting.NativeWaiter().wait(math.nan)


BROKEN = {"where to": {"address": Address("x", ["t"])}, "how long": {"due_s": math.inf}}


@pytest.mark.parametrize("broken", BROKEN)
def test_what_breaks_at_the_start_of_a_call_is_told_to_its_caller(serving, open_session, broken):
    port = open_session()
    port.call(WHERE, b"", timeout_s=PATIENCE_S)
    client = port._client
    answers = []
    call = PendingCall(
        **{"address": WHERE, "body": b"", "id": new_id(), "done": answers.append} | BROKEN[broken]
    )
    client.post(client.calls.start, call)
    until(lambda: answers, "an answer")
    assert isinstance(answers[0], Undelivered)
    assert ": not sent, since " in str(answers[0])
    assert port.call(WHERE, b"on", timeout_s=PATIENCE_S) == b"s:on"


@pytest.mark.parametrize("work", ["cast", "fanout"])
def test_the_thread_of_the_sockets_does_not_wait_for_a_directory(open_session, folder, work):
    port = open_session()
    client = port._use()
    told = []

    def send():
        try:
            getattr(port, work)(WHERE, b"")
        except Undelivered as error:
            told.append(str(error))

    client.post(send)
    until(lambda: told, "a refusal")
    assert "nothing is known of who listens where" in told[0]


@pytest.mark.parametrize("work", ["call", "cast"])
def test_mandatory_without_a_directory_is_not_said_to_be_unroutable(open_session, folder, work):
    port = open_session(ready_s=0.1)
    text = "^x/t: not known whether anybody listens: no answer from the proxy of this node .* is missing"
    begin = time.monotonic()
    with pytest.raises(Undelivered, match=text):
        if work == "call":
            port.call(WHERE, b"", timeout_s=PATIENCE_S, mandatory=True)
        else:
            port.cast(WHERE, b"", mandatory=True)
    assert time.monotonic() - begin < PATIENCE_S


def test_a_call_that_is_cut_off_says_that_it_may_be_executed(node, open_session, stack):
    asked, go_on = threading.Event(), threading.Event()

    def reply(_item):
        asked.set()
        go_on.wait(PATIENCE_S)
        return b""

    serving = Serving(open_session(), SERVER, reply)
    stack.callback(serving.end)
    port = open_session(linger_s=0.2)
    said = []

    def call():
        with pytest.raises(Closed) as caught:
            port.call(WHERE, b"", timeout_s=None)
        said.append(str(caught.value))

    thread = threading.Thread(target=call)
    thread.start()
    assert asked.wait(PATIENCE_S)
    port.close()
    thread.join(PATIENCE_S)
    go_on.set()
    assert said == [
        "x/t: the session was closed while it waited for its answer; it may be executed all the same"
    ]


class Ended:
    """Nothing can be waited for."""

    def __init__(self, epoll) -> None:
        self.close, self.unregister = epoll.close, epoll.unregister

    def poll(self, _patience_s: float) -> None:
        raise OSError("no such descriptor")


def test_the_thread_may_die_and_the_next_call_starts_anew(serving, open_session, monkeypatch, caplog):
    other = open_session()  # of the same thread
    port = open_session()
    other.call(WHERE, b"", timeout_s=PATIENCE_S)
    client = other._client
    ended = []

    def call():
        with pytest.raises(Closed):
            port.call(Address("x", "nobody"), b"", timeout_s=None)
        ended.append(True)

    waits = threading.Thread(target=call)
    waits.start()
    until(lambda: port.status().get("pending"), "a call that waits")
    monkeypatch.setattr(client.reactor, "_epoll", Ended(client.reactor._epoll))
    client.reactor.call_threadsafe(lambda: None)
    waits.join(PATIENCE_S)
    assert ended == [True]
    until(lambda: client.failed and client.reactor.context is None, "the end of the thread")
    assert serving.inbox.get(PATIENCE_S) is None  # nobody waits for ever

    def said() -> list[int]:
        ends = "thread of the sockets has ended"
        return [each.levelno for each in list(caplog.records) if ends in each.getMessage()]

    until(said, "its last word")
    assert said() == [logging.CRITICAL]
    fresh = Serving(port, Address("x", "t", "new"))
    try:
        assert other.call(Address("x", "t", "new"), b"on", timeout_s=PATIENCE_S) == b"new:on"
        assert other._client is port._client is not client
    finally:
        fresh.end()


def test_a_socket_that_may_not_be_used_is_not_said_to_be_missing(tmp_path, monkeypatch):
    assert obstacle(str(tmp_path)) == ""
    assert obstacle(str(tmp_path / "no" / "such")) == MISSING

    def refuse(_path):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("broker.oslo.node.os.stat", refuse)
    assert "may not be reached by the user" in obstacle(str(tmp_path))
