"""Stories of the NFP broker with raw peers: both dialects, thieves and forgers, floods, slow readers, two sockets."""

import contextlib
import itertools
import os
import signal
import time

import msgspec
import pytest
import zmq

from broker.errors import ConfigError
from broker.nfp.frames import Packet
from broker.nfp.management.mmi import counters
from broker.nfp.names import MMI_BROKER, Command, Dialect, Sender
from broker.transport import curve
from tests.live.nfp import PATIENCE_S, keepalive, nfp_broker, nfp_process, ready, reply, request, workers_of

pytestmark = pytest.mark.story
SEED, NORFAB = Dialect.SEED, Dialect.NORFAB
POST, GET, DELETE = Command.POST, Command.GET, Command.DELETE
EVENT, RESPONSE, DISCONNECT = Command.EVENT, Command.RESPONSE, Command.DISCONNECT


def registered(live, name: str):
    """Wait until the worker ``name`` is there."""
    return live.eventually(
        lambda: next(
            (one for one in workers_of(live.broker) if one.name == name and one.status == "alive"),
            None,
        )
    )


def listed(live, name: str) -> None:
    """The same of a broker in a process of its own: somebody asks until it is told of it."""
    deadline = time.monotonic() + PATIENCE_S
    with live.dealer("asks") as client:
        for turn in itertools.count():
            assert time.monotonic() < deadline
            asked = request(
                Command.MMI, f"m{turn}", service=MMI_BROKER, target="all", body=b'{"task":"show_workers"}'
            )
            client.say(asked)
            answer = client.until(lambda packet, asked=asked: packet.uuid == asked.uuid and packet.data)
            if f'"{name}"'.encode() in answer.data:
                return


def count(live, name: str) -> int:
    return live.call(lambda: counters(live.broker))[name]


def works(worker, client, uuid: str) -> None:
    """One job, from POST to the result, between two innocent peers."""
    client.say(request(POST, uuid))
    post = worker.until(lambda packet: packet.uuid == uuid)
    worker.say(reply(post, 200, b'{"w1":1}'))
    client.until(lambda packet: packet.uuid == uuid and packet.status == 200)


def test_the_texts_dialect_from_end_to_end(rundir):
    """Every answer is one, whatever is asked, and the worker is written to in its own dialect."""
    with nfp_broker(rundir) as live, live.dealer("w1") as worker:
        worker.say(Packet(Sender.WORKER, Command.OPEN, dialect=SEED, body=b"hello"))
        assert worker.hear().command is Command.OPEN
        worker.say(ready(dialect=SEED))
        registered(live, "w1")
        with live.req() as client:
            client.say(Packet(Sender.CLIENT, Command.OPEN, dialect=SEED, body=b""))
            assert client.recv()[2] == b"\x00"
            client.say(request(POST, "u1", dialect=SEED))
            assert client.recv()[1:6] == [b"NFPB01", b"\x05", b"svc", b"u1", b"202 ACCEPTED"]
            client.say(request(GET, "u1", dialect=SEED))
            assert client.hear().status == 300
            frames = worker.recv()
            assert frames[:6] == [b"", b"NFPB01", b"\x04", b"svc", b"any", b"u1"]
            worker.send(b"NFPW01", b"\x05", b"svc", b"u1", b"200 OK", b'{"done":true}')
            live.eventually(lambda: live.broker.dispatcher.results("u1"))
            client.say(request(GET, "u1", dialect=SEED))
            answer = client.hear()
            assert (answer.status, answer.data) == (200, b'{"done":true}')
            client.say(request(GET, "unheard of", dialect=SEED))
            assert client.hear().status == 400
            client.say(request(POST, "u2", service="nobody", dialect=SEED))
            assert client.hear().status == 300
            client.say(request(DELETE, "u2", service="nobody", dialect=SEED))
            assert client.hear().status == 202
            client.say(request(GET, "u2", service="nobody", dialect=SEED))
            assert client.hear().status == 417
            client.say(request(POST, "m", service=MMI_BROKER, body=b'{"task":"show_broker"}', dialect=SEED))
            assert client.hear().status == 200
            assert client.silent()


