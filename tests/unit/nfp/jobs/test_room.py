"""Clients without room: what they are owed comes in portions, and nothing that was queued for a lost one is lost."""

from broker.nfp.names import Command
from tests.tables import for_each
from tests.unit.nfp.jobs.bench import Bench, FakePeer, story, the

POST, GET, RESPONSE = Command.POST, Command.GET, Command.RESPONSE
PUSH = frozenset({"push"})


def finished(bench: Bench, client: FakePeer, many: int) -> list[str]:
    """So many jobs of ``client``, all done."""
    worker, uuids = bench.register("w1", ours=True), []
    for _ in range(many):
        uuids.append(bench.post(client))
        bench.finish(worker, next(packet for packet in worker.take() if packet.command is POST))
    return uuids


def results(client: FakePeer) -> list[str]:
    return [packet.uuid for packet in client.take() if packet.command is RESPONSE and packet.status == 200]


def test_what_is_owed_is_sent_as_far_as_there_is_room():
    bench = Bench()
    away = FakePeer("c1", features=PUSH)
    away.room = 0
    uuids = finished(bench, away, 5)
    bench.lose(away)
    back = FakePeer("c1", features=PUSH)
    back.spare = 4  # a 202 and a result each
    bench.dispatcher.client_seen(back, bench.now)
    assert results(back) == uuids[:2]
    bench.dispatcher.has_room(back, bench.now)
    assert results(back) == uuids[2:4]
    bench.dispatcher.has_room(back, bench.now)
    bench.dispatcher.has_room(back, bench.now)
    assert results(back) == uuids[4:]


def test_room_at_a_connection_that_is_no_longer_the_clients_changes_nothing():
    bench = Bench()
    first = FakePeer("c1", features=PUSH)
    first.room = 1
    (uuid,) = finished(bench, first, 1)
    second = FakePeer("c1", features=PUSH)
    second.spare = 0
    bench.dispatcher.client_seen(second, bench.now)
    first.room = None
    bench.dispatcher.has_room(first, bench.now)
    assert results(first) == []
    second.spare = None
    bench.dispatcher.has_room(second, bench.now)
    assert results(second) == [uuid]


@for_each("features", [frozenset(), PUSH])
def test_results_that_were_queued_for_a_lost_connection_are_owed_again(features):
    bench = Bench()
    client = FakePeer("c1", features=features)
    one, two = finished(bench, client, 2)
    client.take()
    client.unsent = frozenset({two, "of something else"})
    bench.lose(client)
    back = FakePeer("c1", features=features)
    bench.dispatcher.client_seen(back, bench.now)
    assert results(back) == [two]
    assert one != two


def test_answers_to_get_that_find_no_room_come_later():
    bench = Bench()
    client = bench.client()
    workers = [bench.register(name, ours=True) for name in ("w1", "w2", "w3")]
    uuid = bench.post(client, target="all")
    for worker in workers:
        bench.finish(worker, the(worker.take(), POST))
    client.take()
    client.room = 1
    assert story(bench.get(client, uuid, target="all")) == ["200"]
    client.room = None
    bench.dispatcher.has_room(client, bench.now)
    assert story(client.take()).count("200") >= 2
