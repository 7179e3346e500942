"""Workers that hold jobs of a broker that is gone, at one that knows nothing of them."""

from broker.nfp.access import Access
from broker.nfp.frames import Packet
from broker.nfp.jobs import DispatchConfig
from broker.nfp.jobs.workers import OFFERED_MAX
from broker.nfp.names import Command, Sender
from broker.nfp.opening import HeldJob, WorkerOpen
from broker.settings.nfp import KeyEntry, TaskEntry
from tests.tables import for_each
from tests.unit.nfp.jobs.bench import OURS, Bench, FakePeer, result_body, story, the

POST, RESPONSE, EVENT = Command.POST, Command.RESPONSE, Command.EVENT


def busy(bench: Bench) -> dict[str, int]:
    return {view.name: view.busy for view in bench.dispatcher.workers(bench.now)}


def says(command: Command, uuid: str, attempt: int = 3, status: int = 200) -> Packet:
    """A worker speaks of a job that its former broker gave it as attempt 3."""
    token = b"c1#%d" % attempt
    return Packet(Sender.WORKER, command, client=token, uuid=uuid, status=status, body=result_body("w1"))


@for_each("target", ["any", "w1", "all"])
@for_each("first", ["worker", "client"])
def test_a_job_that_runs_at_a_worker_goes_there_whatever_else_waits(target, first):
    """The task must not run twice; other jobs are in front of it."""
    bench = Bench(access=Access(tasks=[TaskEntry(service="net", task="ping", idempotent=False)]))
    a, b = bench.client("a"), bench.client("b")
    held = {"U": (3, "running")}
    if first == "worker":
        holder, other = bench.register("w1", ours=True, jobs=held), bench.register("w2", ours=True)
        bench.post(b, "V")
        bench.post(b, "W")
        assert [the(worker.take(), POST).uuid for worker in (holder, other)] == ["V", "W"]
        bench.post(a, "U", target="any")
    else:
        bench.post(b, "V")
        bench.post(a, "U", target=target)
        holder = bench.register("w1", ours=True, jobs=held)
        other = bench.register("w2", ours=True)
        assert the([p for p in other.take() if p.uuid != "U"], POST).uuid == "V"
    post = the(holder.take(), POST)
    assert (post.uuid, post.client) == ("U", b"a#1")
    assert other.take() == []
    assert busy(bench) == {"w1": 1, "w2": 1}
    bench.finish(holder, post)
    assert bench.job("U").parts[0].worker == "w1"


def test_each_worker_of_a_job_for_several_keeps_its_part():
    bench = Bench()
    workers = {name: bench.register(name, ours=True, jobs={"U": (1, "running")}) for name in ("w1", "w2")}
    bench.post(bench.client(), "U", target="all")
    assert {name: the(worker.take(), POST).uuid for name, worker in workers.items()} == {"w1": "U", "w2": "U"}
    assert busy(bench) == {"w1": 1, "w2": 1}


def test_what_it_says_of_a_job_that_nobody_has_submitted_here_is_no_lie():
    bench = Bench()
    worker = bench.register("w1", ours=True, jobs={"U": (3, "running")})
    bench.register("w2", ours=True)
    for command in (EVENT, RESPONSE):
        bench.say(worker, says(command, "U"))
    assert bench.offences == []
    bench.post(bench.client(), "U")  # its result is there
    assert the(worker.take(), POST).uuid == "U"


def test_what_is_run_by_another_meanwhile_is_no_lie():
    """The client was back sooner than the worker that has the job."""
    bench = Bench()
    other, client = bench.register("w2", ours=True), bench.client()
    bench.post(client, "U")
    post = the(other.take(), POST)
    client.take()
    worker = bench.register("w1", ours=True, jobs={"U": (3, "running")})
    for command in (EVENT, Command.STREAM, RESPONSE):
        bench.say(worker, says(command, "U"))
    assert (bench.counts.unroutable, bench.counts.forged, bench.offences) == (3, 0, [])
    assert client.take() == []
    bench.finish(other, post)
    assert bench.job("U").parts[0].worker == "w2"


