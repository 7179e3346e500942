"""Peers that speak the text's one-byte form and know none of our features, frame by frame."""

import json
import os

import pytest

from broker.nfp.names import EVENTS, FILESHARING, FSS, JOBS, MMI_BROKER, MMI_WORKER, Command
from tests.live.nfp import clients_of, nfp_broker, workers_of

CLIENT, WORKER = b"NFPC01", b"NFPW01"
OPEN, READY, POST, RESPONSE, GET, DELETE, EVENT = (bytes((number,)) for number in (0, 1, 4, 5, 6, 7, 8))
BIG = os.urandom(700_001)


def asks(peer, command: bytes, uuid: str, body: object, service: str = "net", target: str = "any") -> None:
    said = body if isinstance(body, bytes) else json.dumps(body).encode()
    peer.send(CLIENT, command, service.encode(), target.encode(), uuid.encode(), said)


def answered(peer, uuid: str = "") -> tuple[int, bytes]:
    """Status and body of the next RESPONSE, about ``uuid`` if that is given."""
    packet = peer.until(lambda each: each.command is Command.RESPONSE and uuid in ("", each.uuid))
    return packet.status, packet.data


def says(peer, command: bytes, uuid: str, status: bytes, body: bytes, service: str = "net") -> None:
    peer.send(WORKER, command, service.encode(), uuid.encode(), status, body)


def given(worker) -> str:
    """The uuid of the job that a worker is given."""
    return worker.until(lambda packet: packet.command is Command.POST).uuid


@pytest.fixture
def live(rundir):
    (rundir / "files").mkdir()
    (rundir / "files" / "small.txt").write_bytes(b"hello")
    (rundir / "files" / "big.bin").write_bytes(BIG)
    with nfp_broker(rundir, files=str(rundir / "files"), curve=False, unlisted="owner") as live:
        yield live


@pytest.fixture
def worker(live):
    with live.dealer("w1") as worker:
        worker.send(WORKER, READY, b"net")
        live.eventually(lambda: "w1" in {view.name for view in workers_of(live.broker)})
        yield worker


@pytest.mark.parametrize("opens", [False, True])
def test_events_and_the_result_come_as_they_are(live, worker, opens):
    with live.dealer("c1") as client:
        if opens:
            client.send(CLIENT, OPEN, b"")
            assert client.hear().command is Command.OPEN
        asks(client, POST, "u1", {"task": "ping"})
        assert answered(client)[0] == 202
        says(worker, EVENT, given(worker), b"200 OK", b"half of it")
        event = client.hear()
        assert (event.command, event.uuid, event.data) == (Command.EVENT, "u1", b"half of it")
        says(worker, RESPONSE, "u1", b"200 OK", b"all of it")
        assert answered(client) == (200, b"all of it")


def test_a_req_gets_one_answer_for_each_request_and_so_does_who_asks_for_it(live, worker):
    with live.req("c1") as req, live.dealer("c2") as dealer:
        dealer.send(CLIENT, OPEN, b'{"features": []}')
        dealer.hear()
        for client, uuid in ((req, "u1"), (dealer, "u2")):
            asks(client, POST, uuid, {"task": "ping"})
            assert answered(client)[0] == 202
            says(worker, EVENT, given(worker), b"200 OK", b"half of it")
            says(worker, RESPONSE, uuid, b"200 OK", b"all of it")
            assert client.silent()
            asks(client, GET, uuid, b"")
            assert answered(client) == (200, b"all of it")


@pytest.mark.parametrize("service", [FILESHARING, FSS])
def test_a_file_comes_as_the_result(live, service):
    with live.req("c1") as client:

        def fetch(uuid: str, **kwargs: object) -> tuple[int, bytes]:
            asks(client, POST, uuid, {"task": "fetch_file", "kwargs": kwargs}, service)
            assert answered(client)[0] in (202, 300)
            while True:
                asks(client, GET, uuid, b"", service)
                status, body = answered(client)
                if status != 300:
                    return status, body

        assert fetch("u1", url="nf://small.txt") == (200, b"hello")
        assert fetch("u2", url="nf://big.bin") == (200, BIG)
        assert fetch("u3", url="nf://big.bin", offset=500_000, length=300_000) == (200, BIG[500_000:])
        assert fetch("u4", url="nf://big.bin", offset=10, length=300_000) == (200, BIG[10:300_010])
        assert fetch("u6", url="nf://big.bin", offset=len(BIG)) == (200, b"")
        status, body = fetch("u5", url="nf://none")
        assert (status, b"file not found" in body) == (200, True)


@pytest.mark.parametrize("asker", ["text", "deployed"])
def test_the_management_of_a_worker_reaches_it(live, worker, asker):
    with live.dealer("c1") as client:
        if asker == "text":
            asks(client, POST, "m1", {"task": "show_broker"}, MMI_WORKER, "w1")
        else:
            client.send(CLIENT, b"0x11", MMI_WORKER.encode(), b"w1", b"m1", b'{"task":"show_broker"}')
        asked = worker.until(lambda packet: packet.command is Command.POST)
        assert (asked.service, json.loads(asked.data)) == (MMI_WORKER, {"task": "show_broker"})
        says(worker, RESPONSE, "m1", b"300 PENDING", b"", MMI_WORKER)
        says(worker, RESPONSE, "m1", b"200 OK", b'{"up": true}', MMI_WORKER)
        status, body = answered(client)
        assert (status, json.loads(body)) == (200, {"w1": {"up": True}})


def test_show_clients_lists_who_has_said_open(live):
    with live.dealer("c1") as client:
        client.send(CLIENT, OPEN, b"")
        client.hear()
        asks(client, POST, "m1", {"task": "show_clients"}, MMI_BROKER)
        (shown,) = json.loads(answered(client)[1])
        assert (shown["name"], shown["present"], shown["jobs"]) == ("c1", True, 0)
    live.eventually(lambda: not clients_of(live.broker))


def test_an_event_on_a_topic_goes_to_its_subscribers(live, worker):
    with live.dealer("c1") as client, live.dealer("c2") as other:
        asks(client, POST, "s1", {"task": "subscribe", "kwargs": {"uuid": "alarms"}}, EVENTS)
        assert answered(client)[0] == 200
        asks(other, POST, "s1", {"task": "subscribe", "kwargs": {"uuid": "else"}}, EVENTS)
        assert answered(other)[0] == 200
        says(worker, EVENT, "alarms", b"200 OK", b'{"level": 3}')
        event = client.hear()
        assert (event.command, event.service, event.uuid) == (Command.EVENT, "net", "alarms")
        told = json.loads(event.data)
        assert (told["kind"], told["worker"], told["event"]) == ("published", "w1", {"level": 3})
        assert other.silent()


@pytest.mark.parametrize("service", [MMI_BROKER, JOBS, EVENTS])
@pytest.mark.parametrize("command", [GET, DELETE])
def test_get_and_delete_of_a_question_do_not_ask_it_again(live, worker, service, command):
    with live.dealer("c1") as client:
        asks(
            client, POST, "m1", {"task": "disconnect"} if service == MMI_BROKER else {"task": "none"}, service
        )
        answered(client)
        if service == MMI_BROKER:
            assert worker.until(lambda packet: packet.command is Command.DISCONNECT)
            worker.send(WORKER, READY, b"net")
            live.eventually(lambda: "w1" in {view.name for view in workers_of(live.broker)})
        asks(client, command, "m1", {"task": "disconnect"}, service)
        status, body = answered(client)
        assert (status, b"takes no jobs" in body) == (400, True)
        assert worker.silent()
