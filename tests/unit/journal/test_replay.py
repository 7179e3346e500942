"""What of a captured session is sent again, in which form, order and pace; how answers are counted."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable
from pathlib import Path

import pytest

from broker.journal import replay as room
from broker.journal.layout import DENIED, OUT
from broker.journal.reading.records import records
from broker.journal.replay import Outcome, Replay, Sent, speed_of
from broker.wire.message import NORESPONSE, PRIVATE, STREAMING, Message, event, request, response
from broker.wire.payload import decode_json, encode_json
from tests.live.segments import T0, Rec, flux, note, write
from tests.tables import for_each


class Broker:
    """What the other side would see."""

    def __init__(self, errnum: int = 0) -> None:
        self.got: list[Message] = []
        self.times: list[float] = []
        self.errnum = errnum

    async def send(self, message: Message) -> Sent:
        self.got.append(message)
        self.times.append(asyncio.get_running_loop().time())
        if message.type == 4 or message.flags & NORESPONSE:
            return Sent(0, None)
        return Sent(100 + len(self.got), self.answer())

    async def answer(self) -> int:
        await asyncio.sleep(0)
        return self.errnum


def play(tmp_path: Path, some: list[Rec], broker: Broker, **how: object) -> Outcome:
    path = write(tmp_path, "rank0", some)
    return asyncio.run(Replay(broker.send, **how).run(records(path)))


def asked(
    topic: str, payload: bytes | None = b"{}\0", tag: int = 7, flags: int = 0, ts: int = T0, **around: object
) -> Rec:
    message = request(topic, payload, matchtag=tag, flags=flags, userid=1000, rolemask=2, nodeid=3)
    message.push_route(b"client")
    return flux(ts, message, **around)


def test_requests_and_events_are_sent_in_order_as_a_client_would(tmp_path: Path) -> None:
    some = [
        asked("kvs.get"),
        flux(T0 + 1, event("job.new", b"e", sequence=5, flags=PRIVATE, userid=1000, rolemask=2)),
        asked("kvs.put", None, flags=NORESPONSE),
    ]
    broker = Broker()
    outcome = play(tmp_path, some, broker)
    one, two, three = broker.got
    assert [each.topic for each in broker.got] == ["kvs.get", "job.new", "kvs.put"]
    assert (one.routes, one.matchtag, one.nodeid, one.payload) == ([], 0, 3, b"{}\0")
    assert (one.userid, one.rolemask) == (1000, 2)
    assert (two.sequence, two.flags & PRIVATE, two.payload) == (0, PRIVATE, b"e")
    assert three.flags & NORESPONSE
    assert three.payload is None
    assert (outcome.requests, outcome.events, outcome.ok, outcome.error, outcome.none, outcome.unasked) == (
        2,
        1,
        1,
        0,
        0,
        2,
    )


def test_as_owner_says_nothing_of_who_it_was(tmp_path: Path) -> None:
    broker = Broker()
    play(tmp_path, [asked("kvs.get")], broker, as_owner=True)
    assert (broker.got[0].userid, broker.got[0].rolemask) == (0xFFFFFFFF, 0)


def test_what_was_refused_then_is_not_sent_whoever_sends(tmp_path: Path) -> None:
    def said(name: str, topic: str, tag: int, **around: object) -> Rec:
        message = request(topic, b"{}\0", matchtag=tag, userid=1000, rolemask=2)
        message.push_route(name.encode())
        return flux(T0, message, **around)

    def answered(name: str, topic: str, tag: int, errnum: int) -> Rec:
        asked = request(topic, matchtag=tag)
        asked.push_route(name.encode())
        return flux(T0, response(asked, None, errnum=errnum))

    no = {"direction": DENIED, "reason": errno.EPERM, "via": 9}
    some = [
        said("guest", "attr.set", 1),
        said("other", "attr.set", 1),  # the same tag, somebody else
        said("guest", "attr.set", 1, **no),
        said("guest", "rexec.exec", 0),  # wants no answer, twice
        said("guest", "rexec.exec", 0),
        said("guest", "rexec.exec", 0, **no),
        said("guest", "rexec.exec", 0, **no),
        said("guest", "far.off", 2),
        answered("guest", "far.off", 2, errno.EPERM),  # refused by another rank
        said("guest", "far.off", 3),
        answered("guest", "far.off", 3, errno.ENOSYS),
        said("guest", "far.off", 4),
        answered("guest", "far.off", 4, 0),
        answered("guest", "far.off", 4, errno.EPERM),  # its stream ended so: it was let in
        said("guest", "attr.set", 1),  # the tag again, for what was not refused
        said("guest", "attr.get", 5, direction=DENIED, reason=errno.EPERM),  # never accepted
    ]
    path = write(tmp_path, "rank0", some)
    refused = room.refused_then(records(path))
    assert refused == {0, 3, 4, 7}
    for as_owner in (False, True):
        broker = Broker()
        outcome = play(tmp_path, some, broker, refused=refused, as_owner=as_owner)
        assert [each.topic for each in broker.got] == ["attr.set", "far.off", "far.off", "attr.set"]
        assert outcome.skipped["refused then"] == 4


def test_a_long_pause_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "PAUSE_MAX_S", 0.05)
    hour = 3600 * 10**9
    some = [asked("kvs.get", ts=T0 + ns) for ns in (0, hour, hour + 20_000_000, 9 * hour)]
    broker = Broker()
    play(tmp_path, some, broker, speed=1.0)
    one, two, three, four = broker.times
    assert two - one >= 0.045
    assert three - one >= 0.065
    assert four - three >= 0.045


def test_what_is_not_sent_is_counted_by_reason(tmp_path: Path) -> None:
    answer = response(request("kvs.get", matchtag=1), b"{}")
    some = [
        note(T0, "gap", {"records": 1, "first": 0, "last": 0}),
        asked("kvs.get", direction=DENIED, reason=1),
        asked("kvs.get", direction=OUT),
        flux(T0, answer),
        asked("service.add"),
        asked("event.publish"),
        asked("kvs.disconnect"),
        asked("overlay.hello"),
        asked("other.one"),
        asked("kvs.get", peer=9),
    ]
    broker = Broker()
    outcome = play(
        tmp_path, some, broker, topics=["kvs.*", "service.*", "event.*", "overlay.*"],
        role_of=lambda record: "own" if record.peer_id == 9 else "client",
    )  # fmt: skip
    assert broker.got == []
    assert outcome.skipped == {
        "no flux message": 1, "not accepted": 1, "a delivery": 1, "a response": 1, "changes a link": 1,
        "its event is published": 1, "of a link that is gone": 1, "a broker's own": 2, "another topic": 1,
    }  # fmt: skip


def test_a_cancellation_names_the_new_matchtag(tmp_path: Path) -> None:
    some = [
        asked("log.dmesg", tag=7, flags=STREAMING),
        asked("log.cancel", encode_json({"matchtag": 7}), tag=0, flags=NORESPONSE),
        asked("log.cancel", encode_json({"matchtag": 8}), tag=0, flags=NORESPONSE),
    ]
    broker = Broker()
    play(tmp_path, some, broker)
    assert [decode_json(each.payload)["matchtag"] for each in broker.got[1:]] == [101, 8]


def test_payloads_that_were_not_captured_are_counted(tmp_path: Path) -> None:
    broker = Broker()
    outcome = play(tmp_path, [asked("kvs.get", stripped=True), asked("kvs.get", None, stripped=True)], broker)
    assert outcome.stripped == 1
    assert [each.payload for each in broker.got] == [None, None]


def test_errors_and_missing_answers_are_counted(tmp_path: Path) -> None:
    class Silent(Broker):
        async def answer(self) -> int:
            await asyncio.Event().wait()
            return 0

    assert play(tmp_path, [asked("kvs.get")] * 3, Broker(errno.ENOSYS)).errors == {errno.ENOSYS: 3}
    outcome = play(tmp_path, [asked("kvs.get")] * 3, Silent(), answer_s=0.05)
    assert (outcome.none, outcome.ok) == (3, 0)


def test_a_broker_that_never_answers_does_not_stop_the_replay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Silent(Broker):
        def answer(self) -> Awaitable[int]:
            return asyncio.get_running_loop().create_future()

    monkeypatch.setattr(room, "WINDOW", 4)
    outcome = play(tmp_path, [asked("kvs.get")] * 10, Silent(), answer_s=0.05)
    assert (outcome.requests, outcome.none) == (10, 10)


def test_the_pace_is_kept(tmp_path: Path) -> None:
    some = [asked("kvs.get", ts=T0 + n * 100_000_000) for n in range(3)]
    broker = Broker()
    play(tmp_path, some, broker, speed=2.0)
    first, second, third = broker.times
    assert second - first >= 0.045
    assert third - first >= 0.095


@for_each("text", ["0x", "-1", "fast", "inf", "nan", ""])
def test_a_speed_that_is_none(text: str) -> None:
    with pytest.raises(ValueError):
        speed_of(text)