def test_a_req_client_closes_and_sends_again(rundir):
    """The text's recovery: a new socket, thus a new identity, the same request; it runs once."""
    with nfp_broker(rundir) as live, live.dealer("w1") as worker:
        worker.say(ready(dialect=SEED))
        registered(live, "w1")
        for _ in range(3):
            with live.req() as client:
                client.say(request(POST, "u1", dialect=SEED))
                client.sock.poll(50)  # it does not wait for the answer
        post = worker.hear()
        with live.req() as client:
            client.say(request(POST, "u1", dialect=SEED))
            assert client.hear().status == 202
        worker.say(reply(post, 200, b"{}"))
        live.eventually(lambda: live.broker.dispatcher.results("u1"))
        with live.req() as client:
            client.say(request(GET, "u1", dialect=SEED))
            assert client.hear().status == 200
        assert worker.silent()
        assert count(live, "jobs_dispatched") == 1


def test_deployed_norfabs_dialect_from_end_to_end(rundir):
    with nfp_broker(rundir) as live, live.dealer("w1") as worker, live.dealer("c1") as client:
        worker.say(ready())
        registered(live, "w1")
        client.say(request(POST, "u1", target="all"))
        told = client.hear()
        assert (told.status, msgspec.json.decode(told.body)["workers"]) == (202, ["w1"])
        post = worker.hear()
        worker.say(reply(post, 201))
        assert client.hear().status == 201
        worker.say(reply(post, 200, b'{"event_type":"progress"}', command=EVENT))
        assert client.hear().command is EVENT
        worker.say(reply(post, 200, b"raw bytes", command=Command.STREAM))
        assert client.hear().data == b"raw bytes"
        worker.say(reply(post, 200, b'{"event_type":"result_ready"}', command=EVENT))
        asked = worker.hear()
        assert asked.command is GET
        worker.say(reply(asked, 200, b'{"w1":{"result":"pong"}}'))
        assert (
            msgspec.json.decode(client.until(lambda p: p.command is EVENT).body)["event_type"]
            == "result_ready"
        )
        client.say(request(GET, "u1", target='["w1"]'))
        assert client.until(lambda p: p.status == 200).data == b'{"w1":{"result":"pong"}}'


def test_a_ready_without_its_service_harms_nothing(rundir):
    with nfp_broker(rundir) as live, live.dealer("w1") as worker, live.dealer("c1") as client:
        worker.say(ready())
        registered(live, "w1")
        with live.dealer("odd") as odd:
            odd.send(b"NFPW01", b"0x01")
            odd.send(b"NFPW01", b"\x01")
            odd.send(b"NFPW01", b"0x01", b"")
            live.eventually(lambda: live.broker.ingress.invalid.total() == 3)
        works(worker, client, "u1")


def test_a_name_is_not_to_be_had_with_another_key(rundir):
    """A thief comes while the worker is there, and when it is gone; the worker comes back at once in between."""
    with nfp_broker(rundir) as live, live.dealer("c1") as client:
        thief_key = live.certificate("thief")
        with live.dealer("w1") as worker:
            worker.say(ready())
            registered(live, "w1")
            with live.dealer("w1", key=thief_key) as thief:
                thief.say(ready())
                works(worker, client, "u1")
                assert thief.silent()
        live.eventually(lambda: "w1" not in {peer.name for peer in live.broker.peers()})
        with live.dealer("w1", key=thief_key) as thief:
            before = live.call(lambda: live.broker.name_owners.violations)
            thief.say(ready())
            live.eventually(lambda: live.broker.name_owners.violations > before)
            client.say(request(POST, "u2", target="w1"))
            assert client.hear().status in (202, 300)
            assert not thief.sock.poll(300)
        with live.dealer("w1") as worker:
            worker.say(ready())
            post = worker.until(lambda packet: packet.command is POST)
            assert post.uuid == "u2"


