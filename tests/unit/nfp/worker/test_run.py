"""One job of a worker: what is known of it, what comes back of it, and what is given up when memory is needed."""

import asyncio
from contextlib import asynccontextmanager

from broker.nfp.frames import Packet
from broker.nfp.names import Command, Dialect, Sender
from broker.nfp.peer.channel import Traffic
from broker.nfp.worker import session as sessions
from broker.nfp.worker.run import TIMEOUT_S, JobRun
from broker.nfp.worker.session import Session
from broker.nfp.worker.store import RunStore
from broker.nfp.worker.tasks import make

RECORDING = {"features": ["recorded"]}


def run_of(uuid, body=b"{}", client=b"cli#2"):
    return JobRun(uuid, client, "s", Dialect.NORFAB, body)


class Channel:
    """To a broker that hears everything and says nothing."""

    name, broker, trouble = "w1", "", ""

    def __init__(self):
        self.traffic = Traffic()
        self.said = []

    def send(self, packet):
        self.said.append(packet)
        return True


@asynccontextmanager
async def session_of(**functions):
    """One whose store is in memory, at a broker of ours."""

    async def localise(_task, args, kwargs):
        return args, kwargs

    store = RunStore(None)
    await store.load()
    tasks = {name: make(function, name=name) for name, function in functions.items()}
    means = {"slots": 2, "manage": lambda packet: b"{}", "localise": localise, "inventory": {}}
    session = Session(Channel(), "s", tasks, store, **means)
    session.on_connect("", RECORDING)
    yield session
    await session.drain(0.0)
    await store.close()


def give(session, uuid, body):
    about = {"dialect": Dialect.NORFAB, "client": b"c#1", "uuid": uuid}
    session.on_packet(Packet(Sender.BROKER, Command.POST, body=body, **about))


async def ended(session, uuid):
    async with asyncio.timeout(10):
        while not session.jobs[uuid].ended:
            await asyncio.sleep(0)


def test_which_attempt_it_is():
    for client, attempt in ((b"a#b#7", 7), (b"plain", 0), (None, 0)):
        assert run_of("u", client=client).attempt == attempt


def test_what_the_body_says_and_what_stands_for_it():
    said = run_of("u", b'{"task":"t","args":[1],"kwargs":{"a":2},"timeout":5}')
    assert (said.task, said.request.args, said.request.kwargs, said.timeout_s) == ("t", (1,), {"a": 2}, 5.0)
    unsaid = run_of("u", b"\xff")
    assert (unsaid.task, unsaid.request.args, unsaid.request.kwargs, unsaid.timeout_s) == (
        "",
        (),
        {},
        TIMEOUT_S,
    )


def test_what_an_earlier_life_stored_comes_back():
    made = run_of("u", b'{"task":"t","timeout":50}')
    made.idempotent = False
    again = JobRun.restored(made.as_stored()._replace(age_s=20.0))
    assert (again.uuid, again.client, again.task, again.idempotent) == ("u", b"cli#2", "t", False)
    assert (again.stored, again.accepted, again.received_s) == (True, True, made.received_s)
    assert 19.0 < made.deadline - again.deadline < 21.0


def test_what_people_are_shown_of_it():
    made = run_of("u")
    shown = [made.as_stored().shown]
    for event in ("wait", "start", "enter"):
        made.step(event)
        shown.append(made.as_stored().shown)
    made.question = {"id": "q"}
    shown.append(made.as_stored().shown)
    made.end(200, b"{}", failed=False)
    shown.append(made.as_stored().shown)
    made.failed = True
    shown.append(made.as_stored().shown)
    assert shown == [*["PENDING"] * 3, "STARTED", "WAITING_CLIENT_INPUT", "COMPLETED", "FAILED"]


def test_counts_and_results_that_are_not_safe_yet():
    async def main():
        async with session_of(good=lambda: 1, bad=lambda: 1 / 0) as session:
            give(session, "a", b'{"task":"good"}')
            give(session, "b", b'{"task":"bad"}')
            await ended(session, "a")
            await ended(session, "b")
            assert (session.open, session.done, session.failed) == (0, 1, 1)
            assert sorted(session.unrecorded) == ["a", "b"]
            for _ in range(2):
                recorded = {"uuid": "b", "status": 200, "status_text": "RECORDED", "body": b'["b"]'}
                session.on_packet(Packet(Sender.BROKER, Command.RESPONSE, **recorded))
            assert list(session.jobs) == list(session.unrecorded) == ["a"]

    asyncio.run(main())


def test_results_that_nobody_takes_are_given_up_at_last(monkeypatch):
    monkeypatch.setattr(sessions, "UNRECORDED_MAX", 3)

    async def main():
        async with session_of(say=lambda what="": what) as session:
            for number in range(5):
                give(session, f"u{number}", b'{"task":"say"}')
                while session.open:
                    await asyncio.sleep(0)
            assert list(session.unrecorded) == ["u2", "u3", "u4"]
            monkeypatch.setattr(sessions, "UNRECORDED_BYTES", 10)
            give(session, "large", b'{"task":"say","args":["' + b"x" * 100 + b'"]}')
            await ended(session, "large")
            assert list(session.jobs) == list(session.unrecorded) == ["large"]

    asyncio.run(main())