def test_a_worker_of_another_service_is_not_given_the_job():
    bench = Bench()
    liar, worker = bench.register("d1", "db", ours=True, jobs={"U": (1, "running")}), bench.register("w1")
    bench.post(bench.client(), "U")
    assert liar.take() == []
    assert the(worker.take(), POST).uuid == "U"


@for_each("how", ["anew", "goodbye", "silent"])
def test_what_it_says_counts_until_it_says_it_anew_or_is_gone(how):
    bench = Bench()
    worker = bench.register("w1", ours=True, limit=3, jobs={"U": (1, "running"), "V": (1, "running")})
    if how == "anew":
        worker = bench.register("w1", ours=True, limit=3, jobs={"V": (1, "running")})
    elif how == "goodbye":
        bench.say(worker, Packet(Sender.WORKER, Command.DISCONNECT, service="net"))
    else:
        bench.pass_time(16)
    other, client = bench.register("w2", ours=True, limit=9), bench.client()
    for uuid in ("first", "U", "V"):  # whose turn it is takes the first
        bench.post(client, uuid)
    taken = {packet.uuid for packet in other.take() if packet.command is POST}
    assert taken == ({"U"} if how == "anew" else {"first", "U", "V"})


def test_a_worker_without_room_is_given_the_job_when_it_has_some():
    bench = Bench()
    peer = FakePeer("w1")
    worker = bench.register("w1", ours=True, jobs={"U": (1, "running")}, peer=peer)
    peer.room = 0
    client = bench.client()
    bench.post(client, "U")
    assert story(client.take()) == ["202[]"]
    peer.room = None
    bench.say(worker, Packet(Sender.WORKER, Command.KEEPALIVE, service="net"))
    assert the(worker.take(), POST).uuid == "U"
    assert busy(bench) == {"w1": 1}


# -- OPEN without READY ---------------------------------------------------------------------------


def offered(many: int) -> WorkerOpen:
    jobs = {f"u{number}": HeldJob(1, "running") for number in range(many)}
    return WorkerOpen(features=OURS, credits=7, jobs=jobs)


def ready(bench: Bench, peer: FakePeer) -> int:
    bench.say(peer, Packet(Sender.WORKER, Command.READY, service="net"))
    return next(view.credits for view in bench.dispatcher.workers(bench.now) if view.name == peer.name)


def test_what_open_said_is_kept_for_one_hold_time():
    bench = Bench()
    soon, late = FakePeer("w1"), FakePeer("w2")
    for peer in (soon, late):
        bench.dispatcher.worker_opened(peer, offered(1), bench.now)
    bench.pass_time(14)
    assert ready(bench, soon) == 7
    bench.pass_time(2)
    assert ready(bench, late) == bench.config.credits
    assert len(bench.dispatcher._workers._offers) == 0


def test_opens_without_ready_fill_no_memory():
    bench = Bench()
    many = offered(OFFERED_MAX // 10 * 3)
    peers = [FakePeer(f"w{number}") for number in range(5)]
    for peer in peers:
        bench.dispatcher.worker_opened(peer, many, bench.now)
    assert len(bench.dispatcher._workers._offers) == 3
    # said anew: what it said before counts no more
    bench.dispatcher.worker_opened(peers[4], offered(1), bench.now)
    bench.dispatcher.worker_opened(peers[0], many, bench.now)
    assert len(bench.dispatcher._workers._offers) == 4
    assert ready(bench, peers[4]) == 7


def test_an_open_of_who_may_not_be_a_worker_is_not_kept():
    bench = Bench(access=Access(keys=[KeyEntry(key="K")]), config=DispatchConfig())
    bench.dispatcher.worker_opened(FakePeer("w1", key="K"), offered(1), bench.now)
    assert len(bench.dispatcher._workers._offers) == 0
