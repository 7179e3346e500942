"""What the journals of the wings say, against what the ends of a real session wrote down themselves."""

import contextlib
import errno
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections import Counter

import pytest

from broker.identity import Role
from broker.journal.options import JournalOptions
from broker.journal.reading.records import records
from broker.nfp.frames import decode
from broker.nfp.names import MMI_BROKER, Command
from broker.oslo import frames as oslo_frames
from broker.oslo.client import open_session
from broker.oslo.contract import Address, Settings
from broker.oslo.service.asking import statuses
from broker.transport import curve
from tests.live.captured import EXCHANGE, SECRET, captured
from tests.live.nfp import nfp_broker, ready, reply, request
from tests.tables import for_each

pytestmark = pytest.mark.story
TIMES = 5
START_S = 20.0
POST = Command.POST


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    """A session with capture = both; the paths of its sockets have to be short."""
    import shutil
    import tempfile
    from pathlib import Path

    folder = Path(tempfile.mkdtemp(prefix="hg-", dir="/tmp"))
    yield captured(folder, times=TIMES)
    shutil.rmtree(folder, ignore_errors=True)


def of(journals, writer, kind, direction=""):
    """Records of one writer and kind, in order, each with its JSON as ``told``."""
    found = []
    for record in records(journals):
        if record.writer == writer and record.kind == kind and direction in ("", record.direction):
            found.append((record, json.loads(record.detail) if record.detail else {}))
    return found


def wire(record) -> list[bytes]:
    """The parts of the wire."""
    return record.parts()[2:]


# -- NFP ------------------------------------------------------------------------------------------


@pytest.mark.patient
@for_each(("end", "peer"), [("client", "cli-1"), ("worker", "lab-1")])
@for_each(("did", "direction"), [("sent", "in"), ("received", "out")])
def test_every_packet_of_both_ends_is_there_in_order(session, end, peer, did, direction):
    silent = ("KEEPALIVE", "OPEN")
    mine = [
        (said.facts["command"], said.facts["uuid"], said.facts["code"], said.facts["size"])
        for said in session.said("nfp", end=end, did=did)
        if said.facts["command"] not in silent
    ]
    theirs = []
    for record, told in of(session.journals, "nfp", "nfp", direction):
        if record.peer == peer and told["command"] not in (*silent, "JOB"):
            packet = decode(wire(record))
            theirs.append((told["command"], told.get("uuid", ""), told.get("code", 0), len(packet.data)))
            assert packet.command.name == told["command"]
            assert packet.uuid == told.get("uuid", "")
    assert mine
    if direction == "out":  # the last things it was told it may not hear any more: it leaves
        assert len(theirs) - len(mine) <= 2
        theirs = theirs[: len(mine)]
    assert theirs == mine


def test_what_became_of_each_job(session):
    outcomes = {said.facts["uuid"]: said.facts for said in session.said("nfp", did="outcome")}
    rows = [told for _, told in of(session.journals, "nfp", "nfp") if told["command"] == "JOB"]
    ends = {told["uuid"]: told for told in rows if "status" in told}
    assert {uuid: (told["task"], told["status"]) for uuid, told in ends.items()} == {
        uuid: (facts["task"], facts["status"]) for uuid, facts in outcomes.items()
    }
    events = Counter(told["event"] for told in rows)
    jobs = {"dispatched": TIMES + 1, "finished": TIMES + 3, "closed": TIMES + 1, "expired": 1, "cancelled": 1}
    assert events == jobs
    posts = [told for _, told in of(session.journals, "nfp", "nfp", "in") if told["command"] == "POST"]
    assert Counter(told["task"] for told in posts) == {"echo": TIMES, "fail": 1, "wait": 1, "leave": 1}
    assert {told["client"] for told in posts} == {"cli-1"}


def test_clients_and_workers_come_and_go(session):
    states = [(record.topic, told) for record, told in of(session.journals, "nfp", "state")]
    ups = {told["peer"]: told["role"] for topic, told in states if topic == "link.up"}
    downs = {told["peer"] for topic, told in states if topic == "link.down"}
    assert ups == {"cli-1": "client", "lab-1": "worker"}
    assert downs == set(ups)


