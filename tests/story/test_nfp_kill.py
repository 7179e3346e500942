"""The broker is killed at every point of a job and started again: no job is lost, none has two recorded results.

Raw peers play what deployed NorFab's do: libzmq connects them again by itself, a worker opens a new socket when it is
sent DISCONNECT, and a client asks again for what it does not know the end of.
"""

import threading
import time

import msgspec
import pytest

from broker.nfp.frames import decode
from broker.nfp.names import JOBS, Command, Dialect
from tests.live.nfp import PATIENCE_S, NfpProcess, nfp_process, ready, reply, request

pytestmark = pytest.mark.story
POST, GET, EVENT, DISCONNECT = Command.POST, Command.GET, Command.EVENT, Command.DISCONNECT
READY_EVENT = b'{"event_type":"result_ready"}'


class Worker:
    """A deployed worker in a thread: registers, opens a new socket on DISCONNECT, keeps results, answers GET.

    ``stop_after``: what it did last before it does nothing more until ``go`` is set: post, accepted, event, result.
    """

    def __init__(self, live: NfpProcess, name: str, stop_after: str = "") -> None:
        self.live, self.name, self.stop_after = live, name, stop_after
        self.runs: list[str] = []
        self.results: dict[str, bytes] = {}
        self.registrations = 0
        self.reached, self.go, self.over = threading.Event(), threading.Event(), threading.Event()
        self.thread = threading.Thread(target=self._work)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_error):
        self.over.set()
        self.go.set()
        self.thread.join()

    def _work(self) -> None:
        while not self.over.is_set():
            with self.live.dealer(self.name) as peer:
                self.registrations += 1
                peer.say(ready())
                while not self.over.is_set():
                    if not peer.sock.poll(20):
                        continue
                    packet = decode(peer.recv())
                    if packet.command is DISCONNECT:
                        break
                    if packet.command is POST:
                        self._run(peer, packet)
                    elif packet.command is GET:
                        self._get(peer, packet)

    def _reaches(self, point: str) -> None:
        if point == self.stop_after and not self.reached.is_set():
            self.reached.set()
            self.go.wait(PATIENCE_S)

    def _run(self, peer, packet) -> None:
        self._reaches("post")
        if packet.uuid in self.results:
            return  # a deployed worker has it already and says nothing
        self.runs.append(packet.uuid)
        peer.say(reply(packet, 201))
        self._reaches("accepted")
        self.results[packet.uuid] = msgspec.json.encode({self.name: {"result": f"{packet.uuid} done"}})
        peer.say(reply(packet, 200, READY_EVENT, command=EVENT))
        self._reaches("event")

    def _get(self, peer, packet) -> None:
        result = self.results.get(packet.uuid)
        peer.say(reply(packet, 404 if result is None else 200, b"{}" if result is None else result))
        self._reaches("result")


def again(live: NfpProcess) -> None:
    live.kill()
    live.start()


def final(client, uuid: str, target: str = "any") -> bytes:
    """Ask for the result as a deployed client does, until it is there; nothing final but it may come before."""
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        client.say(request(GET, uuid, target=target))
        while client.sock.poll(200):
            packet = client.hear()
            if packet.uuid == uuid and packet.command is Command.RESPONSE and packet.status >= 400:
                raise AssertionError(f"{packet.status} for {uuid}: {packet.data[:200]!r}")
            if packet.uuid == uuid and packet.command is Command.RESPONSE and packet.status == 200:
                return packet.data
    raise AssertionError(f"no result of {uuid} within {PATIENCE_S} s")


def recorded(live: NfpProcess, uuid: str) -> list[dict]:
    """The results in the broker, by its own service."""
    with live.dealer("looker", key=live.owner()) as owner:
        body = msgspec.json.encode({"task": "show", "kwargs": {"uuid": uuid}})
        owner.say(request(Command.MMI, f"show-{uuid}", service=JOBS, target="all", body=body))
        answer = owner.until(lambda packet: packet.command is Command.RESPONSE)
        assert answer.status == 200, answer.data
        return [part for part in msgspec.json.decode(answer.body)["parts"] if part["ended"]]


