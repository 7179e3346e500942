"""The whole broker in this process: room for what is owed, names, a disk that hangs."""

import threading

import msgspec
import pytest

from broker.errors import ConfigError
from broker.nfp.frames import Packet
from broker.nfp.management.mmi import counters
from broker.nfp.names import EVENTS, MMI_BROKER, Command, Sender
from broker.nfp.server import names
from broker.nfp.store import thread as store_thread
from tests.live.nfp import (
    LiveBroker,
    clients_of,
    keepalive,
    nfp_broker,
    ready,
    reply,
    request,
    section,
    workers_of,
)

POST, GET, RESPONSE = Command.POST, Command.GET, Command.RESPONSE
MIB = 1 << 20
BIG = b'{"w1":{"result":"%s"}}' % (b"x" * MIB)


def opened(features: str = "push") -> Packet:
    return Packet(Sender.CLIENT, Command.OPEN, body=msgspec.json.encode({"features": [features]}))


def registered(live, *names: str) -> None:
    live.eventually(lambda: {view.name for view in workers_of(live.broker)} >= set(names))


def results(client, many: int) -> list[str]:
    """The uuids of so many results as they come."""
    final = [
        client.until(lambda packet: packet.command is RESPONSE and packet.status == 200) for _ in range(many)
    ]
    assert all(len(packet.data) > MIB for packet in final)
    return [packet.uuid for packet in final]


def test_who_comes_back_gets_all_it_is_owed_though_it_is_more_than_its_queue_holds(rundir):
    uuids = [f"u{number}" for number in range(6)]
    with nfp_broker(rundir, files="", peer_queue_bytes=2 * MIB + 2**19) as live, live.dealer("w1") as worker:
        worker.say(ready())
        registered(live, "w1")
        with live.dealer("c1") as client:
            client.say(opened())
            for uuid in uuids:
                client.say(request(POST, uuid))
            live.eventually(lambda: live.broker.dispatcher.find("u5", 0.0))
        live.eventually(lambda: not any(view.present for view in clients_of(live.broker)))
        for _ in uuids:
            worker.say(reply(worker.until(lambda packet: packet.command is POST), 200, BIG))
        live.eventually(lambda: len(live.broker.dispatcher.results("u5")) == 1)
        with live.dealer("c1") as client:
            client.say(opened())
            assert sorted(set(results(client, 6))) == uuids


def test_a_get_for_more_than_the_queue_holds_is_answered(rundir):
    names = ("w1", "w2", "w3", "w4")
    with nfp_broker(rundir, files="", peer_queue_bytes=2 * MIB + 2**19) as live, live.dealer("c1") as client:
        workers = [live.dealer(name) for name in names]
        for worker in workers:
            worker.say(ready())
        registered(live, *names)
        client.say(request(POST, "u1", target="all"))
        for worker in workers:
            worker.say(reply(worker.until(lambda packet: packet.command is POST), 200, BIG))
        live.eventually(lambda: len(live.broker.dispatcher.results("u1")) == 4)
        assert results(client, 4) == ["u1"] * 4  # pushed: a deployed worker would have announced them
        client.say(request(GET, "u1", target="all"))
        assert results(client, 4) == ["u1"] * 4
        for worker in workers:
            worker.close()


def test_names_of_workers_are_written_down_and_those_of_clients_are_not(rundir):
    with nfp_broker(rundir, files="") as live:
        with live.dealer("w1") as worker, live.dealer("c1") as client, live.dealer("w1-NFPClient") as own:
            worker.say(ready())
            client.say(request(GET, "none"))
            own.say(request(GET, "none"))
            live.eventually(lambda: (len(live.broker.name_owners), live.broker.name_owners.passing) == (2, 1))
            assert counters(live.broker)["pins_in_memory"] == 1
        live.eventually(lambda: live.broker.name_owners.passing == 0)
        assert live.call(lambda: live.broker.name_owners.key_of("w1")) == live.certificate("w1").public_key
    with nfp_broker(rundir, files="") as live:
        assert live.call(lambda: [live.broker.name_owners.key_of(name) for name in ("w1", "c1")])[0]
        assert live.call(lambda: live.broker.name_owners.key_of("c1")) == ""


