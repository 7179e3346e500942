"""`headgate trace`: records of brokers become calls, each once, with its time and its end."""

import asyncio
import errno
import io

import pytest

from broker.cli import traced
from broker.cli.screen import Screen
from broker.cli.trace import CallTrace, TracedCall, TracedCalls, TraceFilter
from broker.errors import LinkBroken
from broker.identity import USERID_UNKNOWN
from broker.wire.message import NORESPONSE, REQUEST, RESPONSE, STREAMING
from tests.tables import for_each


def record(kind, at, topic="calc.add", tag=1, name="local#1", **more):
    prefix = "rx" if kind == REQUEST else "tx"
    told = {
        "timestamp": 1_800_000_000.5 + at,
        "prefix": prefix,
        "rank": -1,
        "name": name,
        "type": kind,
        "topic": topic,
        "payload": None,
        "errnum": 0,
        "errstr": "",
        "monotonic": at,
        "flags": 0,
        "userid": 1000,
        "matchtag": tag,
    }
    return told | more


def taken(calls, rank, *records):
    return [call for told in records if (call := calls.take(rank, told)) is not None]


def test_a_call_is_its_request_and_its_answer_at_one_link_of_one_broker():
    calls = TracedCalls()
    ended = taken(
        calls,
        2,
        record(REQUEST, 1.0),
        record(REQUEST, 1.5, name="local#2"),
        record(REQUEST, 1.6, tag=2),
        record(RESPONSE, 2.0, prefix="rx"),  # as it comes from the service
        record(RESPONSE, 2.25),
    )
    assert [(call.rank, call.client, call.ms, call.answers) for call in ended] == [(2, "local#1", 1250.0, 1)]
    assert taken(calls, 1, record(RESPONSE, 2.0)) == []
    assert (calls.calls, calls.failed, calls.open) == (1, 0, 2)
    calls.lost(2)
    assert calls.open == 0


def test_how_it_failed_is_told():
    (call,) = taken(
        TracedCalls(), 0, record(REQUEST, 1), record(RESPONSE, 2, errnum=errno.EINVAL, errstr="no\x1b[2J")
    )
    assert (call.errnum, call.error, call.answers) == (errno.EINVAL, "no\x1b[2J", 0)
    assert call.text().endswith("rank 0  user 1000  calc.add  1000.000 ms  EINVAL: no\\x1b[2J")


@for_each(("end", "failed"), [(errno.ENODATA, 0), (errno.EIO, 1)])
def test_a_stream_ends_with_its_error_and_enodata_is_none(end, failed):
    calls = TracedCalls()
    answers = [record(RESPONSE, at, flags=STREAMING) for at in (2, 3)]
    last = record(RESPONSE, 4, flags=STREAMING, errnum=end)
    (call,) = taken(calls, 0, record(REQUEST, 1, flags=STREAMING), *answers, last)
    assert (call.ms, call.answers, bool(call.errnum), calls.failed) == (3000.0, 2, bool(failed), failed)
    assert ("2 answers" in call.text()) is not failed


def test_what_wants_no_answer_is_told_at_once():
    (call,) = taken(TracedCalls(), 0, record(REQUEST, 1, flags=NORESPONSE, tag=0, userid=USERID_UNKNOWN))
    assert call.ms is None
    assert call.value()["userid"] is None
    assert "user ?" in call.text()
    assert "wants no answer" in call.text()


def test_which_topics_count():
    topics = ("attr.get", "calc.add", "calc.disconnect", "calc.adder", "nfp.lab.run")
    records = [
        record(REQUEST, 1, topic=topic, tag=0) for topic in topics
    ]  # without a tag there is no answer, so each is told at once

    def named(*args):
        return [call.topic for call in taken(TracedCalls(*args), 0, *records)]

    assert named([], frozenset({"attr"})) == ["calc.add", "calc.adder", "nfp.lab.run"]
    assert named(["calc.add"]) == ["calc.add"]
    assert named(["attr.*", "calc.a*"]) == ["attr.get", "calc.add", "calc.adder"]


def test_payloads_that_are_kept_are_bounded(monkeypatch):
    monkeypatch.setattr(traced, "FULL_MAX", 2)
    calls = TracedCalls()
    taken(calls, 0, *(record(REQUEST, at, tag=at, payload={"a": 1}) for at in (1, 2, 3)))
    assert (calls.open, calls.forgotten) == (2, 1)


def test_what_is_open_for_ever_is_forgotten_and_counted(monkeypatch):
    monkeypatch.setattr(traced, "OPEN_MAX", 2)
    calls = TracedCalls()
    taken(calls, 0, *(record(REQUEST, at, tag=at) for at in (1, 2, 3)))
    assert (calls.open, calls.forgotten) == (2, 1)
    assert taken(calls, 0, record(RESPONSE, 5, tag=1)) == []
    assert len(taken(calls, 0, record(RESPONSE, 5, tag=3))) == 1
    assert calls.summary().endswith("too long: 1")


async def test_it_ends_with_its_own_link_instead_of_waiting_for_ever():
    class Handle:
        def stream(self, *_words, **_more):
            raise LinkBroken("the broker was started again")

    async with CallTrace(Handle(), range(2), [], (), False, print) as watched:
        await watched.begun()
        with pytest.raises(LinkBroken):
            await asyncio.wait_for(watched.show(lambda _call: True, 1), 1)


def test_what_a_call_asks_moves_no_cursor():
    out = io.StringIO()
    asked = {"csi": "\x9b2J", "delete": "\x7f", "word": "\xe4"}
    call = TracedCall(1_800_000_000.0, 0, 1000, "local#1", "calc.add", asked, ms=1.0)
    TraceFilter(errors=False, slower_ms=0, payload=True, count=0).show(Screen(out=out), call)
    assert out.getvalue().endswith('  {"csi":"\\u009b2J","delete":"\\u007f","word":"\xe4"}\n')