def test_a_restart_with_the_same_name_gets_in_at_once(rundir):
    with nfp_broker(rundir) as live, live.dealer("c1") as client:
        for number in range(10):
            with live.dealer("w1") as worker:
                worker.say(ready())
                works(worker, client, f"u{number}")


def test_results_are_taken_from_who_was_given_the_job(rundir):
    with (
        nfp_broker(rundir) as live,
        live.dealer("w1") as worker,
        live.dealer("w2") as forger,
        live.dealer("c1") as client,
        live.dealer("c2") as other,
    ):
        for one in (worker, forger):
            one.say(ready())
        registered(live, "w1")
        registered(live, "w2")
        client.say(request(POST, "u1", target="w1"))
        assert client.hear().status == 202
        post = worker.hear()
        for command in (RESPONSE, EVENT, Command.STREAM):
            forger.say(reply(post, 200, b'{"w1":"forged","event_type":"result_ready"}', command=command))
        live.eventually(lambda: live.broker.dispatcher.counts.forged == 3)
        other.say(request(GET, "u1", target="w1"))
        assert other.hear().status == 400
        other.say(request(DELETE, "u1", target="w1"))
        assert other.hear().status == 400
        assert client.silent()
        worker.say(reply(post, 200, b'{"w1":"true"}'))
        assert b"true" in client.until(lambda packet: packet.status == 200).data
        assert len(live.call(lambda: live.broker.dispatcher.results("u1"))) == 1


def test_a_flood_of_nonsense_is_cut_and_costs_others_nothing(rundir):
    with nfp_broker(rundir, invalid_max=5) as live, live.dealer("w1") as worker, live.dealer("c1") as client:
        worker.say(ready())
        registered(live, "w1")
        with live.dealer("flood") as flood:
            for number in range(200):
                flood.send(b"NFPX01", b"0x04", b"%d" % number)
            live.eventually(lambda: live.broker.ingress.cut)
            works(worker, client, "u1")
        assert count(live, "cut") >= 1
        assert count(live, "invalid_header") >= 6


@pytest.mark.patient
def test_a_client_that_does_not_read_costs_only_itself(rundir):
    big = b'"%s"' % (b"x" * 500_000)
    settings = {"peer_queue_bytes": 4 << 20, "message_bytes_max": 2 << 20}
    with nfp_broker(rundir, **settings) as live, live.dealer("w1") as worker, live.dealer("c1") as client:
        worker.say(ready())
        registered(live, "w1")
        with live.dealer("slow", RCVHWM=1, RCVBUF=4096) as slow:
            slow.say(request(POST, "big"))
            post = worker.hear()
            for _ in range(100):
                worker.say(reply(post, 200, big, command=Command.STREAM))
            worker.say(reply(post, 200, big))
            live.eventually(lambda: live.broker.dispatcher.results("big"))
            works(worker, client, "u1")
            assert count(live, "unsent") > 10
            waiting = live.call(lambda: max(peer.waiting[1] for peer in live.broker.peers()))
            assert waiting <= 4 << 20
            while slow.sock.poll(300):
                slow.sock.recv_multipart()
            slow.say(request(GET, "big", target="w1"))
            assert b"x" * 500_000 in slow.until(lambda packet: packet.status == 200).data


def test_two_sockets(rundir):
    with (
        nfp_broker(rundir, worker_endpoint="tcp://127.0.0.1:*") as live,
        live.dealer("w1", workers=True) as worker,
        live.dealer("c1") as client,
        live.dealer("w2") as lost_worker,
        live.dealer("w1-NFPClient", workers=True) as workers_client,
    ):
        worker.say(ready())
        registered(live, "w1")
        works(worker, client, "u1")
        lost_worker.say(ready())
        live.eventually(lambda: live.broker.ingress.invalid["role"] == 1)
        works(worker, workers_client, "u2")
        for service in ("sid.service.broker", "mmi.service.broker"):
            workers_client.say(
                request(Command.MMI, service, service=service, body=b'{"task":"get_inventory"}')
            )
            assert workers_client.until(lambda packet: packet.command is Command.MMI).status == 200
        assert {one.name for one in live.call(lambda: workers_of(live.broker))} >= {"w1"}
        assert "w2" not in {one.name for one in live.call(lambda: workers_of(live.broker))}