@pytest.mark.parametrize(
    "point",
    [*(pytest.param(each, marks=pytest.mark.patient) for each in ("post", "accepted", "event")), "result"],
)
def test_killed_while_a_worker_has_the_job(rundir, point):
    with nfp_process(rundir) as live, Worker(live, "w1", point) as worker, live.dealer("c1") as client:
        client.say(request(POST, "u1"))
        assert client.hear().status in (202, 300)
        assert worker.reached.wait(PATIENCE_S)
        live.kill()
        worker.go.set()
        live.start()
        assert final(client, "u1") == b'{"w1":{"result":"u1 done"}}'
        assert len(recorded(live, "u1")) == 1
        assert worker.runs == ["u1"]


@pytest.mark.patient
def test_killed_before_a_worker_was_there(rundir):
    with nfp_process(rundir) as live, live.dealer("c1") as client:
        for uuid, target in (("u1", "any"), ("u2", "w1")):
            client.say(request(POST, uuid, target=target))
            assert client.hear().status == 300
        again(live)
        with Worker(live, "w1"):
            assert b"u1 done" in final(client, "u1")
            assert b"u2 done" in final(client, "u2", "w1")


@pytest.mark.patient
def test_killed_after_the_result_was_told(rundir):
    with nfp_process(rundir) as live, live.dealer("c1") as client:
        with Worker(live, "w1"):
            client.say(request(POST, "u1"))
            told = final(client, "u1")
        again(live)
        assert final(client, "u1") == told
        assert len(recorded(live, "u1")) == 1


@pytest.mark.patient
def test_the_worker_dies_while_the_broker_is_away(rundir):
    """Its job goes to another one, and the first result is the recorded one even when it comes back."""
    with (
        nfp_process(rundir, keepalive_ms=100, multiplier=4, grace_s=0.2) as live,
        live.dealer("c1") as client,
    ):
        with Worker(live, "w1", "accepted") as first:
            client.say(request(POST, "u1"))
            assert client.hear().status in (202, 300)  # from here on it must not be lost
            assert first.reached.wait(PATIENCE_S)
            live.kill()
            first.over.set()
        live.start()
        with Worker(live, "w2") as second:
            assert final(client, "u1") == b'{"w2":{"result":"u1 done"}}'
            assert second.runs == ["u1"]
            (result,) = recorded(live, "u1")
            assert result["worker"] == "w2"


@pytest.mark.patient
def test_workers_of_before_register_again_within_a_moment(rundir):
    """Deployed workers wait for their own hold time unless the broker says something; it does."""
    with nfp_process(rundir) as live, Worker(live, "w1") as worker, live.dealer("c1") as client:
        client.say(request(POST, "u0"))
        final(client, "u0")
        live.kill()
        begin = time.monotonic()
        live.start()
        while worker.registrations < 2:
            assert time.monotonic() < begin + PATIENCE_S
            time.sleep(0.01)
        client.say(request(POST, "u1"))
        assert b"u1 done" in final(client, "u1")


@pytest.mark.patient
def test_killed_again_and_again_under_load(rundir):
    """Jobs of the text's dialect are posted until they are acknowledged, with a kill every now and then."""
    uuids = [f"u{number}" for number in range(60)]
    with nfp_process(rundir) as live, Worker(live, "w1") as one, Worker(live, "w2") as other:
        for number, uuid in enumerate(uuids):
            posted(live, uuid)
            if number % 20 == 10:
                again(live)
        with live.dealer("c1", key=live.certificate("anonymous")) as client:
            for uuid in uuids:
                assert f"{uuid} done".encode() in final(client, uuid)
        for uuid in uuids:
            assert len(recorded(live, uuid)) == 1
        assert set(one.runs) | set(other.runs) == set(uuids)


def posted(live: NfpProcess, uuid: str) -> None:
    """A strict REQ client: closes and sends again until it has its one answer."""
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        with live.req() as client:
            client.say(request(POST, uuid, dialect=Dialect.SEED))
            if client.sock.poll(1000):
                assert client.hear().status in (202, 300)
                return
    raise AssertionError(f"{uuid} was not acknowledged within {PATIENCE_S} s")


@pytest.mark.patient
def test_a_client_that_sends_its_post_again_has_it_run_once(rundir):
    with nfp_process(rundir) as live, live.dealer("c1") as client:
        client.say(request(POST, "u1"))
        assert client.hear().status == 300
        again(live)
        client.say(request(POST, "u1"))
        assert client.hear().status == 300
        with Worker(live, "w1") as worker:
            assert b"u1 done" in final(client, "u1")
            assert worker.runs == ["u1"]