def test_who_is_refused_by_the_broker_of_nfp(rundir):
    """A rule, a packet that is none, a READY that nobody may give, a key that is nobody's."""
    journal = JournalOptions(directory=f"{rundir}/j", writer="nfp")
    known = curve.generate()
    owner = curve.generate()
    settings = {
        "unlisted": "deny",
        "keys": [
            {"key": known.public_key, "userid": 1001, "services": ["svc"]},
            {"key": owner.public_key, "standing": "owner", "userid": 1000, "services": ["*"]},
        ],
        "rules": [{"services": ["secret"], "allow": False}],
    }
    with nfp_broker(rundir, journal=journal, **settings) as live:
        with live.dealer("c1", key=known) as client, live.dealer("w1", key=owner) as worker:
            client.say(request(POST, "u1", service="secret", body=b'{"task":"open"}'))
            assert client.hear().status == 400
            client.send(b"no", b"packet", SECRET.encode())
            client.say(request(Command.MMI, "u2", service=MMI_BROKER, body=b'{"task":"shutdown"}'))
            assert client.hear().status == 400
            worker.say(ready("svc"))
            live.eventually(lambda: live.broker.dispatcher.knows_worker("w1"))
            client.say(request(POST, "u3", service="svc"))
            post = worker.hear()
            worker.say(reply(post, 200, b'{"w1":1}'))
            client.until(lambda packet: packet.uuid == "u3" and packet.status == 200)
        with live.dealer("stranger"):
            live.eventually(lambda: live.broker.routers[0].denied)
    denied = of(f"{rundir}/j", "nfp", "nfp", "denied")
    assert [(record.topic, record.reason, record.userid, record.claimed) for record, _ in denied] == [
        ("nfp.secret.POST", errno.EPERM, 1001, 1001),
        ("nfp.-.INVALID", errno.EPROTO, 1001, 1001),
        (f"nfp.{MMI_BROKER}.MMI", errno.EPERM, 1001, 1001),
    ]
    assert wire(denied[1][0]) == [b"", b"no", b"packet", SECRET.encode()]
    assert SECRET not in denied[1][0].detail
    assert not [told for _, told in of(f"{rundir}/j", "nfp", "nfp", "in") if told.get("uuid") in ("u1", "u2")]
    links = [told for record, told in of(f"{rundir}/j", "nfp", "state") if record.topic == "denied.link"]
    assert links
    assert {told["errno"] for told in links} == {errno.EPERM}
    assert {told["address"] for told in links} == {"127.0.0.1"}


# -- oslo -----------------------------------------------------------------------------------------


@for_each(
    ("end", "did", "direction", "what"),
    [
        ("client", "sent", "in", ("request", "cast", "fanout", "notification")),
        ("server", "received", "out", ("request", "cast", "fanout")),
        ("listener", "received", "out", ("notification",)),
        ("server", "sent", "in", ("reply",)),
        ("client", "received", "out", ("reply",)),
    ],
)
def test_every_message_of_oslo_is_there(session, end, did, direction, what):
    """Pipelines are sockets of their own, so that only the order within each is certain."""
    for each in what:
        mine = [
            (said.facts["topic"], said.facts["method"], said.facts["size"])
            for said in session.said("oslo", end=end, did=did, what=each)
            if said.facts["topic"] != "forbidden"
        ]
        theirs = [
            (told["topic"], told.get("method", ""), len(wire(record)[-1]))
            for record, told in of(session.journals, "oslo-proxy", "oslo", direction)
            if told["what"] == each
        ]
        assert mine
        assert theirs == mine, each


def test_a_reply_is_known_by_its_request(session):
    rows = [told for _, told in of(session.journals, "oslo-proxy", "oslo", "in")]
    asked = {told["id"]: told["method"] for told in rows if told["what"] == "request"}
    replies = {told["id"]: told["method"] for told in rows if told["what"] == "reply"}
    assert len(replies) == TIMES
    assert replies == asked