def test_plaintext_on_loopback_and_unix_sockets(rundir):
    for uuid, endpoint in (("u1", "tcp://127.0.0.1:*"), ("u2", f"ipc://{rundir}/nfp-socket")):
        with (
            nfp_broker(rundir, curve=False, endpoint=endpoint) as live,
            live.dealer("w1") as worker,
            live.dealer("c1") as client,
        ):
            worker.say(ready())
            registered(live, "w1")
            works(worker, client, uuid)


def test_a_worker_that_the_broker_does_not_know_is_told_at_once(rundir):
    with nfp_broker(rundir) as live, live.dealer("w1") as worker:
        worker.say(keepalive())
        assert worker.hear().command is DISCONNECT


def test_a_second_ready_ends_the_registration(rundir):
    with nfp_broker(rundir) as live, live.dealer("w1") as worker:
        worker.say(ready())
        worker.say(ready())
        assert worker.hear().command is DISCONNECT


@pytest.mark.patient
def test_a_flood_of_ready_is_cut_and_told_once(rundir):
    """Who is told DISCONNECT registers on a new connection; on the old one it hears nothing more."""
    with (
        nfp_broker(rundir) as live,
        live.dealer("w1", RECONNECT_IVL=-1, SNDTIMEO=500) as worker,
        live.dealer("c1") as client,
    ):
        with contextlib.suppress(zmq.Again):  # nobody listens any more
            for _ in range(1000):
                worker.say(ready())
        live.eventually(lambda: live.broker.ingress.cut == 1)
        if worker.sock.poll(1000):  # unless it was cut in the turn in which that was said
            assert worker.hear().command is DISCONNECT
        assert worker.silent()
        assert live.broker.ingress.invalid["unexpected"] <= live.settings.invalid_max + 1
        with live.dealer("w1") as again:
            again.say(ready())
            registered(live, "w1")
            works(again, client, "u1")


def test_a_worker_that_comes_back_after_an_unexpected_command(rundir):
    with nfp_broker(rundir) as live, live.dealer("c1") as client:
        for turn in range(3):
            with live.dealer("w1") as worker:
                worker.say(ready())
                registered(live, "w1")
                works(worker, client, f"u{turn}")
                worker.say(ready())
                assert worker.hear().command is DISCONNECT
        assert count(live, "cut") == 0


@pytest.mark.patient
def test_a_listed_name_is_taken_back_from_who_had_it_before(rundir):
    own, stranger = curve.generate(), curve.generate()
    with nfp_broker(rundir) as live, live.dealer("w1", key=stranger) as squatter:
        squatter.say(ready())
        registered(live, "w1")
        with live.dealer("w1-NFPClient", key=stranger) as reader:
            reader.say(request(GET, "none"))
            reader.hear()
    keys = [{"key": own.public_key, "name": "w1", "services": ["svc"]}]
    for start in range(2):
        with nfp_broker(rundir, keys=keys) as live, live.dealer(f"c{start}") as client:
            for violations, name in enumerate(("w1", "w1-NFPClient"), 1):
                with live.dealer(name, key=stranger) as squatter:
                    squatter.say(ready() if name == "w1" else request(GET, "none"))
                    live.eventually(lambda seen=violations: live.broker.name_owners.violations >= seen)
                    while squatter.sock.poll(300):  # a worker of before the restart is told to register anew
                        assert squatter.hear().command is DISCONNECT
            with live.dealer("w1", key=own) as worker, live.dealer("w1-NFPClient", key=own) as reader:
                worker.say(ready())
                registered(live, "w1")
                works(worker, client, f"u{start}")
                reader.say(request(GET, "none"))
                assert reader.hear().status == 400


