"""The figures of a broker that ``broker.stats-get`` and the metrics show."""

import errno
import time

from broker.errors import LinkEnded
from broker.exposition import render
from broker.node.metrics import Figures, event_samples
from broker.wire.message import event
from tests.unit.node.desk import Desk, Door, ask, run, until


def test_requests_answers_and_refusals():
    async def script():
        desk = Desk()
        peer = desk.peer()
        peer.say(ask("probe.x", 1), ask("nobody.x", 2))
        assert sorted(peer.errnums) == [0, errno.ENOSYS]
        seen = Figures(desk.broker.router).traffic()
        assert seen["rx"] == {"request": 2, "response": 1, "event": 0, "control": 0}
        assert seen["tx"] == {"request": 1, "response": 2, "event": 0, "control": 0}
        assert (seen["drops"], seen["pending"], seen["links"]) == ({}, 0, 1)

    run(script())


def test_what_was_queued_for_a_link_that_ended_is_counted():
    async def script():
        desk = Desk()
        deaf, speaker = desk.peer(), desk.peer()
        deaf.subscribe()
        deaf.link.full = True
        speaker.say(event("a"), event("b"), event("c"))
        assert Figures(desk.broker.router).traffic()["outbox_bytes"] > 0
        deaf.link.finish(LinkEnded("gone"))
        await until(lambda: not deaf.port.live)
        seen = Figures(desk.broker.router).traffic()
        assert seen["drops"] == {"queued for a link that ended": 3}
        assert seen["outbox_bytes"] == 0

    run(script())


def test_clients_are_counted_when_they_come(rundir):
    async def script():
        desk = Desk()
        async with Door(desk, rundir / "s") as door:
            (await door.dial()).link.close()
            await door.dial()
            figures = Figures(desk.broker.router)
            await until(lambda: figures.traffic()["links"] == 1 and figures.traffic()["connects"] == 2)

    run(script())


def test_how_calls_fare():
    async def script():
        desk = Desk()
        peer = desk.peer()
        peer.say(ask("probe.x", 1), ask("nobody.x", 2))
        seen = Figures(desk.broker.router).calls(errors=True)
        probe, nobody = seen["methods"]["probe.x"], seen["methods"]["nobody.x"]
        assert (probe["calls"], probe["open"], probe["errors"], sum(probe["buckets"])) == (1, 0, {}, 1)
        assert (nobody["errors"], nobody["last_error"]["errnum"]) == ({"38": 1}, errno.ENOSYS)
        assert abs(nobody["last_error"]["time"] - time.time()) < 5
        assert "last_error" not in Figures(desk.broker.router).calls(errors=False)["methods"]["nobody.x"]
        assert seen["services"]["probe"] == {"provider": "broker", "builtin": True}

    run(script())


def test_events_stand_beside_the_calls():
    async def script():
        desk = Desk()
        peer = desk.peer()
        peer.say(event("news"), event("news"))
        seen = Figures(desk.broker.router).calls(errors=True)["others"]["event"]["news"]
        assert (seen["calls"], seen["errors"], seen["buckets"], seen["last_error"]) == (2, {}, [], None)
        assert Figures(desk.broker.router).calls(errors=False)["others"] == {}, (
            "topics of private events are nobody else's business"
        )
        page = render(event_samples(desk.broker.router.events.stats))
        assert 'headgate_published_events_total{topic="news"} 2\n' in page

    run(script())