def test_what_is_known_of_notifications_and_fanouts(session):
    rows = of(session.journals, "oslo-proxy", "oslo", "in")
    notices = [(record, told) for record, told in rows if told["what"] == "notification"]
    assert len(notices) == TIMES
    for number, (record, told) in enumerate(notices):
        assert record.topic == f"oslo.{EXCHANGE}.notifications.info.compute.end"
        assert (told["topic"], told["priority"]) == ("notifications", "info")
        assert (told["event_type"], told["publisher_id"]) == ("compute.end", "compute.a1")
        assert told["message_id"] == str(number)
        assert record.userid == os.getuid()
    outs = [told for _, told in of(session.journals, "oslo-proxy", "oslo", "out") if told["what"] == "fanout"]
    assert [told["delivered"] for told in outs] == [1] * TIMES


def test_what_a_rule_of_oslo_refuses(session):
    asked = session.said("oslo", end="client", did="sent", topic="forbidden")
    told = session.said("oslo", end="client", did="received", what="error")
    assert len(asked) == len(told) == TIMES
    denied = of(session.journals, "oslo-proxy", "oslo", "denied")
    assert [(record.reason, facts["topic"], facts["method"]) for record, facts in denied] == [
        (errno.EPERM, "forbidden", "never")
    ] * TIMES
    errors = [
        facts
        for _, facts in of(session.journals, "oslo-proxy", "oslo", "out")
        if facts["what"] == "error" and facts["topic"] == "forbidden"
    ]
    assert [facts["reason"] for facts in errors] == ["denied"] * TIMES


def test_servers_announce_and_withdraw(session):
    states = [(record.topic, told) for record, told in of(session.journals, "oslo-proxy", "state")]
    for pipeline in ("call", "cast", "fanout", "notify"):
        ups = [told for topic, told in states if topic == "link.up" and told["pipeline"] == pipeline]
        downs = [told for topic, told in states if topic == "link.down" and told["pipeline"] == pipeline]
        assert ups
        assert {told["peer"] for told in downs} == {told["peer"] for told in ups}
    announced = [told for topic, told in states if topic == "oslo.announce" and told["pipeline"] == "call"]
    withdrawn = [told for topic, told in states if topic == "oslo.withdraw" and told["pipeline"] == "call"]
    assert {(told["topic"], told["server"]) for told in announced} == {("compute", "a1"), ("forbidden", "a1")}
    assert {told["listener"] for told in withdrawn} == {told["listener"] for told in announced}


# -- web users ------------------------------------------------------------------------------------


def test_what_the_gateway_refuses_is_in_the_journal_of_the_broker(session):
    refused = session.said("flux", end="web", did="received", topic="secret.thing", errnum=errno.EPERM)
    assert len(refused) == TIMES
    denied = [
        record
        for record in records(session.journals)
        if record.writer == "rank0" and record.direction == "denied" and record.transport == "websocket"
    ]
    assert [(record.topic, record.type) for record in denied] == [
        *[("secret.thing", "request")] * TIMES,
        ("secret.quiet", "request"),
        ("secret.event", "event"),
    ]
    for record in denied:
        assert (record.reason, record.userid, record.claimed) == (errno.EPERM, 1002, 77)
        assert record.rolemask == Role.USER
    assert not [
        record
        for record in records(session.journals)
        if record.topic.startswith("secret.") and record.direction != "denied"
    ]


def test_every_flux_message_of_the_ends_passed_the_broker(session):
    for end in ("unix0", "unix1"):
        sent = Counter(
            said.facts["topic"] for said in session.said("flux", end=end, did="sent", type="request")
        )
        taken = Counter(
            record.topic
            for record in records(session.journals)
            if record.writer == f"rank{end[-1]}"
            and record.kind == "flux"
            and record.type == "request"
            and record.direction in ("in", "denied")
            and record.transport == "unix"
        )
        for topic, count in sent.items():
            assert taken[topic] >= count, topic


# -- privacy, and less ------------------------------------------------------------------------------


