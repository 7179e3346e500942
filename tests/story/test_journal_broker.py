"""A tree that records: every message of its clients is in the journal as often as it should be, and in order."""

import asyncio
import json
import os
import subprocess
import sys
from collections import Counter
from contextlib import contextmanager
from itertools import pairwise

import pytest

import broker.client
from broker.errors import RpcError
from broker.transport.link import Options
from broker.wire.message import NORESPONSE, event, request
from broker.wire.payload import encode_json
from tests.live.brokers import eventually, one_broker, without_progress
from tests.live.gateways import gateway_process
from tests.live.journaled import (
    Journal,
    all_written,
    control,
    mode_of,
    once_each,
    payload_numbers,
    status,
    tags,
)
from tests.live.load import Caller, Provider, Publisher, Subscriber, numbered, stop_all
from tests.live.speaker import Closed, Speaker
from tests.live.verbs import headgate

pytestmark = [pytest.mark.story, pytest.mark.timeout(60)]

HEADGATE = (sys.executable, "-m", "broker.cli.main")
CALLS = 300
EVENTS = 200
WEB = 25


class Started:
    """`headgate start --size 2 --journal DIR --wait`."""

    def __init__(self, rundir, *more):
        self.rundir, self.journal = rundir / "r", rundir / "j"
        words = [
            "start",
            "--size",
            "2",
            "--rundir",
            str(self.rundir),
            "--journal",
            str(self.journal),
            "--wait",
        ]
        self.process = subprocess.Popen(
            [*HEADGATE, *words, *more], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.uris = [f"local://{self.rundir}/local-{rank}" for rank in range(2)]

    def wait_ready(self):
        for line in self.process.stdout:
            if line.startswith("Ctrl-C"):
                return
        raise AssertionError(self.process.communicate()[1])

    def stop(self):
        """Ctrl-C; what stood on stderr."""
        self.process.terminate()
        _, said = self.process.communicate(timeout=30)
        assert self.process.returncode in (0, -15), said
        return without_progress(said)


@contextmanager
def started(rundir, *more):
    running = Started(rundir, *more)
    try:
        running.wait_ready()
        yield running
    finally:
        if running.process.poll() is None:
            running.process.terminate()
            running.process.communicate(timeout=30)


def web_calls(gateway):
    """Calls of a web user to a service of rank 0; one that nobody offers, too."""

    async def script():
        options = Options(extra={"token": gateway.tokens["ada"]})
        async with broker.client.connect(gateway.ws, options=options) as inside:
            for number in range(WEB):
                answer = await inside.rpc("web.echo", numbered(9, number))
                assert answer.payload == numbered(9, number)
            with pytest.raises(RpcError):
                await inside.rpc("nobody.home")

    asyncio.run(script())


def traffic(running, rundir):
    """What the clients did, all of it answered and delivered."""
    first, second = running.uris
    providers = [Provider(first, "near"), Provider(second, "far"), Provider(first, "web")]
    listener = Subscriber(first, "load", "listener")
    callers = [
        Caller(first, "near", 0, CALLS),  # within rank 0
        Caller(second, "near", 1, CALLS),  # up the tree
        Caller(first, "far", 2, CALLS, nodeid=1),  # down the tree
    ]
    publishers = [Publisher(first, "load.a", 3, EVENTS), Publisher(second, "load.b", 4, EVENTS)]
    with Speaker(first) as lost:
        lost.tell(*(request("nobody.home", numbered(5, n), matchtag=n + 1) for n in range(40)))
        lost.tell(*(request("nobody.home", numbered(5, n), flags=NORESPONSE) for n in range(40, 50)))
        assert lost.ping() == 0
    with gateway_process(rundir, first) as gateway:
        web_calls(gateway)
    for party in (*callers, *publishers):
        party.finish()
    eventually(lambda: listener.received, 2 * EVENTS)
    stop_all([listener, *providers])


def check_requests(journal, rank):
    """Each request was accepted once, from where it came, and was answered once, by whom it went to."""
    if rank == 0:
        paths = {
            0: ("near.echo", "unix", "unix"),
            1: ("near.echo", "curve", "unix"),
            2: ("far.echo", "unix", "curve"),
        }
    else:
        paths = {1: ("near.echo", "unix", "curve"), 2: ("far.echo", "curve", "unix")}
    for who, (topic, origin, provider) in paths.items():
        asked = [
            each
            for each in journal.of(direction="in", type="request", topic=topic, transport=origin)
            if each.payload_len == 8
        ]
        answered = journal.of(direction="in", type="response", topic=topic, transport=provider)
        once_each(tags(asked), 1, CALLS)
        answered = [each for each in answered if each.via == asked[0].peer]
        once_each(tags(answered), 1, CALLS)
        assert {each.peer for each in answered} == {asked[0].via}, who
        assert {each.origin for each in asked} == {each.origin for each in answered}
        assert {each.userid for each in asked} == {os.getuid()}
        if not asked[0].stripped:
            once_each(payload_numbers(asked), 0, CALLS)
            once_each(payload_numbers(answered), 0, CALLS)


def check_events(journal, rank):
    """Rank 0 numbered each event it accepted once; rank 1 got them back with these numbers, none missing."""
    for topic, here in (("load.a", rank == 0), ("load.b", rank == 1)):
        accepted = journal.of(direction="in", type="event", topic=topic)
        fresh = [each for each in accepted if (each.transport == "unix") == here]
        if rank == 1 and here:
            assert [each.event_seq for each in fresh] == [0] * EVENTS
            back = [each for each in accepted if each.transport == "curve"]
            assert len(back) == EVENTS
            fresh += back
        assert len(fresh) == (2 if rank == 1 and here else 1) * EVENTS
    sequences = [each.event_seq for each in journal.of(direction="in", type="event") if each.event_seq]
    assert all(after == before + 1 for before, after in pairwise(sequences))


def check_deliveries(journal):
    """``both``: what went in went out once, events with the number of deliveries; rank 0's own answers, too."""
    for topic, kind in (("near.echo", "request"), ("near.echo", "response"), ("far.echo", "request")):
        came = journal.of(direction="in", type=kind, topic=topic)
        went = journal.of(direction="out", type=kind, topic=topic)
        assert Counter((each.via_id, each.matchtag) for each in came) == Counter(
            (each.peer_id, each.matchtag) for each in went
        )
        assert tags(came) == tags(went)
    news = [each for each in journal.of(direction="out", type="event") if each.topic.startswith("load.")]
    assert len(news) == 2 * EVENTS
    assert {each.delivered for each in news} == {2}  # the listener, and rank 1
    refused = [
        each for each in journal.of(direction="out", type="response", topic="nobody.home") if each.errnum
    ]
    assert len(refused) == 41


def check_denied(journal):
    """Requests for nobody: each once, wanted or not, with the errno."""
    denied = journal.of(direction="denied", topic="nobody.home")
    unix = [each for each in denied if each.transport == "unix" and each.payload_len == 8]
    assert {each.reason for each in denied} == {38}
    assert tags(unix)[:40] == list(range(1, 41))
    assert tags(unix)[40:] == [0] * 10
    if not unix[0].stripped:
        once_each(payload_numbers(unix), 0, 50)
    assert journal.of(direction="in", topic="nobody.home") == []


def check_web(journal):
    """What came through the gateway bears the web user, and the session's hop below the gateway's."""
    asked = journal.of(direction="in", type="request", topic="web.echo")
    assert len(asked) == WEB
    assert {each.userid for each in asked} == {1001}
    assert {each.routes for each in asked} == {2}
    assert {each.origin for each in asked} != {each.via for each in asked}


def check_links(journal, rank):
    """Who came and went: as often as connections were made, and each number belongs to one."""
    up, down = journal.state("link.up"), journal.state("link.down")
    assert [each["state"] for each in journal.state("capture")] == ["on", "off"]
    assert len(up) == len(down)
    roles = Counter(each["role"] for each in up)
    assert roles["child" if rank == 0 else "parent"] == 1
    assert {each["cause"] for each in down} <= {"ended", "closed", "broken"}


@pytest.mark.parametrize(
    ("capture", "payload"),
    [
        pytest.param("in", "true", marks=pytest.mark.patient),
        pytest.param("both", "false", marks=pytest.mark.smoke),
    ],
)
def test_every_message_is_accounted_for(rundir, capture, payload):
    more = ("--set", f"journal.capture={capture}", "--set", f"journal.payload={payload}")
    with started(rundir, *more) as running:
        traffic(running, rundir)
        for uri in running.uris:
            told = status(uri)
            assert (told["state"], told["capture"], told["shed"], told["lost"]) == ("on", capture, 0, 0)
        assert running.stop() == ""
    assert mode_of(running.journal) == 0o700
    assert {mode_of(file) for file in running.journal.glob("*.fj")} == {0o600}
    for rank in range(2):
        journal = Journal(running.journal, f"rank{rank}")
        assert journal.check_numbers() == 0
        assert {each.rank for each in journal.records} == {rank}
        flux = journal.of(kind="flux")
        assert {each.stripped for each in flux if each.payload_len} == {payload == "false"}
        check_requests(journal, rank)
        check_events(journal, rank)
        check_links(journal, rank)
        if rank == 0:
            check_denied(journal)
            check_web(journal)
            if capture == "both":
                check_deliveries(journal)
        if capture == "in":
            assert journal.of(direction="out") == []


def test_who_is_not_let_in_or_may_not_ask(rundir):
    """A guest that is refused at the door; one that is let in asks for what only owners may; what a gateway tells."""
    if os.getuid() != 0:
        pytest.skip("optional: needs root to connect as somebody else")
    extra = f'[journal]\nenabled = true\ndirectory = "{rundir}/j"\n'
    with one_broker(rundir, extra) as running:
        with pytest.raises(Closed):
            Speaker(running.uri, uid=12345)
        told = {
            "topic": "ops.dig",
            "errno": 1,
            "userid": 1002,
            "rolemask": 2,
            "session": "s",
            "address": "::1",
        }
        assert control(running.uri, "denied", told).errnum == 0
        all_written(running.uri)
    journal = Journal(rundir / "j")
    (door,) = journal.of(topic="denied.link")
    assert (door.direction, door.reason, door.userid, door.transport) == ("denied", 1, 12345, "unix")
    (web,) = journal.of(topic="ops.dig")
    assert (web.direction, web.transport, web.userid, web.rolemask) == ("denied", "websocket", 1002, 2)
    assert (web.peer, web.type, web.reason) == ("::1 s", "request", 1)

    guests = extra + "[access]\nallow_guest_user = true\n"
    with one_broker(rundir, guests) as running, Speaker(running.uri, uid=12345) as guest:
        answer = guest.ask(request("journal.status", matchtag=7))
        assert answer.errnum == 1
        guest.tell(event("nope", encode_json({})))
        assert guest.ping() == 0
    journal = Journal(rundir / "j")
    (asked,) = journal.of(topic="journal.status", direction="in", userid=12345)
    (denied,) = journal.of(topic="journal.status", direction="denied")
    assert (denied.reason, denied.userid, denied.matchtag, denied.peer) == (1, 12345, 7, asked.peer)


@pytest.mark.patient
def test_two_brokers_cannot_share_a_name(rundir):
    extra = f'[journal]\nenabled = true\ndirectory = "{rundir}/j"\n'
    with one_broker(rundir, extra) as running:
        words = ["broker", "--set", f"broker.rundir={rundir}/other", "--journal", str(rundir / "j")]
        second = subprocess.run([*HEADGATE, *words], capture_output=True, text=True, timeout=30, check=False)
        assert second.returncode == 75, second.stderr
        (said,) = [line for line in second.stderr.splitlines() if line.startswith("headgate: ")]
        assert "rank0" in said
        assert f"{rundir}/j" in said
        assert "Traceback" not in second.stderr
        assert status(running.uri)["state"] == "on"


def shown(uri, *words):
    """`headgate journal status --json`: exit code and one value per broker."""
    done = headgate("journal", "status", "--uri", uri, "--json", *words)
    assert done.stderr == "", done.stderr
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.patient
def test_status_on_the_command_line(rundir):
    with started(rundir) as running:
        first, second = running.uris
        code, (zero, one) = shown(first, "--all")
        assert (code, zero["writer"], one["writer"]) == (0, "rank0", "rank1")
        assert (zero["state"], one["state"]) == ("on", "on")
        code, (found,) = shown(first, "--rank", "1", "--stop")
        assert (code, found["state"], found["rank"]) == (0, "off", 1)
        code, (zero, one) = shown(second, "--all")
        assert (code, zero["state"], one["state"]) == (1, "on", "off")
        code, (found,) = shown(second, "--start")
        assert (code, found["state"], found["rank"]) == (0, "on", 1)
        done = headgate("journal", "status", "--all", "--uri", first)
        heads, *rows = done.stdout.splitlines()
        assert heads.split()[:3] == ["rank", "state", "written"]
        assert [row.split()[:2] for row in rows] == [["0", "on"], ["1", "on"]]
        assert all(row.endswith(str(running.journal)) for row in rows)


def test_without_a_journal_nothing_is_written_and_status_says_so(rundir):
    with one_broker(rundir) as running:
        answer = control(running.uri, "status")
        assert answer.errnum == 38
        assert b"--journal DIR" in (answer.payload or b"")
        code, (found,) = shown(running.uri)
        assert (code, found["state"]) == (1, "none")
        assert "no journal is configured" in found["error"]


@pytest.mark.patient
def test_up_records_all_ranks_and_the_gateway_in_its_process(rundir):
    words = [
        "up",
        "--size",
        "2",
        "--listen",
        "http://127.0.0.1:0",
        "--no-login",
        "--journal",
        str(rundir / "j"),
    ]
    process = subprocess.Popen(
        [*HEADGATE, *words, "--rundir", str(rundir / "r")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        said = next(line for line in process.stdout if line.startswith("FLUX_URI="))
        uri = said.strip().removeprefix("FLUX_URI=")
        with Speaker(uri) as me:
            assert me.ping() == 0
        all_written(uri)
    finally:
        process.terminate()
        _, said = process.communicate(timeout=30)
    assert said == ""
    journals = [Journal(rundir / "j", f"rank{rank}") for rank in range(2)]
    assert [journal.check_numbers() for journal in journals] == [0, 0]
    assert len(journals[0].of(direction="in", topic="broker.ping", transport="unix")) == 1
    assert journals[0].of(direction="in", transport="inproc")  # the gateway asks who its broker is
    assert [journal.state("capture")[-1]["state"] for journal in journals] == ["off", "off"]