def test_large_bodies_pass_unchanged(rundir):
    body = b'{"task":"keep","data":"%s"}' % os.urandom(1 << 20).hex().encode()
    with nfp_broker(rundir) as live, live.dealer("w1") as worker, live.dealer("c1") as client:
        worker.say(ready())
        registered(live, "w1")
        client.say(request(POST, "u1", body=body))
        post = worker.hear()
        assert post.data == body
        worker.say(reply(post, 200, body[::-1], command=Command.STREAM))
        assert client.until(lambda packet: packet.command is Command.STREAM).data == body[::-1]


@pytest.mark.patient
def test_stopping_says_so_to_workers_and_forgets_no_job(rundir):
    with nfp_process(rundir) as live, live.dealer("w1") as worker, live.dealer("c1") as client:
        worker.say(ready())
        listed(live, "w1")
        client.say(request(POST, "u1", service="later"))
        assert client.hear().status == 300
        assert live.stop() == 0
        assert worker.hear().command is DISCONNECT
        live.start()
        with live.dealer("w2") as late:
            late.say(ready("later"))
            assert late.until(lambda packet: packet.command is POST).uuid == "u1"


def test_management_restarts_and_stops_the_process(rundir):
    """A restart is the same process with a new start of the program; only owners may ask."""

    def asks(task: str, name: str, key=None) -> int:
        with live.dealer(name, key=key) as client:
            body = msgspec.json.encode({"task": task})
            client.say(request(Command.MMI, task, service=MMI_BROKER, target="all", body=body))
            return client.until(lambda packet: packet.command is Command.MMI).status

    with nfp_process(rundir) as live:
        pid = live.pid
        assert asks("restart", "somebody") == 400
        assert asks("restart", "owner", live.owner()) == 200
        live.wait_ready()
        assert live.pid == pid
        assert live.process.poll() is None
        assert asks("shutdown", "owner", live.owner()) == 200
        assert live.process.wait(20) == 0


def test_a_second_signal_leaves_at_once(rundir):
    with nfp_process(rundir) as live:
        for _ in range(2):
            os.kill(live.pid, signal.SIGTERM)
        assert live.process.wait(10) in (0, 1)


def test_an_unlisted_key_is_refused_where_keys_are_listed(rundir):
    with (
        nfp_broker(rundir, unlisted="deny") as live,
        live.dealer("c1") as stranger,
        live.dealer("o1", key=live.owner()) as owner,
    ):
        stranger.say(request(GET, "u1"))
        owner.say(request(Command.MMI, "m", service=MMI_BROKER, body=b'{"task":"show_broker"}'))
        assert owner.hear().status == 200
        live.eventually(lambda: counters(live.broker)["refused_keys"] >= 1)
        assert stranger.silent()


def test_plaintext_from_elsewhere_is_refused_before_it_listens(rundir):
    with (
        pytest.raises(ConfigError, match="plaintext off loopback"),
        nfp_broker(rundir, curve=False, endpoint="tcp://0.0.0.0:*"),
    ):
        pass


@pytest.mark.patient
def test_a_twin_waits_until_the_first_is_gone(rundir):
    """Two processes with one name and key: the second is not heard, and gets the name when the first leaves."""
    with nfp_broker(rundir) as live, live.dealer("c1") as client:
        with live.dealer("w1") as first:
            first.say(ready())
            registered(live, "w1")
            second = live.dealer("w1")
            second.say(ready())
            works(first, client, "u1")
            assert second.silent()
        with second:
            deadline = time.monotonic() + 8
            while not second.sock.poll(100):
                second.sock.send_multipart([b"", b"NFPW01", b"0x02", b"svc"], zmq.NOBLOCK)
                assert time.monotonic() < deadline
            assert second.hear().command is DISCONNECT