def test_a_name_too_many_is_refused_and_nothing_of_it_is_acted_upon(rundir, monkeypatch):
    monkeypatch.setattr(names, "NAMES_PER_KEY_MAX", 2)
    with nfp_broker(rundir, files="") as live:
        key = live.certificate("shared")
        with live.dealer("w1", key=key) as one, live.dealer("w2", key=key) as two:
            one.say(ready())
            two.say(ready())
            registered(live, "w1", "w2")
            with live.dealer("w3", key=key, RECONNECT_IVL=-1) as three:
                three.say(ready())
                live.eventually(lambda: counters(live.broker)["names_refused"])
                assert {view.name for view in live.call(lambda: workers_of(live.broker))} == {"w1", "w2"}


def test_what_the_rules_refused_is_counted_where_owners_see_it(rundir):
    with nfp_broker(rundir, files="") as live, live.dealer("c1") as client:
        client.say(request(Command.MMI, "u1", service=MMI_BROKER, body=b'{"task":"shutdown"}'))
        assert client.hear().status == 400
        assert counters(live.broker)["denied"] == 1


def test_a_disk_that_hangs_refuses_new_jobs_and_nobody_seems_dead(rundir, monkeypatch):
    monkeypatch.setattr(store_thread, "HANGS_S", 0.2)
    free = threading.Event()
    once = ({"idempotent": False},)  # their POST waits until the broker has stored that it was sent
    with (
        nfp_broker(rundir, files="", keepalive_ms=100, multiplier=50, tasks=once) as live,
        live.dealer("w1") as worker,
        live.dealer("c1") as client,
    ):
        worker.say(ready())
        registered(live, "w1")
        store = live.broker.store
        real = store._apply_group

        def hangs(connection, operations):
            assert free.wait(10)
            real(connection, operations)

        store._apply_group = hangs
        try:
            client.say(request(POST, "u1"))
            assert (
                worker.recv()[2] == b"0x02"
            )  # KEEPALIVE overtakes the POST, long before the disk counts as hanging
            live.eventually(lambda: live.broker.store.broken)
            assert "has not answered" in live.broker.store.broken
            client.say(request(POST, "u2"))
            refused = client.until(lambda packet: packet.uuid == "u2")
            assert (refused.status, b"has not answered" in refused.data) == (500, True)
            worker.say(keepalive())
        finally:
            free.set()
        assert worker.until(lambda packet: packet.command is POST).uuid == "u1"
        live.eventually(lambda: live.broker.store.broken == "")


def test_subscriptions_end_with_their_connection(rundir):
    with nfp_broker(rundir, files="") as live:
        with live.dealer("c1") as client:
            client.say(opened())
            client.say(request(Command.MMI, "s1", service=EVENTS, body=b'{"task":"subscribe"}'))
            live.eventually(live.broker.event_bus.subscriptions)
        live.eventually(lambda: not live.broker.event_bus.subscriptions())


@pytest.mark.parametrize("alike", ["endpoint", "base_dir", "both"])
def test_a_second_broker_on_one_machine_is_told_what_separates_them(alike, rundir):
    with nfp_broker(rundir, files="") as first:
        settings = {
            "base_dir": str(rundir / "other") if alike == "endpoint" else str(first.base_dir),
            "endpoint": "tcp://127.0.0.1:*" if alike == "base_dir" else first.endpoint,
        }
        with pytest.raises(ConfigError, match=r"needs an nfp\.endpoint and an nfp\.base_dir of its own"):
            LiveBroker(section(rundir, files="", **settings))
        LiveBroker(section(rundir, files="", base_dir=str(rundir / "other"))).stop()
