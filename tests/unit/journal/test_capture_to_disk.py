"""From a read of the corridor to the disk and back: the real recorder, the real writer, the real reader."""

import os
import select
import signal
import time

import pytest

from broker.journal.layout import UNIX
from broker.journal.options import JournalOptions
from broker.journal.reading.records import records
from broker.journal.reading.verify import verify
from broker.journal.recorder import Recorder
from broker.journal.tap import Tap
from broker.wire.message import DELIMITER, NORESPONSE, event, request, response
from broker.wire.parts import encode_part
from tests.unit.node.desk import GUEST, Desk, run, ticks

WAIT_S = 40.0


class Captured:
    """A broker whose traffic goes to disk."""

    def __init__(self, folder, capture="both", **options):
        self.folder = str(folder)
        chosen = JournalOptions(directory=self.folder, writer="rank0", capture=capture, **options)
        self.recorder = Recorder(chosen)
        self.desk = Desk()
        self.tap = Tap(self.recorder)
        self.desk.broker.record(self.tap, self.tap.end_batch)
        self.desk.broker.on_attached.append(self._number)
        self._number(self.desk.broker.own)
        self.recorder.start()

    def _number(self, port):
        port.peer = self.tap.peer(port.name, UNIX, "client")

    def peer(self, name, **more):
        return self.desk.peer(name=name, **more)

    def until(self, condition):
        deadline = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < deadline, self.recorder.figures
            select.select([self.recorder], [], [], 0.02)
            self.tap.flush()

    def close(self):
        self.tap.flush()
        self.recorder.close()

    @property
    def read(self):
        return [r for r in records(self.folder) if r.kind == "flux"]


@pytest.fixture
def start(tmp_path):
    made = []

    def one(**more):
        made.append(Captured(tmp_path / "j", **more))
        return made[-1]

    yield one
    for each in made:
        each.recorder.close()


def body(message):
    return message.encode()


async def traffic(here, count=300):
    """Calls in batches, some large, some refused, and events; what the ends got and sent."""
    service = here.peer("service", services=["kvs"])
    caller, guest = here.peer("caller"), here.peer("guest", cred=GUEST)
    guest.subscribe("news")
    front = encode_part(b"web") + DELIMITER
    sent = [request("kvs.get", b"%d" % i * (1 + i % 7), matchtag=i + 1) for i in range(count)]
    for message in sent[::3]:
        message.front = front
    caller.say(*[message.copy() for message in sent])
    while len(service.requests) < count:
        await ticks()
    large = b"L" * 200_000
    service.say(*[response(m, large if m.matchtag == 50 else m.payload) for m in service.requests])
    while len(caller.responses) < count:
        await ticks()
    guest.say(request("nobody.here", matchtag=1), request("nobody", flags=NORESPONSE))
    caller.say(event("news.x", b"1"), event("weather"), request("probe.ping", matchtag=count + 1))
    await ticks(20)
    return service, caller, guest


@pytest.mark.parametrize("capture", ["in", "both"])
def test_what_was_captured_is_what_the_ends_saw(start, capture):
    here = start(capture=capture)

    async def script():
        service, caller, guest = await traffic(here)
        here.close()
        read = here.read
        assert [r.seq for r in read] == sorted({r.seq for r in read})
        of = lambda peer, way: [r for r in read if (r.peer, r.direction) == (peer, way)]  # noqa: E731
        assert [r.body for r in of("caller", "in")][:300] == [body(m) for m in service.requests]
        assert [r.payload for r in of("service", "in")] == [m.payload for m in caller.responses[:300]]
        assert [(r.topic, r.reason, r.userid) for r in of("guest", "denied")] == [
            ("nobody.here", 38, GUEST.userid),
            ("nobody", 38, GUEST.userid),
        ]
        assert [r.topic for r in of("caller", "in")][300:] == ["news.x", "weather", "probe.ping"]
        asked = {
            (r.body[: len(r.body) - 21].split(b"\x07kvs.get")[0], r.matchtag)
            for r in of("caller", "in")[:300]
        }
        answered = {
            (r.body[: len(r.body) - 21].split(b"\x07kvs.get")[0], r.matchtag) for r in of("service", "in")
        }
        assert asked == answered, "stacks join"
        out = [r for r in read if r.direction == "out"]
        if capture == "in":
            assert out == []
            return
        assert [r.body for r in of("service", "out")] == [body(m) for m in service.requests]
        assert [r.body for r in of("caller", "out")] == [body(m) for m in caller.responses]
        assert [r.body for r in of("guest", "out")] == [body(m) for m in guest.responses]
        assert [(r.topic, r.delivered) for r in out if r.type == "event"] == [("news.x", 1), ("weather", 0)]

    run(script())
    assert verify(here.folder).ok
    figures = here.recorder.figures
    assert figures.handed == figures.written
    assert figures.shed == figures.lost == 0


def test_a_killed_writer_costs_what_it_had_and_says_so(start):
    here = start(capture="in")

    async def script():
        service, caller = here.peer("service", services=["kvs"]), here.peer("caller")
        for number in range(1, 6):
            caller.say(request("kvs.get", b"before", matchtag=number))
        here.until(lambda: here.recorder.figures.written >= 8)
        os.kill(here.recorder.pid, signal.SIGKILL)
        here.until(lambda: here.recorder.figures.restarts == 1 and not here.tap.waiting)
        late = here.peer("late")
        for peer in (caller, late):
            peer.say(request("kvs.get", b"after", matchtag=9))
        assert len(service.requests) == 7
        here.close()

    run(script())
    read = here.read
    assert [(r.peer, r.via) for r in read] == [("caller", "service")] * 6 + [("late", "service")]
    report = verify(here.folder)
    assert report.ok
    figures = here.recorder.figures
    assert figures.restarts == 1
    assert figures.handed == figures.written + figures.lost


def test_payloads_stay_out_when_they_are_not_wanted(start):
    here = start(payload=False)

    async def script():
        service, caller = here.peer("service", services=["kvs"]), here.peer("caller")
        caller.say(request("kvs.get", b"secret", matchtag=1))
        service.say(response(service.requests[0], b"secret"))
        here.close()
        assert caller.responses[0].payload == b"secret"

    run(script())
    assert [(r.payload, r.payload_len, r.stripped) for r in here.read] == [(None, 6, True)] * 4
    for name in os.listdir(here.folder):
        with open(os.path.join(here.folder, name), "rb") as file:
            assert b"secret" not in file.read()