@pytest.mark.patient
def test_nothing_that_was_said_is_on_disk_without_payloads(rundir):
    private = captured(rundir, capture="in", payload=False, times=1)
    for file in private.journals.glob("*.fj"):
        assert SECRET.encode() not in file.read_bytes(), file.name
    sizes = [said.facts["size"] for said in private.said("oslo", end="client", did="sent", what="request")]
    asked = [
        (record.stripped, record.payload_len > size, record.payload)
        for (record, told), size in zip(
            [each for each in of(private.journals, "oslo-proxy", "oslo") if each[1]["what"] == "request"],
            sizes,
            strict=True,
        )
    ]
    assert asked == [(True, True, None)] * len(sizes)
    directions = Counter(told["what"] for _, told in of(private.journals, "oslo-proxy", "oslo", "out"))
    assert not directions
    assert {told["command"] for _, told in of(private.journals, "nfp", "nfp", "out")} == {"JOB"}
    ends = [told["status"] for _, told in of(private.journals, "nfp", "nfp") if "status" in told]
    assert sorted(ends) == ["CANCELLED", "COMPLETED", "EXPIRED", "FAILED"]


# -- alone ------------------------------------------------------------------------------------------


@contextlib.contextmanager
def headgate(*words, said="Ctrl-C ends it"):
    """A verb as a process, once it has said so."""
    argv = [sys.executable, "-m", "broker.cli.main", *words]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0)
    text = b""
    try:
        until = time.monotonic() + START_S
        while said.encode() not in text:
            assert select.select([process.stdout], [], [], max(0.0, until - time.monotonic()))[0], text
            some = os.read(process.stdout.fileno(), 4096)
            assert some, process.stderr.read()
            text += some
        yield process
        process.send_signal(signal.SIGTERM)
        assert process.wait(START_S) == 0
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.mark.patient
def test_two_brokers_of_nfp_do_not_share_a_journal(rundir):
    words = ["nfp", "broker", "--endpoint", "tcp://127.0.0.1:*", "--journal", f"{rundir}/j", "--no-flux"]
    with headgate(*words, "--base-dir", f"{rundir}/a"):
        again = subprocess.run(
            [sys.executable, "-m", "broker.cli.main", *words, "--base-dir", f"{rundir}/b"],
            capture_output=True,
            text=True,
            timeout=START_S,
            check=False,
        )
        assert again.returncode == 75
        assert "another writer named nfp is at work there" in again.stderr
    rows = of(f"{rundir}/j", "nfp", "state")
    assert [told["state"] for record, told in rows if record.topic == "capture"] == ["on", "off"]
    for topic in ("link.up", "link.down"):
        here = {
            told["peer"] for record, told in rows if (record.topic, record.transport) == (topic, "inproc")
        }
        assert here == {"broker-files", "broker-fss"}


@pytest.mark.patient
def test_rooms_of_their_own_have_journals_of_their_own(rundir):
    words = ["oslo", "proxy", "--host", "", "--ipc-dir", f"{rundir}/o", "--journal", f"{rundir}/j"]
    with contextlib.ExitStack() as stack:
        for room in ("directory", "call", "cast"):
            stack.enter_context(headgate(*words, "--run", room))
        port = open_session(Settings(f"{rundir}/o"))
        stack.callback(port.close)
        intake = port.listen(Address(EXCHANGE, "t", "s"))
        stack.callback(intake.close)
        answering = threading.Thread(target=_echo, args=(intake,))
        answering.start()
        body = b'{"ctxt":{},"message":{"method":"m"}}'
        assert port.call(Address(EXCHANGE, "t"), body, timeout_s=START_S) == body
        answering.join(START_S)
        rooms = statuses(f"{rundir}/o")
        assert [rooms[room]["journal"]["state"] for room in ("call", "cast")] == ["on", "on"]
    told = [
        (facts["what"], facts["method"], oslo_frames.decode(wire(record)[0]).topic)
        for record, facts in of(f"{rundir}/j", "oslo-call", "oslo")
    ]
    assert told == [("request", "m", "t"), ("reply", "m", "")]
    writers = {record.writer for record in records(f"{rundir}/j")}
    assert writers == {"oslo-call", "oslo-cast"}


def _echo(intake) -> None:
    item = intake.get(START_S)
    if item is not None:
        item.reply(item.body)
